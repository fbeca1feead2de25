"""`python -m benchmarks.rounding [--docs docs]`: shaped rounding and the draw against theory, in small simulations.

Without --docs the tables are printed, of gains, of starts of residuals, and of fixed points under skewed noise; with it
the figure of docs/explanation/algorithm.md is drawn. One core, a minute.
"""

import argparse
import math
from pathlib import Path

import torch

from benchmarks import rounding_figure
from benchmarks import rounding_simulations as simulations
from benchmarks.rounding_simulations import SIGN

CLUSTERS = ((1, 1), (2, 2), (4, 4))  # nodes, ranks per node
STARTS = {
    "draw": "draws",
    "zero": "all residuals 0",
    "nodes": "uniform, the same on all nodes",
    "shaped": "uniform, each its own",
}


def gain_table() -> str:
    """Return pull and noise over gains."""
    lines = [
        "| nodes x ranks | gain | pull: theory | measured | noise: unrounded | shaped | draw |",
        "|---" * 7 + "|",
    ]
    for nodes, ranks in CLUSTERS:
        fit = math.sqrt(2 / math.pi * nodes * ranks)
        for gain in [1.0, fit, 2 * fit, SIGN] if nodes > 1 else [1.0]:
            pulls = [pull(nodes, ranks, gain) for pull in (simulations.pull_theory, simulations.measured_pull)]
            noises = [simulations.noise_at_rest(name, nodes, ranks, gain) for name in ("unrounded", "shaped", "draw")]
            title = "sign" if gain == SIGN else f"{gain:.2g}"
            lines.append(f"| {nodes} x {ranks} | {title} | " + " | ".join(f"{x:.2f}" for x in [*pulls, *noises]) + " |")
    return "\n".join(lines)


def start_table() -> str:
    """Return what the starts of residuals do to elements that share a gradient."""
    noises = (0.0, 0.1)
    lines = ["| residuals start | rms, without noise | with noise of 0.1 in u |", "|---|---|---|"]
    for start, title in STARTS.items():
        lines.append(
            f"| {title} | " + " | ".join(f"{simulations.shared_gradient(start, noise):.2f}" for noise in noises) + " |"
        )
    return "\n".join(lines)


def fixed_point_table() -> str:
    """Return fixed points over gains."""
    gains = (1.0, 2.0, 4.0, SIGN)
    lines = ["| nodes x ranks | gain 1 | 2 | 4 | sign |", "|---|---|---|---|---|"]
    for nodes, ranks in CLUSTERS:
        points = [simulations.fixed_point(nodes, ranks, gain) for gain in gains]
        lines.append(f"| {nodes} x {ranks} | " + " | ".join(f"{point:.2f}" for point in points) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or put them with the figure into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, help="the folder of evidence/figures/")
    docs = parser.parse_args().docs
    torch.set_num_threads(1)
    if docs is None:
        print("\n\n".join([gain_table(), start_table(), fixed_point_table()]))
        return
    rounding_figure.draw(docs / "evidence" / "figures" / "shaped_rounding.png")


if __name__ == "__main__":
    main()
