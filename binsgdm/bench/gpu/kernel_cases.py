"""One call of every kernel on awkward inputs: the tensors that it writes, in memory with guards around them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from binsgdm.kernels import Kernels, functional
from binsgdm.kernels.bits import packed_numel
from binsgdm.kernels.random import Key

KEY = Key(seed=2**63 + 5, step=2**31 + 3, rank=7, stream=1)
BETA, BETA_B, GAIN = 0.95, 0.99, 2.5
# Settings of updates that draw, by what their outcomes are called: the paper's, and those that look ahead.
UPDATES: dict[str, dict[str, Any]] = {
    "": {"beta": BETA, "beta_b": BETA},
    "ahead ": {"beta": BETA, "beta_b": BETA_B, "nesterov": True},
}
GAINS = {"": 1.0, "ahead ": GAIN}
GUARD_NUMEL = 64
FLOAT_GUARD, BYTE_GUARD = 12345.0, 0xA5
# Zeros, ones, subnormals of fp32 and bf16, limits of fp16 with the values that round to them.
AWKWARD = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-39, -9e-41, 1e-38, 3e38, -3e38, 6e-8, 65504.0, 65519.0, 65520.0)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))

Outcomes = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """What kernels are called with.

    Attributes:
        start: global index of the first element.
        dtype: of gradients and parameters.
        offset: elements by which tensors begin behind an aligned address.
        num_vectors: that `merge`, `merge_shaped_` and `mean_` combine.
        is_finite: no gradient is NaN or infinite.
    """

    numel: int
    start: int = 0
    dtype: torch.dtype = torch.float32
    offset: int = 0
    num_vectors: int = 3
    is_finite: bool = True

    def text(self) -> str:
        """Return the case for people."""
        words = [f"{self.numel} elements", str(self.dtype).removeprefix("torch."), f"start {self.start}"]
        words += [f"offset {self.offset}"] * bool(self.offset) + [f"{self.num_vectors} vectors"]
        return ", ".join([*words, *(["not finite"] * (not self.is_finite))])


class GuardedMemory:
    """Tensors on a device, each between guards that no kernel may write to, or alone in its memory."""

    def __init__(self, device: torch.device, offset: int, guard_numel: int = GUARD_NUMEL) -> None:
        self._device, self._first, self._guard_numel = device, guard_numel + offset, guard_numel
        self._buffers: list[tuple[Tensor, int]] = []

    def place(self, values: Tensor) -> Tensor:
        """Return a copy."""
        guard = FLOAT_GUARD if values.is_floating_point() else BYTE_GUARD
        first = self._first
        size = first + values.numel() + self._guard_numel
        buffer = torch.full((size,), guard, dtype=values.dtype, device=self._device)
        view = buffer[first : first + values.numel()].view(values.shape)
        view.copy_(values)
        self._buffers.append((buffer, values.numel()))
        return view

    def guards_hold(self) -> Tensor:
        """Return, as a tensor of one element, whether every guard is as it was."""
        held = [torch.ones((), dtype=torch.bool, device=self._device)]
        for buffer, numel in self._buffers if self._guard_numel else ():
            first = self._first
            guard = FLOAT_GUARD if buffer.is_floating_point() else BYTE_GUARD
            around = torch.cat([buffer[:first], buffer[first + numel :]])
            held.append((around == torch.full_like(around[:1], guard)).all())
        return torch.stack(held).all()


@dataclass(frozen=True, kw_only=True)
class KernelInputs:
    """Inputs of every kernel, on the CPU."""

    grad: Tensor
    m: Tensor
    b: Tensor
    u: Tensor
    rows: Tensor
    parts: Tensor
    signs: Tensor
    residual: Tensor
    merge_residual: Tensor


def inputs(case: KernelCase, seed: int) -> KernelInputs:
    """Return inputs of every magnitude, |m| <= b, with awkward values strewn in."""
    source = torch.Generator().manual_seed(seed)
    numel, rand = case.numel, torch.rand
    exponents = torch.randint(-40, 30, (3, numel), generator=source)
    grad, m, b = torch.ldexp(torch.randn(3, numel, generator=source), exponents)
    grad = torch.where(rand(numel, generator=source) < 0.3, _strewn(AWKWARD, numel, source), grad)
    if not case.is_finite:
        grad = torch.where(rand(numel, generator=source) < 0.1, _strewn(NOT_FINITE, numel, source), grad)
    fresh = rand(numel, generator=source) < 0.2
    u = 2.2 * rand(numel, generator=source) - 1.1
    parts = torch.randn(case.num_vectors, numel, generator=source)
    return KernelInputs(
        grad=grad.to(case.dtype),
        m=torch.where(fresh, 0.0, m),
        b=torch.where(fresh, 0.0, torch.maximum(m.abs(), b.abs())),
        u=torch.where(rand(numel, generator=source) < 0.1, _strewn(AWKWARD, numel, source), u),
        rows=_random_bytes((case.num_vectors, packed_numel(numel)), source),
        parts=torch.where(rand(parts.shape, generator=source) < 0.1, torch.tensor(1e-40), parts),
        signs=_random_bytes((packed_numel(numel),), source),
        residual=_residuals(functional.SCALE, numel, source),
        merge_residual=_residuals(case.num_vectors, numel, source),
    )


def _residuals(most: int, numel: int, source: torch.Generator) -> Tensor:
    """Return residuals of at most so much, both ends among them."""
    made = torch.randint(-most, most + 1, (numel,), generator=source)
    return torch.where(torch.rand(numel, generator=source) < 0.2, made.sign() * most, made).to(torch.int16)


def _strewn(values: Sequence[float], numel: int, source: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), (numel,), generator=source)]


def _random_bytes(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=source)


def outcomes(
    kernels: Kernels, case: KernelCase, given: KernelInputs, device: torch.device, guard_numel: int = GUARD_NUMEL
) -> Outcomes:
    """Return what every kernel writes, by the kernel's name and what it is; guards have the name "guards"."""
    memory = GuardedMemory(device, case.offset, guard_numel)
    found: Outcomes = {}
    for name, tensors in _calls(kernels, case, given, memory):
        found |= {f"{name}: {what}": tensor for what, tensor in tensors.items()}
    return found | {"guards": memory.guards_hold()}


