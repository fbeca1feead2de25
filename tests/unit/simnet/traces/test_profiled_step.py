"""Traces of torch.profiler become the step that they show; those of a GPU are written by hand, see the helper."""

from pathlib import Path
from typing import Any

import pytest

from simnet.strategies import step_file
from simnet.strategies.step_file import RecordedLayout, StepFile
from simnet.traces.import_step import ImportOptions, step_of
from tests.helpers import kineto_traces as traces
from tests.helpers.golden import GLOO
from tests.helpers.kineto_traces import NCCL, kernel, sent
from tests.helpers.refusals import refused

MANY = Path(__file__).parents[3] / "golden" / "profiler" / "gloo_collectives_2_ranks.json.gz"
ON_2 = ImportOptions(ranks_per_node=2)


def imported(data: dict[str, Any], folder: Path, **options: Any) -> StepFile:
    step = step_of([traces.write(folder / "trace.json", data)], ImportOptions(**options))
    step_file.decode(step_file.encode(step), "step.json")
    return step


def described(layout: RecordedLayout) -> list[list[tuple[Any, ...]]]:
    """Return what each stream does: part and microseconds, or kind and bytes; and its waits."""
    return [
        [
            (operation.part, round(operation.seconds * 1e6), *operation.after)
            if operation.kind == "compute"
            else (operation.kind, operation.message_bytes, *operation.after)
            for operation in stream.operations
        ]
        for stream in layout.streams
    ]


@pytest.mark.parametrize("says_waits", [True, False], ids=["cuda_sync events", "times alone"])
def test_a_step_of_ddp_waits_as_cuda_did(says_waits: bool, tmp_path: Path) -> None:
    step = imported(traces.ddp(told=says_waits), tmp_path)
    (layout,) = step.recordings
    assert (step.source.device, step.source.gpu, step.source.compute) == ("cuda", "NVIDIA H100", "timed")
    assert (layout.num_nodes, layout.ranks_per_node) == (2, 2)
    assert described(layout) == [
        [("forward", 50), ("backward", 80), ("backward", 100), ("optimizer", 45, (1, 1))],
        [("all_reduce", 4000, (0, 1)), ("all_reduce", 8000, (0, 2))],
    ]
    assert any("follows from its times" in note for note in layout.notes) is not says_waits


def test_collectives_have_the_bytes_of_the_whole_array_and_the_ranks_of_their_group(tmp_path: Path) -> None:
    data = traces.trace(
        kernel("gemm", 1, 0, 0, 10),
        sent("_allgather_base", 2, 1, 10, 20, 100, out=400, dtype="BFloat16"),
        sent("_reduce_scatter_base", 3, 2, 20, 30, 400, out=100),
        sent("all_to_allv", 4, 3, 30, 40, 300, group="1", stream=24),
        sent("broadcast", 5, 4, 40, 50, 7, dtype="Byte"),
        sent("barrier", 6, 5, 50, 60, 1),
        sent("reduce", 7, 6, 60, 70, 5),
    )
    (layout,) = imported(data, tmp_path).recordings
    sent_operations = [
        (operation.kind, operation.message_bytes, layout.groups[operation.group].size, operation.dtype)
        for operation in layout.operations
    ]
    assert sorted(sent_operations[1:]) == [
        ("all_gather", 800, 4, "bf16"),
        ("all_to_all", 1200, 2, "fp32"),
        ("barrier", 0, 4, "fp32"),
        ("broadcast", 7, 4, "uint8"),
        ("reduce", 20, 4, "fp32"),
        ("reduce_scatter", 1600, 4, "fp32"),
    ]
    assert [(group.size, group.stride) for group in layout.groups] == [(4, 1), (2, 2)]


def test_time_in_which_the_gpu_waits_for_its_host_is_compute(tmp_path: Path) -> None:
    sent_late = sent("allreduce", 3, 2, 110, 120)
    data = traces.trace(kernel("a", 1, 0, 0, 100), kernel("b", 2, 1, 130, 200), sent_late)
    (layout,) = imported(data, tmp_path).recordings
    assert sum(operation.seconds for operation in layout.streams[0].operations) == pytest.approx(200e-6)
    assert "compute works 170 us and waits 30 us for its host: both count" in layout.notes[-1]


def test_work_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    data = traces.trace(
        kernel("a", 1, 10, 20, 1100),
        kernel("b", 2, 1010, 1150, 1950),
        kernel("c", 3, 2010, 2020, 3500),
        steps=3,
    )
    for step, seconds in ((0, 1080e-6), (1, 850e-6), (2, 1550e-6)):
        (layout,) = imported(data, tmp_path, step=step).recordings
        assert [operation.seconds for operation in layout.operations] == [pytest.approx(seconds)]


