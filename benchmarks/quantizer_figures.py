"""Figures of what the QSGD family loses and how long its codes are, with the bounds."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.gradients import Row
from simnet.report.figure import styled

COLORS = {"QSGD": "#0072B2", "QSGDinf": "#009E73", "NUQSGD": "#D55E00", "NUQSGD without 0": "#CC79A7"}
MARKS = {"QSGD": "o", "QSGDinf": "s", "NUQSGD": "^", "NUQSGD without 0": "v"}
PANELS = [("normal", 8192), ("normal", 512), ("digits, trained", 8192)]
Draw = Callable[[Axes, Sequence[Row]], None]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Write both figures."""
    with styled():
        _figure(rows, _variances, "E|Q(v) - v|² / |v|²").savefig(folder / "quantizer_variance.png", dpi=200)
        _figure(rows, _bits, "Elias-coded bits per element").savefig(folder / "coded_bits.png", dpi=200)


def _figure(rows: Sequence[Row], drawn: Draw, label: str) -> Figure:
    figure = Figure(figsize=(7.16, 3.1), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for one, (gradient, block) in zip(axes, PANELS, strict=True):
        drawn(one, [row for row in rows if (row.gradient, row.block) == (gradient, block)])
        one.set_title(f"{gradient}, block {block}")
        one.set_xlabel("bits per code")
        one.set_yscale("log")
        one.set_xticks(range(2, 9))
        one.grid(visible=True, which="major", alpha=0.3)
    axes[0].set_ylabel(label)
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def _of(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row.name == name]


def _variances(axes: Axes, rows: Sequence[Row]) -> None:
    for name, color in COLORS.items():
        some = _of(rows, name)
        bits = [row.bits for row in some]
        axes.plot(bits, [row.variance for row in some], color=color, marker=MARKS[name], markersize=4, label=name)
        bound = [row.bound for row in some]
        axes.plot(bits, bound, color=color, linestyle="--", linewidth=1)
    axes.plot([], [], color="gray", linestyle="--", linewidth=1, label="bound")


def _bits(axes: Axes, rows: Sequence[Row]) -> None:
    for name in ("QSGD", "QSGDinf", "NUQSGD"):
        some, color = _of(rows, name), COLORS[name]
        bits = [row.bits for row in some]
        coded = [row.elias_bits or 0.0 for row in some]
        axes.plot(bits, coded, color=color, marker=MARKS[name], markersize=4, label=name)
        axes.plot(bits, [row.entropy for row in some], color=color, linestyle=":", linewidth=1)
        if some[0].elias_bound is not None:
            axes.plot(bits, [row.elias_bound or 0.0 for row in some], color=color, linestyle="--", linewidth=1)
    axes.plot([], [], color="gray", linestyle=":", linewidth=1, label="entropy of the levels")
    axes.plot([], [], color="gray", linestyle="--", linewidth=1, label="bound")
    axes.plot(range(2, 9), range(2, 9), color="black", linewidth=0.8, label="packed")
