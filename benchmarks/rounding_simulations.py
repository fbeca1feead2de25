"""Small simulations of both ways to round, and what theory says of each.

Each element is an independent run of one coordinate, where nothing else is said. Distances are in lr.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from benchmarks.rounding_model import Drawn, Shaped, rounded
from binsgdm.kernels import functional

NODES = 4
BETA = 0.8
PULLS = (0.3, 0.1, 0.03, 0.01, 0.003)
SIGN = 1e6  # a gain that leaves nothing but the sign
Rounding = Shaped | Drawn


@dataclass
class Averages:
    """m and b of R parts of a batch, fp32 (R, N)."""

    m: Tensor
    b: Tensor

    @classmethod
    def empty(cls, rows: int, numel: int) -> "Averages":
        """Return zeros."""
        return cls(torch.zeros(rows, numel), torch.zeros(rows, numel))

    def updates(self, gradients: Tensor) -> Tensor:
        """Take in gradients (R, N); return u."""
        self.m, self.b, _ = functional.momenta(gradients, self.m, self.b, beta=BETA)
        return functional.ratio(self.m, self.b)


def rounding(name: str, merges: Sequence[int], numel: int) -> Rounding:
    """Return a way to round, with draws or residuals of its own."""
    return Drawn(merges, seed=1) if name == "draw" else Shaped(merges, numel, seed=1)


@dataclass
class Walk:
    """Sums of signs minus sums of u after each step (steps, N), in lr.

    Attributes:
        first: the mean of what the nodes send.
        both: what is applied.
        theory: the standard deviation of `both` with draws (steps).
    """

    first: Tensor
    both: Tensor
    theory: Tensor


def walk(name: str, steps: int = 2048, numel: int = 1024) -> Walk:
    """Return how far the signs of 4 nodes go from the sum of u: m / b of noise over a slow swing."""
    source, averages = torch.Generator().manual_seed(2), Averages.empty(NODES, numel)
    # Alone, the first place is the same as in the exchange: as many rows, the same starts or the same kind of draws.
    alone, exchange = rounding(name, (), NODES * numel), rounding(name, (NODES,), numel)
    phases = 2 * math.pi * torch.rand(numel, generator=source)
    first, both, variances = [], [], []
    for step in range(steps):
        swing = 0.5 * torch.sin(2 * math.pi * step / 400 + phases)
        u = averages.updates(swing + torch.randn(NODES, numel, generator=source))
        ideal = rounded(u)
        first.append(alone.signs(u.view(1, -1)).view(NODES, numel).mean(dim=0) - ideal)
        both.append(exchange.signs(u) - ideal)
        variances.append(1 - ideal.square().mean())
    return Walk(torch.stack(first).cumsum(0), torch.stack(both).cumsum(0), torch.stack(variances).cumsum(0).sqrt())


def spectrum(moves: Tensor, length: int = 256) -> Tensor:
    """Return the power of moves (steps, N) at 0, 1/length, ... 1/2 cycles a step; white noise of variance 1 has 1."""
    pieces = moves[: len(moves) // length * length].view(-1, length, moves.shape[1])
    window = torch.hann_window(length, dtype=moves.dtype).view(1, -1, 1)
    power: Tensor = torch.fft.rfft(pieces * window, dim=1).abs().square()
    return power.mean(dim=(0, 2)) / window.square().sum()


def residual_variance(num_nodes: int) -> float:
    """Return the variance of the residuals of both places together, in lr^2, if they are as good as uniform."""
    # The mean of N independent ones in [-1, 1], and one on N values 2 / N apart: a merge keeps the parity of its own.
    return 1 / (3 * num_nodes) + (1 - 1 / num_nodes**2) / 3


def rest_variance(name: str, pull: float, noise: float, numel: int = 1024) -> float:
    """Return the variance of x at rest, in lr^2, where 4 nodes have u = pull x / lr + noise."""
    source, places = torch.Generator().manual_seed(3), rounding(name, (NODES,), numel)
    x = 2 * torch.rand(numel, generator=source) - 1
    steps, total = int(12 / pull), 0.0
    for step in range(steps):
        x = x - places.signs(pull * x + noise * torch.randn(NODES, numel, generator=source))
        total += x.square().mean().item() * (step >= steps // 2)
    return total / (steps - steps // 2)


def rest_theory(name: str, pull: float, noise: float) -> float:
    """Return what theory says of `rest_variance`, without the clip."""
    if name == "draw":
        return 1 / (2 * pull)
    of_rounding = residual_variance(NODES)
    return (noise**2 / NODES + pull**2 * of_rounding) / (2 * pull - pull**2) + of_rounding


def pull_theory(num_nodes: int, ranks_per_node: int, gain: float) -> float:
    """Return how fast x goes to its optimum, in units of Adam at the same lr, where gradients are mostly noise."""
    deviation = math.sqrt(math.pi / 2 * (1 - BETA) / (1 + BETA) / ranks_per_node)  # of a node's u
    unclipped = math.erf(1 / (math.sqrt(2) * gain * deviation))
    return gain * math.sqrt(math.pi / 2 / (num_nodes * ranks_per_node)) * unclipped


def noisy_updates(averages: Averages, slope: Tensor | float, num_nodes: int, source: torch.Generator) -> Tensor:
    """Return u of the nodes (nodes, N), whose parts of a batch have noise that is 1 for the whole batch."""
    rows, numel = averages.m.shape
    gradients = slope + math.sqrt(rows) * torch.randn(rows, numel, generator=source)
    return averages.updates(gradients).view(num_nodes, -1, numel).mean(dim=1)


def measured_pull(num_nodes: int, ranks_per_node: int, gain: float, slope: float = 0.02, numel: int = 2**18) -> float:
    """Return what `pull_theory` says, from the mean update at a gradient of +-slope."""
    means = []
    for sign in (1, -1):
        source = torch.Generator().manual_seed(4)
        rows = num_nodes * ranks_per_node
        averages, some = Averages.empty(rows, numel // rows), []
        for _ in range(80):
            u = noisy_updates(averages, sign * slope, num_nodes, source)
            some.append(functional.clip(u, gain=gain).mean().item())
        means.append(sum(some[40:]) / 40)
    return (means[0] - means[1]) / (2 * slope)


def noise_at_rest(name: str, num_nodes: int, ranks_per_node: int, gain: float, numel: int = 512) -> float:
    """Return the variance of x at rest, in units of Adam's at the same lr; unrounded if the name says so."""
    pull, steps, total = 0.02, 1600, 0.0  # of Adam: h lr / sigma
    source, averages = torch.Generator().manual_seed(5), Averages.empty(num_nodes * ranks_per_node, numel)
    places = rounding(name, (num_nodes,) if num_nodes > 1 else (), numel)
    x = 2 * torch.rand(numel, generator=source) - 1
    for step in range(steps):
        u = noisy_updates(averages, pull * x, num_nodes, source)
        x = x - (functional.clip(u, gain=gain).mean(dim=0) if name == "unrounded" else places.signs(u, gain=gain))
        total += x.square().mean().item() * (step >= steps // 2)
    # Adam's own: its update is the gradient over sigma, whose noise has the power 1 at low frequencies.
    return 2 * pull * total / (steps - steps // 2)


def shared_gradient(start: str, noise: float, pull: float = 0.03, size: int = 64, runs: int = 32) -> float:
    """Return how far the mean of 64 elements that have the same gradient, that of their mean, is at rest: rms in lr."""
    source, places = torch.Generator().manual_seed(6), rounding(start, (NODES,), size * runs)
    x = 2 * torch.rand(runs, size, generator=source) - 1
    if isinstance(places, Shaped) and start == "zero":
        places.residuals = [torch.zeros_like(residual) for residual in places.residuals]
    if isinstance(places, Shaped) and start == "nodes":
        places.residuals[0] = places.residuals[0][:1].repeat(NODES, 1)
    total, steps = 0.0, 800
    for step in range(steps):
        mean = x.mean(dim=1, keepdim=True)
        u = pull * mean + noise * torch.randn(NODES, runs, 1, generator=source)
        x = x - places.signs(u.expand(-1, -1, size).reshape(NODES, -1)).view(runs, size)
        total += mean.square().mean().item() * (step >= steps // 2)
    return math.sqrt(total / (steps - steps // 2))


def fixed_point(num_nodes: int, ranks_per_node: int, gain: float, numel: int = 2**17) -> float:
    """Return where the mean update is 0 with skewed noise: standard deviations of the whole batch from the optimum."""

    def mean_update(slope: float) -> float:
        source, rows, total = torch.Generator().manual_seed(7), num_nodes * ranks_per_node, 0.0
        averages = Averages.empty(rows, numel // rows)
        for step in range(60):
            # An exponential distribution less its mean: the third moment is 2.
            noise = -torch.log1p(-torch.rand(averages.m.shape, generator=source)) - 1
            u = averages.updates(slope + math.sqrt(rows) * noise).view(num_nodes, ranks_per_node, -1).mean(dim=1)
            total += functional.clip(u, gain=gain).mean().item() * (step >= 40)
        return total

    return float(brentq(mean_update, -0.5, 0.5, xtol=1e-3))
