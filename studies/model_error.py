"""How far predictions are off where nothing was fitted: `python -m studies.model_error [--write]`.

Published sets give the error of a published calibration and of an estimate, the two committed campaigns of the lab that
of a calibration measured on the cluster. `--write` writes scenarios/published/model_error.toml and the table of
docs/explanation/verdicts.md; else the file is printed.
"""

import argparse
import math
import re
from collections.abc import Iterable
from pathlib import Path

from simnet.core.files import data_path, write_file
from simnet.engine.intervals import ERROR_FILE, ModelErrors, model_errors
from simnet.validation import campaign_prediction, coverage
from simnet.validation import published as sets
from simnet.validation.campaign_prediction import CampaignResult
from simnet.validation.coverage import Quantity, Residual
from simnet.validation.lab import campaign
from simnet.validation.training_steps import TrainedPoint

ROOT = Path(__file__).parents[1]
CAMPAIGNS = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "explanation" / "verdicts.md"
NAMES = ("lab_campaign", "lab_systems")
DRAWS = 20
BASELINE = "all_reduce"
HEAD = """# How far predictions are off even where all that they rest on is known: factors up and down, 90 %.
# Written by `python -m studies.model_error --write`; tests/golden compares (test_published.py, test_model_error.py).
"""


def published() -> list[Residual]:
    """Return the residuals of published rows that nothing was fitted to."""
    return list(coverage.find_evidence([sets.run(name) for name in sets.names()]).residuals)


def measured() -> list[Residual]:
    """Return the residuals of the steps of both campaigns, and of their speedups over the dense strategy."""
    return [one for name in NAMES for one in of_campaign(name, _evaluate(name))]


def _evaluate(name: str) -> CampaignResult:
    folder = CAMPAIGNS / name
    return campaign_prediction.evaluate(campaign.load(folder / "campaign.toml"), folder, draws=DRAWS)


def of_campaign(name: str, found: CampaignResult) -> list[Residual]:
    """Return the residuals of one campaign; of a speedup nothing is taken as known: a point has no interval of it."""
    # A user's calibration adds up kernels and models, and knows nothing of the machine's speed on the day of training.
    judged = found.alternatives.get(campaign_prediction.ADDED_UP, found.points)
    by_setting: dict[object, list[TrainedPoint]] = {}
    for point in judged:
        by_setting.setdefault(point.setting, []).append(point)
    return [_of_time(name, point) for point in judged] + [
        _of_speedup(name, dense, point)
        for points in by_setting.values()
        for dense in points[:]
        if dense.series.startswith(BASELINE)
        for point in points
        if not point.series.startswith(BASELINE)
    ]


def _of_time(name: str, point: TrainedPoint) -> Residual:
    low, high = point.interval or (point.predicted, point.predicted)
    own = math.log(point.predicted / low), math.log(high / point.predicted)
    return Residual(source=name, quantity="time", log_error=_log_error(point), own_log=own)


def _of_speedup(name: str, dense: TrainedPoint, point: TrainedPoint) -> Residual:
    return Residual(
        source=name, quantity="speedup", log_error=_log_error(dense) - _log_error(point), own_log=(0.0, 0.0)
    )


def _log_error(point: TrainedPoint) -> float:
    return math.log(point.measured / point.predicted)


def text() -> str:
    """Return the file."""
    return HEAD + "".join(
        _table(name, residuals, what)
        for name, residuals, what in (
            ("published", published(), "published rows that nothing was fitted to (docs/evidence/validation.md)"),
            ("measured", measured(), "two campaigns in the lab (docs/evidence/simulator.md)"),
        )
    )


def _table(name: str, residuals: Iterable[Residual], what: str) -> str:
    found = list(residuals)
    counts = {of: sum(one.quantity == of for one in found) for of in ("time", "speedup")}
    factors = {of: factor(found, of) for of in ("time", "speedup")}  # type: ignore[arg-type]
    return (
        f"\n[{name}]\ntime = {factors['time']:.3f}\nspeedup = {factors['speedup']:.3f}\n"
        f'source = "{counts["time"]} times and {counts["speedup"]} speedups of {what}"\n'
    )


def factor(residuals: Iterable[Residual], of: Quantity) -> float:
    """Return the factor within which 90 % of the values of the next publication or campaign are."""
    return math.exp(coverage.model_width(list(residuals), of))


def with_rows(page: str, errors: ModelErrors) -> str:
    """Return the page on verdicts with the rows of these errors."""
    for name, error in (("published, estimate", errors.published), ("measured on the cluster", errors.measured)):
        row = rf"^\| {name} \|.*?\|.*?\|"
        page = re.sub(row, f"| {name} | {error.time:.2f} | {error.speedup:.2f} |", page, flags=re.MULTILINE)
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        write_file(data_path(*ERROR_FILE), text().encode())
        write_file(PAGE, with_rows(PAGE.read_text(encoding="utf-8"), model_errors()).encode())
    else:
        print(text(), end="")
