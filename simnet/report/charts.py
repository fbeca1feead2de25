"""The charts of sweeps and of searches for a break-even, each a pure function of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simnet.analysis.crossover import Crossover
from simnet.analysis.verdict import PAYS
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds
from simnet.engine.result import PointResult, RunResult, StrategyResult, SweepResult
from simnet.report.chart import (
    FAINT,
    GBIT,
    INK,
    SAME_TIME,
    Bars,
    Cells,
    Chart,
    Curve,
    Ends,
    Guide,
    Scale,
    Words,
    log_scale,
    name_scale,
    number_scale,
    plain,
    series_look,
    speedup_scale,
    time_unit,
    values_of,
)
from simnet.report.figure import SKY, STEP_PARTS, VERMILION
from simnet.report.labels import (
    BANDWIDTH_KEYS,
    NODES_KEYS,
    PART_KEYS,
    ROLES,
    WORKLOAD_KEYS,
    Panels,
    grouped,
    label,
    main_key,
    numbers,
    sides,
    titles,
    value_label,
)
from simnet.report.rows import BY_NAME
from simnet.report.sweep_page import is_slower
from simnet.report.table import Column, Table
from simnet.report.text import bandwidth_text, gpus_text, key_text, nodes_text, rate_label, speedup_text
from simnet.strategies import STRATEGIES

LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "dash": "-", "colour": SKY},
    {"marker": "s", "dash": "--", "colour": VERMILION},
)
"""Of strategy and baseline."""
BASELINE_HATCH = "/"
MOST_SHADED = 4
"""Lines that have an interval each; more bands hide each other."""
HEADROOM = 1.05
GREY = "#AAAAAA"
BAR = 0.36
"""Thickness of one of two bars side by side, in times of the distance between pairs."""
STEPS = BY_NAME["iteration_s"], BY_NAME["baseline_iteration_s"]
MEDIANS, TAILS = "medians", "95th percentiles"
NODES, BANDWIDTH = NODES_KEYS[0], BANDWIDTH_KEYS[0]
UNITS = {"bandwidth": (GBIT, " [Gbit/s]"), "latency": (1e-6, " [us]")}
"""Of quantities by how their keys end, each with its size in the unit that the simulator counts in."""
Points = Sequence[PointResult]


class Along(NamedTuple):
    """What points are laid out along: nodes, bandwidth, or the numbers of another swept key.

    Attributes:
        title: of the scale.
        place: of a point on it.
        text: of a point's tick.
        group: of points in a legend.
    """

    title: str
    place: Callable[[RunResult], float]
    text: Callable[[RunResult], str]
    group: Callable[[RunResult], str]

    def scale(self, points: Iterable[RunResult]) -> Scale:
        """Return the scale with a tick at each place."""
        return number_scale(self.title, {self.place(point): self.text(point) for point in points})

    def names(self, points: Iterable[RunResult]) -> dict[float, tuple[str, str]]:
        """Return the places in order, each with its tick and its name."""
        return dict(sorted({self.place(point): (self.text(point), self.group(point)) for point in points}.items()))

    def panels(self, points: Iterable[PointResult]) -> Panels:
        """Return the points of each place, ascending."""
        panels: Panels = {}
        for point in sorted(points, key=self.place):
            panels.setdefault(self.group(point), []).append(point)
        return panels

    def curve(
        self,
        points: Points,
        value: Callable[[PointResult], float],
        ends: Callable[[PointResult], Ends | None] | None = None,
        **look: Any,
    ) -> Curve:
        """Return a value of points over their places, with its interval where every point has one."""
        ordered = sorted(points, key=self.place)
        intervals = [pair for point in ordered if ends and (pair := ends(point))]
        return Curve(
            x=[self.place(point) for point in ordered],
            y=[value(point) for point in ordered],
            ends=intervals if len(intervals) == len(ordered) else (),
            **look,
        )


def along(key: str, points: Sequence[RunResult]) -> Along:
    """Return how points are laid out along a key with numbers."""
    if key in NODES_KEYS:
        title = f"nodes (of {gpus_text(*(point.ranks_per_node for point in points))})"
        return Along(
            title,
            lambda point: float(point.num_nodes),
            lambda point: str(point.num_nodes),
            lambda point: nodes_text(point.num_nodes),
        )
    if key in BANDWIDTH_KEYS:
        return Along(
            rate_label(points),
            lambda point: point.nic_gbit_per_s,
            lambda point: f"{point.nic_gbit_per_s:g}",
            lambda point: bandwidth_text(point.nic_gbit_per_s),
        )

    def value(point: RunResult) -> str:
        return value_label(point, key) if isinstance(point, PointResult) else ""

    def place(point: RunResult) -> float:
        return (numbers([point], key) or [0.0])[0] if isinstance(point, PointResult) else 0.0

    return Along(key_text(key), place, value, lambda point: f"{key_text(key)} {value(point)}")


def lines_of(points: Points, key: str, others: Sequence[str] = ()) -> Panels:
    """Return the points of each line of a chart over a key: by bandwidth or nodes, or by the values of other keys."""
    other = BANDWIDTH if key in NODES_KEYS else NODES if key in BANDWIDTH_KEYS else ""
    return along(other, points).panels(points) if other else grouped(points, others)


def speedups(
    points: Points,
    key: str,
    *,
    others: Sequence[str] = (),
    asked: RunResult | None = None,
    roles: Sequence[str],
) -> Chart:
    """Return the speedup over a key, a line for each value of what else varies, some with their intervals.

    Args:
        points: of one panel, all with a baseline.
        key: the axis.
        others: keys whose values make the lines, of an axis that is neither nodes nor bandwidth.
        asked: the point that was asked about: where there are many lines, only its own has an interval.
        roles: what strategy and baseline are called.
    """
    way = along(key, points)
    lines = lines_of(points, key, others)
    here = asked and (asked.num_nodes, asked.nic_gbit_per_s)
    shaded = [
        place
        for place, of_line in enumerate(lines.values())
        if any((point.num_nodes, point.nic_gbit_per_s) == here for point in of_line)
    ]
    # Of many lines one has a band: that of the point that was asked about, else the last.
    if len(lines) <= MOST_SHADED or not shaded:
        shaded = list(range(len(lines))) if len(lines) <= MOST_SHADED else [len(lines) - 1]
    curves = [
        way.curve(
            of_line,
            lambda point: point.speedup or 0.0,
            (lambda point: point.intervals.get("speedup")) if index in shaded else None,
            name=name,
            hover=[f"{way.group(point)}: {speedup_text(point.speedup)}" for point in sorted(of_line, key=way.place)],
            **series_look(index),
        )
        for index, (name, of_line) in enumerate(lines.items())
    ]
    strategy, baseline = roles
    best = max(points, key=lambda point: point.speedup or 0.0)
    which = f", {list(lines)[shaded[0]]}" if len(shaded) == 1 and len(lines) > 1 else "s" if len(shaded) > 1 else ""
    short = "nodes" if key in NODES_KEYS else "NIC bandwidth" if key in BANDWIDTH_KEYS else key_text(key)
    has_intervals = any(curve.ends for curve in curves)
    return Chart(
        key=f"speedup-over-{'bandwidth' if key in BANDWIDTH_KEYS else short.replace(' ', '-')}",
        title=f"Speedup over {short}",
        sentence=f"Time of a step with {baseline} over that with {strategy}: above 1, {strategy} is faster. The "
        f"largest here is {speedup_text(best.speedup)}, on {nodes_text(best.num_nodes)} at "
        f"{bandwidth_text(best.nic_gbit_per_s)}." + (f" Shaded: 90 % interval{which}." if has_intervals else ""),
        x=way.scale(points),
        y=speedup_scale(f"speedup over {baseline}", values_of(curves)),
        curves=curves,
        guides=[Guide(value=1.0, name=SAME_TIME)],
        has_intervals=has_intervals,
        table=_speedup_table(points),
    )


def _speedup_table(points: Points) -> Table:
    columns = (
        Column("NIC", "right", cell=BY_NAME["nic_gbit_per_s"].cell),
        Column("nodes", "right", cell=BY_NAME["num_nodes"].cell),
        *(Column(title, "right", cell=step.cell) for step, title in zip(STEPS, titles(points), strict=False)),
        Column("speedup", "right", cell=lambda point: speedup_text(point.speedup)),
        Column("90 % interval", "right", cell=lambda point: _interval_text(point.intervals.get("speedup"))),
    )
    return Table.of(columns, sorted(points, key=lambda point: (point.nic_gbit_per_s, point.num_nodes)))


def _interval_text(ends: Ends | None) -> str:
    return " to ".join(map(speedup_text, ends)) if ends else "-"


def speedup_of_each(points: Points, keys: Sequence[str], *, roles: Sequence[str]) -> Chart:
    """Return the speedup as a bar to the right of the values of keys, with its interval."""
    values = [point.speedup or 0.0 for point in points]
    ends = [point.intervals.get("speedup", (value, value)) for point, value in zip(points, values, strict=True)]
    intervals = [
        Curve(name="90 % interval", x=pair, y=(row, row), colour=INK, marker="|", width=1.0)
        for row, pair in enumerate(ends)
        if pair[1] > pair[0]
    ]
    return Chart(
        x=Scale(title=f"speedup over {roles[-1]}", ends=(0, max(1.5, 1.25 * max(high for _, high in ends)))),
        y=_rows(points, keys),
        bars=[Bars(at=range(len(values)), lengths=values, colour=SKY)],
        curves=intervals,
        words=[
            Words(x=max(value, high), y=row, text=speedup_text(value))
            for row, (value, (_, high)) in enumerate(zip(values, ends, strict=True))
        ],
        guides=[Guide(value=1.0, is_upright=True, name=SAME_TIME)],
        is_of_rows=True,
        has_intervals=bool(intervals),
    )


def _rows(points: Points, keys: Sequence[str]) -> Scale:
    """Return the scale of rows by the values of one key, or of several with their names."""
    names = [value_label(point, keys[0]) if len(keys) == 1 else label(point, keys) for point in points]
    is_named = len(keys) != 1 or keys[0] in (*WORKLOAD_KEYS, *PART_KEYS)
    return name_scale(names, "" if is_named else key_text(keys[0]), is_reversed=True)


def of_sweep(sweep: SweepResult) -> Chart:
    """Return the speedup over the last key that varies, by bars where its values are no numbers."""
    points = [point for point in sweep.points if point.speedup is not None]
    if not points or not sweep.varied:
        raise SimnetError("plot: no speedups to draw: give a baseline, and two values of some key")
    key = main_key(sweep)
    # Places of nodes and bandwidths come from the results, whatever text the sweep was given.
    of_network = {*sweep.varied} <= {*NODES_KEYS, *BANDWIDTH_KEYS}
    if not of_network and numbers(points, key) is None:
        return speedup_of_each(points, sweep.varied, roles=titles(points))
    return speedups(points, key, others=[other for other in sweep.varied if other != key], roles=titles(points))


def sides_of(points: Points) -> list[list[StrategyResult]]:
    """Return the results of the strategy and, if every point has one, those of the baseline."""
    # Of points with and without a baseline, `zip` ends with the shorter.
    return [list(results) for results in zip(*map(sides, points), strict=False)]


def throughput(points: Points, *, roles: Sequence[str]) -> Chart:
    """Return throughput over nodes at every bandwidth: strategy, baseline, and compute alone as the linear ideal."""
    way = along(NODES, points)
    lines = lines_of(points, NODES)
    has_many = len(lines) > 1
    curves: list[Curve] = []
    for index, (rate, of_line) in enumerate(lines.items()):
        shade = {"colour": series_look(index)["colour"]} if has_many else {}
        curves.append(way.curve(of_line, BY_NAME["samples_per_s"].value, _throughput_ends, **LOOKS[0] | shade))
        if len(sides_of(of_line)) > 1:
            curves.append(way.curve(of_line, BY_NAME["baseline_samples_per_s"].value, **LOOKS[1] | shade))
        curves += [Curve(name=rate, **shade)] if has_many else []
    # Entries of the legend alone: colours say the bandwidth, or where there is one only, the role.
    grey = {"colour": FAINT} if has_many else {}
    curves += [Curve(name=role, **look | grey) for role, look in zip(roles, LOOKS, strict=False)]
    if ideal := ideal_samples_per_s(points):
        curves.append(Curve(name="linear (compute alone)", x=list(ideal), y=list(ideal.values()), colour=INK, dash=":"))
    y = log_scale("throughput [samples/s]", values_of(curves))
    return Chart(x=way.scale(points), y=y, curves=curves, has_intervals=any(curve.ends for curve in curves))


def _throughput_ends(point: PointResult) -> Ends | None:
    """Return the 90 % interval of the strategy's throughput, from that of its time."""
    ends = point.intervals.get("iteration_s")
    samples = point.result.samples_per_s * point.result.iteration_s
    return (samples / ends[1], samples / ends[0]) if ends else None


