"""The memory of a GPU in docs/evidence/simulator.md: real training steps, with the bytes that torch's allocator gave.

A process believes itself rank 0 of several. The process groups of `simnet record` send nothing, and allocate what a
rank's would. The allocator is that of a CPU, whose every allocation and release torch's profiler notes, on the thread
that trains. What is predicted is made anew for the page.
"""

import gc
import json
import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

import binsgdm
from binsgdm import kernels
from binsgdm.recording.model_zoo import LlamaSize, Task
from binsgdm.recording.recording import Recording, RecordingSettings
from binsgdm.recording.single_process_world import World
from binsgdm.recording.step_description import ModelDescription, describe, fake_tensors
from evidence import RESULTS
from evidence.studies.page import SIMULATOR
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine import memory_fit
from simnet.engine.scenario import RunSettings, Scenario
from simnet.report.table import Table
from simnet.strategies.base import strategy_from_text
from simnet.workload.gpu_memory import GpuMemory
from simnet.workload.workload import Checkpointed, Gradient, StepMemory, Work, Workload

NODES, RANKS_PER_NODE = 2, 4
BATCH, STEPS = 4, 4  # the first step allocates state and DDP forms buckets anew; the last has neither
LOCAL_STEPS = 2
"""Of local SGD and DiLoCo: the last step exchanges."""
SIZE = LlamaSize(
    title="small Llama",
    width=256,
    layers=6,
    heads=4,
    key_heads=4,
    hidden=688,
    length=128,
    vocabulary=2000,
    source="made for this measurement",
)
STEP_MARK, FORWARD_MARK = "one step", "one forward"
Wrapped = tuple[nn.Module, Optimizer]
_ADAM_IN_FP32 = Work(
    forward_flops=1.0, backward_flops=1.0, forward_bytes=0.0, backward_bytes=0.0, optimizer="adam", precision="fp32"
)
PAGE = SIMULATOR
FILE = RESULTS / "memory.json"
MIB = 2.0**20
COLUMNS = ("training", "parameters", "state", "all between steps", "forward adds", "peak", "error")


class MeasuredMemory(NamedTuple):
    """Bytes of the last step.

    Attributes:
        parameters: of the rank's parameters, or of its shards.
        state: of everything that the optimizer keeps of them.
        between_steps: allocated when the step begins.
        forward: more than that when forward has ended.
        peak: the most in the step.
    """

    parameters: float
    state: float
    between_steps: float
    forward: float
    peak: float


class MemoryCase(NamedTuple):
    """One way to train.

    Attributes:
        strategy: that predicts it, as text.
        wrap: makes what trains of a model, after process groups exist.
        checkpointing: part of the blocks, the first ones, that run again in backward.
    """

    title: str
    strategy: str
    wrap: Callable[[nn.Module], Wrapped]
    micro_batches: int = 1
    gradient_as_bucket_view: bool = False
    checkpointing: float = 0.0


def _adam(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=1e-3, foreach=True)  # as by default on a GPU


def _ddp(module: nn.Module, **options: Any) -> Wrapped:
    return DistributedDataParallel(module, **options), _adam(module.parameters())


def _sharded(module: nn.Module, shape: Sequence[int], *, frees: bool = True) -> Wrapped:
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=("nodes", "ranks")[-len(shape) :])
    for block in module.layers:
        fully_shard(block, mesh=mesh, reshard_after_forward=frees)
    fully_shard(module, mesh=mesh)
    return module, _adam(module.parameters())


def _zero1(module: nn.Module) -> Wrapped:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of what torch itself does
        from torch.distributed.optim import ZeroRedundancyOptimizer
    wrapped = DistributedDataParallel(module)
    return wrapped, ZeroRedundancyOptimizer(module.parameters(), AdamW, lr=1e-3, foreach=True)


def _binsgdm(module: nn.Module, **options: Any) -> Wrapped:
    wrapped, optimizer = DistributedDataParallel(module), binsgdm.BinSGDM(module.parameters(), lr=1e-3)
    binsgdm.attach(optimizer, wrapped, **options)
    return wrapped, optimizer


def _alone(module: nn.Module, outer: Callable[..., Optimizer]) -> Wrapped:
    return module, outer(_adam(module.parameters()), inner_steps=LOCAL_STEPS)


