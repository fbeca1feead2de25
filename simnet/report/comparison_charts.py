"""The charts that compare: alternatives with each other, predictions with measurements, trainings with each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.convergence import median_values
from simnet.analysis.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.analysis.verdict import PAYS
from simnet.calibration.comparison import Comparison, by_series, mean_error, worst_error
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds
from simnet.report.advice import CHANGES, advice_table, verdict_text
from simnet.report.chart import (
    BAND,
    FAINT,
    GBIT,
    HATCHES,
    INK,
    PAYING,
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
    time_unit,
)
from simnet.report.figure import COLOURS, SERIES_COLOURS
from simnet.report.table import Column, Table
from simnet.report.text import percent, speedup_text
from simnet.report.time_to_target import KERNELS_TEXT, kernels_of
from simnet.report.time_to_target import time_unit as training_unit

if TYPE_CHECKING:
    from simnet.validation.outcome import FigureLine, Unit
    from simnet.validation.training_steps import TrainedPoint

MOST_SYSTEMS, MOST_CURVES = 14, 6
LOWEST = 0.25
"""Speedup below which a system is out of the question, and is not drawn."""
LOG_FROM = 5.0
"""Ratio of the largest to the smallest value from which on the scales are logarithmic."""
NOUNS: "dict[Unit, str]" = {"ms": "time [ms]", "s": "time [s]", "h": "time [h]", "x": "speedup [x]"}
TOLERANCE, NEAR = 0.1, 0.05
"""Around predicted = measured; around a residual of zero."""
LEAST_RESIDUAL = 0.1
LEGEND_CHARACTERS = 40
"""Of two columns; "binsgdm hierarchical, shaped, overlap" has 37."""
NUM_NAMED = 3
"""Systems of each panel over time that are drawn in colour: the first ones to the target."""
MARGIN = 1.15
"""End of the scale of time, in times of the baseline's training."""
KERNEL_DASHES = {None: "-", "estimated": "--", "measure first": "-."}
"""By what kernels without a time rest on; solid where all are timed."""
MBIT = 8 / 1e6


def ranking(advice: Advice) -> Chart:
    """Return the time of a step with every system that fits, the fastest on top, and whether it pays."""
    fitting = [row for row in advice.systems if row.may_fit]
    chosen = [*fitting[:MOST_SYSTEMS], *(one.system for one in advice.choices), advice.baseline_system]
    rows = [row for row in fitting if row in chosen]
    unit_s, unit = time_unit(max(row.iteration_s for row in rows))
    bars = []
    for (mathematics, kind), colour, hatch in zip(CHANGES.items(), COLOURS, HATCHES, strict=False):
        mine = [(place, row) for place, row in enumerate(rows) if row.mathematics == mathematics]
        if mine:
            hover = [
                f"{row.label}: {format_seconds(row.iteration_s)}, {speedup_text(row.speedup.value)}; "
                f"{verdict_text(row, advice)}"
                for _, row in mine
            ]
            bars.append(
                Bars(
                    name=f"changes: {kind}", at=[place for place, _ in mine],
                    lengths=[row.iteration_s / unit_s for _, row in mine], colour=colour, hatch=hatch, hover=hover,
                )
            )  # fmt: skip
    return Chart(
        key="ranking",
        title="The fastest alternatives",
        sentence="Time of a step with each, tuned to this cluster; colours say what a system changes in training. "
        f"{advice.baseline} at its best is the baseline of this comparison.",
        x=Scale(title=f"time of a step [{unit}]"),
        y=name_scale([plain(row.label) for row in rows], is_reversed=True),
        bars=bars,
        is_of_rows=True,
        table=advice_table(advice),
    )


