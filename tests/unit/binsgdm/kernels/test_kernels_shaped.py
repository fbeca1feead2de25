"""Shaped rounding in the kernels: exact integers, alike everywhere, whatever comes in.

That the fast kernels equal the reference on all kinds of tensors is tested with all others, in `test_kernels`.
"""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor

from binsgdm.kernels import Kernels, functional, keys
from binsgdm.kernels.bits import unpack_signs
from binsgdm.kernels.functional import packed_numel
from tests.helpers.kernel_samples import DTYPES, home, reference, residuals, same_bits, state

pytestmark = pytest.mark.gpu


def shaped(kernels: Kernels, u: Tensor, residual: Tensor, gain: float) -> tuple[Tensor, Tensor]:
    """Return the packed signs and the next residual."""
    place = home(kernels)
    left, out = residual.to(place, copy=True), torch.zeros(packed_numel(u.numel()), dtype=torch.uint8, device=place)
    kernels.shape_pack_(u.to(place), left, gain=gain, out=out)
    return out.cpu(), left.cpu()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Triton's interpreter computes with numpy
def test_values_at_every_edge_are_rounded_as_the_reference_rounds_them(fast: Kernels) -> None:
    halves = (torch.arange(-65536, 65537, 131) / 2 / functional.SCALE).repeat(2)
    edges = torch.tensor([1.0, -1.0, 0.0, -0.0, 1e-45, torch.inf, -torch.inf, torch.nan, 3e38, 1.0 + 2**-23]).repeat(20)
    u = torch.cat([halves, halves.nextafter(torch.tensor(2.0)), edges])
    residual = residuals(u.numel(), seed=1, most=functional.SCALE)
    for gain in (1.0, 1.0 / 3.0, 2.0, 1e30):
        wanted, got = shaped(reference, u, residual, gain), shaped(fast, u, residual, gain)
        assert all(same_bits(*pair) for pair in zip(wanted, got, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_no_number_counts_as_minus_one(fast: Kernels) -> None:
    u, nothing = torch.tensor([torch.nan, -torch.inf, torch.inf, 5.0, -5.0]), torch.zeros(5, dtype=torch.int16)
    for kernels in (reference, fast):
        out, left = shaped(kernels, u, nothing, 1.0)
        assert (unpack_signs(out, 5) > 0).tolist() == [False, False, True, True, False]
        assert not left.any()


def test_signs_and_residual_hold_all_that_was_put_in(fast: Kernels) -> None:
    u = torch.linspace(-1.2, 1.2, 100)
    start = residuals(100, seed=2, most=functional.SCALE)
    residual, total = start, torch.zeros(100, dtype=torch.int64)
    for _ in range(20):
        out, residual = shaped(fast, u, residual, 0.9)
        total += unpack_signs(out, 100).to(torch.int64)
    put_in = 20 * (functional.clip(u, gain=0.9) * functional.SCALE).round().to(torch.int64)
    assert torch.equal(put_in + start, functional.SCALE * total + residual)


@pytest.mark.parametrize("num_vectors", [1, 2, 3, 8, 127, 128, 1000])
def test_a_shaped_merge_equals_the_reference_for_any_number_of_vectors(fast: Kernels, num_vectors: int) -> None:
    if num_vectors == 1000 and fast.name == "triton":
        needs("GPU")  # the interpreter takes seconds for a thousand vectors
    source = torch.Generator().manual_seed(num_vectors)
    for numel in (1101, 64, 5) if fast.name == "cpu" else (1101 if num_vectors < 4 else 40,):
        rows = torch.randint(256, (num_vectors, packed_numel(numel)), dtype=torch.uint8, generator=source)
        rows[:, 0] = 0xFF  # all alike: the largest sums
        results = []
        for kernels in (reference, fast):
            place = home(kernels)
            residual = residuals(numel, seed=3, most=num_vectors).to(place)
            out = torch.full_like(rows[0], 0xFF).to(place)
            for _ in range(2):
                kernels.merge_shaped_(rows.to(place), residual, numel=numel, out=out)
            results.append((out, residual))
            assert int(residual.abs().max()) <= num_vectors
        assert all(same_bits(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("sign", [1, -1])
def test_as_many_vectors_as_there_may_be_fit_into_the_integers(fast: Kernels, sign: int) -> None:
    most = keys.MAX_SHAPED_VECTORS
    if fast.name == "triton":
        needs("GPU")  # the interpreter takes seconds for a thousand vectors
    rows = torch.full((most, 5), 0xFF if sign > 0 else 0, dtype=torch.uint8, device=home(fast))
    residual = torch.full((40,), sign * most, dtype=torch.int16, device=home(fast))
    out = torch.zeros(5, dtype=torch.uint8, device=home(fast))
    for _ in range(2):
        fast.merge_shaped_(rows, residual, numel=40, out=out)
        assert torch.equal(residual, torch.full_like(residual, sign * most))
        assert (unpack_signs(out, 40) == sign).all()


@pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "mixed"])
def test_many_tensors_at_any_place_are_shaped_as_one_after_the_other(fast: Kernels, dtypes: Any) -> None:
    # A residual is a piece of one flat tensor, wherever its parameter begins; the first is far from any boundary.
    numels, place = (5, 0, 64, 33, 1) if fast.name == "triton" else (5, 0, 70_000, 33, 200_001, 1), home(fast)
    flat = residuals(sum(numels) + 1, seed=4, most=functional.SCALE)
    where: dict[str, Any] = {"beta": 0.95, "beta_b": 0.9, "nesterov": True, "gain": 1.7}
    results = []
    for in_turn in (True, False):
        grads = [state(n, seed=n)[0].to(place, dtypes[i % len(dtypes)]) for i, n in enumerate(numels)]
        ms, bs = ([state(n, seed=n)[which].to(place) for n in numels] for which in (1, 2))
        own = list(flat.to(place, copy=True)[1:].split(numels))
        outs = [torch.zeros(packed_numel(n), dtype=torch.uint8, device=place) for n in numels]
        if in_turn:
            given = zip(grads, ms, bs, own, outs, strict=True)
            finite = [reference.update_shape_pack_(g, m, b, e, out=out, **where) for g, m, b, e, out in given]
            told = torch.stack(finite).all()
        else:
            told = fast.update_shape_pack_(grads, ms, bs, own, out=outs, **where)
        results.append([told, *ms, *bs, *own, *outs])
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


def test_an_element_whose_update_fails_sends_its_last_u_and_its_residual_goes_on(fast: Kernels) -> None:
    grad, m, b = torch.full((40,), torch.nan), torch.full((40,), 0.25), torch.ones(40)
    for kernels in (reference, fast):
        place, residual = home(kernels), torch.zeros(40, dtype=torch.int16, device=home(kernels))
        out = torch.zeros(5, dtype=torch.uint8, device=place)
        given = (grad.to(place), m.to(place), b.to(place))
        assert not kernels.update_shape_pack_(*given, residual, beta=0.5, beta_b=0.5, gain=1.0, out=out)
        assert torch.equal(given[1].cpu(), m)
        assert (unpack_signs(out, 40) == 1).all()
        assert (residual == round(0.25 * functional.SCALE) - functional.SCALE).all()


def test_looking_ahead_counts_the_gradient_twice_and_an_infinite_one_not_at_all(fast: Kernels) -> None:
    grad, m, b = torch.tensor([1.0, torch.inf] * 20), torch.full((40,), 0.5), torch.ones(40)
    for kernels in (reference, fast):
        given, u = [each.to(home(kernels), copy=True) for each in (grad, m, b)], torch.empty(40, device=home(kernels))
        assert not kernels.update_(*given, beta=0.5, beta_b=0.75, nesterov=True, out_u=u)
        assert u.tolist() == [0.5 * 0.75 + 0.5 * 1.0, 0.5] * 20


# Planted errors: what the comparison with the reference would see.
