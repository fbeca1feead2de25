"""Small recorded steps, as `simnet record` would write them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MB = 1e6


def compute(part: str, *, gbytes: float = 1.0, flops: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"kind": "compute", "part": part, "bytes": gbytes * 1e9, "flops": flops, **more}


def collective(kind: str, message_bytes: float, group: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "group": group, "message_bytes": message_bytes, "dtype": "fp32", **more}


def ddp(num_buckets: int = 3, message_bytes: float = 25 * MB) -> list[list[dict[str, Any]]]:
    """Forward, a backward in pieces, each followed by the all-reduce of its bucket, then the optimizer."""
    backward = [compute("backward") for _ in range(num_buckets)]
    sent = [collective("all_reduce", message_bytes, bucket=n, after=[[0, 1 + n]]) for n in range(num_buckets)]
    return [[compute("forward"), *backward, compute("optimizer", after=[[1, num_buckets - 1]])], sent]


def layout(
    streams: Sequence[Sequence[Mapping[str, Any]]],
    num_nodes: int = 2,
    ranks_per_node: int = 8,
    groups: Sequence[tuple[int, int]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a recording; groups as (size, stride), by default the world alone."""
    pairs = groups or [(num_nodes * ranks_per_node, 1)]
    return {
        "num_nodes": num_nodes,
        "ranks_per_node": ranks_per_node,
        "groups": [{"name": f"group {n}", "size": size, "stride": stride} for n, (size, stride) in enumerate(pairs)],
        "streams": [{"name": f"stream {n}", "operations": list(ops)} for n, ops in enumerate(streams)],
        **more,
    }


def step(*recordings: Mapping[str, Any], compute: str = "counted", **more: Any) -> dict[str, Any]:
    source = {"how": "record", "command": "train.py", "torch": "2.13.0", "device": "cpu", "compute": compute}
    return {"format": "simnet-step", "version": 1, "source": source, "recordings": list(recordings), **more}


def two_layouts() -> dict[str, Any]:
    """Return a step on two layouts, with what compresses and gathers between the nodes."""
    mesh = [(16, 1), (8, 1), (2, 8)], [(24, 1), (8, 1), (3, 8)]
    layouts = []
    for nodes, groups in zip((2, 3), mesh, strict=True):
        (ops, sent), more = ddp(2), {"num_steps": 1, "gradient_bytes": 50e6, "notes": ["a note"]}
        codec = [compute("encode", after=[[0, 1]], name="pack"), compute("decode")]
        between = [collective("all_gather", 1e6 * nodes, 2), collective("broadcast", 1e6, 1)]
        layouts.append(layout([ops, sent, codec, between], nodes, 8, groups, **more))
    return step(*layouts)


def write(path: Path, data: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(data))
    return path
