"""The charts of a measured card: kernels over sizes, steps and memory of optimizers, models over batches, estimates."""

from collections.abc import Sequence

import numpy as np

from simnet.calibration import kernels
from simnet.calibration.compute_rows import MeasuredPass
from simnet.calibration.kernels import BackwardPair
from simnet.calibration.optimizer_steps import OptimizerStep, optimizer_steps
from simnet.report import figure
from simnet.report.chart import (
    BAND,
    FAINT,
    INK,
    Bars,
    Chart,
    Curve,
    Guide,
    Scale,
    line,
    log_scale,
    name_scale,
    number_scale,
    plain,
    series_style,
)
from simnet.report.comparison_charts import predicted_over_measured
from simnet.report.figure import BLUE, PAGE_IN, SKY, VERMILION
from simnet.validation.card_estimates import GROUPS, SYSTEMS, TARGET, CardResult, KernelEstimate, StepEstimate

MAX_NAMED = 12
"""Kernels of a panel that have a colour: the slowest; the others are grey."""
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
PRECISIONS = ("tf32", "bf16", "amp", "fp32")
"""In the order of their looks."""


def drawn(found: CardResult) -> dict[str, bytes]:
    """Return the figures as PNG by name; those of which nothing was measured are left out."""
    with figure.styled():
        from simnet.report.chart_matplotlib import figure_of

        made = {}
        if found.kernels:
            # BinSGDM's kernels with AdamW and casts, and those of systems.
            own = [row for row in found.kernels if row.series != SYSTEMS]
            of_systems = [row for row in found.kernels if row.series == SYSTEMS]
            panels = {name: _kernels(rows) for name, rows in (("", own), (SYSTEMS, of_systems)) if rows}
            made["kernels"] = figure_of(
                panels, columns=1, panel_in=3.0, width_in=PAGE_IN, shared="both", legend="beside"
            )  # fmt: skip
            made["estimates"] = figure_of({"": estimates(found.kernels)}, panel_in=4.4, width_in=4.6)
        if steps := optimizer_steps(found.folder):
            made["step"] = figure_of(step_panels(steps), panel_in=2.7, width_in=PAGE_IN)
        if pairs := kernels.select_pairs(found.folder.measurements):
            made["backward"] = figure_of({"": backward(pairs, found)}, width_in=PAGE_IN)
        if found.passes:
            models = dict.fromkeys(one.model for one in found.passes)
            panels = {plain(model): _model(model, found.passes, found.steps) for model in models}
            made["models"] = figure_of(panels, columns=PANELS_A_ROW, panel_in=2.1, width_in=PAGE_IN)
        return {name: figure.image(one) for name, one in made.items()}


def _kernels(rows: Sequence[KernelEstimate]) -> Chart:
    """Return times over those of the bytes, by size."""

    def slowness(name: str) -> float:
        """Return the ratio of a kernel at its largest size."""
        return max((row for row in rows if row.kernel == name), key=lambda row: row.num_elements).ratio

    names = sorted(dict.fromkeys(row.kernel for row in rows), key=lambda name: -slowness(name))
    curves = []
    for index, name in enumerate(names):
        mine = sorted((row for row in rows if row.kernel == name), key=lambda row: row.num_elements)
        x, y = [row.num_elements for row in mine], [row.ratio for row in mine]
        if index < MAX_NAMED:
            curves.append(line(index, plain(name + ("" if mine[0].is_estimable else " *"), 36), x, y, size=0.8))
        else:
            others = f"{len(names) - MAX_NAMED} others" if index == MAX_NAMED else ""
            curves.append(Curve(name=others, x=x, y=y, colour=FAINT, width=0.8))
    sizes = sorted({row.num_elements for row in rows})
    span = range(int(np.log2(sizes[0])), int(np.log2(sizes[-1])) + 1, 2)
    return Chart(
        x=Scale(
            title="elements, of all vectors together",
            is_log=True,
            ticks={2.0**one: numel_text(2.0**one) for one in span},
            ends=(sizes[0] / 1.3, sizes[-1] * 1.3),
        ),
        y=log_scale("time / (bytes / bandwidth)", [1.0, *(row.ratio for row in rows)]),
        curves=curves,
        guides=[
            Guide(value=TARGET, dash="--", name=f"{TARGET:g}: asked for"),
            Guide(value=1.0, name="1: its bytes at the speed of copies"),
        ],
    )  # fmt: skip


def numel_text(number: float) -> str:
    """Return a number of elements in binary units: "64 k", "4 M"."""
    for factor, unit in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def step_panels(rows: Sequence[OptimizerStep]) -> dict[str, Chart]:
    """Return the time of a step, and the memory beside parameters and gradients, for each model."""
    times = [row.step_s * 1e3 for row in rows]
    panels = {"": _grouped(rows, times, log_scale("time of a step [ms]", times, margin=1.5))}
    if any(row.peak_bytes is not None for row in rows):
        peaks = [(row.peak_bytes or 0.0) / row.num_elements for row in rows]
        states = [(row.state_bytes or 0.0) / row.num_elements for row in rows]
        scale = Scale(title="memory [bytes a parameter]", ends=(0, 1.05 * max(peaks)))
        panels["whole bar: peak of a step; hatched: state"] = _grouped(rows, peaks, scale, parts=states)
    return panels


