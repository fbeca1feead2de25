"""The timeline for Perfetto."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.errors import SimnetError
from simnet.result import RunResult, Span
from simnet.show.trace import write_trace
from tests.helpers.report_samples import run_result

Event = dict[str, Any]


def with_spans(*spans: Span) -> RunResult:
    run = run_result(baseline=False)
    return msgspec.structs.replace(run, result=msgspec.structs.replace(run.result, spans=spans))


def events(run: RunResult, folder: Path) -> list[Event]:
    path = folder / "trace.json"
    write_trace(run, path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    found: list[Event] = trace["traceEvents"]
    return found


def named(found: list[Event], kind: str) -> dict[tuple[int, int], str]:
    """Return the names of processes or threads by (pid, tid)."""
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in found if event["name"] == kind}


def slices(found: list[Event]) -> list[Event]:
    return [event for event in found if event["ph"] == "X"]


def test_strategy_and_baseline_are_two_processes(tmp_path: Path) -> None:
    found = events(run_result(), tmp_path)
    processes = named(found, "process_name")
    assert processes == {(1, 0): "binsgdm, simulated", (2, 0): "all_reduce (baseline), simulated"}


def test_tools_that_look_at_streams_alone_do_not_merge_strategy_and_baseline(tmp_path: Path) -> None:
    found = [event for event in slices(events(run_result(), tmp_path)) if event["cat"] == "kernel"]
    streams = {n: {event["args"]["stream"] for event in found if event["pid"] == n} for n in (1, 2)}
    assert streams == {1: {0, 1}, 2: {2, 3}}


def test_a_stream_of_a_rank_is_a_track(tmp_path: Path) -> None:
    threads = named(events(run_result(baseline=False), tmp_path), "thread_name")
    assert list(threads.values()) == ["iteration", "rank 0 compute", "rank 0 communication"]


def test_a_slice_keeps_its_times_in_microseconds_and_says_what_it_carried(tmp_path: Path) -> None:
    found = events(run_result(baseline=False), tmp_path)
    (collective,) = [event for event in slices(found) if event["name"].startswith("nccl")]
    assert (collective["ts"], collective["dur"]) == (80_000.0, 80_000.0)
    assert collective["cat"] == "kernel"
    assert collective["args"] == {"stream": 1, "rank": 0, "bucket": 0, "message_bytes": 1e6}


def test_the_iteration_spans_the_whole_as_a_profiler_step(tmp_path: Path) -> None:
    run = run_result(baseline=False)
    (step,) = [event for event in slices(events(run, tmp_path)) if event["name"] == "ProfilerStep#1"]
    assert step["ts"] == 0
    assert step["dur"] == pytest.approx(run.result.iteration_s * 1e6, abs=1e-3)


@pytest.mark.parametrize(
    ("collective", "algorithm", "shown"),
    [
        ("all_reduce", "ring", "ncclDevKernel_AllReduce_RING"),
        ("all_to_all", "direct", "ncclDevKernel_AllToAll_DIRECT"),
        ("reduce_scatter", "halving_doubling", "ncclDevKernel_ReduceScatter_HALVING_DOUBLING"),
        ("all_gather", "", "ncclDevKernel_AllGather"),
    ],
)
def test_collectives_are_named_as_a_profiler_names_them(
    collective: str, algorithm: str, shown: str, tmp_path: Path
) -> None:
    span = Span(stream="communication", name=collective, algorithm=algorithm, start_s=0.0, end_s=1.0)
    assert slices(events(with_spans(span), tmp_path))[-1]["name"] == shown


def test_kernels_that_share_the_gpu_get_a_track_each(tmp_path: Path) -> None:
    overlapping = with_spans(
        Span(stream="compute", name="backward", start_s=0.0, end_s=2.0, rank=3),
        Span(stream="compute", name="quantize", start_s=1.0, end_s=3.0, rank=3),
        Span(stream="compute", name="backward", start_s=2.0, end_s=4.0, rank=3),
    )
    found = events(overlapping, tmp_path)
    threads = named(found, "thread_name")
    tracks = [threads[event["pid"], event["tid"]] for event in slices(found)[1:]]
    assert tracks == ["rank 3 compute", "rank 3 compute", "rank 3 compute (2)"]


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from(["compute", "communication"]),
            st.integers(0, 2),
            st.floats(0, 10, allow_nan=False),
            st.floats(0, 3, allow_nan=False),
        ),
        max_size=30,
    )
)
def test_slices_of_a_track_never_overlap(
    drawn: list[tuple[Any, int, float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    spans = [
        Span(stream=stream, name="x", rank=rank, start_s=start_s, end_s=start_s + seconds)
        for stream, rank, start_s, seconds in drawn
    ]
    found = slices(events(with_spans(*spans), tmp_path_factory.mktemp("trace")))
    assert len(found) == len(spans) + 1
    tracks: dict[int, list[Event]] = defaultdict(list)
    for event in found:
        tracks[event["tid"]].append(event)
    for track in tracks.values():
        ordered = sorted(track, key=lambda event: (event["ts"], event["dur"]))
        for one, other in pairwise(ordered):
            assert round(one["ts"] * 1000) + round(one["dur"] * 1000) <= round(other["ts"] * 1000)


def test_a_trace_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SimnetError, match="cannot be written"):
        write_trace(run_result(), tmp_path / "file" / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_trace_in_the_place_of_a_folder_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(SimnetError, match=r"cannot be written \(Is a directory\)"):
        write_trace(run_result(), tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_backward_keeps_the_first_track_where_kernels_run_beside_it(tmp_path: Path) -> None:
    run = with_spans(
        Span(stream="compute", name="backward", start_s=0.0, end_s=1.0),
        Span(stream="compute", name="quantize", start_s=1.0, end_s=1.5),
        Span(stream="compute", name="backward", start_s=1.0, end_s=2.0),
    )
    tracks = [(event["name"], event["tid"]) for event in slices(events(run, tmp_path))[1:]]
    assert tracks == [("backward", 1), ("backward", 1), ("quantize", 2)]


def test_a_trace_replaces_an_older_one_and_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("old", encoding="utf-8")
    assert events(run_result(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
