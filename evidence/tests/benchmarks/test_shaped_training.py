"""Shaped rounding in the optimizers of all ranks: x stays within the bound of where the sum of u would take it."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn

from binsgdm.kernels import functional
from evidence.benchmarks.rounding import rounded
from tests.helpers.stacked import LockStep, binsgdm

SHAPES = ((33,), (5, 7))
NUMEL = 33 + 35
STEPS = 60
LR = 2.0**-6
"""A power of 2, so that x is a whole number of steps without rounding."""
GAIN = 1.5
BETA = 0.75
PLACES = {
    ("hierarchical", "fp32", "updates"): 2,
    ("hierarchical", "bf16", "updates"): 2,
    ("hierarchical", "fp32", "gradients"): 2,
    ("hierarchical", "one_bit", "updates"): 3,
    ("flat", "fp32", "updates"): 2,
}


def followed(gradients: torch.Tensor, topology: str, dtype: str, average: str) -> torch.Tensor:
    """Return the mean over nodes, or over ranks, of the rounded, clipped u (steps, N), with 2 ranks a node."""
    if average == "gradients":
        gradients = gradients.view(STEPS, -1, 2, NUMEL).mean(dim=2)
    m, b, found = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0]), []
    for some in gradients:
        m, b, _ = functional.momenta(some, m, b, beta=BETA)
        u = functional.ratio(m, b)
        if dtype == "bf16":
            u = u.bfloat16().float()
        if (topology, average) == ("hierarchical", "updates") and dtype != "one_bit":
            u = u.view(-1, 2, NUMEL).mean(dim=1)
        found.append(rounded(u, gain=GAIN))
    return torch.stack(found)


def furthest(scheme: tuple[str, str, str], rounding: str, num_ranks: int = 4) -> float:
    """Return the largest difference over any run of steps, in lr, between the moves of x and the sum of u."""
    topology, dtype, average = scheme
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    options = {"topology": topology, "intra_node_dtype": dtype, "average": average}
    settings = {"lr": LR, "beta": BETA, "beta_b": None, "nesterov": False, "rounding": rounding, "gain": GAIN}
    make = binsgdm(**options, **settings, seed=3, kernels="reference")
    ranks = LockStep(parameters, make, num_ranks=num_ranks, ranks_per_node=2)
    gradients = torch.randn((STEPS, num_ranks, NUMEL), generator=torch.Generator().manual_seed(1))
    moved = [torch.zeros(NUMEL, dtype=torch.float64)]
    for some in gradients:
        ranks.step(some)
        moved.append(-torch.cat([parameter.detach().flatten() for parameter in parameters]).double() / LR)
    sums = torch.cat([torch.zeros(1, NUMEL), followed(gradients, *scheme)]).cumsum(dim=0)
    distance = torch.stack(moved) - sums
    return max((distance - distance.cummin(0).values).max().item(), (distance.cummax(0).values - distance).max().item())


@pytest.mark.parametrize(("scheme", "places"), PLACES.items(), ids=str)
def test_x_follows_the_sum_of_u_in_every_scheme(scheme, places):
    assert 0.9 * places < furthest(scheme, "shaped") <= 2 * places + 1e-9


def test_with_draws_it_does_not():
    assert furthest(("hierarchical", "fp32", "updates"), "random") > 8
