"""The figures of a report, each a pure function of results; the explorer draws the same."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from simnet.compare.advice import Advice
from simnet.compare.crossover import Crossover
from simnet.compare.verdict import PAYS
from simnet.comparison import Comparison, by_series, mean_error, worst_error
from simnet.report.chart import (
    BLUE,
    COLOURS,
    DIVERGING,
    STEP_PARTS,
    SYMBOLS,
    VERMILION,
    Chart,
    Trace,
    axis,
    band,
    fill,
    layout,
    line,
    name,
)
from simnet.result import PointResult, RunResult, StrategyResult
from simnet.show.advice import CHANGES, advice_table, verdict_text
from simnet.show.influences import change_text, noun, usual, value_text
from simnet.show.labels import titles
from simnet.show.table import Column, Table
from simnet.show.text import bandwidth_text, nodes_text, speedup_text
from simnet.units import format_seconds

Over = Literal["nodes", "bandwidth"]
LEAST_COLOURED = 1.5
"""Factor on the time at which a speedup has the deepest colour, if no point is further from 1."""
MOST_SHADED = 3
"""Lines that have an interval each; more bands hide each other."""
FINE_TICKS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
"""Of a decade, where the ends of an axis are near."""
MOST_BARS = 12
MOST_SYSTEMS = 14
GBIT = 1e9 / 8
ROW_PIXELS = 34
X_TEXT = "%{y:.3g}x"


def speedups(points: Sequence[PointResult], over: Over, own: RunResult | None = None) -> Chart:
    """Return the speedup over nodes or NIC bandwidth, a line for each value of the other, some with their intervals.

    Args:
        points: of one panel, all with a baseline.
        over: the axis.
        own: the point that was asked about: where there are many lines, only its own has an interval.
    """
    place, text, other_text = _ways(over)
    others = sorted({_other(point, over) for point in points})
    shaded = others if len(others) <= MOST_SHADED else [_other(own, over)] if own is not None else others[-1:]
    traces: list[Trace] = []
    for index, other in enumerate(others):
        mine = sorted((point for point in points if _other(point, over) == other), key=place)
        values = [place(point) for point in mine]
        if other in shaded and (ends := _intervals(mine)):
            traces.append(band(index, values, *ends))
        hover = f"{'%{x} nodes' if over == 'nodes' else '%{x} Gbit/s'}: {X_TEXT}"
        traces.append(line(index, other_text(other), values, [point.speedup or 0.0 for point in mine], hover))
    ticks = sorted({place(point) for point in points})
    where = "nodes" if over == "nodes" else "NIC bandwidth [Gbit/s]"
    strategy, baseline = titles(list(points))
    best = max(points, key=lambda point: point.speedup or 0.0)
    return Chart(
        key=f"speedup-over-{over}",
        title=f"Speedup over {'nodes' if over == 'nodes' else 'NIC bandwidth'}",
        sentence=f"Time of a step with {baseline} over that with {strategy}: above 1, {strategy} is faster. The "
        f"largest here is {speedup_text(best.speedup)}, {_place_text(best)}."
        + (
            f" Shaded: 90 % interval{'s' if len(shaded) > 1 else f', {other_text(shaded[0])}'}."
            if any(_intervals([point]) for point in points)
            else ""
        ),
        traces=tuple(traces),
        layout=layout(
            axis(where, log=True, ticks=ticks, texts=[text(value) for value in ticks]),
            axis("speedup", log=True, **_speedup_ticks(points)),
            shapes=[_level(1.0)],
        ),
        table=_speedup_table(points),
    )


def _ways(over: Over) -> tuple[Callable[[RunResult], float], Callable[[float], str], Callable[[float], str]]:
    """Return where a point lies, how that is written, and how a value of the other axis is."""
    if over == "nodes":
        return (lambda point: float(point.num_nodes)), (lambda value: f"{value:g}"), bandwidth_text
    return (
        (lambda point: point.nic_gbit_per_s),
        (lambda value: f"{value:g}"),
        (lambda value: nodes_text(round(value))),
    )


def _other(point: RunResult, over: Over) -> float:
    return point.nic_gbit_per_s if over == "nodes" else float(point.num_nodes)


def _place_text(point: RunResult) -> str:
    return f"on {nodes_text(point.num_nodes)} at {bandwidth_text(point.nic_gbit_per_s)}"


def _intervals(points: Sequence[RunResult]) -> tuple[list[float], list[float]] | None:
    ends = [point.intervals.get("speedup") for point in points]
    known = [end for end in ends if end is not None]
    if not known or len(known) < len(ends):
        return None
    return [low for low, _ in known], [high for _, high in known]


def _speedup_ticks(points: Sequence[RunResult]) -> dict[str, Any]:
    """Return ticks that hold 1 and every value, as a reader knows them."""
    values = [point.speedup or 1.0 for point in points]
    values += [end for point in points for end in point.intervals.get("speedup", ())]
    return tick_values(min([1.0, *values]), max([1.0, *values]))


def tick_values(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis from one value to another, as arguments of `axis`."""
    subs = (1.0, 2.0, 5.0) if high / low > 4 else FINE_TICKS
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [sub * 10.0**decade for decade in decades for sub in subs]
    ticks = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"ticks": ticks, "texts": [f"{tick:g}x" for tick in ticks]}


