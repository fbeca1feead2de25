"""The figures of a report, each a pure function of results; the explorer draws the same."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from simnet.analysis.crossover import Crossover
from simnet.analysis.verdict import PAYS
from simnet.core.units import format_seconds
from simnet.engine.result import PointResult, RunResult
from simnet.report.chart import DIVERGING, X_TEXT, Chart, Trace, axis, band, layout, line, name, tick_values
from simnet.report.figure import VERMILION
from simnet.report.labels import titles
from simnet.report.sweep_page import is_slower
from simnet.report.table import Column, Table
from simnet.report.text import bandwidth_text, nodes_text, rate_label, speedup_text

Over = Literal["nodes", "bandwidth"]
LEAST_COLOURED = 1.5
"""Factor on the time at which a speedup has the deepest colour, if no point is further from 1."""
MOST_SHADED = 3
"""Lines that have an interval each; more bands hide each other."""
MOST_WRITTEN = 12
"""Columns of a map whose cells hold their numbers; more hide each other."""
DARK, LIGHT = "#000000", "#FFFFFF"
"""Of the numbers in a map."""
NEAR_TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5)
FAR_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
"""Of the colours of a map."""
GBIT = 1e9 / 8


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
    where = "nodes" if over == "nodes" else rate_label(points)
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
            axis("speedup", log=True, **_speedup_ticks(points, [one for one in points if _other(one, over) in shaded])),
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


def _speedup_ticks(points: Sequence[RunResult], shaded: Sequence[RunResult]) -> dict[str, Any]:
    """Return ticks that hold 1, every value and every interval that is drawn, as a reader knows them."""
    values = [point.speedup or 1.0 for point in points]
    values += [end for point in shaded for end in point.intervals.get("speedup", ())]
    return tick_values(min([1.0, *values]), max([1.0, *values]))


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
    known_ticks = NEAR_TICKS if deepest < math.log(NEAR_TICKS[-1]) else FAR_TICKS
    ticks = [tick for tick in known_ticks if abs(math.log(tick)) <= deepest * 1.001]
    trace: Trace = {
        "type": "heatmap",
        "x": [str(count) for count in nodes],
        "y": [f"{rate:g}" for rate in rates],
        "z": [[None if value is None else math.log(value) for value in row] for row in cells],
        "text": [["" if value is None else speedup_text(value) for value in row] for row in cells],
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
    slower = sum(map(is_slower, points))
    return Chart(
        key="heat-map",
        title="Where it is faster",
        sentence=f"Blue: {strategy} is faster than {baseline}; orange: slower, at {slower} of {len(known)} points.",
        traces=(trace, *([_written(trace)] if len(nodes) <= MOST_WRITTEN else [])),
        layout=layout(axis("nodes") | {"type": "category"}, axis(rate_label(points)) | {"type": "category"}),
        table=_heat_table(rates, nodes, cells),
    )


def _written(cells: Trace) -> Trace:
    """Return the numbers in the cells of a map, dark on light ones and light on dark ones."""
    places = [
        (x, y, text, LIGHT if _is_dark(z / cells["zmax"]) else DARK)
        for y, texts, row in zip(cells["y"], cells["text"], cells["z"], strict=True)
        for x, text, z in zip(cells["x"], texts, row, strict=True)
        if z is not None
    ]
    x, y, text, colours = (list(column) for column in zip(*places, strict=True))
    return {
        "type": "scatter", "mode": "text", "x": x, "y": y, "text": text, "textfont": {"color": colours},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def _is_dark(share: float) -> bool:
    """Return whether light text is easier to read on a colour between the middle (0) and an end (-1, 1)."""
    middle, end = DIVERGING[1][1], DIVERGING[2 if share > 0 else 0][1]
    mixed = [(1 - abs(share)) * low + abs(share) * high for low, high in zip(_rgb(middle), _rgb(end), strict=True)]
    return 1.05 / (_luminance(mixed) + 0.05) > (_luminance(mixed) + 0.05) / (_luminance(_rgb(DARK)) + 0.05)


def _rgb(colour: str) -> list[float]:
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]


def _luminance(rgb: Sequence[float]) -> float:
    """Return the relative luminance of a colour.

    Source: Web Content Accessibility Guidelines 2.2, "relative luminance".
    """
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _heat_table(rates: Sequence[float], nodes: Sequence[int], cells: Sequence[Sequence[float | None]]) -> Table:
    columns = [Column("NIC", "right"), *(Column(nodes_text(count), "right") for count in nodes)]
    rows = [[bandwidth_text(rate), *map(speedup_text, row)] for rate, row in zip(rates, cells, strict=True)]
    return Table(columns, rows)


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
        title="Where the faster side changes",
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
