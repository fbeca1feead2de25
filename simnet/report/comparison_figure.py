"""Draw predicted against measured: the one scatter of published sets, measured steps and campaigns; and bands."""

import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from simnet.calibration.comparison import Comparison, by_series
from simnet.report import figure as looks
from simnet.report.figure import MARKERS, SERIES_COLOURS
from simnet.validation.outcome import SCALE, FigureLine, Outcome, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOUNS: dict[Unit, str] = {"ms": "time [ms]", "s": "time [s]", "h": "time [h]", "x": "speedup [x]"}
LOG_FROM = 5.0
"""Ratio of the largest to the smallest value from which on the axes are logarithmic."""
FINE_TO, COARSE_FROM = 20.0, 5000.0
"""The same ratio up to which a logarithmic axis has room for finer ticks, and from which on for decades alone."""
SMALL_IN = (looks.COLUMN_IN, 3.6)
LARGE_IN = (4.6, 5.2)
"""For more than some twenty points."""
TITLE_CHARACTERS = 48
LEGEND_CHARACTERS = 40
"""Of two columns; "binsgdm hierarchical, shaped, overlap" has 37."""
STYLES = tuple(zip(SERIES_COLOURS, MARKERS, strict=True))
MORE_STYLES = (*STYLES, *zip(SERIES_COLOURS, (*MARKERS[2:], *MARKERS[:2]), strict=True))
"""For more series than colours: no two are alike."""


def png(outcome: Outcome) -> bytes:
    """Return a set's figure as PNG: a scatter, or curves over batch size where it has some."""
    if outcome.curves:
        return bands(outcome.title, outcome.curves)
    return scatter(outcome.predictions, NOUNS[outcome.unit], SCALE[outcome.unit], outcome.title)


def scatter(  # noqa: PLR0913 - one argument an aspect
    comparisons: Sequence[Comparison],
    noun: str,
    scale: float,
    title: str = "",
    *,
    size_in: tuple[float, float] = SMALL_IN,
    file_format: looks.Format = "png",
    has_long_legend: bool = False,
) -> bytes:
    """Return predicted over measured values with their intervals as a figure's file, a colour a series.

    Args:
        comparisons: at least one.
        noun: what the axes show, with its unit.
        scale: from SI to that unit.
        title: none in a page that has its own.
        size_in: width and height [inches].
        file_format: of the file.
        has_long_legend: a line a series, for more series than there are colours.
    """
    with looks.styled():
        figure = looks.new(*size_in)
        axes = figure.subplots()
        draw_comparisons(axes, comparisons, noun, scale, styles=MORE_STYLES if has_long_legend else STYLES)
        axes.set_title(textwrap.fill(looks.label(title, 4 * TITLE_CHARACTERS), TITLE_CHARACTERS))
        figure.legend(loc="outside lower center", ncols=1 if has_long_legend else 2)
        return looks.image(figure, file_format)


def draw_comparisons(
    axes: "Axes",
    comparisons: Sequence[Comparison],
    noun: str,
    scale: float,
    *,
    styles: Sequence[tuple[str, str]] = STYLES,
) -> None:
    """Draw predicted over measured values with their intervals, a colour a series; arguments as of `scatter`."""
    values = [value * scale for one in comparisons for value in (one.predicted, one.measured)]
    is_log = max(values) / min(values) > LOG_FROM
    low, high = _limits(values, is_log=is_log)
    looks.diagonal(axes, low, high)
    for (name, mine), style in zip(by_series(comparisons).items(), cycle(styles), strict=False):
        _points(axes, mine, scale, looks.label(name, LEGEND_CHARACTERS), style)
    _scales(axes, high / low if is_log else None)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(f"measured {noun}")
    axes.set_ylabel(f"predicted {noun}")


def steps(points: Sequence[Comparison], title: str = "", file_format: looks.Format = "png") -> bytes:
    """Return times of steps, predicted over measured, as a figure's file; series by name."""
    by_name = sorted(points, key=lambda point: point.series)
    has_many = len(by_series(by_name)) > len(STYLES)
    return scatter(
        by_name, "time of a step [ms]", 1e3, title, size_in=LARGE_IN, file_format=file_format, has_long_legend=has_many
    )


def _points(axes: "Axes", mine: Sequence[Comparison], scale: float, name: str, style: tuple[str, str]) -> None:
    """Draw one series; `scale` is the factor from SI to the shown unit, `style` a colour and a marker."""
    colour, marker = looks.shown(style[0]), style[1]
    ends = [one.interval or (one.predicted, one.predicted) for one in mine]
    below = [max(0.0, one.predicted - low) * scale for one, (low, _) in zip(mine, ends, strict=True)]
    above = [max(0.0, high - one.predicted) * scale for one, (_, high) in zip(mine, ends, strict=True)]
    axes.errorbar(
        [one.measured * scale for one in mine], [one.predicted * scale for one in mine],
        yerr=[below, above] if any(one.interval for one in mine) else None,
        linestyle="none", marker=marker, color=colour, markerfacecolor="none", markeredgewidth=looks.thin(1.1),
        elinewidth=looks.thin(),
        label=name,
    )  # fmt: skip


def _limits(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        return low / 1.3, high * 1.3
    margin = 0.08 * (high - low)
    return low - margin, high + margin


def _scales(axes: "Axes", span: float | None) -> None:
    """Lay out both axes, logarithmic where `span` says by which factor their ends differ."""
    from matplotlib.ticker import MaxNLocator

    if span is not None:
        axes.set_xscale("log")
        axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        if span is None:
            axis.set_major_locator(MaxNLocator(6))
        elif span < FINE_TO:
            looks.log_numbers(axis, (1.0, 2.0, 3.0, 5.0))
        else:
            looks.log_numbers(axis, (1.0, 2.0, 5.0) if span < COARSE_FROM else (1.0,))


def bands(title: str, curves: Sequence[FigureLine]) -> bytes:
    """Return speedup over batch size as PNG, a panel for each headline, with the headline as a line."""
    panels = list(dict.fromkeys(curve.panel for curve in curves))
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 2.9)
        figure.suptitle(title, fontweight="bold")
        for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            _band(axes, [curve for curve in curves if curve.panel == panel])
            axes.set_title(panel, fontweight="normal")
            axes.set_xlabel("batch per GPU")
        first = figure.axes[0]
        first.set_ylabel("speedup over DDP [x]")
        first.set_ylim(bottom=0)
        handles, labels = first.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        return looks.image(figure)


def _band(axes: "Axes", curves: Sequence[FigureLine]) -> None:
    from matplotlib.ticker import NullFormatter

    for curve, (colour, marker) in zip(curves, cycle(STYLES), strict=False):
        batches, speedups = zip(*curve.points, strict=True)
        axes.plot(batches, speedups, color=looks.shown(colour), marker=marker, label=f"predicted, {curve.label}")
    axes.axhline(
        curves[0].level, color=looks.current().ink, linewidth=looks.thin(1.0), linestyle="--", label="published"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks([16, 32, 64, 128], ["16", "32", "64", "128"])
    axes.xaxis.set_minor_formatter(NullFormatter())
