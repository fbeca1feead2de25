"""The committed campaigns of compressing systems: their pages say what their measurements and this simulator say."""

import pytest

from evidence import CAMPAIGNS, RESULTS
from evidence.lab.prediction import CampaignResult
from evidence.tests.lab_pages import data_differs, evaluate, found_points, page, tells_errors, told_points
from simnet.calibration.comparison import mean_error
from simnet.report.text import percent
from simnet.validation import decisions

SYSTEMS = {
    "systems": {"all_reduce", "binsgdm", "one_bit_adam", "ef_sign_sgd", "qsgd", "power_sgd", "top_k"},
    "topologies": {"all_reduce", "qsgd_inf", "ef_sign_sgd", "top_k"},
}
TITLES = {
    "all_reduce": "DDP",
    "binsgdm": "BinSGDM",
    "one_bit_adam": "1-bit Adam",
    "ef_sign_sgd": "EF-SignSGD",
    "qsgd": "QSGD",
    "power_sgd": "PowerSGD",
    "top_k": "Top-k",
}
LAYOUTS = {"systems": {"4x1"}, "topologies": {"4x2"}}


@pytest.fixture(scope="module", params=SYSTEMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(name: str) -> CampaignResult:
    return evaluate(f"lab_{name}")


def test_the_page_tells_the_errors_of_these_measurements(found: CampaignResult, name: str) -> None:
    assert tells_errors(found, name)


def test_the_page_tells_the_errors_of_every_system(found: CampaignResult, name: str) -> None:
    if name == "systems":
        for strategy in {point.series for point in found.points}:
            error = percent(mean_error([point for point in found.points if point.series == strategy]))
            assert f"{TITLES[strategy.partition(' ')[0]]} {error}" in page()


def test_every_point_of_the_page_is_measured_and_predicted_so(found: CampaignResult, name: str) -> None:
    assert told_points(name) == found_points(found)
    assert data_differs(found) == []


def test_the_page_tells_how_many_pairs_are_ranked_as_measured(found: CampaignResult) -> None:
    apart = [pair for pair in decisions.pairs(found.points) if pair.measured_intervals_are_disjoint]
    assert f"{sum(pair.is_right for pair in apart)} of {len(apart)}" in page()


def test_what_is_shipped_is_the_campaign_that_was_measured(found: CampaignResult, name: str) -> None:
    measured = RESULTS / f"lab_{name}" / "campaign.toml"
    assert measured.read_text() == (CAMPAIGNS / f"{name}.toml").read_text()
    assert {spec.system for spec in found.campaign.specs} == SYSTEMS[name]
    assert {layout.text() for layout, _ in found.proofs} == LAYOUTS[name]
    assert all(proof.is_proven for _, proof in found.proofs)
