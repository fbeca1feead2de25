"""The call that an advice names gives the step that was simulated: run as it is printed, recorded, and compared."""

import argparse
import json
import math
import shlex
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from simnet.analysis.tune import dense_systems, systems
from simnet.core import schema
from simnet.core.units import Size
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, BinSGDM, DenseAllReduce, FullShard, HybridShard, RecordedStep, Strategy
from simnet.strategies.calls import FLAGS, LR_RATIO, NO_CALL, NO_FLAG, PASTED, calls, effort, takes_clipping
from simnet.strategies.compressors import Marsit
from simnet.strategies.local_steps import DiLoCo, LocalSGD, LocalStepsStrategy
from simnet.strategies.one_bit_adam import OneBitAdam
from simnet.strategies.zero import ShardedUpdate, Zero1, Zero2
from simnet.workload.workload import Workload
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import Layout, ShardedModel, simulated_step
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording, unrolled

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of what torch itself does
    from torch.distributed.optim import ZeroRedundancyOptimizer

LAYOUT: Layout = (2, 2)
CAP = Size(steps.CAP_BYTES)
KNOWN = {**dense_systems("fp32"), **systems()}
NOT_HERE = {"GradZip", "ATOMO"}
"""What it sends is drawn, or differs from step to step: tests/contract/test_varying_messages.py."""


class InOrder(ShardedModel):
    """The sharded model, its parameters in the order of forward."""

    def __init__(self) -> None:
        super().__init__()
        head = self.head
        del self.head
        self.head = head


def test_every_built_in_strategy_has_a_call() -> None:
    for variants in KNOWN.values():
        assert all(calls(variant) for variant in variants)
    assert calls(RecordedStep(file="step.json")) == ()


def small(strategy: AnyStrategy) -> AnyStrategy:
    """Return a strategy for a small model: with buckets, and periods, that it has several of."""
    if isinstance(strategy, DiLoCo | LocalSGD):
        fragments = (
            {"fragments": 2, "inner_steps": 6, "overlap_steps": 2} if getattr(strategy, "fragments", 1) > 1 else {}
        )
        return structs.replace(strategy, **({"inner_steps": 3} | fragments))
    return structs.replace(strategy, bucket_cap=CAP) if strategy.bucket_cap is not None else strategy


