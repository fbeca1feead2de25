"""The charts that compare: alternatives with each other, predictions with measurements, trainings with each other."""

import itertools
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
    log_scale,
    marks_look,
    name_scale,
    number_scale,
    plain,
    series_look,
    time_unit,
    values_of,
)
from simnet.report.figure import COLOURS, MARKERS, SERIES_COLOURS
from simnet.report.table import Column, Table
from simnet.report.text import percent, speedup_text
from simnet.report.time_to_target import KERNELS_TEXT, kernels_of
from simnet.report.time_to_target import time_unit as training_unit

if TYPE_CHECKING:
    from simnet.validation.outcome import FigureLine, Unit

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


def ranking(advice: Advice) -> Chart:
    """Return the time of a step with every system that fits, the fastest on top, and whether it pays."""
    fitting = [row for row in advice.systems if row.may_fit]
    # The best of each change is drawn even where it is slow: it is what the table advises.
    chosen = [*fitting[:MOST_SYSTEMS], *(choice.system for choice in advice.choices), advice.baseline_system]
    rows = [row for row in fitting if row in chosen]
    unit_s, unit = time_unit(max(row.iteration_s for row in rows))
    bars = []
    for (mathematics, change), colour, hatch in zip(CHANGES.items(), COLOURS, HATCHES, strict=False):
        alike = {place: row for place, row in enumerate(rows) if row.mathematics == mathematics}
        hover = [
            f"{row.label}: {format_seconds(row.iteration_s)}, {speedup_text(row.speedup.value)}; "
            f"{verdict_text(row, advice)}"
            for row in alike.values()
        ]
        lengths = [row.iteration_s / unit_s for row in alike.values()]
        bars.append(
            Bars(name=f"changes: {change}", at=list(alike), lengths=lengths, colour=colour, hatch=hatch, hover=hover)
        )
    return Chart(
        key="ranking",
        title="The fastest alternatives",
        sentence="Time of a step with each, tuned to this cluster; colours say what a system changes in training. "
        f"{advice.baseline} at its best is the baseline of this comparison.",
        x=Scale(title=f"time of a step [{unit}]"),
        y=name_scale([plain(row.label) for row in rows], is_reversed=True),
        bars=[bar for bar in bars if bar.at],
        is_of_rows=True,
        table=advice_table(advice),
    )


def advised(advice: Advice) -> Chart:
    """Return the speedup of at most six systems that fit over NIC bandwidth, what to use first, with its interval."""
    rows = [row for row in advice.others if row.may_fit]
    if not rows or not any(row.curve for row in rows):
        raise SimnetError(f"--plot: {_why_nothing(advice)}")
    # What to use comes first, then the best by what may change in training, then what pays; of these the fastest.
    best = [choice.system for choice in advice.choices]
    rows.sort(key=lambda row: (row is not advice.used, row not in best, row.verdict != "pays"))
    curves = [_of_system(index, row, has_interval=row is advice.used) for index, row in enumerate(rows[:MOST_CURVES])]
    values = [1.0, 2.0, *values_of(curves)]
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
    speedups = [speedup for _, speedup in row.curve]
    ends: list[tuple[float, float]] = []
    if has_interval and row.speedup.interval is not None:
        low, high = (end / row.speedup.value for end in row.speedup.interval)
        name, ends = f"{name} (90 % interval)", [(low * speedup, high * speedup) for speedup in speedups]
    look = series_look(index) | {"dash": ":" if row.speedup.unmeasured else "-"}
    return Curve(name=name, x=[rate / GBIT for rate, _ in row.curve], y=speedups, ends=ends, **look)


