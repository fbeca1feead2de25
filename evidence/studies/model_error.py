"""How far predictions are off where nothing was fitted: `python -m evidence.studies.model_error [--write]`.

Published sets give the error of a published calibration and of an estimate, the two committed campaigns of the lab that
of a calibration measured on the cluster. `--write` writes scenarios/published/model_error.toml and the table of
docs/explanation/verdicts.md; else the file is printed.
"""

import argparse
import math
import re
from collections.abc import Iterable
from itertools import product

from evidence import RESULTS, ROOT
from evidence.lab import campaign as campaigns
from evidence.lab import prediction
from evidence.lab.prediction import CampaignResult
from simnet.core.files import data_path, write_file
from simnet.engine.intervals import ERROR_FILE, ModelErrors, model_errors
from simnet.validation import coverage
from simnet.validation import published as sets
from simnet.validation.coverage import Quantity, Residual
from simnet.validation.training_steps import TrainedPoint

PAGE = ROOT / "docs" / "explanation" / "verdicts.md"
NAMES = ("lab_campaign", "lab_systems")
DRAWS = 20
BASELINE = "all_reduce"
HEAD = """# How far predictions are off even where all that they rest on is known: factors up and down, 90 %.
# Written by `python -m evidence.studies.model_error --write`; its test compares.
"""


def of_campaign(name: str, result: CampaignResult) -> list[Residual]:
    """Return the residuals of the steps of a campaign, and of their speedups over the dense strategy.

    Of a speedup nothing is taken as known: a point has no interval of it.
    """
    # A user's calibration adds up kernels and models, and knows nothing of the machine's speed on the day of training.
    judged = result.alternatives.get(prediction.ADDED_UP, result.points)
    residuals = []
    for point in judged:
        low, high = point.interval or (point.predicted, point.predicted)
        ends = math.log(point.predicted / low), math.log(high / point.predicted)
        residuals.append(Residual(source=name, quantity="time", log_error=_log_error(point), own_log=ends))
    for dense, point in product(judged, judged):
        is_dense = [either.series.startswith(BASELINE) for either in (dense, point)]
        if dense.setting == point.setting and is_dense == [True, False]:
            apart = _log_error(dense) - _log_error(point)
            residuals.append(Residual(source=name, quantity="speedup", log_error=apart, own_log=(0.0, 0.0)))
    return residuals


def _log_error(point: TrainedPoint) -> float:
    return math.log(point.measured / point.predicted)


def text() -> str:
    """Return the file."""
    published = coverage.find_evidence([sets.run(name) for name in sets.names()]).residuals
    measured = []
    for name in NAMES:
        folder = RESULTS / name
        campaign = campaigns.load(folder / "campaign.toml")
        measured += of_campaign(name, prediction.evaluate(campaign, folder, draws=DRAWS))
    parts = [HEAD]
    for name, residuals, what in (
        ("published", published, "published rows that nothing was fitted to (docs/evidence/validation.md)"),
        ("measured", measured, "two campaigns in the lab (docs/evidence/simulator.md)"),
    ):
        times, speedups = (sum(residual.quantity == of for residual in residuals) for of in ("time", "speedup"))
        parts.append(
            f"\n[{name}]\ntime = {factor(residuals, 'time'):.3f}\nspeedup = {factor(residuals, 'speedup'):.3f}\n"
            f'source = "{times} times and {speedups} speedups of {what}"\n'
        )
    return "".join(parts)


def factor(residuals: Iterable[Residual], of: Quantity) -> float:
    """Return the factor within which 90 % of the values of the next publication or campaign are."""
    return math.exp(coverage.model_width(list(residuals), of))


def with_rows(page: str, errors: ModelErrors) -> str:
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
