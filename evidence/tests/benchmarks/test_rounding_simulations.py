"""What the page on shaped rounding says of x at rest, of the gain and of starts, on smaller simulations."""

import math

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from evidence.benchmarks.rounding_simulations import (
    SIGN,
    Shaped,
    fixed_point,
    measured_pull,
    noise_at_rest,
    pull_theory,
    rest_theory,
    rest_variance,
    shared_gradient,
    spectrum,
    walk,
)

NOISE = 0.3


@pytest.mark.parametrize("pull", [0.3, 0.05])
@pytest.mark.parametrize("name", ["draw", "shaped"])
def test_x_at_rest_has_the_variance_of_theory(name, pull):
    assert rest_variance(name, pull, NOISE, numel=512) == pytest.approx(rest_theory(name, pull, NOISE), rel=0.12)


def test_without_noise_in_u_draws_leave_x_as_restless():
    assert rest_variance("draw", 0.05, 0.0, numel=512) == pytest.approx(rest_theory("draw", 0.05, NOISE), rel=0.1)


@pytest.mark.parametrize(("nodes", "ranks_per_node", "gain"), [(1, 1, 1.0), (2, 2, 1.6), (2, 2, SIGN)])
def test_the_pull_is_that_of_theory(nodes, ranks_per_node, gain):
    assert measured_pull(nodes, ranks_per_node, gain, numel=2**14) == pytest.approx(
        pull_theory(nodes, ranks_per_node, gain), rel=0.06
    )


def test_shaped_rounding_adds_little_to_the_noise_and_the_draw_doubles_it():
    unrounded, shaped, draw = (noise_at_rest(name, 2, 2, 1.6, numel=128) for name in ("unrounded", "shaped", "draw"))
    assert unrounded < shaped < 1.1 * unrounded
    assert draw > 1.7 * unrounded


def test_the_spectrum_of_shaped_signs_rises_and_that_of_draws_is_flat():
    of = {name: spectrum(walk(name, steps=512, numel=64).both.diff(dim=0)) for name in ("draw", "shaped")}
    assert of["shaped"][2] < 0.01
    assert of["shaped"][-1] > 1
    assert of["draw"][2] == pytest.approx(of["draw"][-10:].mean().item(), rel=0.3)


def test_elements_with_one_gradient_hop_together_if_they_start_alike():
    found = {start: shared_gradient(start, 0.0, runs=4) for start in ("draw", "zero", "nodes", "shaped")}
    assert found["zero"] > found["draw"] > 5 * max(found["shaped"], found["nodes"])


def test_the_fixed_point_under_skewed_noise_hardly_depends_on_the_gain():
    low, high = (fixed_point(2, 2, gain, numel=2**14) for gain in (1.0, SIGN))
    assert 0.09 < high < low + 0.005 < 0.14


@pytest.mark.parametrize("parted", [0.1, 0.25, 1.0])
def test_residuals_that_start_alike_part_as_the_sums_of_their_u(parted):
    """A saw-tooth and itself shifted by a normal number: a sum over its harmonics."""
    places, source = Shaped((2,), 8192, seed=1), torch.Generator().manual_seed(2)
    places.residuals[0] = places.residuals[0][:1].repeat(2, 1)
    for _ in range(16):
        u = 0.5 * torch.rand(8192, generator=source) - 0.25
        places.signs(torch.stack([u, u + parted / 4 * torch.randn(8192, generator=source)]))
    harmonics = [math.exp(-((j * math.pi * parted) ** 2) / 2) / j**2 for j in range(1, 50)]
    correlation = torch.corrcoef(places.residuals[0].double())[0, 1]
    assert correlation == pytest.approx(6 / math.pi**2 * sum(harmonics), abs=0.06)


def test_residuals_that_start_apart_stay_so_where_u_is_the_same():
    places, source = Shaped((2,), 8192, seed=1), torch.Generator().manual_seed(2)
    for _ in range(16):
        places.signs((0.2 * torch.randn(8192, generator=source)).expand(2, -1))
    assert abs(torch.corrcoef(places.residuals[0].double())[0, 1]) < 5 / math.sqrt(8192)
