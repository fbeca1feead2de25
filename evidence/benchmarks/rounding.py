"""Shaped rounding and the draw against theory, in small simulations without messages.

    python -m evidence.benchmarks.rounding [--docs docs]

Prints the pull over gains; with --docs the figure of docs/explanation/algorithm.md is drawn. One core, a minute.

Shape letters: R rows at the first place (ranks, or nodes with their mean), N elements. In a simulation each element is
an independent run of one coordinate, where nothing else is said. Distances are in lr.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from binsgdm.kernels import functional
from simnet.report import figure
from simnet.report.table import Table


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
NOISE = 0.3  # of each node's u, at rest
CLUSTERS = ((1, 1), (2, 2), (4, 4))  # nodes, ranks per node
BOUND = 4.0
COLOURS = {"draw": figure.VERMILION, "shaped": figure.BLUE}
THEORY: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.9}
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


def gain_table() -> Table:
    """Return the pull that theory says and simulations have: alone, at that of Adam, at twice that, and by signs."""
    lines = []
    for nodes, ranks in CLUSTERS:
        of_adam = math.sqrt(2 / math.pi * nodes * ranks)
        for gain in [1.0, of_adam, 2 * of_adam, SIGN] if nodes > 1 else [1.0]:
            pulls = [pull(nodes, ranks, gain) for pull in (pull_theory, measured_pull)]
            title = "sign" if gain == SIGN else f"{gain:.2g}"
            lines.append([f"{nodes} x {ranks}", title, *(f"{x:.2f}" for x in pulls)])
    return Table(["nodes x ranks", "gain", "pull: theory", "measured"], lines)


def draw(path: Path) -> None:
    with figure.styled():
        made = figure.new(figure.PAGE_IN, 3.1)
        axes = made.subplots(1, 3)
        walks = {name: walk(name) for name in COLOURS}
        _distances(axes[0], walks)
        _spectra(axes[1], walks)
        _rest(axes[2])
        for axis in axes:
            axis.grid(visible=True, which="major", alpha=0.3)
            figure.log_numbers(axis.yaxis)
        for axis in (axes[0], axes[2]):
            figure.log_numbers(axis.xaxis)
        made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.write(made, path)


def _distances(axes: Any, walks: dict[str, Walk]) -> None:
    for name, walked in walks.items():
        steps = torch.arange(1, len(walked.both) + 1)
        axes.plot(steps, walked.both.square().mean(1).sqrt(), color=COLOURS[name], label=f"{name}, both places")
        first = walked.first.square().mean(1).sqrt()
        axes.plot(steps, first, color=COLOURS[name], linestyle=":", label=f"{name}, first place")
    furthest = walks["shaped"].both.abs().amax(1)
    axes.plot(steps, furthest, color=figure.SKY, linewidth=0.7, label="shaped, furthest of 1024")
    axes.plot(steps, walks["draw"].theory, **THEORY, label="theory")
    axes.axhline(BOUND, color="black", linestyle=":", linewidth=0.9, label="bound, both places")
    axes.set(xscale="log", yscale="log", ylim=(0.2, 60), xlabel="steps", ylabel="lr")
    axes.set_title("distance from the sum of u, rms")


def _spectra(axes: Any, walks: dict[str, Walk]) -> None:
    frequencies = torch.linspace(0, 0.5, 129)
    for name, walked in walks.items():
        axes.plot(frequencies, spectrum(walked.both.diff(dim=0)), color=COLOURS[name])
    of_difference = 4 * torch.sin(torch.pi * frequencies).square()
    axes.plot(frequencies, residual_variance(NODES) * of_difference, **THEORY)
    low_pass = (1 - BETA) ** 2 / (1 + BETA**2 - 2 * BETA * torch.cos(2 * torch.pi * frequencies))
    axes.plot(frequencies, low_pass, color="gray", linewidth=0.9, label=f"what m passes, beta {BETA}")
    axes.set(yscale="log", ylim=(1e-3, 4), xlabel="cycles per step", ylabel="lr²")
    axes.legend(loc="lower right")
    axes.set_title("spectrum of sign - u")


def _rest(axes: Any) -> None:
    for name, colour in COLOURS.items():
        rest = [rest_variance(name, pull, NOISE) ** 0.5 for pull in PULLS]
        axes.plot(PULLS, rest, color=colour, marker="o", linestyle="none")
        axes.plot(
            PULLS,
            [rest_theory(name, pull, NOISE) ** 0.5 for pull in PULLS],
            **THEORY,
        )
    axes.set(xscale="log", yscale="log", xlabel="pull: u per lr from the optimum", ylabel="lr")
    axes.set_title("x at rest, rms")


def main() -> None:
    """Print the table, or draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="the folder of evidence/figures/")
    docs = parser.parse_args().docs
    torch.set_num_threads(1)
    if docs is None:
        print(gain_table().markdown())
        return
    draw(docs / "evidence" / "figures" / "shaped_rounding.png")


if __name__ == "__main__":
    main()
