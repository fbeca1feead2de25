"""Shaped rounding and the draw against theory, in small simulations.

    python -m evidence.benchmarks.rounding [--docs docs]

Without --docs the tables are printed, of gains, of starts of residuals, and of fixed points under skewed noise; with it
the figure of docs/explanation/algorithm.md is drawn. One core, a minute.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from evidence.benchmarks import rounding_simulations as simulations
from evidence.benchmarks.rounding_simulations import SIGN
from simnet.report import figure
from simnet.report.table import Table

CLUSTERS = ((1, 1), (2, 2), (4, 4))  # nodes, ranks per node
STARTS = {
    "draw": "draws",
    "zero": "all residuals 0",
    "nodes": "uniform, the same on all nodes",
    "shaped": "uniform, each its own",
}


COLOURS = {"draw": figure.VERMILION, "shaped": figure.BLUE}
NOISE = 0.3  # of each node's u, at rest
BOUND = 4.0
THEORY: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.9}


def gain_table() -> Table:
    lines = []
    for nodes, ranks in CLUSTERS:
        fit = math.sqrt(2 / math.pi * nodes * ranks)
        for gain in [1.0, fit, 2 * fit, SIGN] if nodes > 1 else [1.0]:
            values = [pull(nodes, ranks, gain) for pull in (simulations.pull_theory, simulations.measured_pull)]
            values += [simulations.noise_at_rest(name, nodes, ranks, gain) for name in ("unrounded", "shaped", "draw")]
            title = "sign" if gain == SIGN else f"{gain:.2g}"
            lines.append([f"{nodes} x {ranks}", title, *(f"{x:.2f}" for x in values)])
    heads = ["gain", "pull: theory", "measured", "noise: unrounded", "shaped", "draw"]
    return Table(["nodes x ranks", *heads], lines)


def start_table() -> Table:
    """Return what the starts of residuals do to elements that share a gradient."""
    lines = [
        [title, *(f"{simulations.shared_gradient(start, noise):.2f}" for noise in (0.0, 0.1))]
        for start, title in STARTS.items()
    ]
    return Table(["residuals start", "rms, without noise", "with noise of 0.1 in u"], lines)


def fixed_point_table() -> Table:
    gains = (1.0, 2.0, 4.0, SIGN)
    lines = [
        [f"{nodes} x {ranks}", *(f"{simulations.fixed_point(nodes, ranks, gain):.2f}" for gain in gains)]
        for nodes, ranks in CLUSTERS
    ]
    return Table(["nodes x ranks", "gain 1", "2", "4", "sign"], lines)


def draw(path: Path) -> None:
    with figure.styled():
        made = figure.new(figure.PAGE_IN, 3.1)
        axes = made.subplots(1, 3)
        walks = {name: simulations.walk(name) for name in COLOURS}
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


def _distances(axes: Any, walks: dict[str, simulations.Walk]) -> None:
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


def _spectra(axes: Any, walks: dict[str, simulations.Walk]) -> None:
    frequencies = torch.linspace(0, 0.5, 129)
    for name, found in walks.items():
        axes.plot(frequencies, simulations.spectrum(found.both.diff(dim=0)), color=COLOURS[name])
    of_difference = 4 * torch.sin(torch.pi * frequencies).square()
    axes.plot(frequencies, simulations.residual_variance(simulations.NODES) * of_difference, **THEORY)
    low_pass = (1 - simulations.BETA) ** 2 / (
        1 + simulations.BETA**2 - 2 * simulations.BETA * torch.cos(2 * torch.pi * frequencies)
    )
    axes.plot(frequencies, low_pass, color="gray", linewidth=0.9, label=f"what m passes, beta {simulations.BETA}")
    axes.set(yscale="log", ylim=(1e-3, 4), xlabel="cycles per step", ylabel="lr²")
    axes.legend(loc="lower right")
    axes.set_title("spectrum of sign - u")


def _rest(axes: Any) -> None:
    for name, colour in COLOURS.items():
        found = [simulations.rest_variance(name, pull, NOISE) ** 0.5 for pull in simulations.PULLS]
        axes.plot(simulations.PULLS, found, color=colour, marker="o", linestyle="none")
        axes.plot(
            simulations.PULLS,
            [simulations.rest_theory(name, pull, NOISE) ** 0.5 for pull in simulations.PULLS],
            **THEORY,
        )
    axes.set(xscale="log", yscale="log", xlabel="pull: u per lr from the optimum", ylabel="lr")
    axes.set_title("x at rest, rms")


def main() -> None:
    """Print the tables, or put them with the figure into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="the folder of evidence/figures/")
    docs = parser.parse_args().docs
    torch.set_num_threads(1)
    if docs is None:
        print("\n\n".join(one.markdown() for one in (gain_table(), start_table(), fixed_point_table())))
        return
    draw(docs / "evidence" / "figures" / "shaped_rounding.png")


if __name__ == "__main__":
    main()
