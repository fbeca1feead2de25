"""Steps of ranks that exchange, and how many tensors differ from one process that computes for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench import choices
from binsgdm.bench.ranks import Ranks
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Transport
from binsgdm.compressors.base import Averager, GradientBucket
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.parallel.ddp import attach
from binsgdm.parallel.ddp_hook import GradientExchange, compress_gradients, exchange_bucket
from binsgdm.parallel.overlapped import OverlappedSession
from tests.gpu.lockstep import (
    BUCKET_ELEMENTS,
    LR,
    WEIGHT_DECAY,
    Make,
    in_one_process,
    join_in_lockstep,
    make_binsgdm,
)
from tests.gpu.samples import (
    MOST_WITH_ONE_ORDER,
    SEED,
    SHAPES,
    STEPS,
    ParametersWithGradients,
    gradients,
    num_different,
    num_far,
    num_wrong,
    parameters,
)

BUCKET_MB = BUCKET_ELEMENTS * 4 / 2**20
OTHER_ORDER = 1e-4
"""Of the norm: what systems are apart at most whose sums of fp32 numbers have two orders."""

Join = Callable[[OneBitOptimizer], None]


def _has_one_order(ranks: Ranks, system: str) -> bool:
    """Tell whether a system sums in the order of one process."""
    return ranks.world_size <= MOST_WITH_ONE_ORDER or SYSTEMS[system].aggregation != "all_reduce"


def _as_rank(ranks: Ranks, make_one: Make, join: Join) -> list[Tensor]:
    """Return the parameters of this rank after a few steps with the others."""
    values = parameters(ranks.device)
    module = ParametersWithGradients(values)
    optimizer = make_one(values)
    join(optimizer)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        module(gradients(ranks.rank, step, ranks.device)).backward()
        optimizer.step()
    return [value.detach() for value in values]


def num_wrong_with_binsgdm(ranks: Ranks, groups: Groups, scheme: Scheme, overlap: bool) -> int:
    def join(optimizer: Any) -> None:
        member = Transport(groups).member()
        session = Session(member, scheme, BUCKET_ELEMENTS)
        if overlap:
            session = OverlappedSession(member, scheme, BUCKET_ELEMENTS, lambda: True)
        optimizer.join(session)

    found = _as_rank(ranks, make_binsgdm, join)
    join_control = partial(join_in_lockstep, scheme)
    control = in_one_process(make_binsgdm, join_control, (ranks.world_size, groups.ranks_per_node), ranks.device)
    return num_wrong(ranks, found, control[ranks.rank])


def num_wrong_with_one_bit_adam(ranks: Ranks, groups: Groups, topology: Any) -> int:
    def make_one(values: Sequence[nn.Parameter]) -> OneBitAdam:
        return OneBitAdam(values, lr=LR, weight_decay=WEIGHT_DECAY, dense_steps=2, topology=topology)

    join: Any = OneBitAdam.join
    found = _as_rank(ranks, make_one, lambda one: join(one, Transport(groups).member()))
    if ranks.world_size > MOST_WITH_ONE_ORDER:
        return num_wrong(ranks, found, found)
    control = in_one_process(make_one, join, (ranks.world_size, groups.ranks_per_node), ranks.device)
    return num_wrong(ranks, found, control[ranks.rank])


def num_wrong_after_overflow(ranks: Ranks) -> int:
    """Compare the parameters after a step in which the last rank alone has an infinite gradient with those before.

    Joined by `attach`, which also compares what the ranks were given.
    """
    values = parameters(ranks.device)
    optimizer = make_binsgdm(values)
    attach(optimizer, ranks_per_node=1)
    for value, gradient in zip(values, gradients(ranks.rank, 1, ranks.device), strict=True):
        value.grad = gradient / (0.0 if ranks.rank == ranks.world_size - 1 else 1.0)
    optimizer.step()
    wrong = num_different(parameters(ranks.device), values)
    return wrong + int((optimizer.param_groups[0]["step"], optimizer.num_skipped) != (0, 1))


class _NotingLayouts:
    """A system that notes which parameters lay in each bucket that it was given."""

    def __init__(self, system: Averager) -> None:
        self._system = system
        self.layouts: list[tuple[RankContext, GradientBucket]] = []

    def mean(self, bucket: GradientBucket, context: RankContext) -> Any:
        self.layouts.append((context, bucket))
        return self._system.mean(bucket, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def num_wrong_with_system(
    ranks: Ranks, groups: Groups | None, name: str, *, ranks_per_node: int = 1, **given: Any
) -> int:
    """Compare the gradients that DDP makes with a system, on all ranks, and with one process.

    Args:
        ranks: all that take part.
        groups: of this rank; None lets `compress_gradients` make them, as a script does.
        ranks_per_node: of what `compress_gradients` makes.
        name: of the system.
        given: its options.
    """
    options = given or ({} if name == "dense" else choices.choice(name, "replicas").options)
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    module = DistributedDataParallel(
        ParametersWithGradients(parameters(ranks.device)), device_ids=devices, bucket_cap_mb=BUCKET_MB
    )
    if groups is None:
        options = {"ranks_per_node": ranks_per_node, **options}
    exchange, noting = _hooked(ranks, module, groups, name, options)
    systems = [make(name, rank=rank, world_size=ranks.world_size, **options) for rank in range(ranks.world_size)]
    wrong = 0
    for step in range(1, STEPS + 1):
        noting.layouts.clear()
        module.zero_grad()
        module(gradients(ranks.rank, step, ranks.device)).backward()
        found = [value.grad for value in module.parameters() if value.grad is not None]
        all_given = [gradients(rank, step, ranks.device) for rank in range(ranks.world_size)]
        node = ranks.world_size if groups else ranks_per_node
        wanted = _means(systems, noting.layouts, all_given, node)
        if not _has_one_order(ranks, name):
            wrong += num_far(wanted, found, OTHER_ORDER)
            wanted = found
        wrong += num_wrong(ranks, found, wanted)
    if groups is None:
        exchange.detach()  # which frees the groups that it made
    return wrong


def _hooked(
    ranks: Ranks, module: DistributedDataParallel, groups: Groups | None, name: str, options: dict[str, Any]
) -> tuple[GradientExchange, _NotingLayouts]:
    """Let a system average the gradients of a model; return the exchange, and what notes its buckets."""
    if groups is None:
        exchange = compress_gradients(module, name, seed=SEED, **options)
        noting = _NotingLayouts(exchange.system)
        exchange.system = noting  # type: ignore[assignment]
        return exchange, noting
    noting = _NotingLayouts(make(name, rank=ranks.rank, world_size=ranks.world_size, **options))
    own: Any = noting
    exchange = GradientExchange(module, own, groups, seed=SEED, on_sent=None)
    module.register_comm_hook(exchange, exchange_bucket)
    return exchange, noting


def _means(
    systems: Sequence[Averager],
    layouts: Sequence[tuple[RankContext, GradientBucket]],
    given: Sequence[Sequence[Tensor]],
    ranks_per_node: int,
) -> list[Tensor]:
    """Return the gradients that the systems of all ranks make in this process, in the same buckets."""
    means: dict[Any, Tensor] = {}
    for context, bucket in layouts:
        flat: list[Tensor] = [
            torch.cat([own[parameter].reshape(-1) for parameter in bucket.parameters]) for own in given
        ]  # type: ignore[index]
        protocols = [
            system.mean(replace(bucket, values=values), replace(context, rank=rank))
            for rank, (system, values) in enumerate(zip(systems, flat, strict=True))
            if values.numel()
        ]
        mean = run_in_lockstep(protocols, ranks_per_node)[0] if protocols else flat[0]
        means |= dict(zip(bucket.parameters, torch.split(mean, bucket.numels), strict=True))
    return [means[number].view(shape) for number, shape in enumerate(SHAPES)]
