"""The tables and the figure of docs/evidence/lab-alternatives.md, from the committed files."""

from collections.abc import Sequence
from pathlib import Path

from simnet.calibration.comparison import mean_error, mean_signed_error, worst_error
from simnet.core.units import format_seconds
from simnet.engine import intervals
from simnet.report import comparison_figure
from simnet.report.table import Table
from simnet.report.validation import percent
from simnet.validation import ranking
from simnet.validation.ranking import StrategyPair
from studies import page
from studies.alternatives import forecast
from studies.page import EVIDENCE, FIGURES
from studies.recorded import forecast as recorded
from studies.recorded import recorded_page
from studies.recorded.recorded_page import RecordedPoint

PAGE = EVIDENCE / "lab-alternatives.md"
FIGURE = FIGURES / "lab_alternatives_predicted.png"


def write(folder: Path) -> None:
    """Write the regions of the page and its figure."""
    page.write(PAGE, regions(folder))
    FIGURE.write_bytes(comparison_figure.steps(points(folder)))


def regions(folder: Path) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    found = points(folder)
    return {
        "outcome": recorded_page.outcome(found),
        "ranking": ranking_text(found),
        "points": recorded_page.points_table(found).markdown(),
        "forms": forms_table(folder).markdown(),
        "compute": compute_table(folder).markdown(),
        "fit": recorded_page.fit_text(folder),
    }


def points(folder: Path, form: str = "predicted_s") -> list[RecordedPoint]:
    """Return every way at every bandwidth, in a form of the prediction."""
    return recorded_page.points(folder, form, forecast.WAYS)


def ranking_text(found: Sequence[RecordedPoint]) -> str:
    """Return how many pairs of ways are in the right order."""
    pairs = ranking.pairs(found)
    apart = [one for one in pairs if one.measured_intervals_are_disjoint]
    surely = [one for one in apart if _ratio(one) > intervals.model_errors().measured.speedup]
    wrong = [f"{one.faster.label} before {one.slower.series}" for one in apart if not one.is_right]
    limit = intervals.model_errors().measured.speedup
    text = (
        f"Of {len(pairs)} pairs of ways at the same bandwidth, {len(apart)} were measured with 95 % intervals that do "
        f"not overlap: {sum(one.is_right for one in apart)} of them were predicted in the right order. Of the "
        f"{len(surely)} pairs whose prediction differs by more than the model's own error (a factor of {limit:g}), "
        f"{sum(one.is_right for one in surely)} were."
    )
    return text + (f" Measured, but not predicted: {'; '.join(wrong)}." if wrong else "")


def _ratio(pair: StrategyPair[RecordedPoint]) -> float:
    ends = sorted((pair.faster.predicted, pair.slower.predicted))
    return ends[1] / ends[0]


def forms_table(folder: Path) -> Table:
    """Return the errors as simulated, and with nothing hidden."""
    forms = {"predicted_s": "as simulated", "serial_s": "the same, nothing hidden behind anything"}
    rows = [
        (text, percent(mean_error(found)), f"{100 * mean_signed_error(found):+.1f} %", percent(worst_error(found)))
        for form, text in forms.items()
        for found in [points(folder, form)]
    ]
    return Table(["form", "mean error", "mean of signed errors", "worst"], rows)


def compute_table(folder: Path) -> Table:
    """Return strategy and recorded compute of each way."""
    rows = []
    for way in forecast.WAYS:
        (recording,) = recorded_page.read(folder, f"step_{way.name}")["recordings"]
        (alone,) = recorded_page.read(folder, f"alone_{way.name}")["recordings"]
        times = (format_seconds(recorded.own_s(one)) for one in (alone, recording))
        rows.append((way.title, f"`{way.strategy}`", *times))
    return Table(["way", "strategy", "compute of one process alone", "of all ranks at once"], rows)