def _between_copies(module: nn.Module) -> Wrapped:
    mesh = init_device_mesh("cpu", (NODES, RANKS_PER_NODE), mesh_dim_names=("nodes", "ranks"))
    for part in (*module.layers, module):
        fully_shard(part, mesh=mesh["ranks"])
    optimizer = binsgdm.BinSGDM(module.parameters(), lr=1e-3)
    binsgdm.attach_fsdp(optimizer, mesh)
    return module, optimizer


_full = partial(_sharded, shape=[NODES * RANKS_PER_NODE])
CASES = (
    MemoryCase("DDP", "all_reduce", _ddp),
    MemoryCase(
        "DDP, gradients as views",
        "all_reduce",
        partial(_ddp, gradient_as_bucket_view=True),
        gradient_as_bucket_view=True,
    ),
    MemoryCase("DDP, 2 micro-batches", "all_reduce", _ddp, micro_batches=2),
    MemoryCase("DDP, all blocks checkpointed", "all_reduce", _ddp, checkpointing=1.0),
    MemoryCase("DDP, half of the blocks checkpointed", "all_reduce", _ddp, checkpointing=0.5),
    MemoryCase("FSDP2, all blocks checkpointed", "fsdp", _full, checkpointing=1.0),
    MemoryCase("FSDP2", "fsdp", _full),
    MemoryCase("FSDP2, blocks kept", "fsdp:reshard_after_forward=false", partial(_full, frees=False)),
    MemoryCase("HSDP", "hsdp", partial(_sharded, shape=[NODES, RANKS_PER_NODE])),
    MemoryCase("HSDP, BinSGDM between copies", "hsdp:replicas=binsgdm", _between_copies),
    MemoryCase("ZeRO-1 of torch", "zero1:update=broadcast", _zero1),
    MemoryCase("local SGD", f"local_sgd:inner_steps={LOCAL_STEPS}", partial(_alone, outer=binsgdm.LocalSGD)),
    MemoryCase("DiLoCo", f"diloco:workers=rank,inner_steps={LOCAL_STEPS}", partial(_alone, outer=binsgdm.DiLoCo)),
    MemoryCase("BinSGDM", "binsgdm", _binsgdm),
    MemoryCase("BinSGDM, flat", "binsgdm:topology=flat", partial(_binsgdm, topology="flat")),
)


def measure(case: MemoryCase) -> MeasuredMemory:
    """Train some steps, and return what the last one takes."""
    gc.collect()
    # Nobody asks for the work, which costs time to count.
    settings = RecordingSettings(steps=2, warm_up=1, compute="timed")
    recording = Recording(World(num_nodes=NODES, ranks_per_node=RANKS_PER_NODE), settings)
    with ExitStack() as stack:
        profiler = stack.enter_context(profile(activities=[ProfilerActivity.CPU], profile_memory=True))
        # BinSGDM takes its momenta from torch's allocator, as on a GPU, in place of huge pages.
        # All its users first: it is one of them itself.
        users = [user for user in list(sys.modules.values()) if vars(user).get("zeros") is kernels.zeros]
        for user in users:
            stack.enter_context(patch.object(user, "zeros", lambda n, device="cpu": torch.zeros(n, device=device)))
        stack.enter_context(recording.running())
        dist.init_process_group("gloo")
        task = SIZE.task(BATCH)
        for block in list(task.module.layers)[: round(case.checkpointing * SIZE.layers)]:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        module, optimizer = case.wrap(task.module)
        for _ in range(STEPS):
            with record_function(STEP_MARK):
                _step(case, task, module, optimizer)
        parameters = _bytes_of(module.parameters())
        state = _bytes_of(_tensors(optimizer))
    return _levels(profiler, parameters, state)


def _step(case: MemoryCase, task: Task, module: nn.Module, optimizer: Optimizer) -> None:
    for number in range(1, case.micro_batches + 1):
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = number == case.micro_batches
        with record_function(FORWARD_MARK):
            loss = task.loss_of(module)
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


def _tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield all that an optimizer keeps."""
    inner = getattr(optimizer, "optim", optimizer)
    for state in inner.state.values():
        yield from (tensor for tensor in state.values() if isinstance(tensor, torch.Tensor))
    if isinstance(optimizer, binsgdm.DiLoCo):
        for fragment in optimizer.outer.fragments:
            yield from (fragment.outer, fragment.momentum)


def _bytes_of(tensors: Any) -> float:
    """Return the bytes of the memory that tensors lie in, each counted once."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    storages = [tensor.untyped_storage() for tensor in local]
    return float(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))


