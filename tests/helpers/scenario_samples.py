"""A small scenario in file form for the tests of scenarios, sweeps and commands."""

import copy
from pathlib import Path
from typing import Any

import tomli_w
from msgspec.structs import replace

from simnet.engine.scenario import Scenario, load
from simnet.strategies.base import strategy_from_text

POD: dict[str, Any] = {
    "question": "From which bandwidth on?",
    "cluster": {
        "num_nodes": 2,
        "ranks_per_node": 8,
        "intra_node": {"bandwidth": "300 GB/s", "latency": "1 us"},
        "inter_node": {"bandwidth": "25 Gbit/s", "latency": "5 us"},
    },
    "workload": {"num_elements": 110_000_000, "forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"},
    "calibration": {"memory_bandwidth": "100 GB/s"},
    "strategy": {"kind": "binsgdm"},
    "baseline": {"kind": "all_reduce"},
}
SWEEP: dict[str, Any] = {
    "cluster.inter_node.bandwidth": ["10 Gbit/s", "100 Gbit/s"],
    "cluster.num_nodes": [1, 2, 4],
}


def pod(**changes: object) -> dict[str, Any]:
    """Return a copy of the sample with keys changed; `cluster__num_nodes=4` goes into a table."""
    data = copy.deepcopy(POD)
    for key, value in changes.items():
        *tables, last = key.split("__")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return data


def write(path: Path, data: dict[str, Any]) -> Path:
    """Write data as TOML."""
    path.write_text(tomli_w.dumps(data))
    return path


def of_strategy(folder: Path, text: str, **changes: object) -> Scenario:
    """Return the sample with keys changed, a strategy given in words, and no baseline, read from a file."""
    read = load(str(write(folder / "pod.toml", pod(strategy="all_reduce", **changes))))
    return replace(read, strategy=strategy_from_text(text, "strategy"), baseline=None)
