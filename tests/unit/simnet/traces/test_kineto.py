"""Collectives, launches and phases are read from traces of any vendor, or refused; imports and fits read the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import run_traces
from simnet.core.errors import SimnetError
from simnet.traces import kineto
from simnet.traces.import_step import ImportOptions, step_of
from tests.helpers import kineto_traces as traces
from tests.helpers.kineto_traces import Event, kernel, sent

Change = Callable[[dict[str, Any]], None]


def collectives(data: dict[str, Any]) -> list[Event]:
    return [one for one in data["traceEvents"] if "Collective name" in one["args"]]


def without_arguments(data: dict[str, Any], name: str) -> dict[str, Any]:
    for one in collectives(data):
        one |= {"name": name, "args": {key: one["args"][key] for key in ("stream", "correlation")}}
    return data


def imported(data: dict[str, Any], folder: Path) -> list[list[tuple[Any, ...]]]:
    (layout,) = step_of([traces.write(folder / "t.json", data)], ImportOptions(ranks_per_node=2)).recordings
    return [
        [(one.kind, one.part, round(one.seconds * 1e6), one.message_bytes, one.after) for one in stream.operations]
        for stream in layout.streams
    ]


def refused(data: dict[str, Any], folder: Path) -> str:
    with pytest.raises(SimnetError) as caught:
        imported(data, folder)
    return str(caught.value)


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
    "void at::native::_scatter_gather_elementwise_kernel<128>", "my_rccl_like_bias",
)  # fmt: skip


def test_kernels_of_libraries_are_known_by_their_names_and_refused_without_a_message(tmp_path: Path) -> None:
    assert [name for name in (*OF_LIBRARIES, *OF_OTHERS) if kineto.is_of_a_library(name)] == list(OF_LIBRARIES)
    for name in OF_LIBRARIES[:2]:
        assert "does not say its message" in refused(without_arguments(traces.ddp(told=False), name), tmp_path)


def test_an_unknown_category_that_launches_kernels_is_refused_by_name(tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    for one in data["traceEvents"]:
        one["cat"] = one["cat"].replace("cuda_runtime", "npu_api")
    assert "category 'npu_api': 'cudaLaunchKernel' launches a kernel: known are" in refused(data, tmp_path)


def no_launches(data: dict[str, Any]) -> None:
    data["traceEvents"] = [one for one in data["traceEvents"] if one["cat"] != "cuda_runtime"]


def test_kernels_that_nothing_launched_have_no_phases_and_no_step(tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    no_launches(data)
    assert "no event says when the CPU launched its kernels" in refused(data, tmp_path)
    with pytest.raises(SimnetError, match="no event says when the CPU launched its kernels"):
        run_traces.steps_of(kineto.parse(data, "t.json"))
    assert kineto.parse(data, "t.json").steps[0].optimizer_s == 0


def test_a_launch_is_known_by_the_operator_where_no_call_is_in_the_trace(tmp_path: Path) -> None:
    wanted, data = (traces.ddp(told=False) for _ in range(2))
    for number, one in enumerate(data["traceEvents"]):
        if one["cat"] == "cuda_runtime":
            one |= {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": number}}
            data["traceEvents"][number + 1]["args"]["External id"] = number
    assert imported(data, tmp_path) == imported(wanted, tmp_path)


@pytest.mark.parametrize("keep", ["launches", "annotations"])
def test_a_trace_without_the_work_of_the_gpu_is_refused(keep: str, tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    data["traceEvents"] = [one for one in data["traceEvents"] if one["cat"] not in ("kernel", "cuda_sync")]
    if keep == "annotations":
        no_launches(data)
        data["traceEvents"].append(traces.event("user_annotation", "nccl:all_reduce", 40, 50))
    assert "the trace holds no event of a GPU; profile with the activity of the GPU too" in refused(data, tmp_path)


def test_a_gpu_on_which_nothing_is_known_as_the_collective_that_torch_asks_for_is_refused(tmp_path: Path) -> None:
    data = without_arguments(traces.ddp(told=False), "ring_kernel_of_somebody")
    data["traceEvents"].append(traces.event("cpu_op", "c10d::allreduce_", 39, 41))
    assert "c10d::allreduce_: torch asks for a collective, but nothing on the GPU is known" in refused(data, tmp_path)


def test_a_gpu_whose_collectives_all_run_on_the_cpu_is_refused(tmp_path: Path) -> None:
    data = traces.trace(kernel("gemm", 1, 10, 20, 70), traces.event("user_annotation", "gloo:all_reduce", 40, 50))
    assert "gloo:all_reduce: all collectives run on the CPU while the work runs on a GPU" in refused(data, tmp_path)


def test_collectives_on_the_cpu_beside_those_of_a_gpu_are_left_out_with_a_note(tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    data["traceEvents"].append(traces.event("user_annotation", "gloo:all_reduce", 40, 50))
    (layout,) = step_of([traces.write(tmp_path / "t.json", data)], ImportOptions()).recordings
    assert any("1 collectives on the CPU, such as gloo:all_reduce, are left out" in note for note in layout.notes)


def changed(**arguments: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for one in collectives(data):
            one["args"] |= {key.replace("__", " "): value for key, value in arguments.items()}

    return change


def numbers_as_text(data: dict[str, Any]) -> None:
    for one in data["traceEvents"]:
        one["args"] = {key: str(value) if type(value) is int else value for key, value in one["args"].items()}


def no_world_size(data: dict[str, Any]) -> None:
    del data["distributedInfo"]["world_size"]


@pytest.mark.parametrize(
    "change",
    [numbers_as_text, no_world_size, changed(dtype="torch.float32"), changed(Collective__name="ALLREDUCE_COALESCED")],
)
def test_numbers_as_text_and_names_of_other_writers_are_read(change: Change, tmp_path: Path) -> None:
    wanted, data = (traces.ddp(told=True) for _ in range(2))
    change(data)
    assert imported(data, tmp_path) == imported(wanted, tmp_path)


@pytest.mark.parametrize("given", ["many", -5, 1.5, True, 2**60, None])
def test_elements_that_are_no_number_are_no_message_of_zero_bytes(given: object, tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    changed(In__msg__nelems=given)(data)
    assert "does not say its message" in refused(data, tmp_path)
    assert kineto.parse(data, "t.json").reduced_bytes == 0


def test_one_message_of_unknown_size_leaves_the_bytes_of_the_step_unknown() -> None:
    data = traces.ddp(told=True)
    del collectives(data)[0]["args"]["In msg nelems"]
    assert kineto.parse(data, "t.json").reduced_bytes == 0


def test_a_collective_without_any_word_of_its_group_is_refused(tmp_path: Path) -> None:
    data = traces.ddp(told=True)
    del data["distributedInfo"]["pg_config"]
    for one in collectives(data):
        one["args"] = {key: value for key, value in one["args"].items() if "roup" not in key}
    assert "does not say its process group; profile with torch 2.4 or later" in refused(data, tmp_path)


def test_waits_of_which_the_trace_tells_a_part_are_found_by_their_times(tmp_path: Path) -> None:
    wanted, data = (traces.ddp(told=True) for _ in range(2))
    for one in data["traceEvents"]:
        if one["cat"] == "cuda_sync" and one["args"]["wait_on_stream"] == traces.NCCL:
            one["args"]["wait_on_cuda_event_record_corr_id"] = -1
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


def test_a_trace_that_only_its_groups_give_a_size_is_one_of_several_ranks() -> None:
    data = traces.trace(kernel("a", 1, 0, 0, 9), sent("allreduce", 2, 1, 9, 20))
    no_world_size(data)
    assert kineto.parse(data, "t.json").world_size == 4


def test_what_torch_asks_is_the_collective_where_no_backend_is_in_the_trace(tmp_path: Path) -> None:
    data = of_gloo(ended=290)
    run = next(one for one in data["traceEvents"] if one["name"] == "gloo:all_reduce")
    run |= {"cat": "cpu_op", "name": "record_param_comms"}
    run["args"] = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 4}
    assert imported(data, tmp_path)[1] == [("all_reduce", None, 0, 4000, ((0, 1),))]
