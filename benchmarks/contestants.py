"""Who `benchmarks.cost` measures: optimizers and systems, each as what makes its step for a model, and its limit."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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


class Size(NamedTuple):
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
        if isinstance(message, AllToAll):
            # Kept from one to the next, as `Transport` keeps it.
            num_bytes = message.sent.numel() * message.sent.element_size()
            if self._kept.numel() < num_bytes:
                self._kept = torch.empty(num_bytes, dtype=torch.uint8)
            received = self._kept[:num_bytes].view(message.sent.dtype).view(message.sent.shape)
            answer = received.copy_(message.sent)
        else:
            answer = fake_received(message, context)
        self.taken_s += self.clock() - start
        return answer


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
            mine = [self.parameters[number] for number in numbers]
            flat = torch.empty(sum(one.numel() for one in mine))
            for parameter, view in zip(mine, flat.split([one.numel() for one in mine]), strict=True):
                parameter.grad = view.view_as(parameter)
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


def _stream(model: Model) -> Step:
    """Return what reads and writes as many bytes as AdamW, in place: what memory has to give."""
    values = torch.ones(model.numel * ADAMW_BYTES // 8)
    return values.neg_


ADAMW, DDP, STREAM = "AdamW, fused", "DDP, mean in fp32", "memory"
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

ADAMW_BYTES = 28  # an element: read gradient, m, v and x; write m, v and x
_SHAPED, _RANDOM = 24.125, 20.125  # update and round: gradient, m, b, signs; shaped, a residual of 16 bits as well
_APPLY = 8.125  # read signs and x, write x
_MERGE = (1 + 1 / RANKS) / 8  # read a bit of every rank, write one of this rank's share
_MERGE_LEFT = 4 / RANKS  # read and write the share's residual of 16 bits
_IN, _OUT, _LEFT = 4.0, 4.0, 8.0  # read gradients, write the mean, read and write a residual
LEAST_BYTES: dict[str, float] = {
    ADAMW: ADAMW_BYTES,
    "BinSGDM, alone": _SHAPED + _APPLY,
    "BinSGDM, random, alone": _RANDOM + _APPLY,
    "BinSGDM, flat": _SHAPED + _MERGE + _MERGE_LEFT + _APPLY,
    "BinSGDM, random, flat": _RANDOM + _MERGE + _APPLY,
    # In a node: write u, of which two halves are averaged to one, which is rounded.
    "BinSGDM, 2 x 2": 24 + 6 + (8 + _MERGE_LEFT) / 2 + _APPLY,
    "BinSGDM, random, 2 x 2": 24 + 6 + 4 / 2 + _APPLY,
    "BinSGDM, 2 x 2, average gradients": 6 + (_SHAPED + _MERGE_LEFT) / 2 + _APPLY,
    # All gradients are looked at before anything moves.
    "1-bit Adam, dense stage, alone": _IN + ADAMW_BYTES,
    "1-bit Adam, dense stage": ADAMW_BYTES + 12,  # a copy that is averaged
    # Gradient, m and residual become signs; what was sent leaves the residual; m, v and x.
    # The mean is encoded once more, by its owner: all of it where there is no other rank.
    "1-bit Adam, compression stage, alone": _IN + 16 + 8 + 16 + 16,
    "1-bit Adam, compression stage": _IN + 16 + 8 + 16 / RANKS + 16,
    # What a ring brings is added to three quarters, of which one is divided.
    DDP: 2 * _IN * 3 / 4 + _OUT + 2 * 4 / RANKS,
    # A scale first: a second look at gradients and residuals, unless they are few enough for the caches.
    "one_bit_sgd": _IN + 4 + _IN + _LEFT + _OUT + (RANKS + 1) / 8,
    "sign_sgd": _IN + _OUT + 2 / 8 + 2 / 8,
    "ef_sign_sgd": _IN + 4 + _IN + _LEFT + _OUT + (RANKS + 1) / 8,
    "terngrad": 2 * _IN + _OUT + (RANKS + 1) / 5,
    "qsgd": _IN + _OUT + (RANKS + 1) / 2,
    "qsgd_inf": _IN + _OUT + (RANKS + 1) / 2,
    "nuqsgd": _IN + _OUT + (RANKS + 1) / 2,
    "byte_grad": _IN + _OUT + 3 + 1 / RANKS,
    "marsit": _IN + 4 + _IN + _LEFT + _OUT + 4 / 8,
    # Corrected gradients are written, read for P and for Q, and become residuals.
    "power_sgd": _IN + 4 + 4 + 4 + _LEFT + _OUT,
    "grad_zip": _IN + 4 + 4 + _LEFT + _OUT,
    "atomo": _IN + _OUT,  # a decomposition computes more than it moves
    "top_k": _IN + _LEFT + _OUT,
    "ms_top_k": _IN + _LEFT + 31 * 4 + _OUT,  # 31 counts
    "random_k": _IN + _LEFT + _OUT,
}
"""Bytes an element that a step has to read and write at least by its definition, if every pass does all it can."""


def contestant(name: str) -> Callable[[Model], Step]:
    """Return what makes a contestant's step for a model."""
    return {DDP: _ddp, STREAM: _stream, **OPTIMIZERS}.get(name) or partial(_system, name=name)