def run(strategy: AnyStrategy, layout: Layout) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Run the call of a strategy as a script would, and return what it trains."""
    nodes, ranks_per_node = layout
    model: torch.nn.Module = steps.small_model(even=True)
    if isinstance(strategy, FullShard | HybridShard) or getattr(strategy, "in_node", "") == "fsdp":
        model = InOrder()
    elif isinstance(strategy, BinSGDM | OneBitAdam):
        model = steps.even_model(math.prod(layout))
    elif isinstance(strategy, LocalStepsStrategy):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 96, bias=False), torch.nn.Linear(96, 64, bias=False))
    given: dict[str, Any] = {
        "model": model, "lr": 1e-3, "nodes": nodes, "ranks_per_node": ranks_per_node, "device": "cpu",
        "torch": torch, "dist": dist,
        "binsgdm": binsgdm, "DistributedDataParallel": DistributedDataParallel, "default_hooks": default_hooks,
        "fully_shard": fully_shard, "MixedPrecisionPolicy": MixedPrecisionPolicy, "init_device_mesh": init_device_mesh,
        "ZeroRedundancyOptimizer": ZeroRedundancyOptimizer,
    }  # fmt: skip
    # The dense stage ends by a criterion of the variance, which a few steps do not meet.
    *first, last = (call.replace("OneBitAdam(", "OneBitAdam(dense_steps=1, params=") for call in calls(strategy))
    exec("\n".join(first), given)
    given.setdefault("optimizer", torch.optim.SGD(given["model"].parameters(), lr=1e-3))
    exec(last, given)
    if "optimizer" not in last and isinstance(strategy, FullShard | HybridShard):
        given["optimizer"] = torch.optim.SGD(given["model"].parameters(), lr=1e-3)
    return given["model"], given["optimizer"]


def record(strategy: AnyStrategy, layout: Layout) -> dict[str, Any]:
    period = strategy.inner_steps if isinstance(strategy, LocalStepsStrategy) else 1
    overlap = getattr(strategy, "overlap_steps", 0)

    def script() -> None:
        model, optimizer = run(strategy, layout)
        inputs = next(iter(model.parameters())).shape[-1]
        for _ in range(4 * period + overlap):
            optimizer.zero_grad()
            model(torch.ones(2, inputs)).square().mean().backward()
            optimizer.step()

    warm_up = {"warm_up": 2 * period + overlap} if period > 1 else {}
    return recorded(script, *layout, steps=period, **warm_up)


def forms(strategy: Strategy, recording: dict[str, Any]) -> tuple[StepForm, StepForm]:
    if isinstance(strategy, FullShard | HybridShard) or getattr(strategy, "in_node", "") == "fsdp":
        program = strategy.program(simulated_step(1), steps.topology(*LAYOUT))
    else:
        program = steps.program(strategy, recording)
    if isinstance(strategy, LocalStepsStrategy):
        program = unrolled(program, recording["num_steps"])
    is_hops = steps.is_hop_of_marsit(strategy.topology, LAYOUT) if isinstance(strategy, Marsit) else lambda _: False
    real, wanted = form_of_recording(recording), form_of_program(program, is_hops)
    if isinstance(strategy, BinSGDM | OneBitAdam) or "binsgdm" in getattr(strategy, "replicas", ""):
        real, wanted = without_small_sizes(real), without_small_sizes(wanted)
    return real, wanted


def without_small_sizes(form: StepForm) -> StepForm:
    """Leave out the bytes of flags, which hold checksums, too, and of signs, which are padded to words."""
    sent = [message._replace(num_bytes=0.0) if message.num_bytes < 1000 else message for message in form.sent]
    return form._replace(sent=tuple(sent))


def by_family() -> list[Any]:
    """Return settings of each system, one of each topology: the first of a system, and where all is run the others."""
    chosen: list[Any] = []
    for name, variants in KNOWN.items():
        if name.split()[0] in NOT_HERE:
            continue
        by_call = {tuple(calls(variant))[-1].split("bucket_cap_mb")[0]: variant for variant in reversed(variants)}
        runnable = [variant for variant in by_call.values() if runs_here(variant)]
        for variant in runnable:
            marks = () if variant is runnable[-1] else pytest.mark.slow
            chosen.append(pytest.param(small(variant), id=f"{name}: {len(chosen)}", marks=marks))
    return chosen


def runs_here(strategy: AnyStrategy) -> bool:
    """Tell whether a call is a script of torch and binsgdm alone, without NCCL, whose step has the simulated form."""
    is_one_collective = isinstance(strategy, DenseAllReduce) and strategy.algorithm == "hierarchical"
    text = calls(strategy)
    return not text[0].startswith("#") and "bf16_compress_hook" not in str(text) and not is_one_collective


@pytest.mark.parametrize("strategy", by_family())
def test_the_call_gives_the_simulated_step(strategy: AnyStrategy) -> None:
    real, simulated = forms(strategy, record(strategy, LAYOUT))
    assert real == simulated
    assert real.sent


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_the_call_of_a_hierarchical_all_reduce_takes_the_simulated_time(dtype: Any, tmp_path: Path) -> None:
    """It is one collective in `simnet`, and three messages in the step, whose parts take as long together."""
    strategy = DenseAllReduce(algorithm="hierarchical", wire_dtype=dtype)
    recording = record(strategy, LAYOUT)
    assert [(message.kind, message.group) for message in form_of_recording(recording).sent] == [
        ("all_to_all", (2, 1)), ("all_reduce", (2, 2)), ("all_gather", (2, 1)),
    ]  # fmt: skip
    source = {"how": "record", "compute": "counted"}
    whole = {"format": "simnet-step", "version": 1, "source": source, "recordings": [recording]}
    (tmp_path / "step.json").write_text(json.dumps(whole))
    given = {
        "cluster": {
            "num_nodes": 2, "ranks_per_node": 2, "intra_node": {"bandwidth": "10 GB/s", "latency": "1 us"},
            "inter_node": {"bandwidth": "1 Gbit/s", "latency": "5 us"},
        },
        "workload": {"gradient": f"{recording['gradient_bytes']} B", "forward": "1 ms", "backward": "2 ms"},
        "calibration": {"memory_bandwidth": "1000 GB/s"},
    }  # fmt: skip
    own = {"kind": "all_reduce", "algorithm": "hierarchical"} | ({"wire_dtype": dtype} if dtype else {})
    times = [
        simulate(schema.build(Scenario, given | {"strategy": one}, "step")).result.iteration_s
        for one in (own, {"kind": "recorded", "file": str(tmp_path / "step.json")})
    ]
    assert times[1] == pytest.approx(times[0], rel=0.02)


Sharding = tuple[str, str, bool, bool, float]
"""Format of gradients and of parameters on the wire, overlap with backward and with forward, bytes of a bucket."""


def read_by_megatron(flags: str) -> Sharding:
    """Return what Megatron-LM does with flags: `validate_args`, and `DistributedDataParallel` of megatron-core."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for name in (
        "bf16", "fp16", "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32", "use-distributed-optimizer",
        "overlap-grad-reduce", "overlap-param-gather",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--ddp-bucket-size", type=int, default=40_000_000)
    given = parser.parse_args(shlex.split(flags))
    assert given.use_distributed_optimizer
    assert given.overlap_grad_reduce or not given.overlap_param_gather
    params = "bf16" if given.bf16 else "fp16" if given.fp16 else "fp32"
    in_fp32 = given.accumulate_allreduce_grads_in_fp32 or (given.bf16 and not given.grad_reduce_in_bf16)
    bucket = given.ddp_bucket_size if given.overlap_grad_reduce else math.inf
    return "fp32" if in_fp32 else params, params, given.overlap_grad_reduce, given.overlap_param_gather, bucket