def _calls(
    kernels: Kernels, case: KernelCase, given: KernelInputs, memory: GuardedMemory
) -> Iterator[tuple[str, Outcomes]]:
    """Call every kernel with tensors of its own."""
    where: dict[str, Any] = {"key": KEY, "start": case.start}

    def packed() -> Tensor:
        return memory.place(torch.full((packed_numel(case.numel),), 0xFF, dtype=torch.uint8))

    for how, settings in UPDATES.items():
        grad, m, b = (memory.place(one) for one in (given.grad, given.m, given.b))
        u = memory.place(torch.full((case.numel,), 9.0))
        finite = kernels.update_(grad, m, b, out_u=u, **settings)
        yield "update_", {f"{how}finite": finite, f"{how}m": m, f"{how}b": b, f"{how}u": u}
        grad, m, b, out = (*(memory.place(one) for one in (given.grad, given.m, given.b)), packed())
        finite = kernels.update_quantize_pack_(grad, m, b, out=out, gain=GAINS[how], **settings, **where)
        yield "update_quantize_pack_", {f"{how}finite": finite, f"{how}m": m, f"{how}b": b, f"{how}signs": out}
        kernels.quantize_pack(memory.place(given.u), out=(out := packed()), gain=GAINS[how], **where)
        yield "quantize_pack", {f"{how}signs": out}
    kernels.merge(memory.place(given.rows), numel=case.numel, out=(out := packed()), **where)
    yield "merge", {"signs": out}
    yield from _shaped_calls(kernels, case, given, memory, packed)
    kernels.mean_(memory.place(given.parts), mean := memory.place(torch.full((case.numel,), 9.0)))
    yield "mean_", {"mean": mean}
    for maximize in (False, True):
        x = memory.place(given.grad)
        kernels.unpack_apply_(x, memory.place(given.signs), lr=1e-3, weight_decay=0.01, maximize=maximize)
        yield "unpack_apply_", {"maximized x" if maximize else "x": x}


