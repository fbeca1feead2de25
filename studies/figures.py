"""The figures of both studies: evaluations over steps, mean of the seeds in a band from lowest to highest."""

import math
import statistics
from pathlib import Path
from typing import Any

from studies.candidates import CANDIDATES
from studies.interval import Interval
from studies.ledger import Row
from studies.outcome import TARGET_RANKS, Outcome

PANELS_IN_A_ROW = 4
BLUE, VERMILION = "#0072B2", "#D55E00"  # differ for colour-blind readers, and in brightness
BY_RANKS = {4: (BLUE, "-"), 16: (VERMILION, "--")}
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00")
LINES = ("-", "--")
APART = (-0.12, 0.3)  # nats
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2)  # of logarithmic axes, in nats
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
}


def draw_margins(
    rows: dict[str, dict[str, list[Row]]], names: dict[str, str], titles: dict[str, str], path: Path
) -> None:
    """Draw a panel for each case, a line for each optimizer: held-out loss over steps.

    Args:
        rows: of final runs, by case and optimizer.
        names: of the optimizers.
        titles: of the cases.
        path: of the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    looks = dict(zip(names, zip(COLOURS, ("-", "-.", ":", "--"), strict=False), strict=False))
    with mpl.rc_context(STYLE):
        num_rows = math.ceil(len(rows) / 3)
        figure = Figure(figsize=(9, 2.3 * num_rows + 0.4), layout="constrained")
        axes = figure.subplots(num_rows, 3, squeeze=False)
        for axis, (case, by_optimizer) in zip(axes.flat, rows.items(), strict=False):
            for optimizer, of_seeds in by_optimizer.items():
                colour, line = looks[optimizer]
                _band(axis, of_seeds, "values", alpha=0.2, color=colour, linestyle=line, label=names[optimizer])
            axis.set(title=titles[case])
            axis.set_xlim(left=0)
            axis.grid(alpha=0.25, linewidth=0.5)
            if min(_means(_columns(by_optimizer["adam"], "values"))) < 0.5:
                axis.set_yscale("log")
                axis.set_yticks(TICKS[:-1])
                axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
                axis.minorticks_off()
        for axis in axes.flat[len(rows) :]:
            axis.set_axis_off()
        figure.supxlabel("Step", fontsize=8.5)
        figure.supylabel("Test loss (nats)", fontsize=8.5)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=130)


def draw_explored(panels: dict[str, dict[str, list[Row]]], base: list[Row], path: Path) -> None:
    """Draw a panel for each thing that was changed: mean loss of the seeds less that of the base, over steps.

    Args:
        panels: by what is changed, the rows of each variant.
        base: rows of the form that all variants differ from.
        path: of the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    means = _means(_columns(base, "values"))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.8, 2.5 * math.ceil(len(panels) / 2)), layout="constrained")
        axes = figure.subplots(math.ceil(len(panels) / 2), 2, sharex=True, sharey=True, squeeze=False)
        for axis, (what, variants) in zip(axes.flat, panels.items(), strict=False):
            axis.axhline(0, color="0.35", linewidth=1.5)
            for number, (title, rows) in enumerate(variants.items()):
                apart = [loss - of_base for loss, of_base in zip(_means(_columns(rows, "values")), means, strict=True)]
                axis.plot(
                    rows[0]["steps"],
                    apart,
                    linestyle=LINES[number // len(COLOURS)],
                    color=COLOURS[number % len(COLOURS)],
                    label=title,
                )
            axis.set_title(what)
            axis.grid(alpha=0.25, linewidth=0.5)
            # On a white ground, since lines may run below it.
            axis.legend(fontsize=6, frameon=True, framealpha=0.9, edgecolor="none")
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        axes.flat[0].set_ylim(*APART)
        figure.supxlabel("Step", fontsize=8.5)
        figure.supylabel("Validation loss less that of the base (nats per character)", fontsize=8.5)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=130)


