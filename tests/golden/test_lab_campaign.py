"""The committed campaign: its page says what its measurements and this simulator say."""

import pytest

from simnet.validation.campaign_prediction import CampaignResult
from simnet.validation.lab import campaign
from tests.helpers.lab_pages import ROOT, data_differs, evaluate, found_points, tells_errors, told_points

FOLDER = ROOT / "tests/golden/lab_campaign"


@pytest.fixture(scope="module")
def found() -> CampaignResult:
    return evaluate("lab_campaign")


@pytest.mark.slow
def test_the_page_tells_the_errors_of_these_measurements(found: CampaignResult) -> None:
    assert tells_errors(found, "campaign")


@pytest.mark.slow
def test_every_point_of_the_page_is_measured_and_predicted_so(found: CampaignResult) -> None:
    assert told_points("campaign") == found_points(found)
    assert data_differs(found) == []


def test_what_is_shipped_is_the_campaign_that_was_measured() -> None:
    assert (FOLDER / "campaign.toml").read_text() == (ROOT / "scenarios/lab/campaign.toml").read_text()
    assert campaign.load(FOLDER / "campaign.toml").starts > 1


@pytest.mark.slow
def test_each_layout_is_proven_to_be_held_out(found: CampaignResult) -> None:
    for layout in found.campaign.layouts:
        assert any(proven == layout and proof.is_proven for proven, proof in found.proofs)
