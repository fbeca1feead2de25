"""Write the timeline of a result as a Chrome trace, which ui.perfetto.dev opens.

The events look like those of PyTorch's profiler, so that scripts for real traces read simulated ones: kernels have the
category "kernel" and their stream, collectives are named `ncclDevKernel_...`, and `ProfilerStep#1` spans the iteration.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simnet.files import write_file
from simnet.result import RunResult, Span, StrategyResult

Event = dict[str, Any]
STREAMS = ("compute", "communication")


class Slice(NamedTuple):
    """A span in whole nanoseconds, the resolution of the viewers, so that rounding cannot make slices overlap."""

    start_ns: int
    end_ns: int
    span: Span


def write_trace(run_result: RunResult, path: Path) -> None:
    """Write the timelines of the strategy and of its baseline, a process each, to a JSON file.

    Raises:
        SimnetError: the file cannot be written.
    """
    events = list(_process_events(1, run_result.result))
    if run_result.baseline is not None:
        events += _process_events(2, run_result.baseline, role=" (baseline)")
    trace = {"displayTimeUnit": "ms", "traceEvents": events}
    write_file(path, json.dumps(trace, allow_nan=False).encode())


def _process_events(pid: int, result: StrategyResult, *, role: str = "") -> Iterator[Event]:
    """Yield the events of one strategy: its names, the iteration, and a track for each stream of each rank."""
    iteration = {"pid": pid, "tid": 0}
    yield _metadata("process_name", iteration, {"name": f"{result.strategy}{role}, simulated"})
    yield _metadata("process_sort_index", iteration, {"sort_index": pid})
    yield _metadata("thread_name", iteration, {"name": "iteration"})
    yield _complete("ProfilerStep#1", "user_annotation", iteration, 0, _nanoseconds(result.iteration_s))
    for tid, (label, slices) in enumerate(_tracks(result.spans), start=1):
        track = {"pid": pid, "tid": tid}
        yield _metadata("thread_name", track, {"name": label})
        yield _metadata("thread_sort_index", track, {"sort_index": tid})
        for piece in slices:
            event = _complete(_kernel_name(piece.span), "kernel", track, piece.start_ns, piece.end_ns)
            yield event | {"args": _arguments(piece.span, pid)}


def _tracks(spans: Iterable[Span]) -> Iterator[tuple[str, list[Slice]]]:
    """Yield a named track for each rank and stream, and further ones where kernels share the GPU at one time."""
    by_stream: dict[tuple[int, str], list[Slice]] = defaultdict(list)
    for span in spans:
        piece = Slice(_nanoseconds(span.start_s), _nanoseconds(span.end_s), span)
        by_stream[span.rank, span.stream].append(piece)
    for rank, stream in sorted(by_stream, key=lambda key: (key[0], STREAMS.index(key[1]))):
        for number, lane in enumerate(_lanes(by_stream[rank, stream]), start=1):
            yield f"rank {rank} {stream}" + (f" ({number})" if number > 1 else ""), lane


def _lanes(slices: list[Slice]) -> list[list[Slice]]:
    """Split slices into lanes in which none overlap, since viewers cannot draw that; backward keeps the first one."""
    lanes: list[list[Slice]] = []
    for piece in sorted(slices, key=lambda piece: (piece.start_ns, -piece.end_ns)):
        free = next((lane for lane in lanes if lane[-1].end_ns <= piece.start_ns), None)
        if free is None:
            lanes.append([piece])
        else:
            free.append(piece)
    return lanes


def _kernel_name(span: Span) -> str:
    """Return a kernel's name as a profiler shows it: a ring's all_reduce is `ncclDevKernel_AllReduce_RING`."""
    if span.stream == "compute":
        return span.name
    words = ("ncclDevKernel", span.name.title().replace("_", ""), span.algorithm.upper().replace(" ", "_"))
    return "_".join(filter(None, words))


def _arguments(span: Span, pid: int) -> Event:
    # Tools that look at streams alone must not merge the baseline's with the strategy's.
    stream = len(STREAMS) * (pid - 1) + STREAMS.index(span.stream)
    arguments: Event = {"stream": stream, "rank": span.rank}
    if span.bucket is not None:
        arguments["bucket"] = span.bucket
    if span.message_bytes:
        arguments["message_bytes"] = span.message_bytes
    return arguments


def _complete(name: str, category: str, track: Event, start_ns: int, end_ns: int) -> Event:
    """Return an event with a start and a duration, both in microseconds as the format wants."""
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "name": name, "cat": category, **track, **times}


def _metadata(kind: str, track: Event, args: Event) -> Event:
    return {"ph": "M", "name": kind, **track, "args": args}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