def _level(value: float) -> dict[str, Any]:
    """Return a line across at a value."""
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": {"width": 1}}


def _speedup_table(points: Sequence[PointResult]) -> Table:
    columns = [
        Column("NIC", "right"),
        Column("nodes", "right"),
        *(Column(one, "right") for one in titles(list(points))),
        Column("speedup", "right"),
        Column("90 % interval", "right"),
    ]
    ordered = sorted(points, key=lambda point: (point.nic_gbit_per_s, point.num_nodes))
    return Table(columns, [_speedup_row(point) for point in ordered])


def _speedup_row(point: RunResult) -> tuple[str, ...]:
    steps = [point.result, *([point.baseline] if point.baseline else [])]
    ends = point.intervals.get("speedup")
    return (
        bandwidth_text(point.nic_gbit_per_s),
        str(point.num_nodes),
        *(format_seconds(step.iteration_s) for step in steps),
        speedup_text(point.speedup),
        " to ".join(map(speedup_text, ends)) if ends else "-",
    )


def heat_map(points: Sequence[PointResult]) -> Chart:
    """Return the speedup by nodes and bandwidth, its colours apart at 1."""
    rates = sorted({point.nic_gbit_per_s for point in points})
    nodes = sorted({point.num_nodes for point in points})
    known = {(point.nic_gbit_per_s, point.num_nodes): point.speedup for point in points}
    deepest = math.log(max([LEAST_COLOURED, *(max(value, 1 / value) for value in known.values() if value)]))
    cells = [[known.get((rate, count)) for count in nodes] for rate in rates]
    strategy, baseline = titles(list(points))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if abs(math.log(tick)) <= deepest * 1.001]
    trace: Trace = {
        "type": "heatmap",
        "x": [str(count) for count in nodes],
        "y": [f"{rate:g}" for rate in rates],
        "z": [[None if value is None else math.log(value) for value in row] for row in cells],
        "text": [["" if value is None else speedup_text(value) for value in row] for row in cells],
        "texttemplate": "%{text}",
        "zmin": -deepest,
        "zmax": deepest,
        "colorscale": [list(stop) for stop in DIVERGING],
        "xgap": 2,
        "ygap": 2,
        "colorbar": {
            "title": {"text": "speedup"},
            "tickvals": [math.log(tick) for tick in ticks],
            "ticktext": [f"{tick:g}x" for tick in ticks],
        },
        "hovertemplate": "%{x} nodes, %{y} Gbit/s: %{text}<extra></extra>",
    }
    slower = sum(value < 1 for value in known.values() if value is not None)
    return Chart(
        key="heat-map",
        title="Where it is faster",
        sentence=f"Blue: {strategy} is faster than {baseline}; orange: slower, at {slower} of {len(known)} points.",
        traces=(trace,),
        layout=layout(axis("nodes") | {"type": "category"}, axis("NIC bandwidth [Gbit/s]") | {"type": "category"}),
        table=_heat_table(rates, nodes, cells),
    )


