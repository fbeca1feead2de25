"""Published sets for people: a page for a terminal, a page in Markdown with the files that it links to, and data."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from simnet.calibration import comparison
from simnet.calibration.comparison import by_series, mean_error, worst_error
from simnet.core import templates
from simnet.report.rows import Field, row_of
from simnet.report.table import Column, Page, Table
from simnet.report.text import percent
from simnet.validation import coverage
from simnet.validation.coverage import Evidence, Quantity
from simnet.validation.outcome import SCALE, Limit, Outcome, Prediction, Unit
from simnet.validation.published_rows import PublishedRow

DIGITS: dict[Unit, int] = {"ms": 1, "s": 3, "h": 1, "x": 2}
ROW_HEADS = ("set", "row", "unit", "predicted", "measured", "error", "low", "high", "file", "lines", "source")


def validation_page(outcomes: Sequence[Outcome]) -> Page:
    """Return every set with its parameters and rows, and a summary at the end."""
    # The summary stands at the end, where a terminal leaves the reader.
    blocks = [block for outcome in outcomes for block in (*_set(outcome), "")]
    blocks.append(Table.of(SUMMARY, outcomes))
    if speedups := _speedup_sentences(outcomes):
        blocks += ["", "speedups:", *(f"  {sentence}" for sentence in speedups)]
    return Page(blocks)


def _set(outcome: Outcome) -> Iterator[str | Table]:
    yield f"{outcome.name}: {outcome.title}"
    yield "  calibrated:"
    for parameter in outcome.parameters:
        yield f"    {parameter.part}: {parameter.key} = {parameter.text}, {parameter.how}: {rows_text(parameter.rows)}"
    unit = outcome.unit
    columns = (
        Column("predicted rows", width=max(len(row.label) for row in outcome.predictions), cell=lambda row: row.label),
        Column("predicted", "right", width=14, cell=lambda row: predicted_text(row, unit)),
        Column("measured", "right", width=10, cell=lambda row: value_text(row.measured, unit)),
        Column("error", "right", width=9, cell=error_text),
        Column("90 % interval", "right", width=18, cell=lambda row: _range_text(row.interval, unit)),
        Column(f"[{unit}]", gap=3, cell=lambda _: ""),
    )
    yield Table.of(columns, outcome.predictions, indent=2)


def inside_text(inside: tuple[int, int]) -> str:
    """Return how many values are inside their intervals: "11 of 12"; "" if none has one."""
    return "{} of {}".format(*inside) if inside[1] else ""


def _result_text(outcome: Outcome) -> str:
    """Return whether the target is met, and whether the set is worse than it was."""
    bound = limit_text(outcome.bound, band=False)
    if not outcome.holds:
        return f"{outcome.status}, WORSE than the bound ({bound})"
    return outcome.status if outcome.status == "met" else f"{outcome.status} (held to {bound})"


def _speedup_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how well speedups are predicted, of each set that predicts one."""
    return [text for outcome in outcomes if (text := outcome.text("speedups"))]


def value_text(value: float, unit: Unit) -> str:
    """Return a value in a set's unit, without the unit: "419.8"."""
    shown = value * SCALE[unit]
    return f"{shown:.{DIGITS[unit] + (unit == 'ms' and shown < 100)}f}"


def predicted_text(prediction: Prediction, unit: Unit) -> str:
    """Return the predicted value without its unit; of a band its two ends: "1.6 to 19.5"."""
    return _range_text(prediction.band, unit) or value_text(prediction.predicted, unit)


def _range_text(ends: tuple[float, float] | None, unit: Unit) -> str:
    return " to ".join(value_text(end, unit) for end in ends or ())


def error_text(prediction: Prediction) -> str:
    """Return the error of a row with its sign: "+1.9 %", or whether it is inside a band."""
    return "inside" if prediction.band and prediction.error == 0 else percent(prediction.error, "+.1")