def _grouped(rows: Sequence[OptimizerStep], heights: Sequence[float], y: Scale, parts: Sequence[float] = ()) -> Chart:
    """Return a group of bars for each model, one an optimizer; a part of a bar is hatched."""
    sizes = list(dict.fromkeys(row.num_elements for row in rows))
    known = dict.fromkeys((*OPTIMIZERS, *(row.optimizer for row in rows)))
    names = [name for name in known if any(row.optimizer == name for row in rows)]
    width = 0.8 / len(names)
    bars = []
    for place, name in enumerate(names):
        mine = [index for index, row in enumerate(rows) if row.optimizer == name]
        at = [sizes.index(rows[index].num_elements) + (place - (len(names) - 1) / 2) * width for index in mine]
        colour = series_style(place)[0]
        for lengths, hatch in ((heights, ""), (parts, "/")):
            if lengths:
                bars.append(
                    Bars(
                        name="" if hatch else OPTIMIZERS.get(name, plain(name)), at=at, thickness=0.92 * width,
                        lengths=[lengths[index] for index in mine], colour=colour, hatch=hatch,
                    )
                )  # fmt: skip
    return Chart(x=name_scale([f"{size / 1e6:.3g} M" for size in sizes], "parameters"), y=y, bars=bars)


def _model(model: str, all_passes: Sequence[MeasuredPass], all_shipped: Sequence[StepEstimate]) -> Chart:
    """Return a model's samples a second by batch, a line a precision, with the shipped rows beside."""
    passes = [one for one in all_passes if one.model == model]
    shipped = [one for one in all_shipped if one.series == model]
    curves = []
    for index, precision in enumerate(dict.fromkeys((*PRECISIONS, *(one.precision for one in passes)))):
        mine = sorted((one for one in passes if one.precision == precision), key=lambda one: one.batch)
        if mine:
            curves.append(line(index, precision, [one.batch for one in mine], [one.samples_per_s for one in mine]))
        rows = sorted((one.measured_pass.batch, one) for one in shipped if one.measured_pass.precision == precision)
        if rows:
            rates = [batch / one.predicted for batch, one in rows]
            batches = [batch for batch, _ in rows]
            curves.append(Curve(x=batches, y=rates, colour=series_style(index)[0], dash=":", width=1.1, marker="_"))
    gpus = dict.fromkeys(one.gpu for one in shipped)
    curves += [Curve(name=f"shipped rows, {gpu}", colour=INK, dash=":", width=1.1) for gpu in gpus]
    highest = max(float(rate or 0.0) for curve in curves for rate in curve.y)
    return Chart(
        x=number_scale("batch", {float(one.batch): str(one.batch) for one in passes}),
        y=Scale(title="samples / s, forward and backward", ends=(0, 1.1 * highest)),
        curves=curves,
    )


def backward(pairs: Sequence[BackwardPair], found: CardResult) -> Chart:
    """Return backward during communication over backward alone, every repetition, and what is calibrated."""
    low, high = found.estimate.shipped.intervals.get("backward_slowdown", (1.0, 1.0))
    guides = [Guide(value=low, end=high, is_upright=True, colour=BAND, name=f"{found.estimate.name}, 90 %")]
    if found.fitted.slowdown is not None:
        slowdown, ends = found.fitted.slowdown
        guides += [
            Guide(value=ends[0], end=ends[1], is_upright=True, colour=SKY, name="calibrated, 90 %"),
            Guide(value=slowdown, is_upright=True, colour=BLUE, width=1.2, name=f"calibrated: {slowdown:.3f}"),
        ]
    curves = []
    for place, pair in enumerate(pairs):
        ratios = [float(one) for one in pair.overlapped_s / np.median(pair.alone_s)]
        at = [place] * len(ratios)
        curves.append(Curve(name="each repetition", x=ratios, y=at, colour=FAINT, dash="", marker="|", size=1.5))
        curves.append(
            Curve(name="median", x=[float(np.median(ratios))], y=[place], colour=VERMILION, dash="", marker="D")
        )  # fmt: skip
    return Chart(
        x=Scale(title="backward during communication / backward alone"),
        y=name_scale([plain(pair.label.removeprefix("backward of ")) for pair in pairs], is_reversed=True),
        curves=curves,
        guides=guides,
        is_of_rows=True,
    )


def estimates(rows: Sequence[KernelEstimate]) -> Chart:
    """Return estimated over measured times of kernels, at a few sizes."""
    chosen = []
    for name in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == name]
        near = {min(mine, key=lambda row: abs(row.num_elements - size)).num_elements for size in ESTIMATED_AT}
        chosen += [row for row in mine if row.num_elements in near]
    chosen.sort(key=lambda row: -GROUPS.index(row.series))  # those of BinSGDM on top
    return predicted_over_measured(chosen, "time [us]", 1e6)
