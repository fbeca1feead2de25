"""The committed campaign: its page says what its measurements and this simulator say."""

import pytest

from evidence import CAMPAIGNS, RESULTS
from evidence.lab import campaign
from evidence.lab.prediction import CampaignResult
from evidence.tests.lab_pages import data_differs, evaluate, found_points, tells_errors, told_points

FOLDER = RESULTS / "lab_campaign"


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
    assert (FOLDER / "campaign.toml").read_text() == (CAMPAIGNS / "campaign.toml").read_text()
    assert campaign.load(FOLDER / "campaign.toml").starts > 1


@pytest.mark.slow
def test_each_layout_is_proven_to_be_held_out(found: CampaignResult) -> None:
    for layout in found.campaign.layouts:
        assert any(proven == layout and proof.is_proven for proven, proof in found.proofs)
