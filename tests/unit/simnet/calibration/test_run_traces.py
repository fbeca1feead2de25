"""Who came last at which collective: by how long each rank was in it, whatever the clocks of nodes say."""

from typing import Any

import pytest

from simnet.calibration import run_traces
from simnet.traces import kineto
from simnet.traces.kineto import Trace
from tests.helpers import kineto_traces
from tests.helpers.kineto_traces import event

PG = [
    {"pg_name": "0", "ranks": [0, 1]},
    {"pg_name": "1", "ranks": [0]},
]


def parsed(rank: int, *events: Any, on_gpu: bool = False, groups: Any = PG, world_size: int = 2) -> Trace:
    data = kineto_traces.trace(*events)
    data["distributedInfo"] |= {"rank": rank, "world_size": world_size, "pg_config": groups}
    data["deviceProperties"] = data["deviceProperties"] if on_gpu else []
    return kineto.parse(data, kineto_traces.Path(f"{rank}.json"))


def gloo(name: str, start: float, end: float) -> Any:
    return event("user_annotation", f"gloo:{name}", start, end)


def mm(start: float, end: float) -> Any:
    return event("cpu_op", "aten::mm", start, end)


def waits_us(*traces: Trace) -> list[tuple[int, list[float]]]:
    found = run_traces.samples_of(traces, 1).collectives
    return [(one.last, [round(1e6 * wait) for wait in one.waits_s]) for one in found]


def test_the_rank_that_is_in_a_collective_for_the_shortest_time_came_last() -> None:
    first = parsed(0, mm(0, 100), gloo("all_reduce", 100, 400))
    second = parsed(1, mm(0, 300), gloo("all_reduce", 350, 450))
    assert waits_us(first, second) == [(1, [200, 0])]
    first = parsed(0, mm(0, 100), gloo("all_reduce", 100, 400), gloo("all_reduce", 150, 450))
    second = parsed(1, mm(0, 300), gloo("all_reduce", 300, 400), gloo("all_reduce", 350, 450))
    # Both end their waits 100 us before their end, at 300 and at 350 us: who waits in two at a time waits once.
    assert waits_us(first, second) == [(1, [200, 0]), (1, [50, 0])]


@pytest.mark.parametrize("name", ["broadcast", "send", "recv", "reduce", "gather"])
def test_at_what_may_end_on_one_rank_before_all_have_come_nobody_is_last(name: str) -> None:
    assert waits_us(*(parsed(rank, mm(0, 100), gloo(name, 100, 200 + rank)) for rank in (0, 1))) == []


def test_where_the_trace_does_not_say_the_group_a_note_does() -> None:
    groups = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [0, 1]}]
    four = [parsed(rank, mm(0, 100), gloo("all_reduce", 100, 200), groups=groups, world_size=4) for rank in range(4)]
    found = run_traces.samples_of(four, 2)
    assert found.collectives == ()
    assert found.notes == ("1 collective whose process group the trace does not say: left out",)


def test_kernels_belong_to_the_step_that_launched_them_and_a_gpu_that_idles_shows_in_the_step_only() -> None:
    work = []
    for number, start in enumerate((1500, 2500)):
        launch = 10 * number + 1
        work += kineto_traces.kernel("gemm", launch, 1000 * number, start, start + 400)
        work += kineto_traces.sent("allreduce", launch + 1, 1000 * number + 9, start + 300, start + 700)
    data = kineto_traces.trace(*work, steps=2)
    first, second = run_traces.steps_of(kineto.parse(data, kineto_traces.Path("x.json")))
    assert [first.compute_s, second.compute_s] == pytest.approx([400e-6, 400e-6])
    # From 2,200 to 3,200 us, of which 300 us are in the all-reduce alone and 300 us idle.
    assert [first.own_s, second.own_s] == pytest.approx([400e-6, 700e-6])
    assert list(second.sent) == [("all_reduce", (0, 1, 2, 3), 0)]
    assert second.sent["all_reduce", (0, 1, 2, 3), 0] == pytest.approx((2800e-6, 3200e-6))
