"""The figures of one step: where its time goes, what the answer hangs on, how iterations differ."""

import math
from collections.abc import Sequence

from simnet.report.chart import ROW_PIXELS, SENTENCE_CHARACTERS, Chart, axis, fill, layout, name, tick_values, time_unit
from simnet.result import RunResult, StrategyResult
from simnet.show.figure import BLUE, COLOURS, STEP_PARTS, VERMILION
from simnet.show.influences import change_text, noun, usual, value_text
from simnet.show.labels import titles
from simnet.show.table import Column, Table
from simnet.units import format_seconds

MOST_BARS = 12


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
            height=150 + ROW_PIXELS * len(bars),
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
            height=140 + ROW_PIXELS * len(shown),
            barmode="overlay",
        ),
        table=Table(("value", "at the worse end", "at the better end"), zip(nouns, low_text, high_text, strict=True)),
    )


def distribution(result: RunResult) -> Chart:
    """Return how the times of iterations are distributed; of a result with several."""
    sides = [result.result, *([result.baseline] if result.baseline else [])]
    unit_s, unit = time_unit(max(side.iteration_s for side in sides))
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
