"""Which published rows the sets use, to calibrate or to predict."""

from collections.abc import Sequence
from dataclasses import dataclass

from simnet.validation.outcome import Outcome
from simnet.validation.published_rows import PublishedRow


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
    predicted = {key for outcome in outcomes for p in outcome.predictions for key in _keys(p.row)}
    return RowUsage(rows=rows, calibrated=frozenset(calibrated & known), predicted=frozenset(predicted & known))


def _keys(row: PublishedRow) -> list[str]:
    """Return "file:4" and "file:9" of "file:4, 9"."""
    file, _, lines = row.key.partition(":")
    return [f"{file}:{line}" for line in lines.split(", ")]