def ideal_samples_per_s(points: Points) -> dict[float, float]:
    """Return the throughput in compute time alone by nodes, ascending; nothing where no point computes.

    The compute time is the least of all points that accumulate as many micro-batches.
    """
    least_s: dict[int, float] = {}
    for point in points:
        parts = (point.baseline or point.result).breakdown
        # What compression and waiting add is no part of the ideal.
        compute_s = parts.forward_s + parts.backward_s + parts.optimizer_s
        count = point.scenario.grad_accumulation
        least_s[count] = min(compute_s, least_s.get(count, compute_s))
    # Without compute the ideal would be endless.
    if not all(least_s.values()):
        return {}
    return {
        float(point.num_nodes): point.result.samples_per_s
        * point.result.iteration_s
        / least_s[point.scenario.grad_accumulation]
        for point in sorted(points, key=lambda point: point.num_nodes)
    }


def stack(steps: Sequence[StrategyResult], at: Sequence[float], unit_s: float, thickness: float = 0.6) -> list[Bars]:
    """Return the parts of steps in a unit of time as bars, each from where the part before it ends."""
    bars: list[Bars] = []
    starts = [0.0] * len(steps)
    for part, (name, colour) in STEP_PARTS.items():
        lengths = [getattr(step.breakdown, part) / unit_s for step in steps]
        hover = [f"{name}: {format_seconds(length * unit_s)}" for length in lengths]
        bars.append(
            Bars(name=name, at=at, lengths=lengths, starts=starts, thickness=thickness, colour=colour, hover=hover)
        )
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    return bars


