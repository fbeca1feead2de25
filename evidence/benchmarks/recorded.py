"""A recorded step of many collectives on many ranks, as a scenario."""

import json
import tempfile
from pathlib import Path
from typing import Any

from simnet.engine import scenario
from simnet.engine.scenario import Scenario

GATHERED_BYTES = 25e6


def sharded_step(num_layers: int, num_nodes: int) -> Scenario:
    """Return a step with sharded parameters: two gathers and a reduce-scatter a layer, on streams of their own."""
    data = {
        "format": "simnet-step",
        "version": 1,
        "source": {"how": "record"},
        "recordings": [
            {
                "num_nodes": num_nodes,
                "ranks_per_node": 8,
                "groups": [{"size": 8 * num_nodes, "stride": 1}],
                "streams": [{"operations": operations} for operations in streams(num_layers)],
            }
        ],
    }
    path = Path(tempfile.mkdtemp()) / "step.json"
    path.write_text(json.dumps(data))
    changed = {"strategy": {"kind": "recorded", "file": str(path)}, "baseline": None, "cluster.num_nodes": num_nodes}
    return scenario.load("reference_ddp_step", changed)


def streams(num_layers: int) -> list[list[dict[str, Any]]]:
    """Return compute, gathers and scatters; every layer's messages differ by a byte, so that none is known before."""
    passes = [("forward", layer) for layer in range(num_layers)] + [("backward", layer) for layer in range(num_layers)]
    compute = [{"kind": "compute", "part": part, "bytes": 1e9, "after": [[1, n]]} for n, (part, _) in enumerate(passes)]
    gathers = [{"kind": "all_gather", "message_bytes": GATHERED_BYTES + layer} for _, layer in passes]
    scatters = [
        {"kind": "reduce_scatter", "message_bytes": GATHERED_BYTES + layer, "after": [[0, num_layers + layer]]}
        for layer in range(num_layers)
    ]
    update = {"kind": "compute", "part": "optimizer", "bytes": 1e9, "after": [[2, num_layers - 1]]}
    return [[*compute, update], gathers, scatters]