def _shaped_calls(
    kernels: Kernels, case: KernelCase, given: KernelInputs, memory: GuardedMemory, packed: Callable[[], Tensor]
) -> Iterator[tuple[str, Outcomes]]:
    """Call the kernels that keep a residual."""
    grad, m, b = (memory.place(one) for one in (given.grad, given.m, given.b))
    residual, out = memory.place(given.residual), packed()
    finite = kernels.update_shape_pack_(
        grad, m, b, residual, beta=BETA, beta_b=BETA_B, nesterov=True, gain=GAIN, out=out
    )
    yield "update_shape_pack_", {"finite": finite, "m": m, "b": b, "residual": residual, "signs": out}
    residual, out = memory.place(given.residual), packed()
    kernels.shape_pack_(memory.place(given.u), residual, gain=GAIN, out=out)
    yield "shape_pack_", {"residual": residual, "signs": out}
    residual, out = memory.place(given.merge_residual), packed()
    kernels.merge_shaped_(memory.place(given.rows), residual, numel=case.numel, out=out)
    yield "merge_shaped_", {"residual": residual, "signs": out}


def foreach_outcomes(
    kernels: Kernels, cases: Sequence[KernelCase], device: torch.device, guard_numel: int = GUARD_NUMEL
) -> Outcomes:
    """Return what the kernels for many tensors write, each output in one tensor: one tensor a case, of its dtype."""
    memory = GuardedMemory(device, cases[0].offset, guard_numel)
    given = [inputs(case, seed) for seed, case in enumerate(cases)]

    def placed(name: str) -> list[Tensor]:
        return [memory.place(getattr(one, name)) for one in given]

    def filled(name: str, value: float) -> list[Tensor]:
        return [memory.place(torch.full_like(getattr(one, name), value)) for one in given]

    found: Outcomes = {}
    where: dict[str, Any] = {"key": KEY, "starts": [case.start for case in cases]}
    for how, settings in UPDATES.items():
        grads, ms, bs, us = placed("grad"), placed("m"), placed("b"), filled("u", 9.0)
        name = f"foreach_update_: {how}"
        found[f"{name}finite"] = kernels.foreach_update_(grads, ms, bs, outs_u=us, **settings)
        found |= {f"{name}{what}": torch.cat(ones) for what, ones in (("m", ms), ("b", bs), ("u", us))}
        grads, ms, bs, outs = placed("grad"), placed("m"), placed("b"), filled("signs", 0xFF)
        name = f"foreach_update_quantize_pack_: {how}"
        found[f"{name}finite"] = kernels.foreach_update_quantize_pack_(
            grads, ms, bs, outs=outs, gain=GAINS[how], **settings, **where
        )
        found |= {f"{name}{what}": torch.cat(ones) for what, ones in (("m", ms), ("b", bs), ("signs", outs))}
    grads, ms, bs, es, outs = placed("grad"), placed("m"), placed("b"), placed("residual"), filled("signs", 0xFF)
    finite = kernels.foreach_update_shape_pack_(
        grads, ms, bs, es, beta=BETA, beta_b=BETA_B, nesterov=True, gain=GAIN, outs=outs
    )
    written = {"m": ms, "b": bs, "residual": es, "signs": outs}
    found |= {f"foreach_update_shape_pack_: {name}": torch.cat(ones) for name, ones in written.items()}
    found["foreach_update_shape_pack_: finite"] = finite
    xs = placed("grad")
    kernels.foreach_unpack_apply_(xs, placed("signs"), lr=1e-3, weight_decay=0.01)
    found["foreach_unpack_apply_: x"] = torch.cat([x.float() for x in xs])  # exact, so that dtypes fit into one tensor
    return found | {"guards": memory.guards_hold()}
