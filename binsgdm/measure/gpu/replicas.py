"""Check that replicas stay equal to the bit over all ranks, and equal to one process that computes for all of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.ddp import attach
from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Member, RankContext, run_in_lockstep
from binsgdm.exchange import groups as grouping
from binsgdm.exchange.groups import Groups
from binsgdm.exchange.replicas import check_same_tensors
from binsgdm.exchange.transport import Transport
from binsgdm.measure import choices
from binsgdm.measure.bench import Bench
from binsgdm.measure.gpu.trainings import num_different
from binsgdm.measure.ranks import Ranks
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.scheme import SCHEMES, Scheme
from binsgdm.optimizers.session import Session
from binsgdm.overlapped import OverlappedSession
from binsgdm.systems.base import Averager, GradientBucket
from binsgdm.systems.gradient_exchange import GradientExchange, exchange_bucket
from binsgdm.systems.registry import SYSTEMS, make

SHAPES = ((64, 33), (7,), (0,), (96, 65), (1,), (1024,))
STEPS, SEED = 4, 7
BUCKET_ELEMENTS = 4096
BUCKET_MB = BUCKET_ELEMENTS * 4 / 2**20
LR, WEIGHT_DECAY = 0.01, 0.1
NUM_IN_ONE_PROCESS, A_NODE = 4, 2
# Two summands have one order; with more, the backend's order of a sum is its own.
MOST_WITH_ONE_ORDER = 2

Dtypes = tuple[torch.dtype, ...]  # of the parameters, in turns
FP32: Dtypes = (torch.float32,)
MIXED: Dtypes = (torch.bfloat16, torch.float32, torch.float16)

Make = Callable[[Sequence[nn.Parameter]], OneBitOptimizer]
Join = Callable[[OneBitOptimizer], None]


def check(bench: Bench) -> None:
    """Add the outcome for BinSGDM in every scheme, 1-bit Adam and every system in DDP's hook.

    Args:
        bench: where to; of ranks that are joined in a process group, one too.
    """
    # Made once: a communicator of NCCL takes hundreds of MB and a part of a second.
    sizes, device = _node_sizes(bench.ranks.world_size), bench.ranks.device
    cases = list(_cases(bench.ranks, [grouping.make(size, device=device) for size in sizes]))
    for count, (name, num_wrong) in enumerate(cases):
        _add(bench, name, num_wrong)
        bench.progress((count + 1) / len(cases))


def _add(bench: Bench, name: str, num_wrong: Callable[[], int]) -> None:
    """Add the outcome of a comparison of all ranks; an error on this rank fails it."""
    detail, wrong = "", 1
    try:
        wrong = num_wrong()
    except Exception as error:  # the other comparisons are still worth making
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    anywhere = int(bench.ranks.slowest([float(wrong)])[0])
    detail = detail or (f"{anywhere} tensors differ" if anywhere else "equal to the bit")
    bench.record.check(name, passed=anywhere == 0, count=len(SHAPES) * bench.ranks.world_size, detail=detail)


def _cases(ranks: Ranks, groups: Sequence[Groups]) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield every comparison by name; each returns how many tensors are wrong on this rank."""
    for scheme in SCHEMES:
        for name, dtypes in (("fp32", FP32), ("fp32, bf16 and fp16", MIXED)):
            what = f"one process, {_text(scheme)}, parameters in {name}, kernels against the reference"
            yield what, partial(_one_process, ranks, scheme, dtypes)
    where = f"{ranks.world_size} ranks over {ranks.backend}"
    has_one_order = ranks.world_size <= MOST_WITH_ONE_ORDER
    for one in groups:
        for scheme in SCHEMES:
            for overlap in (False, True):
                how = f"{_text(scheme)}, {one.ranks_per_node} a node, {'overlapped' if overlap else 'in step()'}"
                yield f"{where}: BinSGDM {how}", partial(_binsgdm, ranks, one, scheme, overlap)
        for topology in ("flat", "hierarchical"):
            name = f"{where}: 1-bit Adam {topology}, {one.ranks_per_node} a node"
            yield name + ("" if has_one_order else ", replicas alone"), partial(_one_bit_adam, ranks, one, topology)
    yield f"{where}: an infinite gradient on the last stops all", partial(_overflow, ranks)
    for system in SYSTEMS:
        is_exact = has_one_order or SYSTEMS[system].aggregation != "all_reduce"
        yield (
            f"{where}: {system} in DDP's hook" + ("" if is_exact else ", near one process"),
            partial(_system, ranks, groups[-1], system),
        )


