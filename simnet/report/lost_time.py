"""Time lost by cause, as a table: each fault in words, and what it costs a step of the strategy and of the baseline."""

import textwrap
from collections.abc import Iterator

from msgspec.structs import fields

from simnet.cluster.faults.node_failure import NodeFailure
from simnet.cluster.hardware import Cluster, Fault
from simnet.core.registry import tag_of
from simnet.core.units import Quantity, format_seconds
from simnet.engine.result import LostTime, RunResult, StepTimes, StrategyResult
from simnet.report.labels import names
from simnet.report.table import Column, Table
from simnet.report.text import clipped, hanging, percent, printable, value_text

LABEL_WIDTH, NAME_WIDTH = 29, 16
MOST_VALUES = 4
"""Values of a list that are written out."""
SMALLEST = 1e-6
"""Of a step: a difference below this is rounding."""
TOGETHER, INTERACTION = "all together", "of it by interaction"
WHAT = "lost to each fault in a step: with it less without it, the other faults as they are; % of the mean step"


def lost_time_lines(result: RunResult) -> Iterator[str | Table]:
    """Yield the table of a result that says what its faults cost, and what the table does not hold."""
    yield from hanging("", WHAT)
    yield lost_time_table(result)
    yield from (line for sentence in _sentences(result) for line in hanging("", sentence))


def losing(result: RunResult) -> dict[str, tuple[StrategyResult, LostTime]]:
    """Return the strategies of a result that say what they lose, by name."""
    sides = (result.result, result.baseline)
    known = [(side, side.lost_time) for side in sides if side is not None and side.lost_time is not None]
    return dict(zip(names([result]), known, strict=False))


def lost_time_table(result: RunResult) -> Table:
    """Return a row for each fault, with mean, share of the mean step, median and 95th percentile for each strategy."""
    sides = losing(result)
    columns = [Column("", width=LABEL_WIDTH)]
    for name in sides:
        head = clipped(name, NAME_WIDTH)
        columns += [
            Column(f"{head}\nmean", "right", width=9, gap=0),
            Column("\n", "right", width=8, gap=0),
            Column("\np50", "right", width=9, gap=0),
            Column("\np95", "right", width=9, gap=0),
        ]
    rows: list[list[str]] = []
    for label, times in rows_of(result):
        first, *more = textwrap.wrap(label, LABEL_WIDTH, subsequent_indent="  ")
        cells = [cell for lost, (side, _) in zip(times, sides.values(), strict=True) for cell in _cells(lost, side)]
        rows.append([first, *cells])
        rows += [[line, *("" for _ in cells)] for line in more]
    return Table(columns, rows)


def rows_of(result: RunResult) -> Iterator[tuple[str, list[StepTimes]]]:
    """Yield each fault in words and what it costs each strategy; then all together, and the interaction."""
    lost = [side for _, side in losing(result).values()]
    for place, cost in enumerate(lost[0].faults if lost else ()):
        yield fault_text(fault_at(result.scenario.cluster, cost.key)), [side.faults[place].lost for side in lost]
    if lost and len(lost[0].faults) > 1:
        yield TOGETHER, [side.together for side in lost]
        yield INTERACTION, [side.interaction for side in lost]


def fault_at(cluster: Cluster, key: str) -> Fault:
    """Return the fault of a dotted key, such as "cluster.faults.0"."""
    _, name, place = key.split(".")
    fault: Fault = getattr(cluster, name)[int(place)]
    return fault


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "slow rank: node 3, compute slowdown 1.3"."""
    title = fault.title or tag_of(fault).replace("_", " ")
    settings = ", ".join(_settings(fault))
    return printable(f"{title}: {settings}" if settings else title)


def _settings(fault: Fault) -> Iterator[str]:
    """Yield what a fault says beyond its defaults."""
    for field in fields(fault):
        value = getattr(fault, field.name)
        if value != field.default:
            yield f"{field.encode_name.replace('_', ' ')} {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, Quantity):
        return value.text()
    if isinstance(value, tuple | list):
        return f"({len(value)} values)" if len(value) > MOST_VALUES else " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else value_text(value)


def signed(seconds: float, step_s: float) -> str:
    """Return a difference of times: "+38.2 ms"; "0" where it is rounding."""
    if abs(seconds) < SMALLEST * step_s:
        return "0"
    return f"{'+' if seconds > 0 else '-'}{format_seconds(float(f'{abs(seconds):.3g}'))}"


def _cells(lost: StepTimes, side: StrategyResult) -> tuple[str, str, str, str]:
    mean_s = side.iteration_s
    share = percent(lost.mean_s / mean_s) if abs(lost.mean_s) >= SMALLEST * mean_s else ""
    return signed(lost.mean_s, mean_s), share, signed(lost.p50_s, mean_s), signed(lost.p95_s, mean_s)


def _sentences(result: RunResult) -> Iterator[str]:
    """Yield what a reader of the table must know."""
    _, lost = next(iter(losing(result).values()))
    if len(lost.faults) > 1:
        yield (
            "interaction: lost to all together less the sum of the rows above; above 0 faults hide each other, and to "
            "remove one alone gains less"
        )
    availability = result.result.availability
    if availability is not None and any(isinstance(fault, NodeFailure) for fault in result.scenario.cluster.faults):
        yield f"failing nodes cost no step: they take {percent(1 - availability.fraction)} of the day"