def limit_text(limit: Limit | None, *, band: bool) -> str:
    """Return a target: "mean <= 3 %, worst <= 6 %"."""
    if limit is None:
        return "none"
    if band:
        return "inside the band"
    named = (("mean", limit.mean), ("worst", limit.worst))
    return ", ".join(f"{name} ≤ {100 * value:g} %" for name, value in named if value is not None)


def _error_texts(outcome: Outcome, predictions: Sequence[Prediction]) -> tuple[str, str]:
    """Return mean and worst error of predictions of a set; inside a band there is none."""
    mean, worst = mean_error(predictions), worst_error(predictions)
    return ("inside", "inside") if _is_band(outcome) and worst == 0 else (percent(mean), percent(worst))


def _is_band(outcome: Outcome) -> bool:
    """Return whether the set predicts bands."""
    return all(prediction.band is not None for prediction in outcome.predictions)


SUMMARY = (
    Column("set", width=16, cell=lambda outcome: outcome.name),
    Column("calibrated", "right", width=11, gap=0, cell=lambda outcome: str(len(outcome.calibration_rows))),
    Column("predicted", "right", width=11, gap=0, cell=lambda outcome: str(len(outcome.predictions))),
    Column("mean", "right", width=9, gap=0, cell=lambda outcome: _error_texts(outcome, outcome.predictions)[0]),
    Column("worst", "right", width=9, gap=0, cell=lambda outcome: _error_texts(outcome, outcome.predictions)[1]),
    Column(
        "inside 90 %",
        "right",
        width=12,
        gap=1,
        cell=lambda outcome: inside_text(comparison.coverage(outcome.predictions)),
    ),
    Column("target", width=25, gap=3, cell=lambda outcome: limit_text(outcome.target, band=_is_band(outcome))),
    Column("result", cell=_result_text),
)
"""Of the table that stands last in a terminal; the page takes its cells, too."""


def rows_text(rows: Iterable[PublishedRow]) -> str:
    """Return where rows stand: "measurements.csv lines 4, 19-21"."""
    by_file: dict[str, list[int]] = {}
    for row in rows:
        file, _, line = row.key.partition(":")
        by_file.setdefault(file, []).append(int(line))
    return "; ".join(f"{file} line{'s' * (len(lines) > 1)} {_ranges(sorted(lines))}" for file, lines in by_file.items())


def _ranges(numbers: list[int]) -> str:
    # Numbers that follow one another have the same distance from their places.
    starts = Counter(number - index for index, number in enumerate(numbers))
    texts, place = [], 0
    for count in starts.values():
        first, last = numbers[place], numbers[place + count - 1]
        texts.append(str(first) if count == 1 else f"{first}-{last}")
        place += count
    return ", ".join(texts)


@dataclass(frozen=True, kw_only=True)
class RowUsage:
    """All published rows, and the keys of the used ones; one set may fit a row that another predicts."""

    rows: tuple[PublishedRow, ...]
    calibrated: frozenset[str]
    predicted: frozenset[str]

    @property
    def used(self) -> int:
        """Number of rows that a set uses."""
        return len(self.rows) - len(self.unused)

    @property
    def unused(self) -> tuple[PublishedRow, ...]:
        """Rows that no set uses."""
        return tuple(row for row in self.rows if row.key not in self.calibrated | self.predicted)


def usage_of(outcomes: Sequence[Outcome], rows: tuple[PublishedRow, ...]) -> RowUsage:
    """Return which rows the sets use; a quotient of two rows uses both."""
    # Rows of logs of nccl-tests are no rows of the file.
    known = {row.key for row in rows}
    calibrated = {row.key for outcome in outcomes for row in outcome.calibration_rows}
    # "file:4, 9" stands for lines 4 and 9.
    keys = (row.row.key.partition(":") for outcome in outcomes for row in outcome.predictions)
    predicted = {f"{file}:{line}" for file, _, lines in keys for line in lines.split(", ")}
    return RowUsage(rows=rows, calibrated=frozenset(calibrated & known), predicted=frozenset(predicted & known))


