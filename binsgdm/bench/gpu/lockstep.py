"""Compare several ranks in one process on a device with the same ranks on a CPU.

NCCL refuses two ranks on one card. In lockstep one process takes the part of all, so that one card shows what the
arithmetic of several ranks gives on it.

What gives the CPU's bits: draws, signs, products and quotients that are rounded once, sums in the order of ranks, and
scales. Their sums are in fp64, whose order shows in no fp32 scale but with a chance of 1e-8 each. Factors in products
with a sum are powers of two here: a card rounds such a product and sum once, a CPU not always, and these are exact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from binsgdm.bench import choices
from binsgdm.bench.gpu.samples import (
    BF16,
    CPU,
    FP32,
    MIXED,
    SEED,
    SHAPES,
    STEPS,
    Dtypes,
    RankComparison,
    Shapes,
    gradients,
    num_far,
    parameters,
)
from binsgdm.bench.gpu.trainings import num_different
from binsgdm.comm import Member, RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import BUILT_IN, SYSTEMS, make
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.outer_settings import OuterSettings
from binsgdm.optimizers.outer_steps import OuterSteps, averaged
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.sign_exchange import SCHEMES, Scheme

RANKS, A_NODE = 4, 2
BUCKET_ELEMENTS = 4096
SYSTEM_STEPS = 3
LR, WEIGHT_DECAY = 0.01, 0.1
# Products of matrices sum in an order of their own on every device. With products in fp64 in their place, low-rank
# systems are 1e-6 of the norm away on a CPU, and ATOMO, whose singular vectors turn more, is 2e-5.
NEAR = 1e-3
# Quotients by numbers and fused products put 1-bit Adam 1e-5 of its moves away. A sum near 0 may get the other sign,
# which moves its element the other way, and changes the scale of its chunk by 2 over its elements: 8e-4.
FLIPPED, NEAR_MOVE = 1e-3, 2e-3
# Powers of two, as the module says.
INNER_LR, OUTER = 2.0**-6, {"inner_steps": 2, "outer_lr": 0.5, "outer_momentum": 0.5}
OUTER_STEPS = 8
OPTIONS: Sequence[tuple[str, dict[str, Any]]] = (
    ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e4m3"}),
    ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e5m2"}),
    ("qsgd", {"coding": "elias"}),
    ("marsit", {"sync_period": 2}),
    ("marsit", {"torus": True}),
    ("top_k", {"ratio": 0.01, "momentum": 0.5}),
)
"""What is compared beside every system in all of its topologies."""
OUTER_CASES: Mapping[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, two fragments, hidden by a step": {"inner_steps": 4, "fragments": 2, "overlap_steps": 1},
    "bf16": {"exchange": "bf16"},
    "int8": {"exchange": "int8"},
    "fp8": {"exchange": "fp8"},
    "one_bit": {"exchange": "one_bit"},
    "one_bit, hidden by a step": {"exchange": "one_bit", "overlap_steps": 1},
    "int8 between nodes": {"exchange": "int8", "workers": "node"},
}

Make = Callable[[Sequence[nn.Parameter]], OneBitOptimizer]


def cases(device: torch.device) -> Iterator[RankComparison]:
    """Yield every comparison of this process's device with the CPU."""
    where = f"{RANKS} ranks in one process"
    for scheme in SCHEMES:
        for name, dtypes in (("fp32", FP32), ("fp32, bf16 and fp16", MIXED)):
            what = f"one process, {scheme_text(scheme)}, parameters in {name}, kernels against the reference"
            yield RankComparison(name=what, num_wrong=partial(_binsgdm, device, scheme, dtypes))
    for system, options in system_cases():
        is_near = SYSTEMS[system].needs_equal_threads
        yield RankComparison(
            name=f"{where}: {system} {choices.text_of(options)}, against the CPU",
            num_wrong=partial(_system, device, system, options),
            **({"outcome": f"within {NEAR:g} of the norm"} if is_near else {}),
        )
    for topology in ("flat", "hierarchical"):
        yield RankComparison(
            name=f"{where}: 1-bit Adam {topology}, against the CPU",
            num_wrong=partial(_one_bit_adam, device, topology),
            outcome=f"all but {FLIPPED:g} of the elements within {NEAR_MOVE:g} of the moves",
        )
    for name, given in OUTER_CASES.items():
        yield RankComparison(name=f"{where}: DiLoCo {name}, against the CPU", num_wrong=partial(_diloco, device, given))
    what = f"{where}: DiLoCo int8, parameters in bf16, against the CPU"
    yield RankComparison(name=what, num_wrong=partial(_diloco, device, {"exchange": "int8"}, BF16))
    for dtype in ("fp32", "bf16"):
        yield RankComparison(
            name=f"{where}: local SGD {dtype}, against the CPU", num_wrong=partial(_local_sgd, device, dtype)
        )


