"""Draw what a card measured: kernels over sizes, steps and memory of optimizers, models over batches, estimates."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from simnet.calibration import kernels
from simnet.calibration.compute_rows import MeasuredPass
from simnet.calibration.kernels import BackwardPair
from simnet.calibration.optimizer_steps import OptimizerStep, optimizer_steps
from simnet.report import comparison_figure
from simnet.report import figure as looks
from simnet.report.figure import COLOURS, MARKERS
from simnet.validation.card_estimates import GROUPS, SYSTEMS, TARGET, CardResult, KernelEstimate, StepEstimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OTHERS = "#BBBBBB"
MAX_NAMED = 6
"""Systems' kernels that have a colour: the slowest; the others are grey."""
ESTIMATED_AT = (2**16, 2**22, 2**26)
"""Sizes in the scatter, or the nearest measured ones: all of them would hide each other."""
PANELS_A_ROW = 4
OPTIMIZERS = {
    "adamw": "AdamW, fused",
    "binsgdm": "BinSGDM",
    "binsgdm_random": "BinSGDM, random",
    "binsgdm_25mib": "BinSGDM, 25 MiB buckets",
    "one_bit_adam": "1-bit Adam",
}
MARKS = dict(zip(("tf32", "bf16", "amp", "fp32"), zip(COLOURS, MARKERS, strict=False), strict=False))
"""Colour and marker of each precision."""


def drawn(found: CardResult) -> dict[str, bytes]:
    """Return the figures as PNG by name; those of which nothing was measured are left out."""
    steps = optimizer_steps(found.folder)
    pictures: dict[str, bytes] = {}
    if found.kernels:
        pictures |= {"kernels": _kernels(found.kernels), "estimates": _estimates(found.kernels)}
    if steps:
        pictures["step"] = _steps(steps)
    if pairs := kernels.select_pairs(found.folder.measurements):
        pictures["backward"] = _backward(pairs, found)
    if found.passes:
        pictures["models"] = _models(found.passes, found.steps)
    return pictures


def _kernels(rows: Sequence[KernelEstimate]) -> bytes:
    """Return times over those of the bytes, by size: BinSGDM's kernels with AdamW and casts, and those of systems."""
    panels = [[row for row in rows if (row.series == SYSTEMS) is is_system] for is_system in (False, True)]
    panels = [mine for mine in panels if mine]
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 3.0 * len(panels) + 0.2)
        columns = figure.subplots(len(panels), sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, mine in zip(columns, panels, strict=True):
            _kernel_panel(axes, mine)
        axes.set_xlabel("elements, of all vectors together")
        return looks.image(figure)


def _kernel_panel(axes: "Axes", rows: Sequence[KernelEstimate]) -> None:
    names = sorted(dict.fromkeys(row.kernel for row in rows), key=lambda name: -_at_the_end(rows, name))
    is_crowded = len(names) > len(COLOURS) + MAX_NAMED
    axes.axhline(
        TARGET, color=looks.current().ink, linewidth=looks.thin(), linestyle="--", label=f"{TARGET:g}: asked for"
    )
    axes.axhline(1.0, color=looks.current().ink, linewidth=looks.thin(), label="1: its bytes at the speed of copies")
    styles = [(colour, marker, dash) for dash in ("-", ":") for colour, marker in zip(COLOURS, MARKERS, strict=False)]
    if is_crowded:
        styles = styles[:MAX_NAMED]
    for name, style in zip_longest(names, styles[: len(names)]):
        colour, marker, dash = style or (OTHERS, "", "-")
        mine = sorted((row for row in rows if row.kernel == name), key=lambda row: row.num_elements)
        is_named = style is not None
        axes.plot(
            [row.num_elements for row in mine], [row.ratio for row in mine], color=colour, marker=marker or None,
            linestyle=dash, markersize=3.5, linewidth=1.2 if is_named else 0.8, zorder=3 if is_named else 2,
            label=looks.label(name + ("" if mine[0].is_estimable else " *")) if is_named else None,
        )  # fmt: skip
    if is_crowded:
        axes.plot([], [], color=OTHERS, linewidth=0.8, label=f"{len(names) - MAX_NAMED} others")
    _size_axes(axes, [row.ratio for row in rows])
    axes.set_ylabel("time / (bytes / bandwidth)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), borderaxespad=0.0)


def _at_the_end(rows: Sequence[KernelEstimate], name: str) -> float:
    """Return the ratio of a kernel at its largest size."""
    return max((row for row in rows if row.kernel == name), key=lambda row: row.num_elements).ratio


def _size_axes(axes: "Axes", ratios: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=4, numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numel_text(value)))
    axes.set_yscale("log")
    span = max(ratios) / min(1.0, *ratios)
    looks.log_numbers(axes.yaxis, (1.0, 2.0, 5.0) if span < 200 else (1.0,))


def numel_text(number: float) -> str:
    """Return a number of elements in binary units: "64 k", "4 M"."""
    for factor, unit in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def _steps(rows: Sequence[OptimizerStep]) -> bytes:
    """Return the time of a step, and the memory beside parameters and gradients, for each model."""
    has_memory = any(row.peak_bytes is not None for row in rows)
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 2.7)
        panels = figure.subplots(1, 2 if has_memory else 1, squeeze=False)[0]
        _bars(panels[0], rows, [row.step_s * 1e3 for row in rows])
        panels[0].set_yscale("log")
        looks.log_numbers(panels[0].yaxis, (1.0, 2.0, 5.0))
        panels[0].set_ylabel("time of a step [ms]")
        if has_memory:
            per_element = [(row.peak_bytes or 0.0) / row.num_elements for row in rows]
            _bars(panels[1], rows, per_element)
            states = [(row.state_bytes or 0.0) / row.num_elements for row in rows]
            _bars(panels[1], rows, states, is_part=True)
            panels[1].set_ylabel("memory [bytes a parameter]")
            panels[1].set_title("whole bar: peak of a step; hatched: state", fontweight="normal", fontsize=8)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(OPTIMIZERS))
        return looks.image(figure)


