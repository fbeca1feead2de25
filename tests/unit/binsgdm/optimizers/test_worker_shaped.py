"""Shaped rounding in every scheme against the equations, written out in plain torch for all ranks at once."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn

from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.random import dither
from binsgdm.optimizers.settings import SCHEMES, Scheme
from tests.helpers.stacked import LockStep, binsgdm

NODES, LOCAL, STEPS, SEED, LR, BETA, GAIN = 3, 2, 5, 11, 0.5, 0.8, 1.5
RANKS = NODES * LOCAL
NUMEL = 32 * RANKS * 2
"""No padding; the slice of a rank of a node is a half, its piece a sixth."""


def gradients(step: int) -> torch.Tensor:
    return torch.randn(RANKS, NUMEL, generator=torch.Generator().manual_seed(step)) + 0.3


def rounded(values: torch.Tensor, residual: torch.Tensor, scale: int) -> torch.Tensor:
    """Return signs of whole numbers, and change the residual."""
    total = values + residual
    signs = torch.where(total >= 0, 1, -1)
    residual.copy_(total - scale * signs)
    return signs


def first(u: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return rounded(((u * gain).clamp(-1, 1) * 32767).round().to(torch.int64), residual, 32767)


def drawn(stream: RandomStream, num_rows: int) -> torch.Tensor:
    """Return of every rank what it would begin a merge with."""
    keys = [Key(seed=SEED, rank=rank, stream=stream) for rank in range(RANKS)]
    return torch.stack([dither(key, start=0, numel=NUMEL, limit=num_rows) for key in keys]).to(torch.int64)


class Equations:
    """All ranks: what each element is rounded with comes from the rank that owns it."""

    def __init__(self, scheme: Scheme, betas_b: list[float], *, nesterov: bool) -> None:
        self.scheme, self.nesterov = scheme, nesterov
        self.betas_b = [beta_b for beta_b in betas_b for _ in range(NUMEL // len(betas_b))]
        self.beta_b = torch.tensor(self.betas_b)
        self.rest_b = torch.tensor([1 - beta_b for beta_b in self.betas_b])
        self.m = torch.zeros(RANKS, NUMEL)
        self.b = torch.zeros(RANKS, NUMEL)
        self.x = torch.zeros(NUMEL)
        stream = RandomStream.INTRA_NODE if scheme.intra_node_dtype == "one_bit" else RandomStream.LOCAL
        # Of every rank, all elements: what it would begin with if it rounded them.
        keys = [Key(seed=SEED, rank=rank, stream=stream) for rank in range(RANKS)]
        self.of_rank = torch.stack([dither(key, start=0, numel=NUMEL, limit=32767) for key in keys]).to(torch.int64)
        self.of_slice = drawn(RandomStream.LOCAL, LOCAL)
        of_piece = drawn(RandomStream.MERGE, RANKS if scheme.topology == "flat" else NODES)
        slice_owner = torch.arange(NUMEL) // (NUMEL // LOCAL)
        self.by_node = torch.stack([slice_owner + LOCAL * node for node in range(NODES)])
        within = torch.arange(NUMEL) % (NUMEL // LOCAL) // (NUMEL // RANKS)
        owner = torch.arange(NUMEL) // (NUMEL // RANKS) if scheme.topology == "flat" else slice_owner + LOCAL * within
        self.of_merge = of_piece.gather(0, owner[None])[0]

    def mean_of_nodes(self, values: torch.Tensor) -> torch.Tensor:
        parts = values.view(NODES, LOCAL, NUMEL)
        if self.scheme.intra_node_dtype == "bf16":
            parts = parts.to(torch.bfloat16).to(torch.float32)
        return (parts[:, 0] + parts[:, 1]) / torch.tensor(float(LOCAL))

    def update(self, g: torch.Tensor) -> torch.Tensor:
        number = g.shape[0]
        self.m[:number] = self.m[:number] * BETA + g * (1 - BETA)
        self.b[:number] = self.b[:number] * self.beta_b + g.abs() * self.rest_b
        m = self.m[:number] * BETA + g * (1 - BETA) if self.nesterov else self.m[:number]
        # The mean of two gradients in bf16 may be 0.
        return torch.where(self.b[:number] > 0, m / self.b[:number], 0.0)

    def step(self, number: int) -> None:
        seen = 1 - BETA ** (number + self.nesterov)
        gain = torch.tensor([GAIN * (1 - beta_b**number) / seen for beta_b in self.betas_b])
        g = gradients(number)
        if self.scheme.topology == "flat":
            signs = first(self.update(g), self.of_rank, gain).sum(0)
            merged = rounded(signs, self.of_merge, RANKS)
        elif self.scheme.intra_node_dtype == "one_bit":
            sums = first(self.update(g), self.of_rank, gain).view(NODES, LOCAL, NUMEL).sum(1)
            own = self.of_slice.gather(0, self.by_node)
            signs = rounded(sums, own, LOCAL)
            self.of_slice.scatter_(0, self.by_node, own)
            merged = rounded(signs.sum(0), self.of_merge, NODES)
        else:
            averages_gradients = self.scheme.average == "gradients"
            mean = self.update(self.mean_of_nodes(g)) if averages_gradients else self.mean_of_nodes(self.update(g))
            own = self.of_rank.gather(0, self.by_node)
            signs = first(mean, own, gain)
            self.of_rank.scatter_(0, self.by_node, own)
            merged = rounded(signs.sum(0), self.of_merge, NODES)
        self.x -= LR * merged


@pytest.mark.parametrize(
    ("betas_b", "nesterov"), [([None], False), ([0.95], True), ([None, 0.95, 0.5], False)], ids=str
)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_all_ranks_move_by_the_equations(scheme, betas_b, nesterov):
    settings: dict[str, Any] = {
        "lr": LR,
        "beta": BETA,
        "nesterov": nesterov,
        "seed": SEED,
        "gain": GAIN,
        **vars(scheme),
    }
    numel = NUMEL // len(betas_b)
    values = [nn.Parameter(torch.zeros(numel)) for _ in betas_b]

    def make(copies: list[nn.Parameter], member: Any) -> Any:
        groups: Any = [{"params": [one], "beta_b": beta_b} for one, beta_b in zip(copies, betas_b, strict=True)]
        return binsgdm(rounding="shaped", **settings)(groups, member)

    ranks = LockStep(values, make, num_ranks=RANKS, ranks_per_node=LOCAL)
    equations = Equations(scheme, [beta_b or BETA for beta_b in reversed(betas_b)], nesterov=nesterov)
    for step in range(1, STEPS + 1):
        # Elements are numbered from the last parameter on.
        ranks.step(torch.cat(list(reversed(gradients(step).split(numel, dim=1))), dim=1))
        equations.step(step)
        for copies in ranks.copies:
            assert torch.equal(torch.cat([copy.detach() for copy in reversed(copies)]), equations.x)
    assert equations.x.unique().numel() > STEPS // 2


@pytest.mark.parametrize(("average", "gain"), [("updates", 24**0.5), ("gradients", 2.0)])
def test_without_a_gain_that_of_the_number_of_averaged_updates_counts(average, gain):
    def trained(**given: Any) -> torch.Tensor:
        make = binsgdm(lr=LR, beta=BETA, seed=SEED, rounding="shaped", average=average, **given)
        ranks = LockStep([nn.Parameter(torch.zeros(NUMEL))], make, num_ranks=24, ranks_per_node=6)
        draws = torch.Generator().manual_seed(1)
        for _ in range(4):
            ranks.step(torch.randn(24, NUMEL, generator=draws))
        return ranks.copies[0][0].detach()

    assert torch.equal(trained(), trained(gain=gain))
    assert not torch.equal(trained(), trained(gain=1.5 * gain))