def predicted_over_measured(comparisons: Sequence[Comparison], noun: str = "time [s]", scale: float = 1.0) -> Chart:
    """Return predicted over measured values with their intervals, a colour a series.

    Args:
        comparisons: at least one.
        noun: what the scales show, with its unit.
        scale: from SI to that unit.
    """
    values = [value * scale for row in comparisons for value in (row.predicted, row.measured)]
    # On equal scales the line of equal values is the diagonal, and a distance from it is an error.
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
    series = by_series(comparisons).items()
    columns = (
        Column("series", cell=lambda row: row.series),
        Column("what", cell=lambda row: row.label),
        Column("measured", "right", cell=lambda row: f"{row.measured:.4g}"),
        Column("predicted", "right", cell=lambda row: f"{row.predicted:.4g}"),
        Column("error", "right", cell=lambda row: f"{row.error:+.1%}"),
    )
    return Chart(
        key="predicted-over-measured",
        title="Predicted and measured",
        sentence=f"{len(comparisons)} measured values; mean error {percent(mean_error(comparisons))}, worst "
        f"{percent(worst_error(comparisons))}. On the line, prediction and measurement are equal.",
        x=x,
        y=y,
        curves=[on_line, *(_marks(index, name, rows, scale) for index, (name, rows) in enumerate(series))],
        is_square=True,
        table=Table.of(columns, comparisons),
    )


