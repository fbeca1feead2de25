"""The real BinSGDM in lock-step does what its equations say: to the bit where no draw decides, else on average."""

import math
from typing import Any

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn

from binsgdm import PAPER
from tests.helpers import stacked

RANKS, RANKS_PER_NODE = 4, 2
LR, WEIGHT_DECAY = 0.01, 0.1
SIGMAS = 5


class Equations:
    """BinSGDM in plain torch, with draws of torch's own: one copy of the parameters stands for all ranks."""

    def __init__(self, parameters: Any, *, beta: float) -> None:
        self.parameters, self.beta = list(parameters), beta
        self.shape = (RANKS // RANKS_PER_NODE, RANKS_PER_NODE, sum(p.numel() for p in self.parameters))
        self.m, self.b = (torch.zeros(self.shape).flatten(0, 1) for _ in range(2))
        self.draws = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def step(self, gradients: Any) -> None:
        self.m = self.beta * self.m + (1 - self.beta) * gradients
        self.b = self.beta * self.b + (1 - self.beta) * gradients.abs()
        u = torch.where(self.b > 0, self.m / self.b, 0.0)
        signs = self._drawn(self._drawn(u.view(self.shape).mean(1)).mean(0))
        moves = (LR * signs).split([p.numel() for p in self.parameters])
        for parameter, move in zip(self.parameters, moves, strict=True):
            parameter.mul_(1 - LR * WEIGHT_DECAY).sub_(move.view_as(parameter))

    def _drawn(self, u: Any) -> Any:
        return torch.where(torch.rand(u.shape, generator=self.draws) < (1 + u) / 2, 1.0, -1.0)


def pair(model: Any, beta: float) -> tuple[Any, Any, Any]:
    """Return the equations on a model, the real ones on a copy of it, and the copy."""
    copied = nn.Linear(20, 5)
    copied.load_state_dict(model.state_dict())
    make = stacked.binsgdm(lr=LR, beta=beta, weight_decay=WEIGHT_DECAY, seed=3, **PAPER)
    real = stacked.LockStep(copied.parameters(), make, num_ranks=RANKS, ranks_per_node=RANKS_PER_NODE)
    return Equations(model.parameters(), beta=beta), real, copied


def losses(model: Any, ranks: Any, steps: int) -> list[float]:
    """Train on a separable problem with the same samples on every rank; return the loss of every step."""
    draws = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 20, generator=draws)
    targets = (inputs @ torch.randn(20, 5, generator=draws)).argmax(1)
    found = []
    for _ in range(steps):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        found.append(loss.item())
        ranks.step(torch.cat([p.grad.flatten() for p in model.parameters()]).expand(RANKS, -1).clone())
    return found


def test_where_no_draw_decides_the_losses_are_those_of_the_equations_to_the_last_digit() -> None:
    """With beta = 0 and equal gradients every u is +1 or -1, whatever is drawn."""
    torch.manual_seed(0)
    model = nn.Linear(20, 5)
    equations, real, copied = pair(model, beta=0.0)
    found = losses(model, equations, 40)
    assert losses(copied, real, 40) == found
    assert found[-1] < 0.6 * found[0]
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), copied.parameters(), strict=True))


def test_where_draws_decide_both_have_the_mean_of_the_updates_and_their_own_draws() -> None:
    numel, us = 20_000, torch.tensor([0.9, -0.3, 0.2, 0.4])
    moved = []
    for kind in ("equations", "real"):
        parameter = nn.Parameter(torch.zeros(numel))
        make = stacked.binsgdm(lr=LR, beta=0.5, seed=3, **PAPER)
        real = stacked.LockStep([parameter], make, num_ranks=RANKS, ranks_per_node=RANKS_PER_NODE)
        ranks = Equations([parameter], beta=0.5) if kind == "equations" else real
        # beta = 0.5, first +1 and then g: m / b = (1 + 2 g) / (1 + 2 |g|), which is u for g = -(1 - u) / (2 (1 + u))
        ranks.step(torch.ones(RANKS, numel))
        before = parameter.detach().clone()
        ranks.step((-(1 - us) / (2 * (1 + us)))[:, None].expand(-1, numel).clone())
        signs = ((before - parameter.detach()) / LR).round()  # but for decay
        assert signs.abs().eq(1).all()
        mean = float(us.mean())
        assert abs(signs.mean().item() - mean) < SIGMAS * math.sqrt((1 - mean**2) / numel)
        moved.append(signs)
    assert 0.2 < (moved[0] == moved[1]).float().mean() < 0.8


def test_all_copies_stay_equal_and_the_model_follows_them() -> None:
    model = nn.Linear(20, 5)
    _, real, copied = pair(model, beta=0.9)
    for step in range(3):
        real.step(torch.randn(RANKS, 105, generator=torch.Generator().manual_seed(step)))
        for copies in real.copies:
            for one, other in zip(copies, copied.parameters(), strict=True):
                assert torch.equal(one, other)
