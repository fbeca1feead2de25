"""The shipped error of the model on a measured cluster is the one that predictions of the lab have."""

import pytest

from evidence.studies import model_error as study
from evidence.tests.lab_pages import evaluate
from simnet.cluster.hardware import Calibration
from simnet.engine import intervals

OTHER_MACHINES = 0.01
"""Fits end a little elsewhere with other versions of scipy."""


@pytest.mark.slow
def test_the_error_of_calibrations_measured_on_the_cluster_is_that_of_the_lab() -> None:
    residuals = [one for name in study.NAMES for one in study.of_campaign(name, evaluate(name))]
    known = intervals.model_error(Calibration(kind="measured"))
    assert known.time == pytest.approx(study.factor(residuals, "time"), rel=OTHER_MACHINES)
    assert known.speedup == pytest.approx(study.factor(residuals, "speedup"), rel=OTHER_MACHINES)
    assert len({one.source for one in residuals}) == 2


def test_the_page_on_verdicts_tells_the_shipped_errors() -> None:
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.with_rows(page, intervals.model_errors()) == page, "python -m evidence.studies.model_error --write"
    published = intervals.model_errors().published
    assert page.count(f"| published, estimate | {published.time:.2f} | {published.speedup:.2f} |") == 1