def advised(advice: Advice) -> Chart:
    """Return the speedup of at most six systems that fit over NIC bandwidth, what to use first, with its interval."""
    rows = [row for row in advice.others if row.may_fit]
    if not rows or not any(row.curve for row in rows):
        raise SimnetError(f"--plot: {_why_nothing(advice)}")
    # What to use comes first, then the best by what may change in training, then what pays; of these the fastest.
    best = [one.system for one in advice.choices]
    rows.sort(key=lambda row: (row is not advice.used, row not in best, row.verdict != "pays"))
    curves = [_of_system(index, row, has_interval=row is advice.used) for index, row in enumerate(rows[:MOST_CURVES])]
    values = [1.0, 2.0, *(value for curve in curves for ends in curve.ends for value in ends)]
    values += [value for curve in curves for value in curve.y if value is not None]
    scale = log_scale(f"speedup over {advice.tuned_name}", [max(LOWEST, min(values)), max(values)], suffix="x")
    assert scale.ends is not None
    rates = {rate / GBIT: f"{rate / GBIT:g}" for rate, _ in rows[0].curve}
    here = advice.scenario.cluster.inter_node.bytes_per_s / GBIT
    return Chart(
        x=number_scale("NIC bandwidth [Gbit/s]", rates),
        y=scale,
        curves=curves,
        guides=[
            Guide(value=PAYS, end=scale.ends[1], colour=PAYING, name=f"predicted {PAYS:g} times as fast or more"),
            Guide(value=1.0),
            Guide(value=here, is_upright=True, dash="--", name="this cluster"),
        ],
    )


def _why_nothing(advice: Advice) -> str:
    if advice.scenario.cluster.num_nodes == 1:
        return "cluster.num_nodes is 1: one node sends nothing over its NIC; set cluster.num_nodes"
    if advice.iterations:
        return "cluster.faults: curves over bandwidth are of clusters without faults; drop --plot, or the faults"
    if advice.left_out:
        name, reason = advice.left_out[0]
        return f"nothing but DDP could be predicted: {name}: {reason}"
    return "nothing fits the GPU but what others are compared with; drop --plot, or give more of --systems"


def _of_system(index: int, row: RankedSystem, *, has_interval: bool) -> Curve:
    """Return the curve of a system, broken where its kernels must be measured first.

    Its interval is known at the cluster's own bandwidth, and taken to be the same in proportion elsewhere.
    """
    name = row.label + (" (kernels not measured)" if row.speedup.unmeasured else "")
    rates, speedups = [rate / GBIT for rate, _ in row.curve], [speedup for _, speedup in row.curve]
    ends: list[tuple[float, float]] = []
    if has_interval and row.speedup.interval is not None:
        low, high = (end / row.speedup.value for end in row.speedup.interval)
        name, ends = f"{name} (90 % interval)", [(low * speedup, high * speedup) for speedup in speedups]
    return line(index, name, rates, speedups, ends=ends, dash=":" if row.speedup.unmeasured else "-")