def _levels(profiler: Any, parameters: float, state: float) -> MeasuredMemory:
    marked: dict[str, list[Any]] = {"[memory]": [], STEP_MARK: [], FORWARD_MARK: []}
    for event in profiler.profiler.kineto_results.events():
        marked.get(event.name(), []).append(event)
    changes = sorted((change.start_ns(), change.nbytes()) for change in marked["[memory]"])
    times_ns, sizes = np.array(changes).T
    levels = np.cumsum(sizes)
    # Of the last step and the last forward: how many changes there were by their begin and their end.
    begin, end, forward_begin, forward_end = (
        np.searchsorted(times_ns, at_ns, side="right")
        for mark in (STEP_MARK, FORWARD_MARK)
        for at_ns in max((event.start_ns(), event.start_ns() + event.duration_ns()) for event in marked[mark])
    )
    forward = levels[forward_end - 1] - levels[forward_begin - 1]
    peak = levels[begin - 1 : end].max()
    return MeasuredMemory(parameters, state, *map(float, (levels[begin - 1], forward, peak)))


def predict(case: MemoryCase) -> GpuMemory:
    """Return what simnet predicts of a case, whose model is counted on tensors without memory."""
    strategy = strategy_from_text(case.strategy, "case")
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    description, again = _description(checkpoint=False), _description(checkpoint=True)
    num_bytes = 4.0 * sum(math.prod(tensor.shape) for tensor in description.gradients)
    workload = Workload(
        tensors=tuple(
            Gradient(shape=tuple(tensor.shape), backward_share=tensor.flops, name=tensor.name)
            for tensor in description.gradients
        ),
        forward_s=Duration(1.0),
        backward_s=Duration(2.0),
        work=_ADAM_IN_FP32,
        memory=StepMemory(
            parameters=Size(num_bytes),
            gradients=Size(num_bytes),
            optimizer=Size(2 * num_bytes),
            activations_per_sample=Size(description.activation_bytes / BATCH),
            gradient_as_bucket_view=case.gradient_as_bucket_view,
            checkpointed=Checkpointed(
                activations_per_sample=Size(again.activation_bytes / BATCH), recomputed=1.0, blocks=SIZE.layers
            ),
        ),
        batch_per_rank=BATCH,
        checkpointing=case.checkpointing,
    )
    scenario = Scenario(
        cluster=Cluster(num_nodes=NODES, ranks_per_node=RANKS_PER_NODE, intra_node=link, inter_node=link),
        workload=workload,
        strategy=strategy,
        calibration=Calibration(),
        run=RunSettings(grad_accumulation=case.micro_batches),
    )
    memory = memory_fit.memory_of(scenario, strategy)
    assert memory is not None
    return memory


@cache
def _description(*, checkpoint: bool) -> ModelDescription:
    with fake_tensors():
        return describe(SIZE.task(BATCH), checkpoint=checkpoint)


def run(_options: Namespace) -> None:
    measured = {case.title: measure(case)._asdict() for case in CASES}
    FILE.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def read() -> dict[str, MeasuredMemory]:
    return {title: MeasuredMemory(**fields) for title, fields in json.loads(FILE.read_text(encoding="utf-8")).items()}


def regions(measured: dict[str, MeasuredMemory]) -> dict[str, str]:
    errors = [abs(error(predict(case), measured[case.title])) for case in CASES]
    summary = (
        f"{len(errors)} ways to train: the peak is predicted within {max(errors):.1%} of the measured one, "
        f"{sum(errors) / len(errors):.1%} off on average.".replace("%", " %")
    )
    return {"memory": summary}


def data(by_title: dict[str, MeasuredMemory]) -> dict[str, Table]:
    rows = []
    for case in CASES:
        ours, real = predict(case), by_title[case.title]
        state = ours.optimizer + ours.residuals
        between, forward = ours.parameters + state + ours.buckets, ours.activations + ours.gathered
        pairs = zip((ours.parameters, state, between, forward, ours.total_bytes), real, strict=True)
        cells = [f"{predicted / MIB:.1f} / {measured / MIB:.1f}" for predicted, measured in pairs]
        rows.append([case.title, *cells, f"{error(ours, real):+.1%}".replace("%", " %")])
    return {"memory": Table(COLUMNS, rows)}


def error(predicted: GpuMemory, real: MeasuredMemory) -> float:
    """Return how far the predicted peak is off, as a part of the measured one."""
    return predicted.total_bytes / real.peak - 1
