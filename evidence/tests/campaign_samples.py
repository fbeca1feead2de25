"""A measured campaign that no machine has made: a machine of two speeds, whose work follows them by the square root."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence.lab import campaign
from evidence.lab.campaign import Launch
from tests.helpers.training_samples import DENSE, HEAD, SETUP

TEXT = """
models = ["m"]
strategies = [{kind = "all_reduce"}, {kind = "binsgdm", topology = "flat", overlap = false, rounding = "random"}]
by_layout = true
speed = true
own_work_seconds = 1.0
batch = 8
[[points]]
layouts = ["4x1"]
bandwidths = ["200 Mbit/s"]
[links]
layouts = ["2x1"]
bandwidths = ["100 Mbit/s"]
"""
FLAT = (
    DENSE
    | {"strategy": "binsgdm", "topology": "flat", "intra_node_dtype": "fp32", "overlap": 0}
    | {"average": "updates", "rounding": "random"}
)
OWN_S: Mapping[str, float] = {"all_reduce": 0.1, "binsgdm": 0.3, "qsgd": 0.4}
"""Own work of a step at a slowness of 1 ms."""
ELEMENTS, EFFICIENCY, STEP_S = 1_000_000, 0.95, 9.0
NAMES = ("step", "forward", "backward", "optimizer")
PROBES_MS: Mapping[str, float] = {"1": 1.0, "2": 2.0, "training": 4.0}
"""What the probes take in the first and second launches in place, and in the one that trains."""


def write(
    folder: Path,
    probes_ms: Mapping[str, float] = PROBES_MS,
    step_s: float = STEP_S,
    message_s: float = 1e-9,
    kernels_s: Mapping[str, float] = {},
) -> Path:
    """Write the campaign and its measurements; return the folder.

    Args:
        folder: where to.
        probes_ms: what the probes take in each launch.
        step_s: every trained step.
        message_s: CPU time of a collective in place, at a slowness of 1 ms; so short that the wire decides.
        kernels_s: time of an element in the kernels of QSGD, by topology; QSGD is trained in these.
    """
    forms = "".join(f', {{kind = "qsgd", topology = "{form}"}}' for form in kernels_s)
    (folder / "campaign.toml").write_text(TEXT.replace("}]\n", "}" + forms + "]\n"))
    for launch in campaign.launches(campaign.load(folder / "campaign.toml")):
        start = launch.part if launch.part == "training" else next((n for n in "12" if f"_{n}_" in launch.name), "1")
        layout, rate = launch.layout, launch.bandwidth
        ranks = layout.num_nodes * layout.ranks_per_node
        setup = SETUP | {"num_nodes": layout.num_nodes, "ranks_on_machine": ranks, "nic_bytes_per_s": rate}
        rows = [
            _series(*row, **labels)
            for row, labels in _rows(launch, probes_ms[start] ** 0.5, step_s, message_s, kernels_s)
        ]
        rows += [_series("speed", name, probes_ms[start] * 1e-3) for name in ("multiply", "stream")]
        launch.path(folder).write_text(json.dumps({**HEAD, "setups": [setup], "series": rows}))
    return folder


def _qsgd(topology: str) -> dict[str, Any]:
    scheme = dict.fromkeys(("topology", "intra_node_dtype", "average", "rounding"), "")
    return {"strategy": "qsgd", **scheme, "overlap": 1, "options": {"topology": topology, "bits": 4}}


def _series(kind: str, name: str, seconds: float, **labels: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "setup": 0, "unit": "s", "labels": labels, "values": [seconds] * 8}


def _rows(
    launch: Launch, slow: float, step_s: float, message_s: float, kernels_s: Mapping[str, float]
) -> list[tuple[tuple[str, str, float], dict[str, Any]]]:
    model = {"model": "m", "batch": 8}
    of_model = model | {"dtype": "float32"}
    ready = of_model | {"num_elements": ELEMENTS // 2}
    message = {"group": "world", "group_size": launch.layout.num_nodes, "dtype": "float32", "num_groups": 1}
    sizes = (2**20, 2**21, 2**22)
    of_step = [
        (name, how | model | {"bucket_cap_mb": 1.0}) for how in (DENSE, FLAT, *map(_qsgd, kernels_s)) for name in NAMES
    ]
    kernel = {"dtype": "float32", "kernels": "torch"}
    beside = model | {"collective": "all_reduce"}
    wire = EFFICIENCY * float(launch.bandwidth or 0)
    return {
        # A ring of two sends as many bytes as the message has.
        "links": [
            (("collective", "all_reduce", size / wire if wire else 1.0), message | {"message_bytes": size})
            for size in sizes
        ],
        "messages": [
            (("collective", "all_reduce", slow * message_s), message | {"message_bytes": size}) for size in sizes
        ],
        "kernels": [
            (("kernel", "copy", slow * size * 1e-9), {"num_elements": size, "dtype": "float32", "kernels": "cpu"})
            for size in sizes
        ]
        + [
            (
                ("kernel", f"qsgd_{part}", slow * size * each_s),
                kernel | {"num_elements": size, "options": {"bits": 4, "topology": form}},
            )
            for form, each_s in kernels_s.items()
            for part in ("encode", "merge", "decode")
            for size in sizes
        ],
        "beside": [
            (("interference", name, seconds * slow), beside)
            for name, seconds in (("backward_alone", 0.02), ("backward_beside", 0.03))
        ],
        "model": [
            (("model", "forward", 0.01 * slow), of_model),
            (("model", "backward", 0.02 * slow), of_model),
            (("model", "optimizer", 0.01 * slow), of_model | {"optimizer": "adamw"}),
            (("model", "gradient_ready", 0.01 * slow), ready | {"tensor": "b", "order": 0}),
            (("model", "gradient_ready", 0.02 * slow), ready | {"tensor": "a", "order": 1}),
        ],
        "own_work": [(("own_work", name, OWN_S[how["strategy"]] * slow), how) for name, how in of_step],
        "training": [(("training", name, step_s), how) for name, how in of_step],
    }[launch.part]
