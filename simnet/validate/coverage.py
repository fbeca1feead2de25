"""Which of the published rows any set uses, to calibrate or to predict."""

from collections.abc import Sequence
from dataclasses import dataclass

from simnet.validate.measurements import Row
from simnet.validate.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Rows of measurements.csv by what becomes of them; a row may be calibrated on in one set, predicted in another."""

    rows: tuple[Row, ...]
    calibrated: frozenset[str]
    predicted: frozenset[str]

    @property
    def used(self) -> int:
        """How many rows some set uses."""
        return len(self.rows) - len(self.unused)

    @property
    def unused(self) -> tuple[Row, ...]:
        """The rows that no set uses."""
        return tuple(row for row in self.rows if row.key not in self.calibrated | self.predicted)


def of(outcomes: Sequence[Outcome], rows: tuple[Row, ...]) -> Coverage:
    """Return what the sets make of the rows; a quotient of two rows uses both."""
    known = {row.key for row in rows}
    calibrated = {row.key for outcome in outcomes for row in outcome.calibration_rows}
    predicted = {key for outcome in outcomes for p in outcome.predictions for key in _keys(p.row)}
    return Coverage(rows=rows, calibrated=frozenset(calibrated & known), predicted=frozenset(predicted & known))


def _keys(row: Row) -> list[str]:
    """Return "file:4" and "file:9" of "file:4, 9"."""
    file, _, lines = row.key.partition(":")
    return [f"{file}:{line}" for line in lines.split(", ")]
