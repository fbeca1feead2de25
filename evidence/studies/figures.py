"""Figures of trainings: evaluations over steps, mean of the seeds in a band from lowest to highest."""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evidence.studies.study import Row

BLUE, VERMILION = "#0072B2", "#D55E00"  # differ for colour-blind readers, and in brightness
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00")
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2)  # of logarithmic axes, in nats
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
}


@contextmanager
def panels(
    path: Path, count: int, columns: int, size: tuple[float, float], texts: tuple[str, str] = ("", ""), **shared: Any
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a figure with so many axes, which goes to the file afterwards, with texts below and at its left."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(math.ceil(count / columns), columns, squeeze=False, **shared).flat)
        for axis in axes[count:]:
            axis.set_axis_off()
        for write, text in zip((figure.supxlabel, figure.supylabel), texts, strict=True):
            if text:
                write(text, fontsize=8.5)
        yield figure, axes[:count]
        figure.savefig(path, dpi=130)


def legend_above(figure: Any, axis: Any, columns: int = 4) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=columns)


def draw_losses(
    rows: dict[str, dict[str, list[Row]]], names: dict[str, str], titles: dict[str, str], path: Path
) -> None:
    """Draw a panel for each case, a line for each name: held-out loss over steps.

    Args:
        rows: of final runs, by case and name; the first is the one whose range chooses the axis.
    """
    looks = dict(zip(names, zip(COLOURS, ("-", "-.", ":", "--"), strict=False), strict=False))
    texts, size = ("Step", "Test loss (nats)"), (9, 2.3 * math.ceil(len(rows) / 3) + 0.4)
    with panels(path, len(rows), 3, size, texts) as (figure, axes):
        for axis, (case, by_name) in zip(axes, rows.items(), strict=True):
            for name, of_seeds in by_name.items():
                colour, line = looks[name]
                band(axis, of_seeds, alpha=0.2, color=colour, linestyle=line, label=names[name])
            axis.set(title=titles[case])
            axis.set_xlim(left=0)
            axis.grid(alpha=0.25, linewidth=0.5)
            if min(means(by_name["adam"])) < 0.5:
                logarithmic(axis, TICKS[:-1])
        legend_above(figure, axes[0])


def logarithmic(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_yscale("log")
    axis.set_yticks(ticks)
    axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    axis.minorticks_off()


def band(axis: Any, rows: list[Row], *, alpha: float, **look: Any) -> None:
    """Draw the mean of the seeds that have not diverged, and a band from the lowest to the highest."""
    steps = rows[0]["steps"]
    lowest, highest = ([edge(at, default=math.nan) for at in evaluations(rows)] for edge in (min, max))
    axis.fill_between(steps, lowest, highest, color=look["color"], alpha=alpha, linewidth=0)
    axis.plot(steps, means(rows), **look)


def evaluations(rows: list[Row]) -> list[list[float]]:
    """Return for each evaluation the values of the seeds that have not diverged."""
    return [[value for value in at if value is not None] for at in zip(*(row["values"] for row in rows), strict=True)]


def means(rows: list[Row]) -> list[float]:
    return [statistics.fmean(at) if at else math.nan for at in evaluations(rows)]
