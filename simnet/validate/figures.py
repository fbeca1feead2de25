"""Draw a validation set: predicted against measured, or a band over batch size."""

import io
from collections.abc import Sequence
from itertools import cycle

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from simnet.show.plot import STYLE
from simnet.validate.outcome import SCALE, Curve, Outcome, Prediction, Unit

# Colours of Okabe and Ito, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
NOUNS: dict[Unit, str] = {"ms": "time [ms]", "s": "time [s]", "h": "time [h]", "x": "speedup [x]"}
BAND = 0.1
LOG_FROM = 5.0
"""Ratio of the largest to the smallest value from which on the axes are logarithmic."""
FINE_TO = 20.0
"""The same ratio up to which a logarithmic axis has room for finer ticks."""


def png(outcome: Outcome) -> bytes:
    """Return a set's figure as PNG."""
    with mpl.rc_context(STYLE):
        figure = _bands(outcome) if outcome.curves else _scatter(outcome)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _scatter(outcome: Outcome) -> Figure:
    figure = Figure(figsize=(3.5, 3.6), layout="constrained")
    axes = figure.subplots()
    scale = SCALE[outcome.unit]
    values = [v * scale for p in outcome.predictions for v in (p.predicted, p.measured)]
    is_log = max(values) / min(values) > LOG_FROM
    low, high = _limits(values, is_log=is_log)
    axes.fill_between(
        [low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)],
        color="#DDDDDD", linewidth=0, label="±10 %", zorder=0,
    )  # fmt: skip
    axes.plot([low, high], [low, high], color="black", linewidth=0.8, label="predicted = measured", zorder=1)
    _points(axes, outcome.predictions, scale)
    axes.set_title(outcome.title)
    axes.set_xlabel(f"measured {NOUNS[outcome.unit]}")
    axes.set_ylabel(f"predicted {NOUNS[outcome.unit]}")
    if is_log:
        _make_log(axes, fine=high / low < FINE_TO)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _points(axes: Axes, predictions: Sequence[Prediction], scale: float) -> None:
    series = dict.fromkeys(prediction.series for prediction in predictions)
    for name, colour, marker in zip(series, cycle(COLOURS), cycle(MARKERS), strict=False):
        points = [prediction for prediction in predictions if prediction.series == name]
        axes.plot(
            [point.measured * scale for point in points],
            [point.predicted * scale for point in points],
            linestyle="none",
            marker=marker,
            color=colour,
            markerfacecolor="none",
            markeredgewidth=1.1,
            label=name,
        )


def _limits(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        return low / 1.3, high * 1.3
    margin = 0.08 * (high - low)
    return low - margin, high + margin


def _make_log(axes: Axes, *, fine: bool) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 3.0, 5.0) if fine else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _bands(outcome: Outcome) -> Figure:
    """Draw speedup over batch size, a panel for each headline, with the headline as a line."""
    panels = list(dict.fromkeys(curve.panel for curve in outcome.curves))
    figure = Figure(figsize=(7.16, 2.9), layout="constrained")
    figure.suptitle(outcome.title, fontweight="bold")
    for axes, panel in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        _band(axes, [curve for curve in outcome.curves if curve.panel == panel])
        axes.set_title(panel, fontweight="normal")
        axes.set_xlabel("batch per GPU")
    first = figure.axes[0]
    first.set_ylabel("speedup over DDP [x]")
    first.set_ylim(bottom=0)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _band(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, colour, marker in zip(curves, COLOURS, MARKERS, strict=False):
        batches, speedups = zip(*curve.points, strict=True)
        axes.plot(batches, speedups, color=colour, marker=marker, label=f"predicted, {curve.label}")
    axes.axhline(curves[0].level, color="black", linewidth=1.0, linestyle="--", label="published")
    axes.set_xscale("log", base=2)
    axes.set_xticks([16, 32, 64, 128], ["16", "32", "64", "128"])
    axes.xaxis.set_minor_formatter(NullFormatter())
