"""States for kernels, everything that kernels make of them, and a comparison bit for bit."""

from typing import Any

import torch
from torch import Tensor

from binsgdm.kernels import Kernels, functional, reference
from binsgdm.kernels.bits import packed_numel
from binsgdm.kernels.random import Key

KEY = Key(seed=2**63 + 5, step=2**31 + 3, rank=7, stream=1)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
AWKWARD = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 6e-8, 65504.0, 65519.0, 65520.0, 1e-30)
GAINS = (1.0, 2.5, 1e-30, 1e30)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def home(kernels: Kernels) -> str:
    return device() if kernels.name == "triton" else "cpu"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare bit for bit; NaNs are equal whatever their payload."""
    assert a.dtype == b.dtype
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
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


def outcomes(kernels: Kernels, grad: Tensor, m: Tensor, b: Tensor, start: int) -> dict[str, Tensor]:
    """Return everything that every kernel writes or returns, on copies."""
    place, numel = home(kernels), grad.numel()
    grad, m, b = (given.to(place, copy=True) for given in (grad, m, b))
    m1, b1, m2, b2, m3, b3 = m.clone(), b.clone(), m.clone(), b.clone(), m.clone(), b.clone()
    u, mean = torch.full_like(m, 9.0), torch.full_like(m, 9.0)
    one, two, merged, three, merged_shaped, amplified = (
        torch.full((packed_numel(numel),), 0xFF, dtype=torch.uint8, device=place) for _ in range(6)
    )
    where: dict[str, Any] = {"key": KEY, "start": start}
    all_one = kernels.update_quantize_pack_(grad, m1, b1, beta=0.95, beta_b=0.95, out=one, **where)
    all_two = kernels.update_(grad, m2, b2, beta=0.95, beta_b=0.95, out_u=u)
    kernels.quantize_pack(u, out=two, **where)
    if grad.dtype == torch.float32:  # they know no other, and the interpreter takes its time
        kernels.merge(torch.stack([one, two.flip(0), one ^ 0x5A]), numel=numel, out=merged, **where)
        kernels.mean_(torch.stack([m1, b1, grad, u]), mean)
    x, climbed = grad.clone(), grad.clone()
    kernels.unpack_apply_(x, one, lr=1e-3, weight_decay=0.01)
    kernels.unpack_apply_(climbed, one, lr=1e-3, weight_decay=0.01, maximize=True)
    gain, shaped = GAINS[numel % len(GAINS)], three.clone()
    e1, e2 = (residuals(numel, numel, most).to(place) for most in (functional.SCALE, 3))
    where = {"beta": 0.95, "beta_b": 0.99, "nesterov": gain > 1, "gain": gain}
    all_three = kernels.update_shape_pack_(grad, m3, b3, e1, out=three, **where)
    e3 = e1.clone()
    if grad.dtype == torch.float32:
        kernels.shape_pack_(u, e3, gain=gain, out=shaped)
        kernels.merge_shaped_(torch.stack([one, two.flip(0), one ^ 0x5A]), e2, numel=numel, out=merged_shaped)
    kernels.quantize_pack(u, key=KEY, start=start, gain=gain, out=amplified)
    names = "m1 b1 m2 b2 u mean one two merged x climbed all_one all_two "
    names += "m3 b3 e1 e2 e3 three shaped merged_shaped amplified all_three"
    scope = locals()
    return {name: scope[name] for name in names.split()}


def assert_equal(fast: Kernels, *given: Any) -> None:
    wanted, got = outcomes(reference, *given), outcomes(fast, *given)
    for name in wanted:
        assert same_bits(wanted[name], got[name]), name
