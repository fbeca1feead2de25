"""Draw how iterations of a sweep vary over one of its keys: their times and speedups, at the median and in the tail."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from simnet.engine.result import PointResult, StrategyResult
from simnet.report.figure import current, shown
from simnet.report.figures import (
    BASELINE_COLOUR,
    STRATEGY_COLOUR,
    ascending,
    line_style,
    numbers_axis,
    speedup_axis,
)
from simnet.report.labels import ROLES, grouped, numbers, value_label
from simnet.report.text import key_text

MEDIANS, TAILS = "medians", "95th percentiles"


def times_over(axes: Axes, points: Sequence[PointResult], *, key: str) -> None:
    """Draw the median time of an iteration over the numbers of a key, shaded up to the 95th percentile."""
    line = ascending(points, key)
    at = numbers(line, key) or []
    sides: list[tuple[str, Sequence[StrategyResult], dict[str, Any]]] = [
        (ROLES[0], [point.result for point in line], {"color": shown(STRATEGY_COLOUR), "marker": "o"})
    ]
    baseline = [point.baseline for point in line if point.baseline is not None]
    if len(baseline) == len(line):
        look: dict[str, Any] = {"color": shown(BASELINE_COLOUR), "marker": "s", "linestyle": "--"}
        sides.append((ROLES[1], baseline, look))
    longest_s = max(one.p95_s for _, results, _ in sides for one in results)
    scale, unit = (1.0, "s") if longest_s >= 1 else (1e3, "ms")
    for role, results, style in sides:
        medians = [one.p50_s * scale for one in results]
        axes.plot(at, medians, label=role, **style)
        axes.fill_between(
            at, medians, [one.p95_s * scale for one in results], color=style["color"], alpha=0.3, linewidth=0
        )
    numbers_axis(axes, {place: value_label(point, key) for place, point in zip(at, line, strict=True)})
    axes.set_xlabel(key_text(key))
    axes.set_ylabel(f"time of an iteration [{unit}]")
    axes.set_ylim(bottom=0)


def speedups_over(axes: Axes, points: Sequence[PointResult], *, key: str, others: Sequence[str]) -> None:
    """Draw the speedup of the median, and dotted that of the 95th percentile, a line for each setting of other keys."""
    lines = grouped(points, others)
    for index, (name, line) in enumerate(lines.items()):
        ordered = ascending(line, key)
        at, style = numbers(ordered, key) or [], line_style(index, len(lines)) | {"linestyle": "-"}
        axes.plot(at, [_ratio(point, 50) for point in ordered], label=name or MEDIANS, **style)
        axes.plot(at, [_ratio(point, 95) for point in ordered], **style | {"linestyle": ":", "marker": ""})
    axes.plot([], [], color=current().ink, linestyle=":", label=TAILS)
    places = dict(zip(numbers(points, key) or [], (value_label(point, key) for point in points), strict=True))
    numbers_axis(axes, dict(sorted(places.items())))
    axes.set_xlabel(key_text(key))
    speedup_axis(axes, points)


def _ratio(point: PointResult, percent: float) -> float:
    """Return a percentile of the baseline's iterations over that of the strategy's."""
    baseline = point.baseline or point.result
    return baseline.percentile_s(percent) / point.result.percentile_s(percent)
