"""The charts of one step: where its time goes, what the answer is sensitive to, how iterations differ."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, StrategyResult
from simnet.report.chart import (
    FAINT,
    HATCHES,
    INK,
    Bars,
    Chart,
    Curve,
    Guide,
    Scale,
    Words,
    log_scale,
    name_scale,
    plain,
    time_unit,
)
from simnet.report.charts import BAR, BASELINE_HATCH, LOOKS, stack
from simnet.report.figure import BLUE, STEP_PARTS, VERMILION
from simnet.report.result_page import (
    change_text,
    factor_text,
    losing,
    lost_time_table,
    noun,
    outcome_text,
    rows_of,
    signed,
    usual,
)
from simnet.report.table import Column, Table
from simnet.report.text import percent, sides, titles

MOST_BARS = 12
PERCENTILES = {50: "o", 95: "s", 99: "D"}
"""Per cent of the iterations, marked on their distribution, each with its marker."""
SHARES = (1, 5, 25, 50, 75, 95, 99)
"""Ticks [%]; the scale is that of the odds, which gives both tails as much room as the middle."""
LEAST_SHARE = 0.004
LOG_FROM = 3.0
"""Longest over shortest iteration from which on their scale is logarithmic."""
ALL = "all, and the model's error"


def breakdown(results: Sequence[RunResult], labels: Sequence[str] = ("",)) -> Chart:
    """Return where the time of a step goes, a row for the strategy and one for the baseline of each result.

    Args:
        results: drawn from top to bottom.
        labels: of the results.
    """
    kept = list(zip(results, labels, strict=True))[:MOST_BARS]
    rows = [
        (", ".join(filter(None, (label, title))), step)
        for result, label in kept
        for title, step in zip(titles([result]), sides(result), strict=True)
    ]
    steps = [step for _, step in rows]
    unit_s, unit = time_unit(max(step.iteration_s for step in steps))
    parts = stack(steps, range(len(rows)), unit_s)
    longest = max(start + length for start, length in zip(parts[-1].starts, parts[-1].lengths, strict=True))
    first = results[0]
    hidden = f"{percent(first.result.overlap, '.0')} of its communication is hidden by compute"
    left_out = f" Drawn are the first {len(kept)} of {len(results)} points." if len(results) > len(kept) else ""
    return Chart(
        key="breakdown",
        title="Where the time of a step goes",
        sentence=f"{titles([first])[0]}: {hidden}; what compute does not hide is drawn as exposed communication."
        + left_out,
        x=Scale(title=f"time of a step [{unit}]", ends=(0, 1.03 * longest)),
        y=name_scale([plain(name) for name, _ in rows], is_reversed=True),
        bars=[replace(part, hatch=hatch) for part, hatch in zip(parts, HATCHES, strict=True) if any(part.lengths)],
        is_of_rows=True,
        table=_breakdown_table(rows),
    )


def _breakdown_table(rows: Sequence[tuple[str, StrategyResult]]) -> Table:
    columns = [Column("part of a step"), *(Column(label, "right") for label, _ in rows)]
    parts = [
        [part, *(format_seconds(getattr(step.breakdown, key)) for _, step in rows)]
        for key, (part, _) in STEP_PARTS.items()
    ]
    return Table(columns, [*parts, ["step", *(format_seconds(step.iteration_s) for _, step in rows)]])


def tornado(result: RunResult) -> Chart:
    """Return what the result would be at both ends of each uncertain value, the largest effect on top."""
    shown = list(result.sensitive_to[:MOST_BARS])
    middle = usual(result)
    # Of each uncertain value the result at both ends of its interval, the lower result first.
    ends = [sorted(zip(influence.values, influence.interval, strict=True)) for influence in shown]
    texts = [
        [f"if {change_text(influence.key, factor)}: {outcome_text(result, value)}" for value, factor in pair]
        for influence, pair in zip(shown, ends, strict=True)
    ]
    # Both ends may lie on one side of the prediction: its bar to the other side then has no length.
    lows, highs = ([pick(pair[side][0], middle) for pair in ends] for side, pick in ((0, min), (1, max)))
    look: dict[str, Any] = {"at": range(len(shown)), "starts": [middle] * len(shown)}
    bars = [
        Bars(
            name=f"at the {end} end", lengths=[value - middle for value in values], colour=colour, hatch=hatch,
            hover=[pair[side] for pair in texts], **look,
        )
        for side, (end, values, colour, hatch) in enumerate(
            (("lower", lows, VERMILION, ""), ("upper", highs, BLUE, "/"))
        )
    ]  # fmt: skip
    words = [
        Words(x=value, y=row, text=factor_text(influence.key, pair[side][1]), side="right" if side else "left")
        for side, values in enumerate((lows, highs))
        for row, (influence, pair, value) in enumerate(zip(shown, ends, values, strict=True))
        # Beside a bar that is not seen, text would seem to belong to the one below.
        if abs(value / middle - 1) >= 1e-3
    ]
    has_speedup = result.speedup is not None
    metric, unit, suffix = ("speedup", "", "x") if has_speedup else ("time of a step", " [s]", "")
    interval = result.intervals.get("speedup" if has_speedup else "iteration_s", ())
    known = [middle, *interval, *(value for influence in shown for value in influence.values)]
    nouns = [plain(noun(influence.key)) for influence in shown]
    pair = " over ".join(map(plain, titles([result])))
    margin = max(1.1, (max(known) / min(known)) ** 0.3)
    return Chart(
        key="tornado",
        title="What the answer is sensitive to",
        sentence=f"The {metric} if one value alone were at either end of its 90 % interval; the prediction is "
        f"{outcome_text(result, middle)}.",
        x=log_scale(f"{metric}{unit}, {pair}", known, suffix=suffix, margin=margin),
        y=name_scale([*nouns, ALL] if interval else nouns, is_reversed=True),
        bars=bars,
        curves=[Curve(x=interval, y=(len(shown), len(shown)), colour=INK, marker="|")] if interval else [],
        words=words,
        guides=[Guide(value=middle, is_upright=True)],
        is_of_rows=True,
        table=Table(
            ("value", "at the lower end", "at the upper end"),
            [(noun, *pair) for noun, pair in zip(nouns, texts, strict=True)],
        ),
    )


def distribution(result: RunResult, *, over_median: bool = False) -> Chart:
    """Return how the times of iterations are distributed, with their percentiles; of a result with several.

    Args:
        result: of many iterations.
        over_median: whether each side's times are divided by their own median.
    """
    named = list(zip(titles([result]), sides(result), strict=True))
    unit_s, unit = time_unit(max(side.longest_s for _, side in named))
    curves: list[Curve] = []
    for (label, side), look in zip(named, LOOKS, strict=False):
        by_s, count, name = side.p50_s if over_median else unit_s, side.num_iterations, plain(label)
        shares = [_odds((place + 0.5) / count) for place in range(count)]
        times = [iteration_s / by_s for iteration_s in sorted(side.iterations_s)]
        curves.append(Curve(name=name, x=times, y=shares, is_stepped=True, **look | {"marker": ""}))
        for per_cent, marker in PERCENTILES.items():
            seconds = side.percentile_s(per_cent)
            text = f"p{per_cent}: {format_seconds(seconds)}"
            place: dict[str, Any] = {"x": [seconds / by_s], "y": [_odds(per_cent / 100)]}
            marked = look | {"dash": "", "marker": marker}
            curves.append(Curve(name=text, hover=[f"{name}, {text}"], **place, **marked))
    times = [x for curve in curves for x in curve.x if x is not None]
    title = "time of a step / its own median" if over_median else f"time of a step [{unit}]"
    # A pause of seconds among steps of milliseconds would press all others into one line.
    is_wide = max(times) > LOG_FROM * min(times)
    return Chart(
        key="distribution",
        title="How steps differ",
        sentence=f"The share of {result.result.num_iterations} iterations that take at most so long; marked are the "
        "median, the 95th and the 99th percentile.",
        x=log_scale(title, times, margin=1.05) if is_wide else Scale(title=title),
        y=Scale(
            title="steps not longer [%]",
            ticks={_odds(share / 100): str(share) for share in SHARES},
            ends=(_odds(LEAST_SHARE), _odds(1 - LEAST_SHARE)),
        ),
        curves=curves,
        guides=[Guide(value=_odds(per_cent / 100), colour=FAINT, width=0.6) for per_cent in PERCENTILES],
        table=Table(
            ("", *(Column(title, "right") for title in ("mean", "p50", "p95", "p99", "worst"))),
            [
                (
                    label,
                    *map(format_seconds, (side.iteration_s, *map(side.percentile_s, PERCENTILES), side.longest_s)),
                )
                for label, side in named
            ],
        ),
    )


def _odds(share: float) -> float:
    """Return where a share stands on a scale of odds: its logarithm to base 10."""
    return math.log10(share / (1 - share))


def lost_time(result: RunResult, *, relative: bool = False) -> Chart:
    """Return what each fault costs a step, with a mark at the 95th percentile; of a result that says so.

    Args:
        result: with `lost_time`.
        relative: whether times are given in per cent of each side's own mean step.
    """
    rows = list(rows_of(result))
    losers = [side for side, _ in losing(result).values()]
    unit_s, unit = time_unit(max(abs(lost.p95_s) for _, times in rows for lost in times))
    bars: list[Bars] = []
    marks: list[Curve] = []
    for index, (title, side) in enumerate(zip(titles([result]), losers, strict=False)):
        step_s = side.iteration_s
        # A slow side loses more seconds to the same fault: in per cent of its own step both are comparable.
        by_s = step_s / 100 if relative else unit_s
        at = [row + BAR * (index - (len(losers) - 1) / 2) for row in range(len(rows))]
        losses = [times[index] for _, times in rows]
        hover = [
            f"{label}: {signed(lost.mean_s, step_s)}, {lost.mean_s / step_s:+.1%} of its step, 95th percentile "
            f"{signed(lost.p95_s, step_s)}"
            for (label, _), lost in zip(rows, losses, strict=True)
        ]
        bars.append(
            Bars(
                name=f"mean, {plain(title, 40)}", at=at, lengths=[lost.mean_s / by_s for lost in losses],
                thickness=BAR, colour=LOOKS[index]["colour"], hatch=BASELINE_HATCH if index else "", hover=hover,
            )
        )  # fmt: skip
        marks.append(
            Curve(
                name="95th percentile, in the same way" if not index else "", x=[lost.p95_s / by_s for lost in losses],
                y=at, colour=INK, dash="", marker="|", size=1.5,
            )
        )  # fmt: skip
    return Chart(
        key="lost-time",
        title="Time lost by cause",
        sentence="The mean step with a fault less that without it, the other faults as they are. Where faults "
        "interact, the rows do not add up to what all of them cost together.",
        x=Scale(title="of its own mean step [%]" if relative else f"lost in a step [{unit}]"),
        y=name_scale([label for label, _ in rows], is_reversed=True),
        bars=bars,
        curves=marks,
        guides=[Guide(value=0, is_upright=True)],
        is_of_rows=True,
        table=lost_time_table(result),
    )