def _heat_table(rates: Sequence[float], nodes: Sequence[int], cells: Sequence[Sequence[float | None]]) -> Table:
    columns = [Column("NIC", "right"), *(Column(nodes_text(count), "right") for count in nodes)]
    rows = [[bandwidth_text(rate), *map(speedup_text, row)] for rate, row in zip(rates, cells, strict=True)]
    return Table(columns, rows)


def breakdown(results: Sequence[RunResult], labels: Sequence[str] = ("",)) -> Chart:
    """Return where the time of a step goes, a bar for the strategy and one for the baseline of each result.

    Args:
        results: drawn from top to bottom.
        labels: of the results.
    """
    kept = list(zip(results, labels, strict=True))[:MOST_BARS]
    bars: list[tuple[str, StrategyResult]] = []
    for result, label in kept:
        steps = [result.result, *([result.baseline] if result.baseline else [])]
        bars += [(", ".join(filter(None, (label, one))), s) for one, s in zip(titles([result]), steps, strict=True)]
    names = [name(label) for label, _ in bars]
    unit_s, unit = _time_unit(max(step.iteration_s for _, step in bars))
    traces = []
    for index, (key, (part, colour)) in enumerate(STEP_PARTS.items()):
        values = [getattr(step.breakdown, key) / unit_s for _, step in bars]
        if any(values):
            traces.append({
                "type": "bar", "orientation": "h", "name": part, "y": names, "x": values, "marker": fill(colour, index),
                "hovertemplate": f"%{{y}}<br>{part}: %{{x:.3g}} {unit}<extra></extra>",
            })  # fmt: skip
    first = results[0]
    hidden = f"{first.result.overlap:.0%} of its communication is hidden by compute"
    return Chart(
        key="breakdown",
        title="Where the time of a step goes",
        sentence=f"{titles([first])[0]}: {hidden}; what compute does not hide is drawn as exposed communication.",
        traces=tuple(traces),
        layout=layout(
            axis(f"time of a step [{unit}]"),
            axis("") | {"autorange": "reversed"},
            height=150 + ROW_PIXELS * len(bars),
            barmode="stack",
        ),
        table=_breakdown_table(bars),
    )


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")


def _breakdown_table(bars: Sequence[tuple[str, StrategyResult]]) -> Table:
    columns = [Column("part of a step"), *(Column(label, "right") for label, _ in bars)]
    rows = [
        [part, *(format_seconds(getattr(step.breakdown, key)) for _, step in bars)]
        for key, (part, _) in STEP_PARTS.items()
    ]
    return Table(columns, [*rows, ["step", *(format_seconds(step.iteration_s) for _, step in bars)]])


def tornado(result: RunResult) -> Chart:
    """Return what the result would be at both ends of each uncertain value, the largest effect on top."""
    shown = list(result.hangs_on[:MOST_BARS])
    middle = usual(result)
    low_x, low_text = [], []
    high_x, high_text = [], []
    for one in shown:
        (low, low_factor), (high, high_factor) = sorted(zip(one.values, one.interval, strict=True))
        low_x.append(min(low, middle))
        high_x.append(max(high, middle))
        low_text.append(f"if {change_text(one.key, low_factor)}: {value_text(result, low)}")
        high_text.append(f"if {change_text(one.key, high_factor)}: {value_text(result, high)}")
    nouns = [noun(one.key) for one in shown]
    traces = tuple(
        {
            "type": "bar", "orientation": "h", "name": side, "y": nouns, "base": [middle] * len(shown),
            "x": [value - middle for value in values], "marker": fill(colour, hatch),
            "customdata": texts, "hovertemplate": "%{customdata}<extra></extra>",
        }
        for side, values, colour, hatch, texts in (
            ("at the worse end", low_x, VERMILION, 0, low_text), ("at the better end", high_x, BLUE, 1, high_text),
        )
    )  # fmt: skip
    metric = "speedup" if result.speedup is not None else "time of a step"
    ends = [*low_x, *high_x, middle]
    span = tick_values(min(ends), max(ends))
    span["texts"] = [value_text(result, tick) for tick in span["ticks"]]
    return Chart(
        key="tornado",
        title="What the answer hangs on",
        sentence=f"The {metric} if one value alone were at either end of its 90 % interval; the prediction is "
        f"{value_text(result, middle)}.",
        traces=traces,
        layout=layout(
            axis(metric, log=True, **span),
            axis("") | {"autorange": "reversed"},
            height=140 + ROW_PIXELS * len(shown),
            barmode="overlay",
        ),
        table=Table(("value", "at the worse end", "at the better end"), zip(nouns, low_text, high_text, strict=True)),
    )