def scheme_text(scheme: Scheme) -> str:
    """Return a scheme in a few words."""
    return f"{scheme.topology} {scheme.intra_node_dtype} {scheme.average}"


def in_one_process(  # noqa: PLR0913, PLR0917
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


def _binsgdm(device: torch.device, scheme: Scheme, dtypes: Dtypes) -> int:
    """Compare the device's own kernels with the reference on a CPU."""
    join, size = partial(join_in_lockstep, scheme), (RANKS, A_NODE)
    found = in_one_process(make_binsgdm, join, size, device, dtypes)
    wanted = in_one_process(partial(make_binsgdm, kernels="reference"), join, size, CPU, dtypes)
    return _num_different_of_all(wanted, found)


def _one_bit_adam(device: torch.device, topology: str) -> int:
    """Compare dense and compressed steps; see `FLIPPED` for what may differ."""

    def make_one(values: Sequence[nn.Parameter]) -> OneBitAdam:
        how: Any = {"topology": topology, "variance_floor": 0.1, "scales_momenta": True, "dense_steps": 2}
        return OneBitAdam(values, lr=LR, weight_decay=WEIGHT_DECAY, **how)

    join: Any = OneBitAdam.join
    found, wanted = (in_one_process(make_one, join, (RANKS, A_NODE), one) for one in (device, CPU))
    start = parameters(CPU)
    return sum(
        _is_elsewhere(before, one.cpu(), other.cpu())
        for of_rank, control in zip(found, wanted, strict=True)
        for before, one, other in zip(start, of_rank, control, strict=True)
    )


def _is_elsewhere(start: Tensor, found: Tensor, wanted: Tensor) -> bool:
    """Tell whether too many elements have moved to another place."""
    largest = NEAR_MOVE * (wanted - start).square().mean().sqrt()
    is_off = ~((found - wanted).abs() <= largest)
    return bool(is_off.sum() > FLIPPED * is_off.numel())


def system_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every system of this project in each of its topologies, and `OPTIONS`."""
    for kind in BUILT_IN:
        for topology in kind.topologies:
            yield kind.name, {**kind.usual_options, "topology": topology}
    yield from OPTIONS


def _system(device: torch.device, name: str, options: dict[str, Any]) -> int:
    """Compare what a system makes of the same gradients, in steps whose residuals go on."""
    found, wanted = (_means(one, name, options) for one in (device, CPU))
    if SYSTEMS[name].needs_equal_threads:
        return num_far(wanted, found, NEAR)
    return num_different(wanted, found)


def _means(device: torch.device, name: str, options: dict[str, Any]) -> list[Tensor]:
    """Return the mean that each rank has in each step."""
    size: dict[str, Any] = {"world_size": RANKS, "ranks_per_node": A_NODE}
    systems = [make(name, rank=rank, **size, **options) for rank in range(RANKS)]
    means = []
    for step in range(1, SYSTEM_STEPS + 1):
        protocols = [
            system.mean(bucket_of(gradients(rank, step, device)), RankContext(rank=rank, seed=SEED, step=step, **size))
            for rank, system in enumerate(systems)
        ]
        means += run_in_lockstep(protocols, A_NODE)
    return means


def bucket_of(given: Sequence[Tensor]) -> GradientBucket:
    """Return gradients as one bucket."""
    return GradientBucket(
        values=torch.cat([one.reshape(-1) for one in given]), parameters=tuple(range(len(given))), shapes=SHAPES
    )


def _diloco(device: torch.device, given: Mapping[str, Any], dtypes: Dtypes = FP32) -> int:
    found, wanted = (outer_steps(given, RANKS, one, dtypes) for one in (device, CPU))
    return _num_different_of_all(wanted, found)


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
        OuterSteps(worker.values, settings, rank=rank, world_size=world_size, ranks_per_worker=size)
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


def _local_sgd(device: torch.device, wire_dtype: str) -> int:
    found, wanted = (averaged_steps(wire_dtype, RANKS, one) for one in (device, CPU))
    return _num_different_of_all(wanted, found)


def averaged_steps(wire_dtype: str, world_size: int, device: torch.device) -> list[list[Tensor]]:
    """Return the parameters of all ranks after steps of local SGD, averaged after every second one."""
    workers = [_WorkerSteps(rank, device, FP32) for rank in range(world_size)]
    for step in range(1, OUTER_STEPS + 1):
        for worker in workers:
            worker.step(step)
        if step % 2 == 0:
            run_in_lockstep([averaged(worker.values, wire_dtype, world_size) for worker in workers], 1)
    return [worker.tensors() for worker in workers]


def _num_different_of_all(wanted: Sequence[Sequence[Tensor]], found: Sequence[Sequence[Tensor]]) -> int:
    return sum(num_different(one, other) for one, other in zip(wanted, found, strict=True))
