"""The committed campaign of seven systems: its page says what its measurements and this simulator say."""

import re

import pytest

from simnet.comparison import mean_error
from simnet.show.validation import percent
from simnet.validate import ranking
from simnet.validate.campaign_prediction import CampaignResult
from tests.helpers.lab_pages import ROOT, errors_line, evaluate, found_points, page, told_points

FOLDER = ROOT / "tests/golden/lab_systems"
PAGE = page("lab-systems.md")


@pytest.fixture(scope="module")
def found() -> CampaignResult:
    return evaluate("lab_systems")


def test_the_page_tells_the_errors_of_these_measurements(found: CampaignResult) -> None:
    assert errors_line(found) in PAGE


def test_the_page_tells_the_errors_of_every_system(found: CampaignResult) -> None:
    for strategy in {point.series for point in found.points}:
        mine = [point for point in found.points if point.series == strategy]
        told = f"| strategy | {strategy} | {len(mine)} | {percent(mean_error(mine))} |"
        assert told in PAGE


def test_every_point_of_the_page_is_measured_and_predicted_so(found: CampaignResult) -> None:
    assert told_points(PAGE) == found_points(found)


def test_the_page_tells_how_many_pairs_are_ranked_as_measured(found: CampaignResult) -> None:
    pairs = ranking.pairs(found.points)
    apart = [pair for pair in pairs if pair.measured_intervals_are_disjoint]
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"- of {len(pairs)} pairs")]
    assert [int(number) for number in re.findall(r"\d+(?! %)\b", line)] == [
        len(pairs), len(apart), sum(pair.is_right for pair in apart)
    ]  # fmt: skip


def test_what_is_shipped_is_the_campaign_that_was_measured(found: CampaignResult) -> None:
    assert (FOLDER / "campaign.toml").read_text() == (ROOT / "scenarios/lab/systems.toml").read_text()
    kinds = {spec.system for spec in found.campaign.specs}
    assert kinds == {"all_reduce", "binsgdm", "one_bit_adam", "ef_sign_sgd", "qsgd", "power_sgd", "top_k"}
    assert {layout.text() for layout, _ in found.proofs} == {"4x1"}
    assert all(proof.is_proven for _, proof in found.proofs)
