"""How u of all ranks become the signs that they apply, without messages; small simulations, and what theory says.

Shape letters: R rows at the first place (ranks, or nodes with their mean), N elements. In a simulation each element is
an independent run of one coordinate, where nothing else is said. Distances are in lr.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from binsgdm.kernels import functional


class Shaped:
    """Shaped rounding at every place, with the residuals of all ranks.

    Args:
        merges: how many signs each merge takes, in order; their product is R.
        seed: of the starts, which are uniform on the values that a residual can come back to.

    Attributes:
        units: by place, what one sign counts.
        residuals: by place, int16 (rows of the place, N).
    """

    def __init__(self, merges: Sequence[int], numel: int, *, seed: int = 0) -> None:
        self.merges, self.units = tuple(merges), (functional.SCALE, *merges)
        source = torch.Generator().manual_seed(seed)
        rows = [math.prod(self.merges[place:]) for place in range(len(self.units))]
        self.residuals = [
            torch.randint(-unit, unit, (count, numel), generator=source).to(torch.int16)
            for unit, count in zip(self.units, rows, strict=True)
        ]

    def signs(self, u: Tensor, *, gain: float = 1.0) -> Tensor:
        """Return the signs (N) that all ranks apply for u (R, N); the residuals go on."""
        positive, self.residuals[0] = functional.shape(u, self.residuals[0], gain=gain)
        for place, count in enumerate(self.merges, start=1):
            sums = (2 * positive.to(torch.int32) - 1).view(-1, count, u.shape[1]).sum(dim=1)
            positive, self.residuals[place] = functional.shape_merge(sums, self.residuals[place], num_vectors=count)
        return 2.0 * positive[0] - 1.0

    def offset(self) -> Tensor:
        """Return by how much u has been ahead of the signs since the residuals were 0, in signs, fp64 (N)."""
        pairs = zip(self.residuals, self.units, strict=True)
        return torch.stack([residual.double().mean(dim=0) / unit for residual, unit in pairs]).sum(dim=0)


class Drawn:
    """The paper's rounding at every place: independent draws."""

    def __init__(self, merges: Sequence[int], *, seed: int = 0) -> None:
        self.merges, self._source = tuple(merges), torch.Generator().manual_seed(seed)

    def signs(self, u: Tensor, *, gain: float = 1.0) -> Tensor:
        """Return the signs (N) that all ranks apply for u (R, N)."""
        signs = self._round(functional.clip(u, gain=gain))
        for count in self.merges:
            signs = self._round(signs.view(-1, count, u.shape[1]).mean(dim=1))
        return signs[0]

    def _round(self, values: Tensor) -> Tensor:
        thresholds = 2.0 * torch.rand(values.shape, generator=self._source) - 1.0
        return 2.0 * functional.quantize(values, thresholds) - 1.0


def rounded(u: Tensor, *, gain: float = 1.0) -> Tensor:
    """Return what shaped rounding follows: the mean over rows of clip(gain u), each rounded to 1/32767; fp64 (N)."""
    whole = (functional.clip(u, gain=gain) * float(functional.SCALE)).round()
    return whole.double().mean(dim=0) / functional.SCALE


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
