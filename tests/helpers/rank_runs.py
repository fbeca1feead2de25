"""Runs of several ranks whose slow ranks, jitter and pauses are known, as measurement files and as traces."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simnet.calibration.rank_samples import RankSamples
from tests.helpers import kineto_traces, training_samples
from tests.helpers.kineto_traces import Event, event

STEP_S, MESSAGE_S = 0.1, 0.01
LABELS = {"model": "m", "batch": 8, "bucket_cap_mb": 25.0, **training_samples.DENSE}


def times(
    ranks: int = 8,
    steps: int = 100,
    cv: float = 0.05,
    seed: int = 0,
    slow: Mapping[int, float] | None = None,
    probability: float = 0.0,
    pause_s: float = 0.2,
) -> np.ndarray[Any, Any]:
    """Return what each rank computed in each step [s]: lognormal around `STEP_S`, slower ranks, pauses of any."""
    rng = np.random.default_rng(seed)
    deviation = np.sqrt(np.log1p(cv**2))
    found = STEP_S * rng.lognormal(-(deviation**2) / 2, deviation, (ranks, steps))
    for rank, slowdown in (slow or {}).items():
        found[rank] *= slowdown
    return found + pause_s * (rng.random((ranks, steps)) < probability)


def samples(compute_s: np.ndarray[Any, Any], ranks_per_node: int = 2) -> RankSamples:
    return RankSamples(where="run", ranks_per_node=ranks_per_node, compute_s=compute_s, own_s=compute_s)


def series(name: str, rank: int, values: Any, kind: str = "training", **labels: Any) -> dict[str, Any]:
    return {
        "kind": kind, "name": name, "setup": 0, "unit": "s", "labels": {**LABELS, "rank": rank, **labels},
        "values": [float(one) for one in values],
    }  # fmt: skip


def rows(compute_s: np.ndarray[Any, Any], kind: str = "training", **labels: Any) -> list[dict[str, Any]]:
    """Return the series of all ranks: a step ends when the last rank has computed and the messages are there."""
    steps_s = compute_s.max(axis=0) + MESSAGE_S
    return [
        series(name, rank, values, kind, **labels)
        for rank, mine in enumerate(compute_s)
        for name, values in (("rank_step", steps_s), ("rank_compute", mine))
    ]


def measurement(path: Path, compute_s: np.ndarray[Any, Any], ranks_per_node: int = 2, **labels: Any) -> Path:
    nodes = len(compute_s) // ranks_per_node
    setup = {"num_nodes": nodes, "ranks_per_node": ranks_per_node, "ranks_on_machine": ranks_per_node}
    return training_samples.write(path, rows(compute_s, **labels), **setup)


def traces(
    folder: Path, compute_s: np.ndarray[Any, Any], *, on_gpu: bool = False, ranks_per_node: int = 2, first: int = 3
) -> list[Path]:
    """Write the trace of every rank; clocks of nodes differ by seconds."""
    folder.mkdir(exist_ok=True)
    found = []
    for rank in range(len(compute_s)):
        data = trace(compute_s, rank, on_gpu=on_gpu, ranks_per_node=ranks_per_node, first=first)
        found.append(kineto_traces.write(folder / f"rank{rank}.json", data))
    return found


def trace(
    compute_s: np.ndarray[Any, Any], rank: int, *, on_gpu: bool = False, ranks_per_node: int = 2, first: int = 3
) -> dict[str, Any]:
    """Return the trace of a rank: compute, then an all-reduce that begins when the rank comes and ends for all."""
    world = list(range(len(compute_s)))
    found: list[Event] = []
    now_us = 1e6 * (rank // ranks_per_node + 1)
    for number, column in enumerate(compute_s.T):
        ready_us, ended_us = now_us + 1e6 * column[rank], now_us + 1e6 * (column.max() + MESSAGE_S)
        found.append(event("user_annotation", f"ProfilerStep#{first + number}", now_us, ended_us))
        found += _on_gpu(number, now_us, ready_us, ended_us) if on_gpu else _on_cpu(now_us, ready_us, ended_us)
        now_us = ended_us
    groups = [{"pg_name": "0", "pg_size": len(world), "ranks": world}]
    return {
        "deviceProperties": [{"name": "NVIDIA H100"}] * ranks_per_node if on_gpu else [],
        "distributedInfo": {
            "backend": "nccl" if on_gpu else "gloo", "rank": rank, "world_size": len(world), "pg_config": groups
        },
        "host_name": "" if on_gpu else f"node{rank // ranks_per_node}",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": found,
    }  # fmt: skip


def _on_cpu(now_us: float, ready_us: float, ended_us: float) -> list[Event]:
    return [
        event("cpu_op", "aten::mm", now_us, ready_us - 1),
        event("cpu_op", "c10d::allreduce_", ready_us - 1, ready_us),
        event("user_annotation", "gloo:all_reduce", ready_us, ended_us),
    ]


def _on_gpu(number: int, now_us: float, ready_us: float, ended_us: float) -> list[Event]:
    launch = 10 * number + 1
    return [
        *kineto_traces.kernel("gemm", launch, now_us, now_us, ready_us),
        *kineto_traces.sent("allreduce", launch + 1, now_us + 5, ready_us, ended_us),
    ]


def edited(path: Path, **changes: Any) -> Path:
    """Write a trace or a measurement file again with some of its keys changed."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path
