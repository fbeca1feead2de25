"""What the pages of both committed campaigns have in common: how they are evaluated, and how a page tells a point."""

import re
from functools import cache
from pathlib import Path

from simnet.calibration.comparison import mean_error, worst_error
from simnet.core.units import format_seconds
from simnet.report.validation import percent
from simnet.validation import campaign_prediction
from simnet.validation.campaign_prediction import CampaignResult
from simnet.validation.lab import campaign
from simnet.validation.training_steps import TrainedPoint

ROOT = Path(__file__).parents[2]


@cache
def evaluate(name: str) -> CampaignResult:
    folder = ROOT / "tests/golden" / name
    return campaign_prediction.evaluate(campaign.load(folder / "campaign.toml"), folder, draws=20)


def page(name: str) -> str:
    return (ROOT / "docs" / "evidence" / name).read_text(encoding="utf-8")


def errors_line(found: CampaignResult) -> str:
    told = f"all points: {len(found.points)}, mean error {percent(mean_error(found.points))}, worst "
    return told + percent(worst_error(found.points))


def told_points(text: str) -> set[tuple[str, ...]]:
    """Return the first six cells of every row of a page's last table: model, layout, NIC, strategy, both times."""
    lines = text.partition("## Every point")[2].split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {tuple(row[:6]) for row in rows if len(row) == 9 and re.match(r"\d+ x \d+", row[1])}


def found_points(found: CampaignResult) -> set[tuple[str, ...]]:
    """Return the same from what was found."""
    return {_cells(point) for point in found.points}


def _cells(point: TrainedPoint) -> tuple[str, ...]:
    mbit = (point.setup.nic_bytes_per_s or 0) * 8 / 1e6
    nic = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"
    layout = f"{point.setup.num_nodes} x {point.setup.ranks_per_node}"
    times = format_seconds(point.measured), format_seconds(point.predicted)
    return (point.model, layout, nic, point.series, *times)
