"""A validation as a page in Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simnet.calibration.comparison import by_series, mean_error, worst_error
from simnet.core import templates
from simnet.report.table import Table
from simnet.report.validation import (
    cells,
    error_texts,
    inside_text,
    limit_text,
    percent,
    rows_text,
    speedup_sentences,
    summary_cells,
)
from simnet.validation import coverage
from simnet.validation.coverage import Evidence
from simnet.validation.outcome import Outcome
from simnet.validation.published_rows import PublishedRow

SUMMARY = (
    "set",
    "rows calibrated",
    "rows predicted",
    "mean error",
    "worst error",
    "inside 90 % interval",
    "target",
    "result",
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
    notes = [outcome for outcome in outcomes if outcome.text("caveat")]
    used = usage_of(outcomes, rows)
    given = {
        "outcomes": outcomes,
        "intervals": _intervals(outcomes, evidence) if evidence else None,
        "summary": _summary(outcomes, notes),
        "missed": [outcome for outcome in outcomes if outcome.status == "MISSED"],
        "notes": notes,
        "speedups": speedup_sentences(outcomes),
        "used": used,
        "unused": rows_text(used.unused),
        "percent": percent,
        "limit_text": limit_text,
        "figure_name": figure_name,
        "parameters": _parameters,
        "predictions": _predictions,
        "series": _by_series,
        "alternatives": _alternatives,
    }
    return templates.page("validation.md", given)


def _intervals(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, object]:
    """Return what the page says of intervals: how many hold, how wide they are, and what others would hold."""
    inside, total = coverage.share_inside(outcomes)
    held = {source: inside_text(found) for source, found in coverage.by_source(outcomes).items()}
    widths = [
        (
            source,
            *(_factor_text(evidence.width(of, without=source)) for of in ("time", "speedup")),
            held.get(source, ""),
        )
        for source in (*held, "none")
    ]
    others = [
        (name, f"{held} of {total} ({percent(held / total)})")
        for name, (held, total) in coverage.alternatives(outcomes, evidence).items()
    ]
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
        "widths": Table(("publication left out", "times", "speedups", "its values inside"), widths).markdown(),
        "alternatives": Table(("intervals", "values inside"), others).markdown(),
    }


def _factor_text(log_width: float) -> str:
    return f"within a factor {math.exp(log_width):.2f}"


def figure_name(outcome: Outcome) -> str:
    """Return the file name of a set's figure."""
    return f"validation_{outcome.name}.png"


def _summary(outcomes: Sequence[Outcome], notes: Sequence[Outcome]) -> str:
    numbers = {outcome.name: number for number, outcome in enumerate(notes, start=1)}
    rows = []
    for outcome in outcomes:
        verdict = "**MISSED**" if outcome.status == "MISSED" else outcome.status
        number = numbers.get(outcome.name)
        result = f"{verdict}, but see note {number}" if number else verdict
        rows.append((f"[{outcome.title}](#{_slug(outcome.title)})", *summary_cells(outcome), result))
    return Table(SUMMARY, rows).markdown()


def _parameters(outcome: Outcome) -> str:
    rows = [(one.part, f"`{one.key}`", one.text, one.how, rows_text(one.rows)) for one in outcome.parameters]
    return Table(("part", "value", "", "how", "from rows"), rows).markdown()


def _predictions(outcome: Outcome) -> str:
    unit = outcome.unit
    rows = [(one.label, *cells(one, unit), one.row.key.partition(":")[2]) for one in outcome.predictions]
    return Table(
        ("row", f"predicted [{unit}]", f"measured [{unit}]", "error", "90 % interval", "line"), rows
    ).markdown()


def _by_series(outcome: Outcome) -> str:
    """Return mean and worst error by series, where a set has several of several rows."""
    groups = by_series(outcome.predictions)
    if not 1 < len(groups) < len(outcome.predictions):
        return ""
    texts = (f"{name}: mean {percent(mean_error(ps))}, worst {percent(worst_error(ps))}" for name, ps in groups.items())
    return "; ".join(texts) + "."


def _alternatives(outcome: Outcome) -> str:
    rows = [
        (a.variant, a.calibrated_on, *error_texts(outcome, mean_error(a.predictions), worst_error(a.predictions)))
        for a in outcome.alternatives
    ]
    return Table(("model", "calibrated on", "mean error", "worst error"), rows).markdown()


def _slug(title: str) -> str:
    """Return the anchor that a Markdown reader gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