def predicted_over_measured(
    comparisons: Sequence[Comparison], noun: str = "time [s]", scale: float = 1.0, title: str = "Predicted and measured"
) -> Chart:
    """Return predicted over measured values with their intervals, a colour a series.

    Args:
        comparisons: at least one.
        noun: what the scales show, with its unit.
        scale: from SI to that unit.
        title: of the chart.
    """
    values = [value * scale for one in comparisons for value in (one.predicted, one.measured)]
    low, high = min(values), max(values)
    if high / low > LOG_FROM:
        x, y = (log_scale(f"{side} {noun}", values, margin=1.3) for side in ("measured", "predicted"))
    else:
        room = 0.08 * (high - low) or 0.1 * high
        x, y = (Scale(title=f"{side} {noun}", ends=(low - room, high + room)) for side in ("measured", "predicted"))
    assert x.ends is not None
    on_line = Curve(
        name=f"predicted = measured, ±{percent(TOLERANCE, '.0')}", x=x.ends, y=x.ends, colour=INK, width=0.8,
        ends=[(end * (1 - TOLERANCE), end * (1 + TOLERANCE)) for end in x.ends],
    )  # fmt: skip
    curves = [
        Curve(
            name=plain(name, LEGEND_CHARACTERS),
            x=[one.measured * scale for one in mine],
            y=[one.predicted * scale for one in mine],
            ends=[
                (low * scale, high * scale) for one in mine for low, high in [one.interval or (one.predicted,) * 2]
            ] if any(one.interval for one in mine) else (),
            colour=series_style(index)[0],
            marker=series_style(index + index // len(SERIES_COLOURS))[1],
            dash="",
            is_open=True,
            hover=[f"{one.label}: measured {one.measured * scale:.4g}, predicted {one.predicted * scale:.4g}"
                   for one in mine],
        )
        for index, (name, mine) in enumerate(by_series(comparisons).items())
    ]  # fmt: skip
    return Chart(
        key="predicted-over-measured",
        title=title,
        sentence=f"{len(comparisons)} measured values; mean error {percent(mean_error(comparisons))}, worst "
        f"{percent(worst_error(comparisons))}. On the line, prediction and measurement are equal.",
        x=x,
        y=y,
        curves=[on_line, *curves],
        is_square=True,
        table=Table(
            ("series", "what", Column("measured", "right"), Column("predicted", "right"), Column("error", "right")),
            [
                (one.series, one.label, f"{one.measured:.4g}", f"{one.predicted:.4g}", f"{one.error:+.1%}")
                for one in comparisons
            ],
        ),
    )


def steps(points: Sequence[Comparison], title: str = "Predicted and measured") -> Chart:
    """Return times of steps, predicted over measured; series by name."""
    return predicted_over_measured(
        sorted(points, key=lambda point: point.series), "time of a step [ms]", 1e3, title
    )  # fmt: skip


def residuals(comparisons: Sequence[Comparison]) -> Chart:
    """Return relative errors of a fit over measured times; marks of groups that were held out are filled."""
    groups = dict.fromkeys((one.series, one.role) for one in comparisons)
    curves = []
    for index, (series, role) in enumerate(groups):
        colour, marker, _ = series_style(index)
        mine = [one for one in comparisons if (one.series, one.role) == (series, role)]
        curves.append(
            Curve(
                name=f"{series}, {role}", x=[one.measured * 1e3 for one in mine], y=[one.error for one in mine],
                colour=colour, marker=marker, dash="", is_open=role != "held out",
            )
        )  # fmt: skip
    limit = 1.1 * max(LEAST_RESIDUAL, *(abs(one.error) for one in comparisons))
    step = next(one for one in (0.05, 0.1, 0.2, 0.5, 1.0, 10.0, 100.0, 1e30) if limit / one < 5)
    ticks = {place * step: f"{place * step:.0%}" for place in range(-4, 5) if abs(place * step) <= limit}
    return Chart(
        x=log_scale("measured time [ms]", [one.measured * 1e3 for one in comparisons], margin=1.3),
        y=Scale(title="fitted / measured - 1", ticks=ticks, ends=(-limit, limit)),
        curves=curves,
        guides=[Guide(value=-NEAR, end=NEAR, colour=BAND, name=f"±{NEAR:.0%}"), Guide(value=0)],
    )


def published_curves(curves: "Sequence[FigureLine]") -> dict[str, Chart]:
    """Return speedup over batch size, a panel for each headline, with what was published as a line."""
    found = {}
    for panel in dict.fromkeys(curve.panel for curve in curves):
        mine = [curve for curve in curves if curve.panel == panel]
        lines = [
            line(index, f"predicted, {curve.label}", *map(list, zip(*curve.points, strict=True)))
            for index, curve in enumerate(mine)
        ]
        batches = {float(batch or 0): f"{batch:g}" for one in lines for batch in one.x}
        highest = max([mine[0].level, *(speedup or 0 for one in lines for speedup in one.y)])
        found[panel] = Chart(
            x=number_scale("batch per GPU", batches),
            y=Scale(title="speedup over DDP [x]", ends=(0, 1.1 * highest)),
            curves=lines,
            guides=[Guide(value=mine[0].level, dash="--", width=1.0, name="published")],
        )
    return found


def steps_over_rates(points: "Sequence[TrainedPoint]", styles: Mapping[str, int]) -> Chart:
    """Return times of steps over NIC bandwidth: predicted lines with 90 % intervals, measured marks.

    Args:
        points: of one model on one layout.
        styles: the place of each series among the looks.
    """
    curves: list[Curve] = []
    values: list[float] = []
    for name, place in styles.items():
        mine = sorted((point for point in points if point.series == name), key=lambda point: point.setting[3])
        if not mine:
            continue
        colour, marker, _ = series_style(place)
        rates = [point.setting[3] * MBIT for point in mine]
        ends = [(low * 1e3, high * 1e3) for point in mine for low, high in [point.interval or (point.predicted,) * 2]]
        measured = [point.measured * 1e3 for point in mine]
        curves.append(
            Curve(x=rates, y=[point.predicted * 1e3 for point in mine], ends=ends, colour=colour, width=1.0)
        )  # fmt: skip
        curves.append(Curve(name=name, x=rates, y=measured, colour=colour, marker=marker, dash="", is_open=True))
        values += [*measured, *(end for pair in ends for end in pair)]
    rates = sorted({point.setting[3] * MBIT for point in points})
    return Chart(
        x=number_scale("NIC of a node [Mbit/s]", {rate: f"{rate:g}" for rate in rates}),
        y=log_scale("time of a step [ms]", values),
        curves=curves,
    )


def over_time(found: TimesToTarget, there: AtBandwidth) -> Chart:
    """Return the metric over simulated time at one bandwidth; in colour the first systems to the target."""
    looks = _looks(found)
    unit_s, unit = training_unit(found, there)
    measured = found.convergence
    systems = sorted(there.systems, key=lambda one: one.name in looks)
    curves = [_over_time(found, system, looks.get(system.name, FAINT), unit_s) for system in systems]
    return Chart(
        x=Scale(title=f"simulated time [{unit}]", ends=(0, MARGIN * found.baseline_training_s(there) / unit_s)),
        y=Scale(
            title=f"{measured.metric} [{measured.unit}]" if measured.unit else measured.metric, ends=_metric(found)
        ),
        curves=[*curves, *_entries(found, looks)],
        guides=[Guide(value=found.target, dash=":", width=0.7, name=f"target {found.target:g}")],
    )


def _looks(found: TimesToTarget) -> dict[str, str]:
    """Return the colours of the systems that are first at some bandwidth, by name."""
    named: dict[str, None] = {}
    for there in found.bandwidths:
        reached = [one.name for one in there.systems if one.time_s is not None and one.name != found.baseline]
        named.update(dict.fromkeys(reached[:NUM_NAMED]))
    colours = (series_style(index)[0] for index in range(len(named)))
    return {found.baseline: INK} | dict(zip(named, colours, strict=True))


def _over_time(found: TimesToTarget, system: TargetTime, colour: str, unit_s: float) -> Curve:
    rows = median_values(found.convergence.of(system.name, found.ranks))
    is_named = colour != FAINT
    return Curve(
        x=[system.cost.elapsed_s(step * found.scale) / unit_s for step, *_ in rows],
        y=[row[1] for row in rows],
        ends=[(row[2], row[3]) for row in rows] if is_named else (),
        colour=colour,
        dash=KERNEL_DASHES[kernels_of(system)],
        width=1.4 if is_named else 0.8,
        marker="o" if len(rows) == 1 else "",  # a line of one point is not seen
    )


def _metric(found: TimesToTarget) -> tuple[float, float]:
    """Return the range of the metric: from the best of all medians to where the baseline was first evaluated.

    Where that gave no number, to the worst of all.
    """
    rows = median_values(found.convergence.of(found.baseline, found.ranks))
    names = {system.name for there in found.bandwidths for system in there.systems}
    medians = [row[1] for name in names for row in median_values(found.convergence.of(name, found.ranks))]
    best, worst = min([*medians, found.target]), max([*medians, found.target])
    if not found.convergence.is_lower_better:
        best, worst = worst, best
    start = rows[0][1] if rows else worst
    margin = 0.05 * abs(start - best) or 1.0
    return (best - margin, start + margin) if best < start else (start - margin, best + margin)


def _entries(found: TimesToTarget, looks: Mapping[str, str]) -> list[Curve]:
    """Return the entries of the legend: systems in colour, and the others by what their kernels rest on."""
    systems = {system.name: system for there in reversed(found.bandwidths) for system in there.systems}
    entries = []
    for name, colour in looks.items():
        role = " (baseline)" if name == found.baseline else ""
        kernels = kernels_of(systems[name])
        text = plain(systems[name].title, 36) + role + KERNELS_TEXT[kernels]
        entries.append(Curve(name=text, colour=colour, dash=KERNEL_DASHES[kernels]))
    others = dict.fromkeys(kernels_of(system) for name, system in systems.items() if name not in looks)
    entries += [
        Curve(name=f"others{KERNELS_TEXT[kernels]}", colour=FAINT, width=0.8, dash=KERNEL_DASHES[kernels])
        for kernels in others
    ]
    return entries
