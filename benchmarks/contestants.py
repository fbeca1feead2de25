"""Who is measured by `benchmarks.cost`: optimizers and systems, each as what makes its step for a model."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from binsgdm.bench import choices
from binsgdm.comm import AllToAll, Member, Message, Protocol, RankContext
from binsgdm.comm.answers import fake_received, run_as_if_alike
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.sign_exchange import Scheme

Step = Callable[[], object]
RANKS = 4
BUCKET_BYTES = 25 * 2**20  # DDP's, and BinSGDM's


@dataclass(frozen=True)
class Size:
    """A model: an embedding and layers of a transformer."""

    width: int
    layers: int
    vocabulary: int

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of its tensors."""
        w = self.width
        layer = [(3 * w, w), (3 * w,), (w, w), (w,), (4 * w, w), (4 * w,), (w, 4 * w), (w,), *[(w,)] * 4]
        return [(self.vocabulary, w), *layer * self.layers]


SIZES = {"1 M": Size(128, 4, 2048), "25 M": Size(512, 6, 12_000), "100 M": Size(768, 12, 20_000)}


class Messages:
    """Answers of other ranks, in memory as real ones take it; the time that making them takes is no part of a step.

    Attributes:
        taken_s: so far.
    """

    def __init__(self) -> None:
        self.taken_s = 0.0
        self.clock: Callable[[], float] = time.perf_counter
        self._kept = torch.empty(0, dtype=torch.uint8)

    def run(self, ranks_per_node: int, protocol: Protocol) -> torch.Tensor:
        """Run the protocol of rank 0 as if all ranks sent what it sends."""
        context = RankContext(rank=0, world_size=RANKS, ranks_per_node=ranks_per_node, seed=0, step=1)
        return run_as_if_alike(protocol, context, self._timed)

    def _timed(self, message: Message, context: RankContext) -> torch.Tensor:
        start = self.clock()
        answer = self._to(message, context)
        self.taken_s += self.clock() - start
        return answer

    def _to(self, message: Message, context: RankContext) -> torch.Tensor:
        if not isinstance(message, AllToAll):
            return fake_received(message, context)
        # Kept from one to the next, as `Transport` keeps it.
        num_bytes = message.sent.numel() * message.sent.element_size()
        if self._kept.numel() < num_bytes:
            self._kept = torch.empty(num_bytes, dtype=torch.uint8)
        received = self._kept[:num_bytes].view(message.sent.dtype).view(message.sent.shape)
        return received.copy_(message.sent)


class Model:
    """Parameters with gradients that are written anew before each step, as by backward."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        torch.manual_seed(0)
        self.messages = Messages()
        self.parameters = [torch.nn.Parameter(torch.randn(shape).mul_(0.02)) for shape in shapes]
        self._fresh = [torch.randn(shape).mul_(0.01) for shape in shapes]
        # As in DDP, whose gradients are views of its buckets: from the last parameter on.
        self.buckets: list[tuple[torch.Tensor, list[int]]] = []
        for numbers in _cut([4 * parameter.numel() for parameter in self.parameters]):
            flat = torch.empty(sum(self.parameters[number].numel() for number in numbers))
            views = flat.split([self.parameters[number].numel() for number in numbers])
            for number, view in zip(numbers, views, strict=True):
                self.parameters[number].grad = view.view_as(self.parameters[number])
            self.buckets.append((flat, numbers))
        self.refresh()

    @property
    def numel(self) -> int:
        """Elements of all parameters."""
        return sum(parameter.numel() for parameter in self.parameters)

    def refresh(self) -> None:
        """Write the gradients."""
        torch._foreach_copy_([parameter.grad for parameter in self.parameters], self._fresh)


def _cut(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of the tensors of each bucket, from the last tensor on."""
    numbers: list[int] = []
    for number in reversed(range(len(sizes))):
        if numbers and sum(sizes[n] for n in numbers) + sizes[number] > BUCKET_BYTES:
            yield numbers
            numbers = []
        numbers.append(number)
    yield numbers


