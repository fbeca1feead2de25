"""Work with what it waits for becomes streams that wait for as little as says the same."""

import pytest

from simnet.core.errors import SimnetError
from simnet.strategies.step_file import RecordedOperation, RecordedStream
from simnet.traces import trace_graph
from simnet.traces.trace_graph import TracedWork

NAMES = {"a": "compute", "b": "world"}


def work(key: int, stream: str, *after: int, at: float | None = None) -> TracedWork:
    operation = RecordedOperation(kind="compute", part="forward", seconds=float(key)) if stream else None
    return TracedWork(
        key=key, rank_in_time=(key if at is None else at,), after=frozenset(after), stream=stream, operation=operation
    )


def told(streams: tuple[RecordedStream, ...]) -> list[list[tuple[float, tuple[tuple[int, int], ...]]]]:
    return [[(one.seconds, one.after) for one in stream.operations] for stream in streams]


def test_waits_that_the_stream_implies_are_left_out() -> None:
    found = trace_graph.in_streams(
        [work(1, "a"), work(2, "b", 1), work(3, "a", 1), work(4, "b", 2, 1, 3), work(5, "a", 2, 4)], NAMES, "t"
    )
    assert [stream.name for stream in found] == ["compute", "world"]
    assert told(found) == [[(1, ()), (3, ()), (5, ((1, 1),))], [(2, ((0, 0),)), (4, ((0, 1),))]]


def test_a_wait_that_another_one_implies_is_left_out() -> None:
    names = {**NAMES, "c": "side"}
    found = trace_graph.in_streams([work(1, "a"), work(2, "b", 1), work(3, "c", 1, 2)], names, "t")
    assert told(found)[2] == [(3, ((1, 0),))]


def test_what_is_no_work_passes_on_its_waits() -> None:
    found = trace_graph.in_streams([work(1, "a"), work(2, ""), work(3, "", 1, 2), work(4, "b", 3)], NAMES, "t")
    assert told(found) == [[(1, ())], [(4, ((0, 0),))]]


def test_a_stream_runs_in_the_order_of_time_where_no_wait_says_another() -> None:
    found = trace_graph.in_streams([work(1, "a", 2), work(2, "a", at=9), work(3, "a", at=0.5)], NAMES, "t")
    assert [seconds for seconds, _ in told(found)[0]] == [3, 2, 1]


def test_a_circle_of_waits_is_refused_and_shown() -> None:
    with pytest.raises(SimnetError, match="t: node 2 waits for 4, for 3, for 2: waits must not form a circle"):
        trace_graph.in_streams(
            [work(1, "a"), work(2, "a", 4), work(3, "b", 2), work(4, "a", 3), work(5, "a", 4)], NAMES, "t"
        )


def test_neighbours_are_joined_unless_something_waits_between_them() -> None:
    streams = trace_graph.in_streams(
        [work(1, "a"), work(2, "a"), work(3, "b", 2), work(4, "a"), work(5, "a"), work(6, "a", 3), work(7, "a")],
        NAMES,
        "t",
    )
    assert told(trace_graph.merged(streams)) == [[(3, ()), (9, ()), (13, ((1, 0),))], [(3, ((0, 0),))]]