def _bars(axes: "Axes", rows: Sequence[OptimizerStep], heights: Sequence[float], *, is_part: bool = False) -> None:
    """Draw a group of bars for each model, one an optimizer; a part of a bar is hatched."""
    sizes = list(dict.fromkeys(row.num_elements for row in rows))
    known = dict.fromkeys((*OPTIMIZERS, *(row.optimizer for row in rows)))
    names = [name for name in known if any(row.optimizer == name for row in rows)]
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        mine = [
            (sizes.index(row.num_elements), high)
            for row, high in zip(rows, heights, strict=True)
            if row.optimizer == name
        ]
        style = (
            {"facecolor": "none", "edgecolor": "white", "hatch": "/////", "linewidth": 0}
            if is_part
            else {"color": COLOURS[place]}
        )
        axes.bar(
            [x + (place - (len(names) - 1) / 2) * width for x, _ in mine], [high for _, high in mine], width * 0.92,
            label=None if is_part else OPTIMIZERS.get(name, looks.label(name)), **style,
        )  # fmt: skip
    axes.set_xticks(range(len(sizes)), [f"{size / 1e6:.3g} M" for size in sizes])
    axes.set_xlabel("parameters")


def _models(passes: Sequence[MeasuredPass], shipped: Sequence[StepEstimate]) -> bytes:
    """Return samples a second by batch, a panel a model and a line a precision, with the shipped rows beside."""
    models = list(dict.fromkeys(one.model for one in passes))
    columns = min(PANELS_A_ROW, len(models))
    rows = -(-len(models) // columns)
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 2.1 * rows + 0.5)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes, model in zip_longest(panels, models):
            if model is None:
                axes.set_axis_off()
                continue
            _model_panel(
                axes, [one for one in passes if one.model == model], [one for one in shipped if one.series == model]
            )
            axes.set_title(looks.label(model))
        figure.supylabel("samples / s, forward and backward", fontsize=8)
        found = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=5)
        return looks.image(figure)


def _model_panel(axes: "Axes", passes: Sequence[MeasuredPass], shipped: Sequence[StepEstimate]) -> None:
    from matplotlib.ticker import FuncFormatter

    for precision in dict.fromkeys((*MARKS, *(one.precision for one in passes))):
        mine = sorted((one for one in passes if one.precision == precision), key=lambda one: one.batch)
        colour, marker = MARKS.get(precision, ("black", "X"))
        if mine:
            rates = [one.samples_per_s for one in mine]
            axes.plot([one.batch for one in mine], rates, color=colour, marker=marker, label=precision)
        rows = sorted((one.measured_pass.batch, one) for one in shipped if one.measured_pass.precision == precision)
        if rows:
            estimated = [batch / one.predicted for batch, one in rows]
            axes.plot([batch for batch, _ in rows], estimated, color=colour, linestyle=":", linewidth=1.1, marker="_")
    for gpu in dict.fromkeys(one.gpu for one in shipped):
        axes.plot(
            [], [], color=looks.current().ink, linestyle=":", linewidth=looks.thin(1.1), label=f"shipped rows, {gpu}"
        )
    axes.set_xscale("log", base=2)
    batches = sorted({one.batch for one in passes})
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g} k" if value >= 10_000 else f"{value:g}")
    )


def _backward(pairs: Sequence[BackwardPair], found: CardResult) -> bytes:
    """Return backward during communication over backward alone, every repetition, and what is calibrated."""
    names = list(reversed([looks.label(pair.label.removeprefix("backward of "), 60) for pair in pairs]))
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 1.3 + 0.28 * len(pairs))
        axes = figure.subplots()
        low, high = found.estimate.shipped.intervals.get("backward_slowdown", (1.0, 1.0))
        axes.axvspan(low, high, color=looks.current().band, linewidth=0, label=f"{found.estimate.name}, 90 %", zorder=0)
        if found.fitted.slowdown is not None:
            slowdown, interval = found.fitted.slowdown
            axes.axvspan(*interval, color=looks.SKY, alpha=0.4, linewidth=0, label="calibrated, 90 %", zorder=1)
            axes.axvline(slowdown, color=looks.BLUE, linewidth=1.2, label=f"calibrated: {slowdown:.3f}", zorder=2)
        for place, pair in enumerate(reversed(pairs)):
            ratios = pair.overlapped_s / np.median(pair.alone_s)
            axes.plot(ratios, [place] * len(ratios), "|", color="#888888", markersize=7, zorder=3)
            axes.plot([np.median(ratios)], [place], "D", color=looks.VERMILION, zorder=4)
        axes.plot([], [], "|", color="#888888", markersize=7, label="each repetition")
        axes.plot([], [], "D", linestyle="none", color=looks.VERMILION, label="median")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel("backward during communication / backward alone")
        figure.legend(loc="outside lower center", ncols=3)
        return looks.image(figure)


def _estimates(rows: Sequence[KernelEstimate]) -> bytes:
    """Return estimated over measured times of kernels, at a few sizes."""
    chosen = []
    for name in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == name]
        near = {min(mine, key=lambda row: abs(row.num_elements - size)).num_elements for size in ESTIMATED_AT}
        chosen += [row for row in mine if row.num_elements in near]
    chosen.sort(key=lambda row: -GROUPS.index(row.series))  # those of BinSGDM on top
    return comparison_figure.scatter(chosen, "time [us]", 1e6, size_in=comparison_figure.LARGE_IN)
