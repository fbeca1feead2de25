"""What the pages of both committed campaigns have in common: how they are evaluated, and how a page tells a point."""

import csv
import io
from functools import cache

from evidence import RESULTS, ROOT
from evidence.lab import campaign, prediction
from evidence.lab import page as campaign_page
from evidence.lab.prediction import CampaignResult
from simnet.calibration.comparison import mean_error, worst_error
from simnet.core.units import format_seconds
from simnet.report.text import percent
from simnet.validation.training_steps import TrainedPoint


@cache
def evaluate(name: str) -> CampaignResult:
    folder = RESULTS / name
    return prediction.evaluate(campaign.load(folder / "campaign.toml"), folder, draws=20)


def page(name: str = "simulator.md") -> str:
    return (ROOT / "docs" / "evidence" / name).read_text(encoding="utf-8")


def tells_errors(found: CampaignResult, name: str) -> bool:
    """Return whether the table of the page has a campaign's points and errors."""
    cells = len(found.points), percent(mean_error(found.points)), percent(worst_error(found.points))
    (row,) = (line for line in page().splitlines() if f"](data/lab-{name}.csv)" in line and line.startswith("| ["))
    return f" | {' | '.join(map(str, cells))} | " in row


def told_points(name: str) -> set[tuple[str, ...]]:
    """Return the first six cells of every row of a page's data: model, layout, NIC, strategy, both times."""
    with (ROOT / "docs/evidence/data" / f"lab-{name}.csv").open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    assert heads[:6] == ["model", "nodes x ranks", "NIC", "strategy", "measured", "predicted"]
    return {tuple(row[:6]) for row in rows}


def data_differs(found: CampaignResult) -> list[str]:
    """Return the committed files of a page's data that this simulator would write otherwise, but for intervals."""
    made = campaign_page.data(found)
    return [name for name, text in made.items() if _cells_of(text) != _cells_of(page(name))]


def _cells_of(text: str) -> list[list[str]]:
    """Return the cells of a file; intervals are of as many draws as a page has, and tests make fewer."""
    heads, *rows = csv.reader(io.StringIO(text))
    kept = [number for number, head in enumerate(heads) if head not in {"90 % interval", "notes"}]
    return [[row[number] for number in kept] for row in (heads, *rows)]


def found_points(found: CampaignResult) -> set[tuple[str, ...]]:
    """Return the same from what was found."""
    return {_cells(point) for point in found.points}


def _cells(point: TrainedPoint) -> tuple[str, ...]:
    mbit = (point.setup.nic_bytes_per_s or 0) * 8 / 1e6
    nic = f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"
    layout = f"{point.setup.num_nodes} x {point.setup.ranks_per_node}"
    times = format_seconds(point.measured), format_seconds(point.predicted)
    return (point.model, layout, nic, point.series, *times)
