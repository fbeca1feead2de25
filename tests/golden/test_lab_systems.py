"""The committed campaign of seven systems: its page says what its measurements and this simulator say."""

import re
from pathlib import Path

import pytest

from simnet.lab import campaign, words
from simnet.units import format_seconds
from simnet.validation import ranking
from simnet.validation.campaign import Found, evaluated
from simnet.validation.outcome import mean_error, worst_error
from simnet.validation.text import percent

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/golden/lab_systems"
PAGE = (ROOT / "docs/lab-systems.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found() -> Found:
    return evaluated(campaign.load(FOLDER / "campaign.toml"), FOLDER, draws=20)


def test_the_page_tells_the_errors_of_these_measurements(found: Found) -> None:
    told = f"all points: {len(found.points)}, mean error {percent(mean_error(found.points))}, worst "
    assert told + percent(worst_error(found.points)) in PAGE


def test_the_page_tells_the_errors_of_every_system(found: Found) -> None:
    for strategy in {point.strategy for point in found.points}:
        mine = [point for point in found.points if point.strategy == strategy]
        told = f"| strategy | {strategy} | {len(mine)} | {percent(mean_error(mine))} |"
        assert told in PAGE


def test_every_point_of_the_page_is_measured_and_predicted_so(found: Found) -> None:
    lines = PAGE.partition("## Every point")[2].split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    told = {tuple(row[2:6]) for row in rows if len(row) == 9 and re.match(r"\d+ x \d+", row[1])}
    expected = set()
    for point in found.points:
        mbit = (point.setup.nic_bytes_per_s or 0) * 8 / 1e6
        nic = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"
        expected.add((nic, point.strategy, format_seconds(point.measured_s), format_seconds(point.predicted_s)))
    assert told == expected


def test_the_page_tells_how_many_pairs_are_ranked_as_measured(found: Found) -> None:
    pairs = ranking.pairs(found.points)
    apart = [pair for pair in pairs if pair.is_measured_apart]
    assert f"of {len(pairs)} pairs of strategies at one place, measurements tell {len(apart)} apart" in PAGE
    assert f"{sum(pair.is_right for pair in apart)} of these are predicted in that order" in PAGE


def test_what_is_shipped_is_the_campaign_that_was_measured(found: Found) -> None:
    assert (FOLDER / "campaign.toml").read_text() == (ROOT / "scenarios/lab/systems.toml").read_text()
    kinds = {words.words(strategy).partition(":")[0] for strategy in found.campaign.strategies}
    assert kinds == {"all_reduce", "binsgdm", "one_bit_adam", "ef_sign_sgd", "qsgd", "power_sgd", "top_k"}
    assert all(proof.startswith("4x1, unseen: ") for proof in found.proofs)