def _text(scheme: Scheme) -> str:
    return f"{scheme.topology} {scheme.intra_node_dtype} {scheme.average}"


def _node_sizes(world_size: int) -> list[int]:
    """Return one rank a node, half of all where that is another number, and all."""
    return sorted({1, max(1, world_size // 2) if world_size % 2 == 0 else 1, world_size})


def parameters(device: torch.device, dtypes: Dtypes = FP32) -> list[nn.Parameter]:
    """Return parameters, the same on every rank and device."""
    return [nn.Parameter(values) for values in _random(SEED, device, dtypes)]


def gradients(rank: int, step: int, device: torch.device, dtypes: Dtypes = FP32) -> list[Tensor]:
    """Return the gradients of a rank in a step, the same on every device."""
    return _random(1000 * rank + step, device, dtypes)


def _random(seed: int, device: torch.device, dtypes: Dtypes) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape, dtype in zip(SHAPES, cycle(dtypes))]


class ParametersWithGradients(nn.Module):
    """A module whose gradients are what it is called with."""

    def __init__(self, values: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.values = nn.ParameterList(values)

    def forward(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return a loss with these gradients."""
        products = [(value * gradient).sum() for value, gradient in zip(self.values, gradients, strict=True)]
        return torch.stack(products).sum()


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


def in_one_process(
    make_one: Make,
    join: Callable[[OneBitOptimizer, Member], None],
    size: tuple[int, int],
    device: torch.device,
    dtypes: Dtypes = FP32,
) -> list[list[Tensor]]:
    """Return the parameters of all ranks after the same steps, all taken in this process.

    Args:
        make_one: returns the optimizer of a rank for its parameters.
        join: lets it step as one of the ranks.
        size: of the world, and of a node.
        device: of the parameters.
        dtypes: of the parameters, in turns.
    """
    world_size, local = size
    copies = [parameters(device, dtypes) for _ in range(world_size)]
    optimizers = [make_one(values) for values in copies]
    for rank, optimizer in enumerate(optimizers):
        join(optimizer, Member(rank=rank, world_size=world_size, ranks_per_node=local))
    for step in range(1, STEPS + 1):
        for rank, values in enumerate(copies):
            for value, gradient in zip(values, gradients(rank, step, device, dtypes), strict=True):
                value.grad = gradient
        run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers], local)
    return [[value.detach() for value in values] for values in copies]


def _make_binsgdm(values: Sequence[nn.Parameter], kernels: str | None = None) -> BinSGDM:
    return BinSGDM(values, lr=LR, weight_decay=WEIGHT_DECAY, seed=SEED, kernels=kernels)


def _join_in_lockstep(scheme: Scheme, optimizer: Any, member: Member) -> None:
    optimizer.join(Session(member, scheme, BUCKET_ELEMENTS))


def _one_process(ranks: Ranks, scheme: Scheme, dtypes: Dtypes) -> int:
    """Compare four ranks in this process, with the device's own kernels, with the same on a CPU with the reference."""
    join, size = partial(_join_in_lockstep, scheme), (NUM_IN_ONE_PROCESS, A_NODE)
    found = in_one_process(_make_binsgdm, join, size, ranks.device, dtypes)
    wanted = in_one_process(partial(_make_binsgdm, kernels="reference"), join, size, torch.device("cpu"), dtypes)
    return sum(num_different(one, other) for one, other in zip(wanted, found, strict=True))


def _binsgdm(ranks: Ranks, groups: Groups, scheme: Scheme, overlap: bool) -> int:
    def join(optimizer: Any) -> None:
        member = Transport(groups).member()
        session = Session(member, scheme, BUCKET_ELEMENTS)
        if overlap:
            session = OverlappedSession(member, scheme, BUCKET_ELEMENTS, lambda: True)
        optimizer.join(session)

    found = _as_rank(ranks, _make_binsgdm, join)
    join_control = partial(_join_in_lockstep, scheme)
    control = in_one_process(_make_binsgdm, join_control, (ranks.world_size, groups.ranks_per_node), ranks.device)
    return _num_wrong(ranks, found, control[ranks.rank])


def _one_bit_adam(ranks: Ranks, groups: Groups, topology: Any) -> int:
    def make_one(values: Sequence[nn.Parameter]) -> OneBitAdam:
        return OneBitAdam(values, lr=LR, weight_decay=WEIGHT_DECAY, dense_steps=2, topology=topology)

    join: Any = OneBitAdam.join
    found = _as_rank(ranks, make_one, lambda one: join(one, Transport(groups).member()))
    if ranks.world_size > MOST_WITH_ONE_ORDER:
        return _num_wrong(ranks, found, found)
    control = in_one_process(make_one, join, (ranks.world_size, groups.ranks_per_node), ranks.device)
    return _num_wrong(ranks, found, control[ranks.rank])


def _overflow(ranks: Ranks) -> int:
    """Compare the parameters after a step in which the last rank alone has an infinite gradient with those before.

    Joined by `attach`, which also compares what the ranks were given.
    """
    values = parameters(ranks.device)
    optimizer = _make_binsgdm(values)
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


def _system(ranks: Ranks, groups: Groups, name: str) -> int:
    """Compare the gradients that DDP makes with a system, on all ranks, and with one process."""
    options = {} if name == "dense" else choices.choice(name, "replicas").given
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    module = DistributedDataParallel(
        ParametersWithGradients(parameters(ranks.device)), device_ids=devices, bucket_cap_mb=BUCKET_MB
    )
    own = make(name, rank=ranks.rank, world_size=ranks.world_size, **options)
    noting: Any = _NotingLayouts(own)
    module.register_comm_hook(GradientExchange(module, noting, groups, seed=SEED, on_sent=None), exchange_bucket)
    systems = [make(name, rank=rank, world_size=ranks.world_size, **options) for rank in range(ranks.world_size)]
    wrong = 0
    for step in range(1, STEPS + 1):
        noting.layouts.clear()
        module.zero_grad()
        module(gradients(ranks.rank, step, ranks.device)).backward()
        found = [value.grad for value in module.parameters() if value.grad is not None]
        given = [gradients(rank, step, ranks.device) for rank in range(ranks.world_size)]
        wanted = _means(systems, noting.layouts, given, ranks.world_size)
        if SYSTEMS[name].aggregation == "all_reduce" and ranks.world_size > MOST_WITH_ONE_ORDER:
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
            wanted = found
        wrong += _num_wrong(ranks, found, wanted)
    return wrong


def _means(
    systems: Sequence[Averager],
    layouts: Sequence[tuple[RankContext, GradientBucket]],
    given: Sequence[Sequence[Tensor]],
    ranks_per_node: int,
) -> list[Tensor]:
    """Return the gradients that the systems of all ranks make in this process, in the same buckets."""
    means: dict[Any, Tensor] = {}
    for context, bucket in layouts:
        flat: list[Tensor] = [torch.cat([own[one].reshape(-1) for one in bucket.parameters]) for own in given]  # type: ignore[index]
        protocols = [
            system.mean(replace(bucket, values=values), replace(context, rank=rank))
            for rank, (system, values) in enumerate(zip(systems, flat, strict=True))
            if values.numel()
        ]
        mean = run_in_lockstep(protocols, ranks_per_node)[0] if protocols else flat[0]
        means |= dict(zip(bucket.parameters, torch.split(mean, bucket.numels), strict=True))
    return [means[number].view(shape) for number, shape in enumerate(SHAPES)]


def _num_wrong(ranks: Ranks, found: Sequence[Tensor], wanted: Sequence[Tensor]) -> int:
    """Return how many tensors of this rank differ from the control, or 1 at least if ranks differ."""
    wrong = num_different(wanted, found)
    if ranks.world_size > 1:
        try:
            check_same_tensors("replicas", [(str(number), one) for number, one in enumerate(found)], "")
        except BinsgdmError:
            return max(1, wrong)
    return wrong