def page(outcomes: Sequence[Outcome], rows: tuple[PublishedRow, ...], evidence: Evidence | None = None) -> str:
    """Return the page; its links expect the figures in `figures/`.

    Args:
        outcomes: the sets, in order.
        rows: all published rows, used or not.
        evidence: what the intervals are made of; without it the page says nothing of them.
    """
    used = usage_of(outcomes, rows)
    facts = {
        "outcomes": outcomes,
        "intervals": _intervals(outcomes, evidence) if evidence else None,
        "summary": _summary(outcomes),
        "missed": [outcome for outcome in outcomes if outcome.status == "MISSED"],
        "notes": any(outcome.text("caveat") for outcome in outcomes),
        "speedups": _speedup_sentences(outcomes),
        "used": used,
        "unused": rows_text(used.unused),
        "percent": percent,
        "limit_text": limit_text,
        "figure_name": figure_name,
    }
    return templates.page("validation.md", facts)


def data(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, str]:
    """Return the files that the page links to, by name: every row of every set as CSV."""
    held = {source: inside_text(inside) for source, inside in coverage.by_source(outcomes).items()}
    predictions = [(row, outcome) for outcome in outcomes for row in outcome.predictions]
    fitted = [
        (outcome.name, row.part, row.key, row.text, row.how, rows_text(row.rows))
        for outcome in outcomes
        for row in outcome.parameters
    ]
    # Of sets with several series of several rows.
    series = [
        (outcome.name, name, percent(mean_error(rows)), percent(worst_error(rows)))
        for outcome in outcomes
        for groups in [by_series(outcome.predictions)]
        if 1 < len(groups) < len(outcome.predictions)
        for name, rows in groups.items()
    ]
    alternatives = [
        (outcome.name, model.variant, model.calibrated_on, *_error_texts(outcome, model.predictions))
        for outcome in outcomes
        for model in outcome.alternatives
    ]
    # How wide intervals are without each publication, and how many of its values they hold.
    publications = [
        (source, *(_width_text(evidence, kind, source) for kind in ("time", "speedup")), held.get(source, ""))
        for source in (*held, "none")
    ]
    intervals = [
        (name, f"{inside} of {total} ({percent(inside / total)})")
        for name, (inside, total) in coverage.alternatives(outcomes, evidence).items()
    ]
    tables = {
        "validation": Table(ROW_HEADS, [_prediction_cells(row, outcome) for row, outcome in predictions]),
        "validation-fitted": Table(("set", "part", "key", "value", "how", "from rows"), fitted),
        "validation-series": Table(("set", "series", "mean error", "worst error"), series),
        "validation-alternatives": Table(("set", "model", "calibrated on", "mean error", "worst error"), alternatives),
        "validation-publications": Table(
            ("publication left out", "times", "speedups", "its values inside"), publications
        ),
        "validation-intervals": Table(("intervals", "values inside"), intervals),
    }
    return {f"data/{name}.csv": table.csv() for name, table in tables.items()}


def _prediction_cells(row: Prediction, outcome: Outcome) -> tuple[str, ...]:
    unit = outcome.unit
    low, high = (value_text(end, unit) for end in row.interval) if row.interval else ("", "")
    file, _, lines = row.row.key.partition(":")
    return (
        outcome.name, row.label, unit, predicted_text(row, unit), value_text(row.measured, unit), error_text(row),
        low, high, file, lines, row.row.source,
    )  # fmt: skip


def _width_text(evidence: Evidence, kind: Quantity, without: str = "") -> str:
    return f"within a factor {math.exp(evidence.width(kind, without=without)):.2f}"


def _intervals(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, object]:
    """Return what the page says of intervals: how many hold, how wide they are, and what others would hold."""
    inside, total = coverage.share_inside(outcomes)
    return {
        "inside": inside,
        "rows": total,
        "target": coverage.TARGET,
        "weak": [
            f"{source} ({inside_text(share)})"
            for source, share in coverage.by_source(outcomes).items()
            if share[0] < coverage.TARGET[0] * share[1]
        ],
        "is_met": coverage.meets_target(outcomes),
        "spread": coverage.run_to_run(),
        "times": evidence.inside("time"),
        "speedups": evidence.inside("speedup"),
        "time_width": _width_text(evidence, "time"),
        "speedup_width": _width_text(evidence, "speedup"),
    }


