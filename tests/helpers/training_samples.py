"""Measured training steps, as files."""

import json
from pathlib import Path
from typing import Any

SETUP: dict[str, Any] = {
    "backend": "gloo",
    "device": "cpu",
    "num_nodes": 4,
    "ranks_per_node": 1,
    "threads_per_rank": 1,
    "ranks_on_machine": 4,
    "nic_bytes_per_s": 25e6,
    "network": "",
}
HEAD: dict[str, Any] = {
    "what": "simnet measurements",
    "format": 1,
    "created": "2026-11-21T13:20:00+00:00",
    "command": "simnet measure",
    "hardware": {"machine": "x", "processor": "p", "cores": 2, "memory_bytes": 1, "gpu": "", "num_gpus": 0},
    "software": {"system": "s", "python": "3", "torch": "2", "numba": "", "nccl": "", "binsgdm": "0"},
}
DENSE: dict[str, Any] = {
    "strategy": "all_reduce",
    "topology": "",
    "intra_node_dtype": "",
    "average": "",
    "rounding": "",
    "overlap": 1,
}


def series(kind: str, name: str, seconds: float, **labels: Any) -> dict[str, Any]:
    spread = [0.9 * seconds, seconds, 2 * seconds]
    return {"kind": kind, "name": name, "setup": 0, "unit": "s", "labels": labels, "values": spread}


def write(path: Path, rows: list[dict[str, Any]], **setup: Any) -> Path:
    path.write_text(json.dumps({**HEAD, "setups": [SETUP | setup], "series": rows}))
    return path


def step(seconds: float, strategy: dict[str, Any], model: str = "m") -> dict[str, Any]:
    return series("training", "step", seconds, model=model, batch=8, bucket_cap_mb=25.0, **strategy)