def ranking(advice: Advice) -> Chart:
    """Return the time of a step with every system that fits, the fastest on top, and whether it pays."""
    fitting = [row for row in advice.systems if row.may_fit]
    chosen = [*fitting[:MOST_SYSTEMS], *(one.system for one in advice.choices), advice.baseline_system]
    rows = [row for row in fitting if row in chosen]
    unit_s, unit = _time_unit(max(row.iteration_s for row in rows))
    traces = tuple(
        {
            "type": "bar", "orientation": "h", "name": f"changes: {kind}", "y": [name(row.label) for row in mine],
            "x": [row.iteration_s / unit_s for row in mine],
            "marker": fill(colour, index),
            "customdata": [f"{row.speedup.value:.3g}x; {verdict_text(row, advice)}" for row in mine],
            "hovertemplate": f"%{{y}}: %{{x:.4g}} {unit}<br>%{{customdata}}<extra></extra>",
        }
        for index, ((mathematics, kind), colour) in enumerate(zip(CHANGES.items(), COLOURS, strict=False))
        if (mine := [row for row in rows if row.mathematics == mathematics])
    )  # fmt: skip
    order = [name(row.label) for row in rows]
    return Chart(
        key="ranking",
        title="What else could be used",
        sentence="The fastest alternatives, each tuned; colours say what they change in training. Speedups are over "
        f"{advice.baseline} at its best.",
        traces=traces,
        layout=layout(
            axis(f"time of a step [{unit}]"),
            axis("") | {"categoryorder": "array", "categoryarray": order[::-1]},
            height=150 + 26 * len(rows),
        ),
        table=advice_table(advice),
    )


def crossover(found: Crossover, sentence: str) -> Chart:
    """Return the speedup over a key, with the values at which the faster side changes."""
    values = [float(trial.value) / _scale(found) for trial in found.trials]
    traces: list[Trace] = []
    if all(trial.speedup.interval for trial in found.trials):
        ends = [trial.speedup.interval or (0.0, 0.0) for trial in found.trials]
        traces.append(band(0, values, [low for low, _ in ends], [high for _, high in ends]))
    shown = [trial.speedup.value for trial in found.trials]
    traces.append(line(0, found.strategy, values, shown, f"%{{x:.4g}}: {X_TEXT}"))
    crossings = [float(one.high.value) / _scale(found) for one in found.crossings]
    if crossings:
        mark = {"symbol": "x", "size": 12, "color": VERMILION}
        traces.append({
            "type": "scatter", "mode": "markers", "name": "same time", "x": crossings, "y": [1.0] * len(crossings),
            "marker": mark, "hovertemplate": "%{x:.4g}: same time<extra></extra>",
        })  # fmt: skip
    texts = [f"{value:.3g}" for value in values]
    return Chart(
        key="crossover",
        title="From where on it pays",
        sentence=sentence,
        traces=tuple(traces),
        layout=layout(
            axis(f"{found.key}{' [Gbit/s]' if _scale(found) == GBIT else ''}", log=True, ticks=values, texts=texts),
            axis(f"speedup over {name(found.baseline)}", log=True, **tick_values(min(shown), max([PAYS, *shown]))),
            shapes=[_level(1.0)],
        ),
        table=Table(
            ("value", Column("speedup", "right"), Column("90 % interval", "right"), "verdict"),
            [
                (
                    trial.text,
                    speedup_text(trial.speedup.value),
                    " to ".join(map(speedup_text, trial.speedup.interval)) if trial.speedup.interval else "-",
                    trial.speedup.verdict,
                )
                for trial in found.trials
            ],
        ),
    )