def figure_name(outcome: Outcome) -> str:
    """Return the file name of a set's figure."""
    return f"validation_{outcome.name}.png"


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        verdict = "**MISSED**" if outcome.status == "MISSED" else outcome.status
        star = "\\*" if outcome.text("caveat") else ""
        _, *cells, target, _ = (column.cell(outcome) for column in SUMMARY)
        result = target if outcome.status == "no target" else f"{verdict}{star}: {target}"
        # The anchor that a Markdown reader gives the heading.
        slug = "".join(c for c in outcome.title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
        rows.append((f"[{outcome.title}](#{slug})", *cells, result))
    heads = ("set", "calibrated", "predicted", "mean error", "worst", "inside 90 %", "target")
    return Table(heads, rows).markdown()


def _coverage(predictions: Iterable[Prediction]) -> dict[str, int]:
    return dict(zip(("inside", "rows"), comparison.coverage(predictions), strict=True))


def _prediction_fields(unit: Unit) -> tuple[Field, ...]:
    """Return the fields of a predicted row, its numbers in the unit of its set."""

    def end(of: str, place: int) -> Callable[[Prediction], float | None]:
        return lambda row: SCALE[unit] * ends[place] if (ends := getattr(row, of)) else None

    return (
        Field("row", "", str, "row of the publication", of="row.key"),
        Field("label", "", str, "row"),
        Field("unit", "", str, "unit", of=lambda _: unit),
        Field("predicted", "", float, "predicted", of=lambda row: row.predicted * SCALE[unit]),
        Field("low", "", float, "low end of its 90 % interval", of=end("interval", 0)),
        Field("high", "", float, "high end", of=end("interval", 1)),
        Field("band_low", "", float, "low end of its band", of=end("band", 0)),
        Field("band_high", "", float, "high end", of=end("band", 1)),
        Field("measured", "", float, "measured", of=lambda row: row.measured * SCALE[unit]),
        Field("error", "fraction", float, "error"),
    )


PARAMETER = (
    Field("part", "", str, "shipped file"),
    Field("key", "", str, "key in it"),
    Field("value", "", float, "value in SI units"),
    Field("text", "", str, "value"),
    Field("how", "", str, "method of the fit"),
    Field("rows", "", list, "rows that it was fitted to", of=lambda parameter: [row.key for row in parameter.rows]),
)
OUTCOME = (
    Field("name", "", str, "set"),
    Field("title", "", str, "title"),
    Field("status", "", str, "whether the target is met"),
    Field("holds", "", bool, "whether the errors are within the bound"),
    Field("mean_error", "fraction", float, "mean error", of="mean"),
    Field("worst_error", "fraction", float, "worst", of="worst"),
    Field("coverage", "", dict, "inside 90 %", of=lambda outcome: _coverage(outcome.predictions)),
    Field("target", "", dict, "target"),
    Field("bound", "", dict, "bound"),
    Field("parameters", "", list, "calibrated", parts=PARAMETER),
    Field(
        "rows", "", list, "predicted",
        of=lambda outcome: [row_of(_prediction_fields(outcome.unit), row) for row in outcome.predictions],
    ),
    Field("misses", "", str, "what is predicted badly, and why", of=lambda outcome: outcome.text("misses")),
    Field("caveat", "", str, "what to know of the result", of=lambda outcome: outcome.text("caveat")),
    Field("speedups", "", str, "error of a predicted speedup", of=lambda outcome: outcome.text("speedups")),
)  # fmt: skip
FIELDS = (
    Field("holds", "", bool, "no set is worse", of=lambda answer: all(outcome.holds for outcome in answer.outcomes)),
    Field("coverage", "", dict, "inside 90 %", of=lambda answer: _coverage(answer.comparisons)),
    Field("sets", "", list, "sets", of="outcomes", parts=OUTCOME),
)
"""Of the comparison with published measurements."""
