"""The figure of rounding with and without residuals: the way from the sum of u, the spectrum, x at rest."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.rounding_simulations import (
    BETA,
    NODES,
    PULLS,
    Walk,
    residual_variance,
    rest_theory,
    rest_variance,
    spectrum,
    walk,
)
from simnet.report import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"draw": figure.VERMILION, "shaped": figure.BLUE}
NOISE = 0.3  # of each node's u, at rest
BOUND = 4.0
THEORY: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.9}


def draw(path: Path) -> None:
    """Write the figure."""
    with figure.styled():
        made = figure.new(figure.PAGE_IN, 3.1)
        axes = made.subplots(1, 3)
        walks = {name: walk(name) for name in COLOURS}
        _distances(axes[0], walks)
        _spectra(axes[1], walks)
        _rest(axes[2])
        for one in axes:
            one.grid(visible=True, which="major", alpha=0.3)
            figure.log_numbers(one.yaxis)
        for one in (axes[0], axes[2]):
            figure.log_numbers(one.xaxis)
        made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.write(made, path)


def _distances(axes: "Axes", walks: dict[str, Walk]) -> None:
    for name, found in walks.items():
        steps = torch.arange(1, len(found.both) + 1)
        axes.plot(steps, found.both.square().mean(1).sqrt(), color=COLOURS[name], label=f"{name}, both places")
        first = found.first.square().mean(1).sqrt()
        axes.plot(steps, first, color=COLOURS[name], linestyle=":", label=f"{name}, first place")
    furthest = walks["shaped"].both.abs().amax(1)
    axes.plot(steps, furthest, color=figure.SKY, linewidth=0.7, label="shaped, furthest of 1024")
    axes.plot(steps, walks["draw"].theory, **THEORY, label="theory")
    axes.axhline(BOUND, color="black", linestyle=":", linewidth=0.9, label="bound, both places")
    axes.set(xscale="log", yscale="log", ylim=(0.2, 60), xlabel="steps", ylabel="lr")
    axes.set_title("distance from the sum of u, rms")


def _spectra(axes: "Axes", walks: dict[str, Walk]) -> None:
    frequencies = torch.linspace(0, 0.5, 129)
    for name, found in walks.items():
        axes.plot(frequencies, spectrum(found.both.diff(dim=0)), color=COLOURS[name])
    of_difference = 4 * torch.sin(torch.pi * frequencies).square()
    axes.plot(frequencies, residual_variance(NODES) * of_difference, **THEORY)
    low_pass = (1 - BETA) ** 2 / (1 + BETA**2 - 2 * BETA * torch.cos(2 * torch.pi * frequencies))
    axes.plot(frequencies, low_pass, color="gray", linewidth=0.9, label=f"what m passes, beta {BETA}")
    axes.set(yscale="log", ylim=(1e-3, 4), xlabel="cycles per step", ylabel="lr²")
    axes.legend(loc="lower right")
    axes.set_title("spectrum of sign - u")


def _rest(axes: "Axes") -> None:
    for name, colour in COLOURS.items():
        found = [rest_variance(name, pull, NOISE) ** 0.5 for pull in PULLS]
        axes.plot(PULLS, found, color=colour, marker="o", linestyle="none")
        axes.plot(PULLS, [rest_theory(name, pull, NOISE) ** 0.5 for pull in PULLS], **THEORY)
    axes.set(xscale="log", yscale="log", xlabel="pull: u per lr from the optimum", ylabel="lr")
    axes.set_title("x at rest, rms")