def _scale(found: Crossover) -> float:
    return GBIT if found.key.endswith("bandwidth") else 1.0


def distribution(result: RunResult) -> Chart:
    """Return how the times of iterations are distributed; of a result with several."""
    sides = [result.result, *([result.baseline] if result.baseline else [])]
    unit_s, unit = _time_unit(max(side.iteration_s for side in sides))
    labels = titles([result])
    traces = tuple(
        {"type": "violin", "name": name(label), "x": [one / unit_s for one in side.iterations_s], "orientation": "h",
         "box": {"visible": True}, "line": {"color": colour}, "points": False}
        for label, side, colour in zip(labels, sides, COLOURS, strict=False)
    )  # fmt: skip
    return Chart(
        key="distribution",
        title="How iterations differ",
        sentence=f"Times of {len(result.result.iterations_s)} iterations; the box holds the middle half.",
        traces=traces,
        layout=layout(axis(f"time of an iteration [{unit}]"), axis("")),
        table=Table(
            ("", Column("p50", "right"), Column("p95", "right"), Column("worst", "right")),
            [
                (label, *(format_seconds(_quantile(side.iterations_s, share)) for share in (0.5, 0.95, 1.0)))
                for label, side in zip(labels, sides, strict=True)
            ],
        ),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def predicted_over_measured(comparisons: Sequence[Comparison]) -> Chart:
    """Return predicted over measured times with their intervals, a colour a series."""
    traces: list[Trace] = []
    for index, (label, mine) in enumerate(by_series(comparisons).items()):
        ends = [one.interval or (one.predicted, one.predicted) for one in mine]
        colour = COLOURS[index % len(COLOURS)]
        traces.append({
            "type": "scatter", "mode": "markers", "name": name(label), "x": [one.measured for one in mine],
            "y": [one.predicted for one in mine], "text": [name(one.label) for one in mine],
            "marker": {"color": colour, "symbol": f"{SYMBOLS[index % len(SYMBOLS)]}-open", "size": 9},
            "error_y": {
                "type": "data", "symmetric": False, "color": colour,
                "array": [high - one.predicted for one, (_, high) in zip(mine, ends, strict=True)],
                "arrayminus": [one.predicted - low for one, (low, _) in zip(mine, ends, strict=True)],
            },
            "hovertemplate": f"%{{text}}: measured %{{x:.4g}}, predicted %{{y:.4g}}<extra>{name(label)}</extra>",
        })  # fmt: skip
    values = [value for one in comparisons for value in (one.measured, one.predicted)]
    diagonal = {"type": "line", "x0": min(values), "y0": min(values), "x1": max(values), "y1": max(values)}
    return Chart(
        key="predicted-over-measured",
        title="Predicted and measured",
        sentence=f"{len(comparisons)} measured values; mean error {mean_error(comparisons):.1%}, worst "
        f"{worst_error(comparisons):.1%}. On the line, prediction and measurement are equal.",
        traces=tuple(traces),
        layout=layout(
            axis("measured [s]", log=True), axis("predicted [s]", log=True), shapes=[diagonal | {"line": {"width": 1}}]
        ),
        table=Table(
            ("series", "what", Column("measured", "right"), Column("predicted", "right"), Column("error", "right")),
            [
                (one.series, one.label, f"{one.measured:.4g}", f"{one.predicted:.4g}", f"{one.error:+.1%}")
                for one in comparisons
            ],
        ),
    )