def draw_systems(outcome: Outcome, path: Path) -> None:
    """Draw a panel for each system, the dense reference behind it, on the seeds on which all systems have run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = list(CANDIDATES)
    num_rows = math.ceil(len(shown) / PANELS_IN_A_ROW)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.8, 1.55 * num_rows + 0.7), layout="constrained")
        axes = figure.subplots(num_rows, PANELS_IN_A_ROW, sharex=True, sharey=True, squeeze=False)
        for axis, system in zip(axes.flat, shown, strict=False):
            _panel(axis, outcome, system)
        for axis in axes.flat[len(shown) :]:
            axis.set_axis_off()
        for axis in axes.flat[max(0, len(shown) - PANELS_IN_A_ROW) : len(shown)]:
            axis.tick_params(labelbottom=True)
        _scale(axes.flat[0], outcome)
        figure.supxlabel("Step", fontsize=8.5)
        figure.supylabel(f"Test loss ({outcome.task.unit})", fontsize=8.5)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=130)


def draw_topologies(
    gaps: dict[str, dict[str, list[Interval | None]]], systems: list[str], topologies: dict[str, str], path: Path
) -> None:
    """Draw a panel for each task, a line of marks for each system, a mark for each topology, with its interval.

    Args:
        gaps: loss less that of the dense reference by title of the task and by topology, one a system; None for none.
        systems: titles.
        topologies: in words, by name; a superset of those drawn.
        path: of the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = list(next(iter(gaps.values())))
    looks = dict(zip(drawn, zip(("0.35", *COLOURS), ("|", "o", "s", "D", "^"), strict=False), strict=False))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.27 * len(systems) + 1.2), layout="constrained")
        axes = figure.subplots(1, len(gaps), sharey=True, squeeze=False)
        for axis, (title, by_topology) in zip(axes.flat, gaps.items(), strict=True):
            axis.axvline(0, color="0.6", linewidth=1)
            for number, (topology, found) in enumerate(by_topology.items()):
                colour, mark = looks[topology]
                # Side by side, so that marks of equal loss stay apart.
                shift = 0.7 * ((number + 0.5) / len(by_topology) - 0.5)
                places = [(place + shift, gap) for place, gap in enumerate(found) if gap is not None]
                errors = [[gap.mean - gap.low for _, gap in places], [gap.high - gap.mean for _, gap in places]]
                axis.errorbar(
                    [gap.mean for _, gap in places],
                    [place for place, _ in places],
                    xerr=errors,
                    fmt=mark,
                    color=colour,
                    markersize=7 if mark == "|" else 3.2,
                    elinewidth=0.7,
                    label=topologies[topology],
                )
            axis.set_title(title)
            axis.set_xlim(*_middle_of(by_topology))
            axis.locator_params(axis="x", nbins=5)
            axis.grid(axis="y", alpha=0.3, linewidth=0.5)
        axes.flat[0].set_yticks(range(len(systems)), systems)
        axes.flat[0].invert_yaxis()
        figure.supxlabel("Final test loss less that of the dense reference (nats)", fontsize=8.5)
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(drawn))
        figure.savefig(path, dpi=130)


def _middle_of(by_topology: dict[str, list[Interval | None]]) -> tuple[float, float]:
    """Return ends of an axis that shows every mean, if not the whole of the widest intervals."""
    means = [gap.mean for found in by_topology.values() for gap in found if gap is not None]
    room = 0.12 * (max(means) - min(means))
    return min(means) - room, max(means) + room


def _panel(axis: Any, outcome: Outcome, system: str) -> None:
    """Draw one system, and write how many seeds diverged, whose lines end there."""
    reference = outcome.rows(outcome.reference, TARGET_RANKS)
    means = _means(_columns(reference, "values"))
    axis.plot(reference[0]["steps"], means, color="0.6", linewidth=2.4, label="dense reference")
    axis.axhline(outcome.target, color="0.35", linewidth=0.8, linestyle=":", label="target")
    lost = []
    for ranks, (colour, line) in BY_RANKS.items():
        if rows := outcome.rows(system, ranks):
            _band(axis, rows, "values", alpha=0.18, color=colour, linestyle=line, label=f"{ranks} ranks")
            num_lost = len(rows) - len(outcome.finals(system, ranks))
            lost += [f"{num_lost} of {len(rows)} diverged on {ranks}"] * bool(num_lost)
    if lost:
        # On a white ground, since lines may run below the text.
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 1.5}
        text = "\n".join(lost)
        axis.text(0.97, 0.95, text, transform=axis.transAxes, ha="right", va="top", fontsize=7, bbox=ground)
    axis.set_title(CANDIDATES[system].title)
    axis.grid(alpha=0.25, linewidth=0.5)


def _band(axis: Any, rows: list[Row], column: str, *, alpha: float, **look: Any) -> None:
    """Draw the mean of the seeds that have not diverged, and a band from the lowest to the highest."""
    steps, columns = rows[0]["steps"], _columns(rows, column)
    lowest, highest = ([edge(at, default=math.nan) for at in columns] for edge in (min, max))
    axis.fill_between(steps, lowest, highest, color=look["color"], alpha=alpha, linewidth=0)
    axis.plot(steps, _means(columns), **look)


def _columns(rows: list[Row], column: str) -> list[list[float]]:
    """Return for each evaluation the values of the seeds that have not diverged."""
    evaluations = zip(*(row[column] for row in rows), strict=True)
    return [[value for value in at if value is not None] for at in evaluations]


def _means(columns: list[list[float]]) -> list[float]:
    return [statistics.fmean(at) if at else math.nan for at in columns]


def _scale(axis: Any, outcome: Outcome) -> None:
    """Show from below the best final loss to a little above a guess, on a logarithmic axis if that is wide."""
    finals = [value for ranks in BY_RANKS for system in CANDIDATES for value in outcome.finals(system, ranks)]
    guess, lowest = math.log(outcome.task.classes), min(finals)
    if guess / lowest > 5:
        axis.set_yscale("log")
        axis.set_ylim(lowest * 0.85, guess * 1.25)
        axis.set_yticks([tick for tick in TICKS if lowest * 0.85 < tick < guess * 1.25])
        axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
        axis.minorticks_off()
    else:
        axis.set_ylim(lowest - 0.05 * guess, guess * 1.02)
    axis.set_xticks([part * outcome.task.steps / 3 for part in range(4)])
    axis.set_xlim(left=0)
