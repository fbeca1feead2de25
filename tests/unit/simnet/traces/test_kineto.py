"""Collectives, launches and phases are read from traces of any vendor, or refused; imports and fits read the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import run_traces
from simnet.traces import kineto
from simnet.traces.import_step import ImportOptions, step_of
from tests.helpers import kineto_traces as traces
from tests.helpers.kineto_traces import Event, kernel
from tests.helpers.refusals import refused

Change = Callable[[dict[str, Any]], None]


def collectives(data: dict[str, Any]) -> list[Event]:
    return [event for event in data["traceEvents"] if "Collective name" in event["args"]]


def imported(data: dict[str, Any], folder: Path) -> list[list[tuple[Any, ...]]]:
    (layout,) = step_of([traces.write(folder / "t.json", data)], ImportOptions(ranks_per_node=2)).recordings
    return [
        [
            (operation.kind, operation.part, round(operation.seconds * 1e6), operation.message_bytes, operation.after)
            for operation in stream.operations
        ]
        for stream in layout.streams
    ]


def only_called(name: str) -> Change:
    """Take all that is said of collectives but the names of their kernels."""

    def change(data: dict[str, Any]) -> None:
        for event in collectives(data):
            event |= {"name": name, "args": {key: event["args"][key] for key in ("stream", "correlation")}}

    return change


def launched_by(category: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        for event in data["traceEvents"]:
            event["cat"] = event["cat"].replace("cuda_runtime", category)

    return change


def without(*categories: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        data["traceEvents"] = [event for event in data["traceEvents"] if event["cat"] not in categories]

    return change


def with_event(category: str, name: str) -> Change:
    return lambda data: data["traceEvents"].append(traces.event(category, name, 39, 50))


def changed(**arguments: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for event in collectives(data):
            event["args"] |= {key.replace("__", " "): value for key, value in arguments.items()}

    return change


OF_LIBRARIES = (
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_f32", "rcclAllReduce", "mscclKernel_Sum_half_Simple", "hcom_allReduce_",
    "void mscclpp::collective::allreducePacket<half>", "HcclAllReduceKernel", "oneccl_allreduce", "ccl_allreduce_1",
    "void vllm::cross_device_reduce_1stage<half, 8>", "two_shot_all_reduce_kernel", "multimem_all_reduce_kernel",
    "_Z36ncclDevKernel_AllReduce_Sum_f32_RING_LL19ncclDevKernelArgs", "cnclAllReduceKernel", "xccl_allreduce",
    "bkcl_all_reduce", "MCCLKernel_AllGather", "nvshmemi_alltoall_kernel", "void deep_ep::intranode::combine<2>()",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16>(float*)", "ncclAllReduceRingLLKernel_sum",
)  # fmt: skip
OF_OTHERS = (
    "void vllm_all_reduce_bias_kernel<float>(float*)", "fused_allgather_gemm", "my_nccl_free_kernel",
    "void k<ncclDataType_t>(float*)", "occlusion_reduce_kernel", "ccl_label_components", "hcompute_kernel",
    "void at::native::_scatter_gather_elementwise_kernel<128>", "my_rccl_like_bias", "accl_norm",
    "my_reduce_scatter_add_bias_kernel",
)  # fmt: skip


def test_kernels_of_libraries_are_known_by_their_names() -> None:
    assert [name for name in (*OF_LIBRARIES, *OF_OTHERS) if kineto.is_of_a_library(name)] == list(OF_LIBRARIES)


def no_word_of_groups(data: dict[str, Any]) -> None:
    del data["distributedInfo"]["pg_config"]
    for event in collectives(data):
        event["args"] = {key: value for key, value in event["args"].items() if "roup" not in key}


LAUNCHES, GPU = without("cuda_runtime"), without("kernel", "cuda_sync")
NO_MESSAGE, NO_GPU = (
    "does not say its message",
    "the trace holds no event of a GPU; profile with the activity of the GPU",
)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ([only_called(OF_LIBRARIES[0])], NO_MESSAGE),
        ([only_called(OF_LIBRARIES[1])], NO_MESSAGE),
        *(([changed(In__msg__nelems=elements)], NO_MESSAGE) for elements in ("many", -5, 1.5, True, 2**60, None)),
        ([launched_by("npu_api")], "category 'npu_api': 'cudaLaunchKernel' launches a kernel: known are"),
        ([LAUNCHES], "no event says when the CPU launched its kernels"),
        ([GPU], NO_GPU),
        ([GPU, LAUNCHES, with_event("user_annotation", "nccl:all_reduce")], NO_GPU),
        (
            [only_called("ring_kernel_of_somebody"), with_event("cpu_op", "c10d::allreduce_")],
            "c10d::allreduce_: torch asks for a collective, but nothing on the GPU is known",
        ),
        (
            [
                lambda data: data.update(traces.trace(kernel("a", 1, 10, 20, 70))),
                with_event("user_annotation", "gloo:x"),
            ],
            "gloo:x: all collectives run on the CPU while the work runs on a GPU",
        ),
        ([no_word_of_groups], "does not say its process group; profile with torch 2.4 or later"),
    ],
)
def test_a_trace_that_does_not_tell_its_step_is_refused(changes: list[Change], rule: str, tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    for change in changes:
        change(data)
    with refused(rule):
        imported(data, tmp_path)


def test_of_kernels_that_nothing_launched_there_are_no_phases_and_of_messages_without_a_size_no_bytes() -> None:
    data = traces.ddp(told=True)
    LAUNCHES(data)
    with refused("no event says when the CPU launched its kernels"):
        run_traces.steps_of(kineto.parse(data, "t.json"))
    assert kineto.parse(data, "t.json").steps[0].optimizer_s == 0
    data = traces.ddp(told=True)
    assert kineto.parse(data, "t.json").reduced_bytes == 12_000
    del collectives(data)[0]["args"]["In msg nelems"]
    assert kineto.parse(data, "t.json").reduced_bytes == 0
    changed(In__msg__nelems=-5)(data)
    assert kineto.parse(data, "t.json").reduced_bytes == 0


def test_collectives_on_the_cpu_beside_those_of_a_gpu_are_left_out_with_a_note(tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    data["traceEvents"].append(traces.event("user_annotation", "gloo:all_reduce", 40, 50))
    (layout,) = step_of([traces.write(tmp_path / "t.json", data)], ImportOptions()).recordings
    assert any("1 collectives on the CPU, such as gloo:all_reduce, are left out" in note for note in layout.notes)


def numbers_as_text(data: dict[str, Any]) -> None:
    for event in data["traceEvents"]:
        event["args"] = {key: str(value) if type(value) is int else value for key, value in event["args"].items()}


def no_world_size(data: dict[str, Any]) -> None:
    del data["distributedInfo"]["world_size"]


def launched_by_operators(data: dict[str, Any]) -> None:
    for number, event in enumerate(data["traceEvents"]):
        if event["cat"] == "cuda_runtime":
            event |= {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": number}}
            data["traceEvents"][number + 1]["args"]["External id"] = number


def waits_said_in_part(data: dict[str, Any]) -> None:
    for event in data["traceEvents"]:
        if event["cat"] == "cuda_sync" and event["args"]["wait_on_stream"] == traces.NCCL:
            event["args"]["wait_on_cuda_event_record_corr_id"] = -1


def named(name: str) -> Change:
    return lambda data: [event.update(name=name) for event in collectives(data)] and None


NAMES = (
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_f32(ncclSymkDevWorkArgs)", "nccldevkernel_allreduce_sum_f32_ring_ll",
    "hcom_allReduce_", "ccl::allreduce<float>", "a_kernel_of_nobody",
)  # fmt: skip
VENDORS = ("hip_runtime", "xpu_driver", "privateuse1_runtime", "mtia_driver")


@pytest.mark.parametrize(
    ("change", "says_waits"),
    [
        (numbers_as_text, True),
        (no_world_size, True),
        (changed(dtype="torch.float32"), True),
        (changed(Collective__name="ALLREDUCE_COALESCED"), True),
        (launched_by_operators, False),
        (waits_said_in_part, True),
        *((named(name), False) for name in NAMES),
        *((launched_by(vendor), True) for vendor in VENDORS),
    ],
)
def test_the_same_step_is_read_from_what_other_writers_and_vendors_write(
    change: Change, says_waits: bool, tmp_path: Path
) -> None:
    wanted, data = (traces.ddp(told=says_waits) for _ in range(2))
    change(data)
    assert imported(data, tmp_path) == imported(wanted, tmp_path)


def of_gloo(*, ended: float) -> dict[str, Any]:
    """Return a step of DDP on CPUs whose optimizer begins at 300 us; the thread of gloo writes its end later."""
    event = traces.event
    message = {"Input__Dims": [[1000]], "Input__type": ["float"]}
    data = traces.trace(
        event("user_annotation", "DistributedDataParallel.forward", 0, 100),
        event("cpu_op", "aten::mm", 0, 100),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 100, 200),
        event("cpu_op", "c10d::allreduce_", 150, 151),
        event("user_annotation", "gloo:all_reduce", 152, ended, **message),
        event("user_annotation", "Optimizer.step#SGD.step", 300, 350),
        event("cpu_op", "aten::add_", 300, 350),
    )
    data["deviceProperties"] = []
    data["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": traces.WORLD}]
    return data


def test_phases_of_a_gpu_without_annotations_are_those_of_the_launches() -> None:
    (step,) = kineto.parse(traces.ddp(told=False), "t.json").steps
    assert (step.forward_s, step.backward_s, step.optimizer_s) == pytest.approx((50e-6, 180e-6, 40e-6))


@pytest.mark.parametrize(
    ("written", "ranks"),
    [
        ("[0, 1, 2, 3]", (0, 1, 2, 3)),
        ([0, 1, 2, 3], (0, 1, 2, 3)),
        ("[0, 1, ..., 3]", ()),  # torch cuts a long list short
        ("[0, 1, -1]", ()),
        ("4", ()),
        (None, ()),
    ],
)
def test_ranks_are_read_from_a_list_or_its_text_and_none_from_one_cut_short(
    written: Any, ranks: tuple[int, ...]
) -> None:
    data = traces.ddp(told=True)
    changed(Process__Group__Ranks=written)(data)
    read = [event.collective.ranks for event in kineto.parse(data, "t.json").events if event.collective]
    assert read == [ranks] * len(collectives(data))


def test_what_torch_asks_is_the_collective_where_no_backend_is_in_the_trace(tmp_path: Path) -> None:
    data = of_gloo(ended=290)
    run = next(event for event in data["traceEvents"] if event["name"] == "gloo:all_reduce")
    run |= {"cat": "cpu_op", "name": "record_param_comms"}
    run["args"] = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 4}
    assert imported(data, tmp_path)[1] == [("all_reduce", None, 0, 4000, ((0, 1),))]
