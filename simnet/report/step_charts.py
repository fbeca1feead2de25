"""The figures of one step: where its time goes, what the answer hangs on, how iterations differ."""

from collections.abc import Sequence

from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, StepTimes, StrategyResult
from simnet.report.chart import (
    DASHES,
    ROW_PIXELS,
    SENTENCE_CHARACTERS,
    SYMBOLS,
    Chart,
    Trace,
    axis,
    fill,
    layout,
    name,
    tick_values,
    time_unit,
)
from simnet.report.figure import BLUE, COLOURS, STEP_PARTS, VERMILION
from simnet.report.influences import change_text, noun, usual, value_text
from simnet.report.labels import titles
from simnet.report.lost_time import losing, lost_time_table, rows_of, signed
from simnet.report.table import Column, Table

MOST_BARS = 12
PERCENTILES = (50, 95, 99)
"""Per cent of the iterations, marked on their distribution."""
LOG_FROM = 3.0
"""Longest over shortest iteration from which on their axis is logarithmic."""


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
    unit_s, unit = time_unit(max(step.iteration_s for _, step in bars))
    traces = []
    for index, (key, (part, colour)) in enumerate(STEP_PARTS.items()):
        values = [getattr(step.breakdown, key) / unit_s for _, step in bars]
        if any(values):
            traces.append({
                "type": "bar", "orientation": "h", "name": part, "y": names, "x": values, "marker": fill(colour, index),
                "hovertemplate": f"%{{y}}<br>{part}: %{{x:.3g}} {unit}<extra></extra>",
            })  # fmt: skip
    first = results[0]
    hidden = f"{first.result.overlap:.0%} of its communication is hidden by compute".replace("%", " %")
    left_out = f" Drawn are the first {len(kept)} of {len(results)} points." if len(results) > len(kept) else ""
    return Chart(
        key="breakdown",
        title="Where the time of a step goes",
        sentence=f"{titles([first])[0]}: {hidden}; what compute does not hide is drawn as exposed communication."
        + left_out,
        traces=tuple(traces),
        layout=layout(
            axis(f"time of a step [{unit}]"),
            axis("") | {"autorange": "reversed"},
            height=120 + ROW_PIXELS * len(bars),
            barmode="stack",
            legend={"traceorder": "normal"},
        ),
        table=_breakdown_table(bars),
    )


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
    drawn = [name(text) for text in nouns]
    traces = tuple(
        {
            "type": "bar", "orientation": "h", "name": side, "y": drawn, "base": [middle] * len(shown),
            "x": [value - middle for value in values], "marker": fill(colour, hatch),
            "customdata": [name(text, SENTENCE_CHARACTERS) for text in texts],
            "hovertemplate": "%{customdata}<extra></extra>",
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
            height=110 + ROW_PIXELS * len(shown),
            barmode="overlay",
        ),
        table=Table(("value", "at the worse end", "at the better end"), zip(nouns, low_text, high_text, strict=True)),
    )


def distribution(result: RunResult) -> Chart:
    """Return how the times of iterations are distributed, with their percentiles; of a result with several."""
    sides = [result.result, *([result.baseline] if result.baseline else [])]
    unit_s, unit = time_unit(max(side.iteration_s for side in sides))
    labels = titles([result])
    traces: list[Trace] = []
    for index, (label, side) in enumerate(zip(labels, sides, strict=True)):
        colour, called = COLOURS[index], name(label)
        times = [one / unit_s for one in sorted(side.iterations_s)]
        shares = [100 * (place + 0.5) / side.num_iterations for place in range(side.num_iterations)]
        traces.append({
            "type": "scatter", "mode": "lines", "name": called, "x": times, "y": shares,
            "line": {"color": colour, "dash": DASHES[index], "shape": "hv", "width": 2},
            "hovertemplate": f"%{{y:.1f}} %: %{{x:.4g}} {unit} or less<extra>{called}</extra>",
        })  # fmt: skip
        traces.append({
            "type": "scatter", "mode": "markers", "name": called, "y": list(PERCENTILES),
            "x": [side.percentile_s(percent) / unit_s for percent in PERCENTILES], "showlegend": False,
            "text": [f"p{p}" for p in PERCENTILES],
            "marker": {"color": colour, "size": 9, "symbol": list(SYMBOLS[: len(PERCENTILES)]), "line": {"width": 1}},
            "hovertemplate": f"%{{text}}: %{{x:.4g}} {unit}<extra>{called}</extra>",
        })  # fmt: skip
    longest_s, shortest_s = max(side.longest_s for side in sides), min(min(side.iterations_s) for side in sides)
    return Chart(
        key="distribution",
        title="How iterations differ",
        sentence=f"The share of {result.result.num_iterations} iterations that take at most so long; marked are the "
        "median, the 95th and the 99th percentile.",
        traces=tuple(traces),
        layout=layout(
            axis(f"time of an iteration [{unit}]", log=longest_s > LOG_FROM * shortest_s),
            axis("iterations not longer [%]", ticks=(0, 25, 50, 75, 95, 99)),
        ),
        table=Table(
            ("", *(Column(title, "right") for title in ("mean", "p50", "p95", "p99", "worst"))),
            [
                (label, *(format_seconds(one) for one in (*_marks(side), side.longest_s)))
                for label, side in zip(labels, sides, strict=True)
            ],
        ),
    )


def _marks(side: StrategyResult) -> tuple[float, ...]:
    return (side.iteration_s, *map(side.percentile_s, PERCENTILES))


def _share_text(lost: StepTimes, step_s: float) -> str:
    return f"{lost.mean_s / step_s:+.1%} of its step, 95th percentile {signed(lost.p95_s, step_s)}"


def lost_time(result: RunResult) -> Chart:
    """Return what each fault costs a step; of a result that says so."""
    rows = list(rows_of(result))
    sides = losing(result)
    unit_s, unit = time_unit(max(side.iteration_s for side, _ in sides.values()))
    labels = [name(label) for label, _ in rows]
    traces = tuple(
        {
            "type": "bar", "orientation": "h", "name": name(title), "y": labels,
            "x": [times[index].mean_s / unit_s for _, times in rows], "marker": fill(COLOURS[index], index),
            "customdata": [_share_text(times[index], side.iteration_s) for _, times in rows],
            "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit}<br>%{{customdata}}<extra>{name(title)}</extra>",
        }
        for index, (title, (side, _)) in enumerate(zip(titles([result]), sides.values(), strict=False))
    )  # fmt: skip
    return Chart(
        key="lost-time",
        title="Time lost by cause",
        sentence="The mean step with a fault less that without it, the other faults as they are. Where faults "
        "interact, the rows do not add up to what all of them cost together.",
        traces=traces,
        layout=layout(
            axis(f"lost in a step [{unit}]"),
            axis("") | {"autorange": "reversed"},
            height=120 + 2 * ROW_PIXELS * len(rows),
            barmode="group",
        ),
        table=lost_time_table(result),
    )
