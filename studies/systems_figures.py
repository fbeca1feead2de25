"""Test loss over steps of every system on one task, a panel a system, dense behind each."""

import math
import statistics
from pathlib import Path
from typing import Any

from studies.contenders import SETTINGS, Row
from studies.outcome import Outcome
from studies.tasks import TASKS

COLUMNS = 4
COLOURS = {4: "#0072B2", 16: "#D55E00"}
"""By ranks: told apart by people who see red and green alike, and by their brightness."""
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2)
"""Of logarithmic axes, in nats."""
LINES = {4: "-", 16: "--"}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
}


def draw(outcome: Outcome, path: Path) -> None:
    """Draw all systems on the seeds on which all have run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = list(SETTINGS)
    num_rows = math.ceil(len(shown) / COLUMNS)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.8, 1.55 * num_rows + 0.7), layout="constrained")
        axes = figure.subplots(num_rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for axis, system in zip(axes.flat, shown, strict=False):
            _panel(axis, outcome, system)
        for axis in axes.flat[len(shown) :]:
            axis.set_axis_off()
        for axis in axes.flat[max(0, len(shown) - COLUMNS) : len(shown)]:
            axis.tick_params(labelbottom=True)
        _scale(axes.flat[0], outcome)
        figure.supxlabel("Step", fontsize=8.5)
        figure.supylabel(f"Test loss ({TASKS[outcome.task].unit})", fontsize=8.5)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=130)


def _panel(axis: Any, outcome: Outcome, system: str) -> None:
    """Draw one system: mean of the seeds, band from lowest to highest; say how many diverged, which end there."""
    reference = outcome.rows(outcome.reference, 4)
    axis.plot(reference[0]["steps"], _means(reference), color="0.6", linewidth=2.4, label="dense reference")
    axis.axhline(outcome.target, color="0.35", linewidth=0.8, linestyle=":", label="target")
    lost = []
    for ranks, colour in COLOURS.items():
        rows = outcome.rows(system, ranks)
        if not rows:
            continue
        steps, columns = rows[0]["steps"], _columns(rows)
        lowest, highest = ([edge(at, default=math.nan) for at in columns] for edge in (min, max))
        axis.fill_between(steps, lowest, highest, color=colour, alpha=0.18, linewidth=0)
        axis.plot(steps, _means(rows), LINES[ranks], color=colour, label=f"{ranks} ranks")
        num_lost = len(rows) - len(outcome.finals(system, ranks))
        lost += [f"{num_lost} of {len(rows)} diverged on {ranks}"] * bool(num_lost)
    if lost:  # on a ground of its own, since lines may run below it
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 1.5}
        told = "\n".join(lost)
        axis.text(0.97, 0.95, told, transform=axis.transAxes, ha="right", va="top", fontsize=7, bbox=ground)
    axis.set_title(SETTINGS[system].title)
    axis.grid(alpha=0.25, linewidth=0.5)


def _columns(rows: list[Row]) -> list[list[float]]:
    """Return for each evaluation the losses of the seeds that have not diverged."""
    return [[value for value in at if value is not None] for at in zip(*(row["values"] for row in rows), strict=True)]


def _means(rows: list[Row]) -> list[float]:
    return [statistics.fmean(at) if at else math.nan for at in _columns(rows)]


def _scale(axis: Any, outcome: Outcome) -> None:
    """Show from below the best final loss to a little above a guess, in logarithms where that is a wide range."""
    finals = [value for ranks in COLOURS for system in SETTINGS for value in outcome.finals(system, ranks)]
    guess, lowest = math.log(TASKS[outcome.task].classes), min(finals)
    if guess / lowest > 5:
        axis.set_yscale("log")
        axis.set_ylim(lowest * 0.85, guess * 1.25)
        axis.set_yticks([tick for tick in TICKS if lowest * 0.85 < tick < guess * 1.25])
        axis.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        axis.minorticks_off()
    else:
        axis.set_ylim(lowest - 0.05 * guess, guess * 1.02)
    axis.set_xticks([part * TASKS[outcome.task].steps / 3 for part in range(4)])
    axis.set_xlim(left=0)