def _marks(index: int, series: str, rows: Sequence[Comparison], scale: float) -> Curve:
    """Return the marks of a series, predicted over measured, with intervals where one has some."""
    ends = [row.interval or (row.predicted, row.predicted) for row in rows]
    # Series that share a colour differ in their marker.
    marker = MARKERS[(index + index // len(SERIES_COLOURS)) % len(MARKERS)]
    return Curve(
        name=plain(series, LEGEND_CHARACTERS),
        x=[row.measured * scale for row in rows],
        y=[row.predicted * scale for row in rows],
        ends=[(low * scale, high * scale) for low, high in ends] if any(row.interval for row in rows) else (),
        is_open=True,
        hover=[
            f"{row.label}: measured {row.measured * scale:.4g}, predicted {row.predicted * scale:.4g}" for row in rows
        ],
        **marks_look(index) | {"marker": marker},
    )


def steps(points: Sequence[Comparison]) -> Chart:
    """Return times of steps, predicted over measured; series by name."""
    return predicted_over_measured(sorted(points, key=lambda point: point.series), "time of a step [ms]", 1e3)


def residuals(comparisons: Sequence[Comparison]) -> Chart:
    """Return relative errors of a fit over measured times; marks of groups that were held out are filled."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for row in comparisons:
        groups.setdefault((row.series, row.role), []).append(row)
    curves = [
        Curve(
            name=f"{series}, {role}", x=[row.measured * 1e3 for row in rows], y=[row.error for row in rows],
            is_open=role != "held out", **marks_look(index),
        )
        for index, ((series, role), rows) in enumerate(groups.items())
    ]  # fmt: skip
    # Symmetric, and never so narrow that small residuals look large.
    limit = 1.1 * max(LEAST_RESIDUAL, *(abs(row.error) for row in comparisons))
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1.0, 10.0, 100.0, 1e30) if limit / step < 5)
    ticks = {place * step: f"{place * step:.0%}" for place in range(-4, 5) if abs(place * step) <= limit}
    return Chart(
        x=log_scale("measured time [ms]", [row.measured * 1e3 for row in comparisons], margin=1.3),
        y=Scale(title="fitted / measured - 1", ticks=ticks, ends=(-limit, limit)),
        curves=curves,
        guides=[Guide(value=-NEAR, end=NEAR, colour=BAND, name=f"±{NEAR:.0%}"), Guide(value=0)],
    )


def published_curves(curves: "Sequence[FigureLine]") -> dict[str, Chart]:
    """Return speedup over batch size, a panel for each headline, with what was published as a line."""
    panels = {}
    for panel in dict.fromkeys(curve.panel for curve in curves):
        published = [curve for curve in curves if curve.panel == panel]
        lines = [
            Curve(name=f"predicted, {curve.label}", x=x, y=y, **series_look(index))
            for index, curve in enumerate(published)
            for x, y in [list(map(list, zip(*curve.points, strict=True)))]
        ]
        batches = {batch: f"{batch:g}" for curve in published for batch, _ in curve.points}
        level = published[0].level
        panels[panel] = Chart(
            x=number_scale("batch per GPU", batches),
            y=Scale(title="speedup over DDP [x]", ends=(0, 1.1 * max([level, *values_of(lines)]))),
            curves=lines,
            guides=[Guide(value=level, dash="--", width=1.0, name="published")],
        )
    return panels


def over_time(times: TimesToTarget, there: AtBandwidth) -> Chart:
    """Return the metric over simulated time at one bandwidth; in colour the first systems to the target."""
    looks = _looks(times)
    unit_s, unit = training_unit(times, there)
    measured = times.convergence
    title = f"{measured.metric} [{measured.unit}]" if measured.unit else measured.metric
    # What is drawn last lies on top: grey below colours.
    systems = sorted(there.systems, key=lambda system: system.name in looks)
    curves = [_over_time(times, system, looks.get(system.name, FAINT), unit_s) for system in systems]
    return Chart(
        x=Scale(title=f"simulated time [{unit}]", ends=(0, MARGIN * times.baseline_training_s(there) / unit_s)),
        y=Scale(title=title, ends=_metric(times)),
        curves=[*curves, *_entries(times, looks)],
        guides=[Guide(value=times.target, dash=":", width=0.7, name=f"target {times.target:g}")],
    )


def _looks(times: TimesToTarget) -> dict[str, str]:
    """Return the colours of the systems that are first at some bandwidth, by name."""
    named: dict[str, None] = {}
    for there in times.bandwidths:
        reached = [system.name for system in there.systems if system.time_s is not None]
        named.update(dict.fromkeys([name for name in reached if name != times.baseline][:NUM_NAMED]))
    return {times.baseline: INK} | {name: series_look(index)["colour"] for index, name in enumerate(named)}


def _over_time(times: TimesToTarget, system: TargetTime, colour: str, unit_s: float) -> Curve:
    rows = median_values(times.convergence.of(system.name, times.ranks))
    is_named = colour != FAINT
    return Curve(
        x=[system.cost.elapsed_s(step * times.scale) / unit_s for step, *_ in rows],
        y=[median for _, median, *_ in rows],
        ends=[(low, high) for _, _, low, high in rows] if is_named else (),
        colour=colour,
        dash=KERNEL_DASHES[kernels_of(system)],
        width=1.4 if is_named else 0.8,
        marker="o" if len(rows) == 1 else "",  # a line of one point is not seen
    )


def _metric(times: TimesToTarget) -> tuple[float, float]:
    """Return the range of the metric: from the best of all medians to where the baseline was first evaluated.

    Where that gave no number, to the worst of all.
    """
    names = {times.baseline, *(system.name for there in times.bandwidths for system in there.systems)}
    medians = {name: [row[1] for row in median_values(times.convergence.of(name, times.ranks))] for name in names}
    known = [times.target, *itertools.chain(*medians.values())]
    best, worst = min(known), max(known)
    if not times.convergence.is_lower_better:
        best, worst = worst, best
    # A system that diverges would press all others together: the first evaluation bounds the scale.
    start = next(iter(medians[times.baseline]), worst)
    margin = 0.05 * abs(start - best) or 1.0
    return (best - margin, start + margin) if best < start else (start - margin, best + margin)


def _entries(times: TimesToTarget, looks: Mapping[str, str]) -> list[Curve]:
    """Return the entries of the legend: systems in colour, and the others by what their kernels rest on."""
    systems = {system.name: system for there in reversed(times.bandwidths) for system in there.systems}
    entries = []
    for name, colour in looks.items():
        title = plain(systems[name].title, 36) + " (baseline)" * (name == times.baseline)
        entries.append((title, kernels_of(systems[name]), colour, 1.4))
    others = dict.fromkeys(kernels_of(system) for name, system in systems.items() if name not in looks)
    entries += [("others", kernels, FAINT, 0.8) for kernels in others]
    return [
        Curve(name=f"{name}{KERNELS_TEXT[kernels]}", colour=colour, width=width, dash=KERNEL_DASHES[kernels])
        for name, kernels, colour, width in entries
    ]
