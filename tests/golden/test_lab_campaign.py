"""The committed campaign: its page says what its measurements and this simulator say."""

import re
from pathlib import Path

import pytest

from simnet.lab import campaign
from simnet.units import format_seconds
from simnet.validation.campaign import Found, evaluated
from simnet.validation.outcome import mean_error, worst_error
from simnet.validation.text import percent

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/golden/lab_campaign"
PAGE = (ROOT / "docs/lab-campaign.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found() -> Found:
    return evaluated(campaign.load(FOLDER / "campaign.toml"), FOLDER, draws=20)


def test_the_page_tells_the_errors_of_these_measurements(found: Found) -> None:
    told = f"all points: {len(found.points)}, mean error {percent(mean_error(found.points))}, worst "
    assert told + percent(worst_error(found.points)) in PAGE


def test_every_point_of_the_page_is_measured_and_predicted_so(found: Found) -> None:
    lines = PAGE.partition("## Every point")[2].split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    told = {tuple(row[:6]) for row in rows if len(row) == 9 and re.match(r"\d+ x \d+", row[1])}
    expected = set()
    for point in found.points:
        mbit = (point.setup.nic_bytes_per_s or 0) * 8 / 1e6
        nic = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"
        layout = f"{point.setup.num_nodes} x {point.setup.ranks_per_node}"
        times = format_seconds(point.measured_s), format_seconds(point.predicted_s)
        expected.add((point.model, layout, nic, point.strategy, *times))
    assert told == expected


def test_what_is_shipped_is_the_campaign_that_was_measured() -> None:
    assert (FOLDER / "campaign.toml").read_text() == (ROOT / "scenarios/lab/campaign.toml").read_text()
    assert campaign.load(FOLDER / "campaign.toml").starts > 1


def test_each_layout_is_proven_unseen(found: Found) -> None:
    for layout in found.campaign.layouts:
        assert any(proof.startswith(f"{layout.text()}, unseen: ") for proof in found.proofs)
