"""Steps of several ranks that one process takes in turns: NCCL refuses two ranks on one card.

What gives the CPU's bits: draws, signs, products and quotients that are rounded once, sums in the order of ranks, and
scales. Their sums are in fp64, whose order shows in no fp32 scale but with a chance of 1e-8 each. Factors in products
with a sum are powers of two here: a card rounds such a product and sum once, a CPU not always, and these are exact.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.outer_steps import OuterSettings, OuterSteps, averaged
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from tests.gpu.samples import FP32, SEED, SHAPES, STEPS, Dtypes, Shapes, gradients, parameters

RANKS, A_NODE = 4, 2
BUCKET_ELEMENTS = 4096
LR, WEIGHT_DECAY = 0.01, 0.1
# Powers of two, as the module says.
INNER_LR, OUTER = 2.0**-6, {"inner_steps": 2, "outer_lr": 0.5, "outer_momentum": 0.5}
OUTER_STEPS = 8
Make = Callable[[Sequence[nn.Parameter]], OneBitOptimizer]


def in_one_process(
    make_one: Make,
    join: Callable[[OneBitOptimizer, Member], None],
    size: tuple[int, int],
    device: torch.device,
    dtypes: Dtypes = FP32,
    shapes: Shapes = SHAPES,
) -> list[list[Tensor]]:
    """Return the parameters of all ranks after a few steps, all taken in this process.

    Args:
        make_one: returns the optimizer of a rank for its parameters.
        join: lets it step as one of the ranks.
        size: of the world, and of a node.
        device: of the parameters.
        dtypes: of the parameters, in turns.
        shapes: of the parameters.
    """
    world_size, local = size
    copies = [parameters(device, dtypes, shapes) for _ in range(world_size)]
    optimizers = [make_one(values) for values in copies]
    for rank, optimizer in enumerate(optimizers):
        join(optimizer, Member(rank=rank, world_size=world_size, ranks_per_node=local))
    for step in range(1, STEPS + 1):
        for rank, values in enumerate(copies):
            for value, gradient in zip(values, gradients(rank, step, device, dtypes, shapes), strict=True):
                value.grad = gradient
        run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers], local)
    return [[value.detach() for value in values] for values in copies]


def make_binsgdm(values: Sequence[nn.Parameter], kernels: str | None = None) -> BinSGDM:
    """Return BinSGDM as every comparison has it."""
    return BinSGDM(values, lr=LR, weight_decay=WEIGHT_DECAY, seed=SEED, kernels=kernels)


def join_in_lockstep(scheme: Scheme, optimizer: Any, member: Member) -> None:
    """Let BinSGDM step as a rank."""
    optimizer.join(Session(member, scheme, BUCKET_ELEMENTS))


def outer_steps(
    given: Mapping[str, Any], world_size: int, device: torch.device, dtypes: Dtypes = FP32
) -> list[list[Tensor]]:
    """Return parameters and outer state of all ranks after DiLoCo's steps, all taken in this process.

    Args:
        given: settings of DiLoCo, beside those of `OUTER`.
        world_size: all ranks, two a worker where workers are nodes.
        device: of the parameters.
        dtypes: of the parameters, in turns.
    """
    settings = OuterSettings(seed=SEED, **{**OUTER, **given})
    size = A_NODE if settings.workers == "node" else 1
    workers = [_WorkerSteps(rank // size, device, dtypes) for rank in range(world_size)]
    ends = [
        OuterSteps(worker.values, settings, Member(rank=rank, world_size=world_size, ranks_per_node=size))
        for rank, worker in enumerate(workers)
    ]
    means: list[Tensor] = []
    for step in range(1, OUTER_STEPS + 1):
        for worker in workers:
            worker.step(step)
        if ends[0].starting(step) is not None:
            means = run_in_lockstep([_outer_mean(end, step) for end in ends], size)
        if ends[0].ending(step) is not None:
            run_in_lockstep([_outer_finish(end, step, mean) for end, mean in zip(ends, means, strict=True)], size)
    return [worker.tensors() + outer_state(end) for worker, end in zip(workers, ends, strict=True)]


class _WorkerSteps:
    """A rank's inner steps, which depend on its worker alone."""

    def __init__(self, worker: int, device: torch.device, dtypes: Dtypes) -> None:
        self.values = parameters(device, dtypes)
        self._where = worker, device, dtypes
        self._inner = torch.optim.SGD(self.values, lr=INNER_LR)

    def step(self, step: int) -> None:
        worker, device, dtypes = self._where
        for value, gradient in zip(self.values, gradients(worker, step, device, dtypes), strict=True):
            value.grad = gradient
        self._inner.step()

    def tensors(self) -> list[Tensor]:
        return [value.detach() for value in self.values]


@torch.no_grad()
def _outer_mean(end: OuterSteps, step: int) -> Any:
    fragment = end.starting(step)
    assert fragment is not None
    return end.mean(fragment, fragment.pseudo_gradient(), step)


def _outer_finish(end: OuterSteps, step: int, mean: Tensor) -> Any:
    fragment = end.ending(step)
    assert fragment is not None
    return end.finish(fragment, mean)


def outer_state(end: OuterSteps) -> list[Tensor]:
    """Return outer parameters and momenta."""
    return [one for fragment in end.fragments for one in (fragment.outer, fragment.momentum)]


def averaged_steps(wire_dtype: str, world_size: int, device: torch.device) -> list[list[Tensor]]:
    """Return the parameters of all ranks after steps of local SGD, averaged after every second one."""
    workers = [_WorkerSteps(rank, device, FP32) for rank in range(world_size)]
    for step in range(1, OUTER_STEPS + 1):
        for worker in workers:
            worker.step(step)
        if step % 2 == 0:
            run_in_lockstep([averaged(worker.values, wire_dtype, world_size) for worker in workers], 1)
    return [worker.tensors() for worker in workers]
