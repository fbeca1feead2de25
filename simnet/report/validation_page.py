"""A validation as a page in Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simnet.calibration.comparison import by_series, mean_error, worst_error
from simnet.core import templates
from simnet.report.table import Table
from simnet.report.text import percent
from simnet.report.validation import (
    error_text,
    error_texts,
    inside_text,
    limit_text,
    predicted_text,
    rows_text,
    speedup_sentences,
    summary_cells,
    value_text,
)
from simnet.validation import coverage
from simnet.validation.coverage import Evidence
from simnet.validation.outcome import Outcome, Prediction
from simnet.validation.published_rows import PublishedRow

SUMMARY = (
    "set",
    "calibrated",
    "predicted",
    "mean error",
    "worst",
    "inside 90 %",
    "target",
)


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
    known = {row.key for row in rows}
    calibrated = {row.key for outcome in outcomes for row in outcome.calibration_rows}
    # "file:4, 9" stands for lines 4 and 9.
    keys = (one.row.key.partition(":") for outcome in outcomes for one in outcome.predictions)
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
    given = {
        "outcomes": outcomes,
        "intervals": _intervals(outcomes, evidence) if evidence else None,
        "summary": _summary(outcomes),
        "missed": [outcome for outcome in outcomes if outcome.status == "MISSED"],
        "notes": any(outcome.text("caveat") for outcome in outcomes),
        "speedups": speedup_sentences(outcomes),
        "used": used,
        "unused": rows_text(used.unused),
        "percent": percent,
        "limit_text": limit_text,
        "figure_name": figure_name,
    }
    return templates.page("validation.md", given)


def data(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, str]:
    """Return the files that the page links to, by name: every row of every set as CSV."""
    tables = {
        "validation": _predictions(outcomes),
        "validation-fitted": _parameters(outcomes),
        "validation-series": _by_series(outcomes),
        "validation-alternatives": _alternatives(outcomes),
        "validation-publications": _publications(outcomes, evidence),
        "validation-intervals": _other_intervals(outcomes, evidence),
    }
    return {f"data/{name}.csv": table.csv() for name, table in tables.items()}


def _intervals(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, object]:
    """Return what the page says of intervals: how many hold, how wide they are, and what others would hold."""
    inside, total = coverage.share_inside(outcomes)
    return {
        "inside": inside,
        "rows": total,
        "target": coverage.TARGET,
        "weak": [
            f"{source} ({inside_text(found)})"
            for source, found in coverage.by_source(outcomes).items()
            if found[0] < coverage.TARGET[0] * found[1]
        ],
        "is_met": coverage.meets_target(outcomes),
        "spread": coverage.run_to_run(),
        "times": evidence.inside("time"),
        "speedups": evidence.inside("speedup"),
        "time_width": _factor_text(evidence.width("time")),
        "speedup_width": _factor_text(evidence.width("speedup")),
    }


def _other_intervals(outcomes: Sequence[Outcome], evidence: Evidence) -> Table:
    """Return how many values other intervals would hold."""
    rows = [
        (name, f"{held} of {total} ({percent(held / total)})")
        for name, (held, total) in coverage.alternatives(outcomes, evidence).items()
    ]
    return Table(("intervals", "values inside"), rows)


def _publications(outcomes: Sequence[Outcome], evidence: Evidence) -> Table:
    """Return how wide intervals are without each publication, and how many of its values they hold."""
    held = {source: inside_text(found) for source, found in coverage.by_source(outcomes).items()}
    rows = [
        (
            source,
            *(_factor_text(evidence.width(of, without=source)) for of in ("time", "speedup")),
            held.get(source, ""),
        )
        for source in (*held, "none")
    ]
    return Table(("publication left out", "times", "speedups", "its values inside"), rows)


def _factor_text(log_width: float) -> str:
    return f"within a factor {math.exp(log_width):.2f}"


def figure_name(outcome: Outcome) -> str:
    """Return the file name of a set's figure."""
    return f"validation_{outcome.name}.png"


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for outcome in outcomes:
        verdict = "**MISSED**" if outcome.status == "MISSED" else outcome.status
        star = "\\*" if outcome.text("caveat") else ""
        *cells, target = summary_cells(outcome)
        result = target if outcome.status == "no target" else f"{verdict}{star}: {target}"
        rows.append((f"[{outcome.title}](#{_slug(outcome.title)})", *cells, result))
    return Table(SUMMARY, rows).markdown()


def _parameters(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        (outcome.name, one.part, one.key, one.text, one.how, rows_text(one.rows))
        for outcome in outcomes
        for one in outcome.parameters
    ]
    return Table(("set", "part", "key", "value", "how", "from rows"), rows)


def _predictions(outcomes: Sequence[Outcome]) -> Table:
    heads = ("set", "row", "unit", "predicted", "measured", "error", "low", "high", "file", "lines", "source")
    return Table(heads, [_prediction_cells(one, outcome) for outcome in outcomes for one in outcome.predictions])


def _prediction_cells(one: Prediction, outcome: Outcome) -> tuple[str, ...]:
    unit = outcome.unit
    low, high = (value_text(end, unit) for end in one.interval) if one.interval else ("", "")
    file, _, lines = one.row.key.partition(":")
    return (
        outcome.name, one.label, unit, predicted_text(one, unit), value_text(one.measured, unit), error_text(one),
        low, high, file, lines, one.row.source,
    )  # fmt: skip


def _by_series(outcomes: Sequence[Outcome]) -> Table:
    """Return mean and worst error by series, of sets with several of several rows."""
    rows = [
        (outcome.name, series, percent(mean_error(mine)), percent(worst_error(mine)))
        for outcome in outcomes
        for groups in [by_series(outcome.predictions)]
        if 1 < len(groups) < len(outcome.predictions)
        for series, mine in groups.items()
    ]
    return Table(("set", "series", "mean error", "worst error"), rows)


def _alternatives(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        (
            outcome.name, one.variant, one.calibrated_on,
            *error_texts(outcome, mean_error(one.predictions), worst_error(one.predictions)),
        )
        for outcome in outcomes
        for one in outcome.alternatives
    ]  # fmt: skip
    return Table(("set", "model", "calibrated on", "mean error", "worst error"), rows)


def _slug(title: str) -> str:
    """Return the anchor that a Markdown reader gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
