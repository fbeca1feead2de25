"""Traces of torch.profiler with a GPU, written by hand in the form that Kineto gives its events.

Source: libkineto's output_json.cpp and CuptiActivity.cpp (names of categories and arguments), torch's
torch/csrc/profiler/util.cpp (arguments of collectives).
"""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
COMPUTE, NCCL = 7, 20
WORLD = [0, 1, 2, 3]


def event(category: str, name: str, start: float, end: float, **args: Any) -> Event:
    """Return a span [us]; a blank in the name of an argument is written as an underscore."""
    named = {key.replace("__", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 0,
        "ts": start,
        "dur": end - start,
        "args": named,
    }


def kernel(name: str, launch: int, launched: float, start: float, end: float, stream: int = COMPUTE) -> list[Event]:
    """Return a kernel and its launch by the CPU."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", launched, launched + 2, correlation=launch),
        event("kernel", name, start, end, stream=stream, correlation=launch, device=0),
    ]


def sent(
    name: str,
    launch: int,
    launched: float,
    start: float,
    end: float,
    elements: int = 1000,
    *,
    out: int | None = None,
    group: str = "0",
    stream: int = NCCL,
    dtype: str = "Float",
) -> list[Event]:
    """Return NCCL's kernel of a collective and its launch."""
    call, run = kernel(f"ncclDevKernel_{name}_RING_LL", launch, launched, start, end, stream)
    run["args"] |= {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements if out is None else out,
        "dtype": dtype,
        "Group size": 4,
        "Process Group Name": group,
        "Process Group Ranks": "[0, 1, 2, 3]",
    }
    return [call, run]


def wait(launch: int, stream: int, on_stream: int, on_launch: int) -> Event:
    """Return the wait of a stream for what was launched on another one before its event was recorded."""
    return event(
        "cuda_sync",
        "Stream Wait Event",
        launch,
        launch,
        stream=stream,
        correlation=launch,
        device=0,
        wait_on_stream=on_stream,
        wait_on_cuda_event_record_corr_id=on_launch,
        wait_on_cuda_event_id=1,
    )


def trace(*events: Event | list[Event], steps: int = 1, **more: Any) -> dict[str, Any]:
    """Return a trace of four ranks on nodes of two GPUs; each step takes 1,000 us of the CPU."""
    flat = [entry for entries in events for entry in (entries if isinstance(entries, list) else [entries])]
    marks = [event("user_annotation", f"ProfilerStep#{n}", 1000 * n, 1000 * (n + 1)) for n in range(steps)]
    groups = [{"pg_name": "0", "pg_size": 4, "ranks": WORLD}, {"pg_name": "1", "pg_size": 2, "ranks": [0, 2]}]
    return {
        "deviceProperties": [{"name": "NVIDIA H100"}, {"name": "NVIDIA H100"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4, "pg_config": groups},
        "traceEvents": [*marks, *flat],
        **more,
    }


def ddp(*, told: bool) -> dict[str, Any]:
    """Return a step: forward, backward in two halves, each followed by its all-reduce, then the optimizer.

    The second all-reduce ends at 400 us; the optimizer was launched at 100 us and begins 5 us later.
    """
    phases = [
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 90),
        event("user_annotation", "Optimizer.step#SGD.step", 95, 130),
    ]
    work = [
        *kernel("gemm_forward", 1, 10, 20, 70),
        *kernel("gemm_backward", 2, 30, 70, 150),
        *sent("allreduce", 5, 40, 152, 250, 1000),
        *kernel("gemm_backward", 6, 50, 150, 250),
        *sent("allreduce", 9, 60, 252, 400, 2000),
        *kernel("sgd", 12, 100, 405, 445),
    ]
    waits = [wait(4, NCCL, COMPUTE, 3), wait(8, NCCL, COMPUTE, 7), wait(11, COMPUTE, NCCL, 10)]
    return trace(*phases, *work, *(waits if told else ()))


def write(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps(data))
    return path