def _adamw(model: Model) -> Step:
    return torch.optim.AdamW(model.parameters, fused=True).step


def _binsgdm(model: Model, ranks_per_node: int = 0, options: Mapping[str, Any] = {}, **scheme: Any) -> Step:
    optimizer = BinSGDM(model.parameters, **options)
    if ranks_per_node:
        run = partial(model.messages.run, ranks_per_node)
        member = Member(rank=0, world_size=RANKS, ranks_per_node=ranks_per_node, run=run)
        optimizer.join(Session(member, Scheme(**scheme), BUCKET_BYTES // 4))
    return optimizer.step


def _one_bit_adam(model: Model, *, is_dense: bool, is_alone: bool = False) -> Step:
    optimizer = OneBitAdam(model.parameters, dense_steps=10**6 if is_dense else 1)
    if not is_alone:
        optimizer.join(Member(rank=0, world_size=RANKS, run=partial(model.messages.run, 1)))
    if not is_dense:
        optimizer.step()
    return optimizer.step


def _ddp(model: Model) -> Step:
    """Return what a rank does in DDP's mean in fp32: it divides a bucket, and adds what a ring brings it."""
    received = [torch.zeros(flat.numel() // RANKS) for flat, _ in model.buckets]

    def step() -> None:
        for (flat, _), piece in zip(model.buckets, received, strict=True):
            flat.div_(RANKS)
            for first in range(piece.numel(), RANKS * piece.numel(), piece.numel()):
                flat[first : first + piece.numel()].add_(piece)

    return step


def _system(model: Model, name: str) -> Step:
    """Return a step of DDP's hook: every bucket is copied, averaged and copied back."""
    options = choices.choice(name, "cost").steady
    end = make(name, rank=0, world_size=RANKS, **options)
    step = 0

    def step_once() -> None:
        nonlocal step
        step += 1
        for number, (flat, parameters) in enumerate(model.buckets):
            context = RankContext(rank=0, world_size=RANKS, ranks_per_node=1, seed=0, step=step, bucket=number)
            shapes = tuple(tuple(model.parameters[one].shape) for one in parameters)
            bucket = GradientBucket(values=flat.clone(), parameters=tuple(parameters), shapes=shapes)
            with torch.no_grad():
                flat.copy_(model.messages.run(1, end.mean(bucket, context)))

    return step_once


ADAMW, DDP = "AdamW, fused", "DDP, mean in fp32"
RANDOM = {"rounding": "random"}
OPTIMIZERS: dict[str, Callable[[Model], Step]] = {
    ADAMW: _adamw,
    "BinSGDM, alone": _binsgdm,
    "BinSGDM, random, alone": partial(_binsgdm, options=RANDOM),
    "BinSGDM, flat": partial(_binsgdm, ranks_per_node=1, topology="flat"),
    "BinSGDM, random, flat": partial(_binsgdm, ranks_per_node=1, topology="flat", options=RANDOM),
    "BinSGDM, 2 x 2": partial(_binsgdm, ranks_per_node=2),
    "BinSGDM, random, 2 x 2": partial(_binsgdm, ranks_per_node=2, options=RANDOM),
    "BinSGDM, 2 x 2, average gradients": partial(_binsgdm, ranks_per_node=2, average="gradients"),
    "1-bit Adam, dense stage, alone": partial(_one_bit_adam, is_dense=True, is_alone=True),
    "1-bit Adam, compression stage, alone": partial(_one_bit_adam, is_dense=False, is_alone=True),
    "1-bit Adam, dense stage": partial(_one_bit_adam, is_dense=True),
    "1-bit Adam, compression stage": partial(_one_bit_adam, is_dense=False),
}
SYSTEMS = [DDP, *(name for name in choices.names() if name != choices.ONE_BIT_ADAM)]


def contestant(name: str) -> Callable[[Model], Step]:
    """Return what makes a contestant's step for a model."""
    return {DDP: _ddp, **OPTIMIZERS}.get(name) or partial(_system, name=name)
