"""The figures that compare: alternatives with each other, predictions with measurements."""

from collections.abc import Sequence

from simnet.analysis.advice import Advice
from simnet.calibration.comparison import Comparison, by_series, mean_error, worst_error
from simnet.report.advice import CHANGES, advice_table, verdict_text
from simnet.report.chart import Chart, Trace, axis, fill, layout, name, series_style, tick_values, time_unit
from simnet.report.figure import COLOURS
from simnet.report.table import Column, Table
from simnet.report.validation import percent

MOST_SYSTEMS = 14


def ranking(advice: Advice) -> Chart:
    """Return the time of a step with every system that fits, the fastest on top, and whether it pays."""
    fitting = [row for row in advice.systems if row.may_fit]
    chosen = [*fitting[:MOST_SYSTEMS], *(one.system for one in advice.choices), advice.baseline_system]
    rows = [row for row in fitting if row in chosen]
    unit_s, unit = time_unit(max(row.iteration_s for row in rows))
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
        title="The fastest alternatives",
        sentence="Time of a step with each, tuned to this cluster; colours say what a system changes in training. "
        f"{advice.baseline} at its best is the baseline of this comparison.",
        traces=traces,
        layout=layout(
            axis(f"time of a step [{unit}]"),
            axis("") | {"categoryorder": "array", "categoryarray": order[::-1]},
            height=120 + 26 * len(rows),
        ),
        table=advice_table(advice),
    )


def predicted_over_measured(comparisons: Sequence[Comparison]) -> Chart:
    """Return predicted over measured times with their intervals, a colour a series."""
    traces: list[Trace] = []
    for index, (label, mine) in enumerate(by_series(comparisons).items()):
        ends = [one.interval or (one.predicted, one.predicted) for one in mine]
        colour, symbol = series_style(index)
        traces.append({
            "type": "scatter", "mode": "markers", "name": name(label), "x": [one.measured for one in mine],
            "y": [one.predicted for one in mine], "text": [name(one.label) for one in mine],
            "marker": {"color": colour, "symbol": f"{symbol}-open", "size": 9},
            "error_y": {
                "type": "data", "symmetric": False, "color": colour,
                "array": [high - one.predicted for one, (_, high) in zip(mine, ends, strict=True)],
                "arrayminus": [one.predicted - low for one, (low, _) in zip(mine, ends, strict=True)],
            },
            "hovertemplate": f"%{{text}}: measured %{{x:.4g}}, predicted %{{y:.4g}}<extra>{name(label)}</extra>",
        })  # fmt: skip
    values = [value for one in comparisons for value in (one.measured, one.predicted)]
    ticks = tick_values(min(values), max(values))
    ticks["texts"] = [f"{tick:g}" for tick in ticks["ticks"]]
    diagonal = {"type": "line", "x0": min(values), "y0": min(values), "x1": max(values), "y1": max(values)}
    return Chart(
        key="predicted-over-measured",
        title="Predicted and measured",
        sentence=f"{len(comparisons)} measured values; mean error {percent(mean_error(comparisons))}, worst "
        f"{percent(worst_error(comparisons))}. On the line, prediction and measurement are equal.",
        traces=tuple(traces),
        layout=layout(
            axis("measured [s]", log=True, **ticks),
            axis("predicted [s]", log=True, **ticks),
            shapes=[diagonal | {"line": {"width": 1}}],
        ),
        table=Table(
            ("series", "what", Column("measured", "right"), Column("predicted", "right"), Column("error", "right")),
            [
                (one.series, one.label, f"{one.measured:.4g}", f"{one.predicted:.4g}", f"{one.error:+.1%}")
                for one in comparisons
            ],
        ),
    )