def test_the_median_step_is_taken_or_all_of_them_where_they_differ(tmp_path: Path) -> None:
    def of(step: int, *, elements: int = 100) -> list[Any]:
        at = 1000 * step
        return [
            kernel("a", 9 * step + 1, at, at, at + 10),
            sent("allreduce", 9 * step + 2, at + 1, at + 10, at + 20, elements),
        ]

    alike = traces.trace(*of(0), *of(1), *of(2), steps=3)
    (layout,) = imported(alike, tmp_path).recordings
    assert (layout.num_steps, len(layout.streams[1].operations)) == (1, 1)
    assert "ProfilerStep#0 of 3: 1 ms, the median" in layout.notes[0]
    differing = traces.trace(*of(0), *of(1, elements=7), *of(2), steps=3)
    (layout,) = imported(differing, tmp_path).recordings
    assert (layout.num_steps, len(layout.streams[1].operations)) == (3, 3)
    assert "differ in their collectives" in layout.notes[0]


def test_a_step_over_gloo_is_read() -> None:
    (layout,) = step_of([GLOO], ON_2).recordings
    compute, gloo = described(layout)
    assert gloo == [("all_reduce", 657664, (0, 1))]
    # Backward goes on for a moment after it has launched its all-reduce.
    assert [operation[0] for operation in compute] == ["forward", "backward", "backward", "optimizer"]
    assert compute[3][2:] == ((1, 0),)
    # The step took 16.15 ms, of which the all-reduce was exposed for 14.
    assert 1e-3 < sum(operation.seconds for operation in layout.streams[0].operations) < 3e-3


@pytest.mark.parametrize("step", [2, 3, 4])
def test_every_collective_over_gloo_is_read_and_a_reduce_scatter_is_known_by_its_launch(step: int) -> None:
    (layout,) = step_of([MANY], ImportOptions(ranks_per_node=2, step=step)).recordings
    assert sorted((operation.kind, operation.message_bytes) for operation in layout.streams[1].operations) == [
        ("all_gather", 8000), ("all_reduce", 526336), ("all_reduce", 526336), ("barrier", 0), ("broadcast", 40),
        ("reduce_scatter", 8000),
    ]  # fmt: skip
    assert all(group.size == 2 for group in layout.groups)


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    for event in data["traceEvents"]:
        event["args"] = {key: value for key, value in event["args"].items() if key not in keys}
    return data


def test_a_process_that_sends_nothing_is_a_world_of_one_rank(tmp_path: Path) -> None:
    data = traces.trace(kernel("a", 1, 0, 0, 9))
    del data["distributedInfo"]
    (layout,) = imported(data, tmp_path).recordings
    assert (layout.world_size, described(layout)) == (1, [[("forward", 9)]])


def test_what_a_collective_carries_is_read_from_its_operator_too(tmp_path: Path) -> None:
    data = traces.trace(sent("allreduce", 1, 0, 0, 9), kernel("a", 2, 0, 0, 9))
    run = data["traceEvents"][2]
    launch = traces.event("cpu_op", "record_param_comms", 0, 1) | {"args": {**run["args"], "External id": 3}}
    run["args"] = {"stream": NCCL, "correlation": 1, "External id": 3}
    data["traceEvents"].append(launch)
    (layout,) = imported(data, tmp_path).recordings
    assert described(layout)[1] == [("all_reduce", 4000)]


def of_group_7() -> dict[str, Any]:
    data = without(traces.trace(sent("allreduce", 1, 0, 0, 9, group="7")), "Process Group Ranks")
    data["traceEvents"][-1]["args"]["Group size"] = 2
    return data


DDP = traces.ddp(told=True)


@pytest.mark.parametrize(
    ("data", "options", "rule"),
    [
        (traces.trace(sent("send", 1, 0, 0, 9)), {}, "'send': ranks that send to single others, as stages of a pipel"),
        (traces.trace(sent("gather", 1, 0, 0, 9)), {}, "'gather': no collective of a step file"),
        (traces.trace(sent("allreduce", 1, 0, 0, 9, dtype="QInt8")), {}, "dtype: 'QInt8': its size is not known"),
        (without(traces.ddp(told=True), "In msg nelems"), {}, "does not say its message; profile with record_shapes"),
        (of_group_7(), {}, "process group '7': the trace does not tell the ranks of it"),
        (DDP, {"step": 7}, "--step: 7: "),
        (DDP, {"num_nodes": 3}, "the trace has 4 ranks"),
        (DDP, {"comm_groups": Path("g.json")}, "--comm-groups: has no effect on a trace of torch.p"),
        (traces.trace(), {"ranks_per_node": 2}, "nothing was computed in the profiled step"),
        ({"traceEvents": []}, {}, "no ProfilerStep"),
        ({"traceEvents": [{"ph": "X", "name": "a"}]}, {}, "an event without name, ts or dur"),
        (DDP | {"distributedInfo": {"world_size": 0}}, {}, "world_size: 0"),
    ],
)
def test_what_is_no_step_of_symmetric_ranks_is_refused(
    data: dict[str, Any], options: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    with refused(rule):
        imported(data, tmp_path, **options)
    both = [traces.write(tmp_path / f"{rank}.json", DDP) for rank in (0, 1)]
    with refused("one rank stands for all; give its trace alone"):
        step_of(both, ImportOptions())