def read_by_deepspeed(config: str) -> Sharding:
    """Return what DeepSpeed does with a configuration: `communication_data_type` of its engine."""
    content = json.loads(config)
    params = next((dtype for dtype in ("bf16", "fp16") if content.get(dtype, {}).get("enabled")), "fp32")
    zero = content["zero_optimization"]
    assert zero["stage"] == 2
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"]
    reduced = content.get("communication_data_type") or params
    return reduced, params, zero.get("overlap_comm", False), False, zero["reduce_bucket_size"]


@pytest.mark.parametrize(("reduced", "gathered"), list(product([None, "bf16", "fp16", "fp32"], repeat=2)))
@pytest.mark.parametrize("workload_dtype", ["fp32", "bf16"])
def test_flags_of_a_framework_are_the_simulated_settings_or_say_that_there_are_none(
    reduced: Any, gathered: Any, workload_dtype: Any
) -> None:
    workload, num_read = Workload(dtype=workload_dtype), 0
    for variant in (*KNOWN["ZeRO-1"], *KNOWN["ZeRO-2"], Zero2(overlap=False)):
        strategy = structs.replace(variant, wire_dtype=reduced, gather_dtype=gathered)
        assert isinstance(strategy, ShardedUpdate)
        line = calls(strategy, workload)[-1]
        if effort(strategy, workload) != FLAGS:
            assert effort(strategy, workload) == (NO_CALL if line.startswith(NO_FLAG) else PASTED)
            continue
        framework, _, text = line.removeprefix("# ").partition(": ")
        read = {"Megatron-LM": read_by_megatron, "DeepSpeed": read_by_deepspeed}[framework](text)
        cap = {None: 25 * 2**20}.get(strategy.bucket_cap, strategy.bucket_cap)
        width = {"fp32": 4, "bf16": 2}[workload_dtype]
        bucket = math.inf if strategy.bucketing == "fused" else cap / width
        wanted = reduced or workload_dtype, gathered or workload_dtype
        assert read == (*wanted, strategy.overlap, strategy.overlap_param_gather, bucket)
        num_read += 1
    assert num_read


IN_BF16 = Workload(precision="bf16")


@pytest.mark.parametrize(
    ("strategy", "workload"),
    [
        (Zero1(wire_dtype="bf16", gather_dtype="fp32"), Workload()),
        (Zero1(wire_dtype="fp16", gather_dtype="bf16"), Workload()),
        (Zero1(update="broadcast", gather_dtype="bf16"), Workload()),
        (Zero1(overlap=False), Workload()),
        (Zero1(), IN_BF16),  # Megatron with fp32 parameters computes in fp32
        (Zero1(gather_dtype="fp16"), IN_BF16),
        (Zero2(overlap_param_gather=True), Workload()),
        (Zero2(bucketing="fused", overlap=False), Workload()),
    ],
)
def test_what_no_flag_gives_is_said_not_to_be_given(strategy: AnyStrategy, workload: Workload) -> None:
    (line,) = calls(strategy, workload)
    assert line.startswith(NO_FLAG)
    assert line.endswith(".")
    assert effort(strategy, workload) == NO_CALL


def test_the_call_of_binsgdm_says_its_rate_as_a_part_of_adams_and_whether_gradients_may_be_clipped() -> None:
    for variant in KNOWN["BinSGDM"]:
        text = "\n".join(calls(variant))
        assert f"lr={LR_RATIO} * lr" in text
        assert takes_clipping(variant) is ("overlap=True" not in text)
