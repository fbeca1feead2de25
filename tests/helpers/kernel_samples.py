"""States for kernels, everything that kernels make of them, and a comparison bit for bit."""

from typing import Any

import torch
from torch import Tensor

from binsgdm.kernels import Kernels, functional, select
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.random import Key

reference = select("reference")
KEY = Key(seed=2**63 + 5, step=2**31 + 3, rank=7, stream=1)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
AWKWARD = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 6e-8, 65504.0, 65519.0, 65520.0, 1e-30)
GAINS = (1.0, 2.5, 1e-30, 1e30)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
GUARD_NUMEL, GUARD = 64, 77  # a number of every dtype


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def home(kernels: Kernels) -> str:
    return device() if kernels.name == "triton" else "cpu"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare bit for bit; NaNs are equal whatever their payload."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    equal = a.view(integers) == b.view(integers)
    if a.dtype.is_floating_point:
        equal |= a.isnan() & b.isnan()
    return bool(equal.all())


def state(numel: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a gradient, m and b with |m| <= b, of every magnitude, with awkward values strewn in."""
    source = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-40, 30, (3, numel), generator=source)
    grad, m, b = torch.ldexp(torch.randn(3, numel, generator=source), exponents)
    awkward = torch.tensor(AWKWARD)[torch.randint(len(AWKWARD), (numel,), generator=source)]
    grad = torch.where(torch.rand(numel, generator=source) < 0.3, awkward, grad)
    fresh = torch.rand(numel, generator=source) < 0.2
    m = torch.where(fresh, 0.0, m)
    return grad, m, torch.where(fresh, 0.0, torch.maximum(m.abs(), b.abs()))


def residuals(numel: int, seed: int, most: int) -> Tensor:
    """Return residuals of at most so much, both ends among them."""
    source = torch.Generator().manual_seed(seed)
    made = torch.randint(-most, most + 1, (numel,), dtype=torch.int32, generator=source)
    ends = torch.tensor([most, -most, 0, 1, -1])[torch.randint(5, (numel,), generator=source)]
    return torch.where(torch.rand(numel, generator=source) < 0.3, ends, made).to(torch.int16)


class GuardedMemory:
    """Copies on a device, each `offset` elements behind an aligned address, between guards that no kernel may write to.

    Without guards each copy is alone in its memory.
    """

    def __init__(self, place: str | torch.device, offset: int = 0, guard_numel: int = GUARD_NUMEL) -> None:
        self.device = torch.device(place)
        self._first, self._guard_numel = guard_numel + offset, guard_numel
        self._buffers: list[tuple[Tensor, int]] = []

    def place(self, values: Tensor) -> Tensor:
        """Return a copy."""
        size = self._first + values.numel() + self._guard_numel
        buffer = torch.full((size,), GUARD, dtype=values.dtype, device=self.device)
        view = buffer[self._first : self._first + values.numel()].view(values.shape)
        view.copy_(values)
        self._buffers.append((buffer, values.numel()))
        return view

    def guards_hold(self) -> Tensor:
        """Return, as a tensor of one element, whether every guard is as it was."""
        held = [torch.ones((), dtype=torch.bool, device=self.device)]
        for buffer, numel in self._buffers if self._guard_numel else ():
            held += [(part == GUARD).all() for part in (buffer[: self._first], buffer[self._first + numel :])]
        return torch.stack(held).all()


def outcomes(
    kernels: Kernels, grad: Tensor, m: Tensor, b: Tensor, start: int, memory: GuardedMemory | None = None
) -> dict[str, Tensor]:
    """Return everything that every kernel writes or returns, on copies."""
    memory = memory or GuardedMemory(home(kernels))
    numel, gain = grad.numel(), GAINS[grad.numel() % len(GAINS)]
    grad, x, climbed = (memory.place(grad) for _ in range(3))
    (m1, m2, m3), (b1, b2, b3) = ([memory.place(one) for _ in range(3)] for one in (m, b))
    u, mean = (memory.place(torch.full_like(m, 9.0)) for _ in range(2))
    one, two, merged, three, merged_shaped, shaped, amplified = (
        memory.place(torch.full((packed_numel(numel),), 0xFF, dtype=torch.uint8)) for _ in range(7)
    )
    where: dict[str, Any] = {"key": KEY, "start": start}
    how: dict[str, Any] = {"beta": 0.95, "beta_b": 0.99, "nesterov": gain > 1}
    all_one = kernels.update_quantize_pack_(grad, m1, b1, gain=gain, out=one, **how, **where)
    all_two = kernels.update_(grad, m2, b2, out_u=u, **how)
    kernels.quantize_pack(u, out=two, **where)
    is_fp32 = grad.dtype == torch.float32  # some kernels know no other, and the interpreter takes its time
    rows = memory.place(torch.stack([one, two.flip(0), one ^ 0x5A]))
    if is_fp32:
        kernels.merge(rows, numel=numel, out=merged, **where)
        kernels.mean_(memory.place(torch.stack([m1, b1, grad, u])), mean)
    kernels.unpack_apply_(x, one, lr=1e-3, weight_decay=0.01)
    kernels.unpack_apply_(climbed, one, lr=1e-3, weight_decay=0.01, maximize=True)
    e1, e2 = (memory.place(residuals(numel, numel, most)) for most in (functional.SCALE, 3))
    all_three = kernels.update_shape_pack_(grad, m3, b3, e1, gain=gain, out=three, **how)
    e3 = memory.place(e1)
    if is_fp32:
        kernels.shape_pack_(u, e3, gain=gain, out=shaped)
        kernels.merge_shaped_(rows, e2, numel=numel, out=merged_shaped)
    kernels.quantize_pack(u, gain=gain, out=amplified, **where)
    guards = memory.guards_hold()
    names = "m1 b1 m2 b2 u mean one two merged x climbed all_one all_two guards "
    names += "m3 b3 e1 e2 e3 three shaped merged_shaped amplified all_three"
    scope = locals()
    return {name: scope[name] for name in names.split()}


def assert_equal(fast: Kernels, *given: Any, memory: GuardedMemory | None = None) -> None:
    wanted, got = outcomes(reference, *given), outcomes(fast, *given, memory)
    for name in wanted:
        assert same_bits(wanted[name], got[name]), name
