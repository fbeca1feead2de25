"""The equations with more settings do what binsgdm does wherever binsgdm has these settings."""

from itertools import pairwise
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn

import binsgdm
from evidence.studies.played import Form, Played
from evidence.studies.rounding import PAPER, PLAYED, TOGETHER
from tests.helpers.stacked import LockStep
from tests.helpers.stacked import binsgdm as stacked_binsgdm

RANKS, RANKS_PER_NODE, STEPS = 4, 2, 150
LR = 0.01
SIZES = ((20, 5), (7,))
PLACES, LOST = 2, 2  # in units of lr: at each place, the applied sum follows the wanted one within this


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in SIZES]


def ends(form: Form, **settings: Any) -> tuple[Any, Any]:
    """Return where the equations and the real optimizers move parameters, by gradients that do not depend on these."""
    played, real = parameters(), parameters()
    layout = {"num_ranks": RANKS, "ranks_per_node": RANKS_PER_NODE}
    equations = Played(played, form, **layout, steps=STEPS, seed=1)
    optimizers = LockStep(real, stacked_binsgdm(lr=LR, seed=2, **settings), **layout)
    equations.param_groups[0]["lr"] = LR
    draws = torch.Generator().manual_seed(3)
    drift = torch.randn(107, generator=draws) / 3
    for _ in range(STEPS):
        gradients = drift + torch.randn(RANKS, 107, generator=draws)
        equations.step(gradients.clone())
        optimizers.step(gradients)
    return tuple(torch.cat([p.detach().flatten() for p in some]) for some in (played, real))


@pytest.mark.parametrize("average", ["updates", "gradients"])
@pytest.mark.parametrize(("gain", "beta_b"), [(1.0, None), (2.0, 0.99)])
def test_shaped_forms_end_within_the_residuals_of_each_other(average: Any, gain: float, beta_b: float | None) -> None:
    settings: dict[str, Any] = {"gain": gain, "beta": 0.9, "beta_b": beta_b, "nesterov": False}
    form = Form(**settings, average=average)
    played, real = ends(form, **settings, rounding="shaped", average=average)
    assert (played - real).abs().max() <= 2 * PLACES * LOST * LR
    # Random draws would not: their sums drift apart.
    drawn, real = ends(Form(**{**PAPER, "beta": 0.9}), beta=0.9, **binsgdm.PAPER)
    assert (drawn - real).abs().max() > 2 * PLACES * LOST * LR


def test_without_rounding_it_moves_by_what_the_shaped_signs_follow() -> None:
    played, real = ends(Form(**{**PAPER, "rounding": "none"}), **binsgdm.PAPER | {"rounding": "shaped", "beta": 0.8})
    assert 0 < (played - real).abs().max() <= PLACES * LOST * LR


@pytest.mark.parametrize(("what", "title"), [(what, title) for what, of in PLAYED.items() for title in of])
def test_every_form_that_was_tried_is_another_one(what: str, title: str) -> None:
    options = PLAYED[what][title]
    base, other = Form(), Form(**options)
    assert (base == other) == (not options)


def test_the_way_to_the_base_changes_one_thing_after_the_other() -> None:
    forms = [vars(Form(**options)) for options, _ in TOGETHER.values()]
    changes = [sum(before[name] != after[name] for name in before) for before, after in pairwise(forms)]
    assert changes == [1, 1, 1, 1, 0, 2]
