"""Shaped rounding: the sum of the signs follows the sum of u within bounds that are reached, and loses what it must."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.kernels import functional
from evidence.benchmarks.rounding import (
    NOISE,
    SIGN,
    Drawn,
    Shaped,
    measured_pull,
    pull_theory,
    rest_theory,
    rest_variance,
    rounded,
    spectrum,
    walk,
)

NUMEL = 32
SCALE = functional.SCALE
KINDS = ("any", "signs", "small", "constant", "beyond 1", "not a number")
SCHEMES: dict[str, tuple[int, ...]] = {
    "alone": (),
    "flat, 4 ranks": (4,),
    "hierarchical, 2 nodes": (2,),
    "hierarchical, 4 nodes": (4,),
    "one_bit, 2 x 2": (2, 2),
}
"""How many signs each merge takes, in order."""
schemes = st.sampled_from(list(SCHEMES.values()))
schedules = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def updates(kind: str, rows: int, steps: int, seed: int) -> torch.Tensor:
    """Return u (steps, rows, N) of one of several kinds."""
    source = torch.Generator().manual_seed(seed)
    u = 2 * torch.rand((steps, rows, NUMEL), generator=source) - 1
    if kind == "signs":
        return u.sign()
    if kind == "constant":
        return u[:1].expand(steps, -1, -1).contiguous()
    if kind == "not a number":
        return torch.where(u > 0.5, torch.nan, u)
    return u * {"any": 1.0, "small": 3 / SCALE, "beyond 1": 3.0}[kind]


def started(merges: tuple[int, ...], start: str, seed: int = 0) -> Shaped:
    """Return places that start at random, or all at the most or the least that a residual may be."""
    places = Shaped(merges, NUMEL, seed=seed)
    if start != "random":
        for unit, residual in zip(places.units, places.residuals, strict=True):
            residual.fill_(unit if start == "most" else -unit)
    return places


def distances(places: Shaped | Drawn, u: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
    """Return the sum of the signs applied minus that of the rounded, clipped u, after 0, 1, ... steps; fp64."""
    moves = torch.stack([places.signs(of_step, gain=gain) - rounded(of_step, gain=gain) for of_step in u])
    return torch.cat([torch.zeros(1, NUMEL, dtype=torch.float64), moves]).cumsum(dim=0)


def widest(sums: torch.Tensor) -> tuple[float, float]:
    """Return the largest rise and the largest fall over any run of steps."""
    rise = (sums - sums.cummin(dim=0).values).max().item()
    fall = (sums.cummax(dim=0).values - sums).max().item()
    return rise, fall


def most(merges: tuple[int, ...]) -> float:
    """Return the bound: 2 a place."""
    return 2.0 * (1 + len(merges))


def most_after_the_start(merges: tuple[int, ...]) -> float:
    """Return the bound for residuals below their most: 2 - 1/32767, and 2 - 2/K at a merge of K, which keeps parity."""
    return 2 - 1 / SCALE + sum(2 - 2 / count for count in merges)


@given(schemes, st.sampled_from(KINDS), st.sampled_from(["random", "most", "least"]), st.integers(0, 999))
def test_no_sequence_passes_the_bound(merges, kind, start, seed):
    places = started(merges, start, seed)
    u = updates(kind, len(places.residuals[0]), 24, seed)
    rise, fall = widest(distances(places, u, gain=1.0 + seed % 3))
    assert rise <= (most(merges) if start == "most" else most_after_the_start(merges)) + 1e-9
    assert fall <= most_after_the_start(merges) + 1e-9


@given(schemes, st.sampled_from(KINDS), st.integers(0, 999))
def test_the_distance_is_what_the_residuals_hold(merges, kind, seed):
    places = started(merges, "random", seed)
    first = places.offset()
    sums = distances(places, updates(kind, len(places.residuals[0]), 24, seed))
    torch.testing.assert_close(sums[-1], first - places.offset(), rtol=0, atol=1e-9)
    for unit, residual in zip(places.units, places.residuals, strict=True):
        assert residual.min() >= -unit
        assert residual.max() < unit


@pytest.mark.parametrize("merges", SCHEMES.values(), ids=list(SCHEMES))
def test_a_sequence_reaches_the_bound_upwards(merges):
    """U = -1 from residuals at their most: each step one more place gives +1 in its stead."""
    places = started(merges, "most")
    u = torch.full((5, len(places.residuals[0]), NUMEL), -1.0)
    assert distances(places, u).max().item() == most(merges)


@pytest.mark.parametrize("merges", SCHEMES.values(), ids=list(SCHEMES))
def test_a_sequence_reaches_the_bound_downwards(merges):
    """From residuals at their least each step lets one more place give -1 for nearly +1."""
    places = started(merges, "least")
    rows = len(places.residuals[0])
    steps, below = [torch.full((rows,), (SCALE - 1) / SCALE)], 1
    for count in merges:
        one_vote_short = torch.ones(rows)
        one_vote_short.view(-1, count, below)[:, 0] = -1
        steps.append(one_vote_short)
        below *= count
    u = torch.stack(steps).unsqueeze(-1).expand(-1, -1, NUMEL)
    assert distances(places, u).min().item() == pytest.approx(-most_after_the_start(merges), abs=1e-9)


def weighted(moves: torch.Tensor, lrs: list[float], weight_decay: float) -> torch.Tensor:
    """Return how far x is from where the rounded, clipped u would have taken it, after all steps."""
    distance = torch.zeros(moves.shape[1], dtype=torch.float64)
    for move, lr in zip(moves, lrs, strict=True):
        distance = (1 - lr * weight_decay) * distance + lr * move
    return distance.abs().max()


@given(schemes, schedules, schedules, st.floats(0, 1), st.sampled_from(KINDS), st.integers(0, 999))
def test_warm_up_then_decay_and_weight_decay_keep_the_bound(merges, rising, falling, weight_decay, kind, seed):
    lrs = sorted(rising) + sorted(falling, reverse=True)
    places = started(merges, "most", seed)
    moves = distances(places, updates(kind, len(places.residuals[0]), len(lrs), seed)).diff(dim=0)
    assert weighted(moves, lrs, weight_decay) <= most(merges) * max(lrs) + 1e-9


@given(schemes, schedules, st.floats(0, 1), st.sampled_from(KINDS), st.integers(0, 999))
def test_any_schedule_adds_what_it_varies(merges, lrs, weight_decay, kind, seed):
    places = started(merges, "most", seed)
    moves = distances(places, updates(kind, len(places.residuals[0]), len(lrs), seed)).diff(dim=0)
    variation = sum(abs(after - before) for before, after in pairwise(lrs))
    assert weighted(moves, lrs, weight_decay) <= most(merges) / 2 * (lrs[0] + lrs[-1] + variation) + 1e-9


@given(schemes, st.lists(st.booleans(), min_size=24, max_size=24), st.sampled_from(KINDS), st.integers(0, 999))
def test_each_interruption_adds_the_bound_once(merges, counts, kind, seed):
    """Residuals go on where a step does not count; steps in a row that do not are one interruption."""
    places = started(merges, "random", seed)
    moves = distances(places, updates(kind, len(places.residuals[0]), 24, seed)).diff(dim=0)
    counted = torch.tensor(counts)
    interruptions = sum(before and not after for before, after in pairwise(counts))
    assert moves[counted].sum(dim=0).abs().max() <= most_after_the_start(merges) * (1 + interruptions) + 1e-9


@given(st.floats(-1, 1, width=32))
def test_u_is_rounded_to_nearly_half_a_step(u):
    lost = Fraction(rounded(torch.tensor([[u]])).mul(SCALE).item()) - Fraction(u) * SCALE
    assert abs(lost) <= Fraction(1, 2) + Fraction(1, 1024)


def test_a_u_below_half_a_step_is_lost_for_good():
    """The drift that rounding u to integers leaves: at most 1 / 65534 a step."""
    places, u = started((), "random"), torch.full((1, NUMEL), 0.49 / SCALE)
    sums = torch.stack([places.signs(u) for _ in range(1000)]).sum(dim=0)
    assert sums.abs().max() == 0
    assert 1000 * u.double().sum() / NUMEL == pytest.approx(1000 * 0.98 / 65534)


def test_over_all_starts_every_sign_is_unbiased():
    """The residual turns on a circle of 65534 values: uniform starts stay uniform, and P(+1) = (1 + u) / 2."""
    residual = torch.arange(-SCALE, SCALE, dtype=torch.int16)
    for u in (0.3, -1.0, 0.0, 1.0, 1e-4, -0.77):
        positive, residual = functional.shape(torch.full((2 * SCALE,), u), residual, gain=1.0)
        assert positive.sum() == round(u * SCALE) + SCALE
        assert torch.equal(residual.sort().values, torch.arange(-SCALE, SCALE, dtype=torch.int16))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_over_all_starts_every_merge_is_unbiased(count):
    residual = torch.arange(-count, count, dtype=torch.int16)
    for total in range(-count, count + 1, 2):
        sums = torch.full((2 * count,), total)
        positive, residual = functional.shape_merge(sums, residual, num_vectors=count)
        assert positive.sum() == total + count
        assert torch.equal(residual.sort().values, torch.arange(-count, count, dtype=torch.int16))


@pytest.mark.parametrize("pull", [0.3, 0.05])
@pytest.mark.parametrize("name", ["draw", "shaped"])
def test_x_at_rest_has_the_variance_of_theory(name, pull):
    assert rest_variance(name, pull, NOISE, numel=512) == pytest.approx(rest_theory(name, pull, NOISE), rel=0.12)


@pytest.mark.parametrize(("nodes", "ranks_per_node", "gain"), [(1, 1, 1.0), (2, 2, 1.6), (2, 2, SIGN)])
def test_the_pull_is_that_of_theory(nodes, ranks_per_node, gain):
    theory = pull_theory(nodes, ranks_per_node, gain)
    assert measured_pull(nodes, ranks_per_node, gain, numel=2**14) == pytest.approx(theory, rel=0.06)


def test_the_spectrum_of_shaped_signs_rises_and_that_of_draws_is_flat():
    of = {name: spectrum(walk(name, steps=512, numel=64).both.diff(dim=0)) for name in ("draw", "shaped")}
    assert of["shaped"][2] < 0.01
    assert of["shaped"][-1] > 1
    assert of["draw"][2] == pytest.approx(of["draw"][-10:].mean().item(), rel=0.3)