def breakdown_over(points: Points, key: str, *, roles: Sequence[str]) -> Chart:
    """Return where an iteration's time goes: stacked columns of strategy and baseline over the numbers of a key."""
    way = along(key, points)
    shown = sorted(points, key=way.place)
    # Columns stand side by side at equal distances, whatever their numbers: ticks are counted, not scaled.
    stride = -(-len(shown) // 12)
    ticks = {float(place): way.text(point) for place, point in list(enumerate(shown))[::stride]}
    x = Scale(title=way.title, ticks=ticks, ends=(-0.5, len(shown) - 0.5))
    return _stacks(shown, x, roles, is_of_rows=False)


def breakdown_of_each(points: Points, keys: Sequence[str], *, roles: Sequence[str]) -> Chart:
    """Return where an iteration's time goes: stacked rows of strategy and baseline for the values of keys."""
    return _stacks(points, _rows(points, keys), roles, is_of_rows=True)


def _stacks(points: Points, scale: Scale, roles: Sequence[str], *, is_of_rows: bool) -> Chart:
    """Return a stack of the parts of a step for each side of each point."""
    both = sides_of(points)
    slowest_s = max(step.iteration_s for steps in both for step in steps)
    unit_s, unit = time_unit(slowest_s)
    bars: list[Bars] = []
    for index, steps in enumerate(both):
        at = [place + BAR * 1.1 * (index - (len(both) - 1) / 2) for place in range(len(points))]
        parts = stack(steps, at, unit_s, BAR)
        bars += [replace(part, name="", hatch=BASELINE_HATCH) for part in parts] if index else parts
    if len(both) > 1:
        first, second = ("upper", "lower") if is_of_rows else ("left", "right")
        entries = [Bars(name=f"{first}: {plain(roles[0])}", colour=GREY)]
        entries.append(Bars(name=f"{second}: {plain(roles[1])}", colour=GREY, hatch=BASELINE_HATCH))
        # Legends read from the bottom of upright stacks, and from the left of rows.
        bars = [*bars, *entries] if is_of_rows else [*reversed(entries), *bars]
    times = Scale(title=f"step time [{unit}]", ends=(0, HEADROOM * slowest_s / unit_s))
    x, y = (times, scale) if is_of_rows else (scale, times)
    return Chart(x=x, y=y, bars=bars, is_of_rows=is_of_rows)


def heat_map(points: Points, row_key: str = BANDWIDTH, column_key: str = NODES, *, roles: Sequence[str]) -> Chart:
    """Return the speedup by two keys, its colours apart at 1."""
    row_way, column_way = along(row_key, points), along(column_key, points)
    rows, columns = row_way.names(points), column_way.names(points)
    known = {(row_way.place(point), column_way.place(point)): point.speedup for point in points}
    cells = [[known.get((row, column)) for column in columns] for row in rows]
    strategy, baseline = roles
    slower = sum(map(is_slower, points))
    hover = [
        [f"{across}, {up}: {speedup_text(value)}" for (_, across), value in zip(columns.values(), row, strict=True)]
        for (_, up), row in zip(rows.values(), cells, strict=True)
    ]
    return Chart(
        key="heat-map",
        title="Where it is faster",
        sentence=f"Blue: {strategy} is faster than {baseline}; orange: slower, at {slower} of {len(known)} points.",
        x=name_scale([tick for tick, _ in columns.values()], column_way.title),
        y=name_scale([tick for tick, _ in rows.values()], row_way.title),
        cells=Cells(speedups=cells, hover=hover),
        table=Table(
            [Column(row_way.title), *(Column(name, "right") for _, name in columns.values())],
            [[name, *map(speedup_text, row)] for (_, name), row in zip(rows.values(), cells, strict=True)],
        ),
    )


def times_over(points: Points, key: str, *, roles: Sequence[str]) -> Chart:
    """Return the median time of an iteration over the numbers of a key, shaded up to the 95th percentile."""
    way = along(key, points)
    ordered = sorted(points, key=way.place)
    both = sides_of(ordered)
    # One unit for both sides, that of the longest.
    unit_s, unit = time_unit(max(step.p95_s for steps in both for step in steps))
    curves = [
        Curve(
            name=name,
            x=[way.place(point) for point in ordered],
            y=[step.p50_s / unit_s for step in steps],
            ends=[(step.p50_s / unit_s, step.p95_s / unit_s) for step in steps],
            **look,
        )
        for name, steps, look in zip(roles, both, LOOKS, strict=False)
    ]
    longest = max(high for curve in curves for _, high in curve.ends)
    times = Scale(title=f"time of a step [{unit}]", ends=(0, HEADROOM * longest))
    return Chart(x=way.scale(points), y=times, curves=curves)


def speedups_of_tails(points: Points, key: str, others: Sequence[str], *, roles: Sequence[str]) -> Chart:
    """Return the speedup of the median, and dotted that of the 95th percentile, a line for each setting of others."""
    way = along(key, points)
    curves: list[Curve] = []
    for index, (name, of_line) in enumerate(grouped(points, others).items()):
        look = series_look(index)
        curves.append(way.curve(of_line, lambda point: _ratio(point, 50), name=name or MEDIANS, **look))
        curves.append(way.curve(of_line, lambda point: _ratio(point, 95), colour=look["colour"], dash=":"))
    return Chart(
        x=way.scale(points),
        y=speedup_scale(f"speedup over {roles[-1]}", values_of(curves)),
        curves=[*curves, Curve(name=TAILS, colour=INK, dash=":")],
        guides=[Guide(value=1.0, name=SAME_TIME)],
    )


def _ratio(point: PointResult, percent: float) -> float:
    """Return a percentile of the baseline's iterations over that of the strategy's."""
    baseline = point.baseline or point.result
    return baseline.percentile_s(percent) / point.result.percentile_s(percent)


def crossover(search: Crossover, sentence: str = "") -> Chart:
    """Return the speedup over a key, with its interval and the values at which both take the same time."""
    unit, suffix = next((look for end, look in UNITS.items() if search.key.endswith(end)), (1.0, ""))
    values = [float(trial.value) / unit for trial in search.trials]
    ends = [trial.speedup.interval for trial in search.trials if trial.speedup.interval]
    shown = [trial.speedup.value for trial in search.trials]
    crossings = [float(crossing.high.value) / unit for crossing in search.crossings]
    hover = [f"{trial.text}: {speedup_text(trial.speedup.value)}" for trial in search.trials]
    intervals = ends if len(ends) == len(values) else ()
    curves = [Curve(x=values, y=shown, ends=intervals, hover=hover, **series_look(0))]
    if crossings:
        marks = [1.0] * len(crossings)
        curves.append(Curve(name="same time", x=crossings, y=marks, colour=VERMILION, dash="", marker="X", size=1.5))
    columns = (
        Column("value", cell=lambda trial: trial.text),
        Column("speedup", "right", cell=lambda trial: speedup_text(trial.speedup.value)),
        Column("90 % interval", "right", cell=lambda trial: _interval_text(trial.speedup.interval)),
        Column("verdict", cell=lambda trial: trial.speedup.verdict),
    )
    return Chart(
        key="crossover",
        title="Where the faster side changes",
        sentence=sentence,
        x=log_scale(f"{plain(key_text(search.key))}{suffix}", values),
        y=speedup_scale(
            "speedup of {} over {}".format(*_titles(search)), [PAYS, *shown, *(end for pair in ends for end in pair)]
        ),
        curves=curves,
        guides=[Guide(value=1.0)],
        table=Table.of(columns, search.trials),
    )


def _titles(search: Crossover) -> tuple[str, str]:
    """Return what people call strategy and baseline, by their roles where that is the same."""
    # A report hands titles over, a command kinds.
    kinds = (search.strategy, search.baseline)
    strategy, baseline = (plain(STRATEGIES.find(kind).title if kind in STRATEGIES.names() else kind) for kind in kinds)
    return (strategy, baseline) if strategy != baseline else ROLES
