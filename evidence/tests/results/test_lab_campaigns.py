"""The committed campaigns: page and data say what their measurements and this simulator say."""

import csv
import io
from functools import cache

import pytest

from evidence import CAMPAIGNS, RESULTS, ROOT
from evidence.lab import campaign as campaigns
from evidence.lab import decisions, prediction
from evidence.lab import page as campaign_page
from evidence.lab.prediction import CampaignResult
from evidence.studies import model_error as study
from simnet.calibration.comparison import mean_error, worst_error
from simnet.cluster.hardware import Calibration
from simnet.engine import intervals
from simnet.report.text import percent

EVIDENCE = ROOT / "docs" / "evidence"
PAGE = (EVIDENCE / "simulator.md").read_text(encoding="utf-8")
BY_DRAWS = {"90 % interval", "notes"}
"""Columns of intervals, of which the data have more draws than the tests make."""
SYSTEMS = {
    "all_reduce": "DDP", "binsgdm": "BinSGDM", "one_bit_adam": "1-bit Adam", "ef_sign_sgd": "EF-SignSGD",
    "qsgd": "QSGD", "power_sgd": "PowerSGD", "top_k": "Top-k",
}  # fmt: skip


@cache
def evaluate(name: str) -> CampaignResult:
    folder = RESULTS / f"lab_{name}"
    return prediction.evaluate(campaigns.load(folder / "campaign.toml"), folder, draws=20)


@pytest.fixture(params=["campaign", "systems", "topologies"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_the_page_tells_the_errors_of_these_measurements(name: str) -> None:
    points = evaluate(name).points
    cells = len(points), percent(mean_error(points)), percent(worst_error(points))
    (row,) = (line for line in PAGE.splitlines() if f"](data/lab-{name}.csv)" in line and line.startswith("| ["))
    assert f" | {' | '.join(map(str, cells))} | " in row


def test_the_page_tells_the_errors_of_every_system() -> None:
    for kind, title in SYSTEMS.items():
        points = [point for point in evaluate("systems").points if point.series.partition(" ")[0] == kind]
        assert f"{title} {percent(mean_error(points))}" in PAGE


@pytest.mark.slow
def test_the_data_are_what_is_measured_and_predicted(name: str) -> None:
    for file, text in campaign_page.data(evaluate(name)).items():
        assert cells_of(text) == cells_of((EVIDENCE / file).read_text(encoding="utf-8")), file


def cells_of(text: str) -> list[list[str]]:
    heads, *rows = csv.reader(io.StringIO(text))
    kept = [number for number, head in enumerate(heads) if head not in BY_DRAWS]
    return [[row[number] for number in kept] for row in (heads, *rows)]


@pytest.mark.parametrize("several", ["systems", "topologies"])
def test_the_page_tells_how_many_pairs_are_ranked_as_measured(several: str) -> None:
    apart = [pair for pair in decisions.pairs(evaluate(several).points) if pair.measured_intervals_are_disjoint]
    assert f"{sum(pair.is_right for pair in apart)} of {len(apart)}" in PAGE


@pytest.mark.slow
def test_what_is_shipped_is_the_campaign_that_was_measured_and_every_layout_is_held_out(name: str) -> None:
    measured = (RESULTS / f"lab_{name}" / "campaign.toml").read_text(encoding="utf-8")
    assert measured == (CAMPAIGNS / f"{name}.toml").read_text(encoding="utf-8")
    result = evaluate(name)
    assert {layout for layout, _ in result.proofs} == set(result.campaign.layouts)
    assert all(proof.is_proven for _, proof in result.proofs)


OTHER_MACHINES = 0.01
"""Fits end a little elsewhere with other versions of scipy."""


@pytest.mark.slow
def test_the_error_of_calibrations_measured_on_the_cluster_is_that_of_the_lab() -> None:
    residuals = [
        residual
        for folder in study.NAMES
        for residual in study.of_campaign(folder, evaluate(folder.removeprefix("lab_")))
    ]
    known = intervals.model_error(Calibration(kind="measured"))
    assert known.time == pytest.approx(study.factor(residuals, "time"), rel=OTHER_MACHINES)
    assert known.speedup == pytest.approx(study.factor(residuals, "speedup"), rel=OTHER_MACHINES)


def test_the_page_on_verdicts_tells_the_shipped_errors() -> None:
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.with_rows(page, intervals.model_errors()) == page, "python -m evidence.studies.model_error --write"
