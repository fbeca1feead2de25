"""Measured and predicted steps, as a table for a terminal."""

from collections.abc import Iterable, Sequence

from simnet.calibration.comparison import coverage, mean_error, worst_error
from simnet.core import templates
from simnet.core.units import format_seconds
from simnet.report.table import Page, Table
from simnet.report.text import bandwidth_text, percent
from simnet.validation.held_out_proof import Disjointness
from simnet.validation.training_steps import TrainedPoint

HEADS = ("nodes x ranks", "NIC", "strategy", "measured", "predicted", "error", "90 % interval", "")


def steps_page(compared: Sequence[TrainedPoint], more: Iterable[str]) -> Page:
    """Return points, a summary, and the further lines."""
    points = sorted(compared, key=lambda point: (*point.setting[1:], point.series))
    inside, judged = coverage(points)
    known = f"; {inside} of {judged} measured values inside the interval" if judged else "; no intervals"
    errors = f"mean error {percent(mean_error(points))}, worst {percent(worst_error(points))}"
    lines = [line for text in more for line in text.splitlines() or [""]]
    return Page([Table(HEADS, map(_row, points)), "", f"{len(points)} points: {errors}{known}", *lines])


def proof_text(proof: Disjointness) -> str:
    """Return why the predicted files are held out, as a sentence."""
    return templates.paragraphs("disjoint.md", "proof", {"proof": proof})


def _row(point: TrainedPoint) -> tuple[str, ...]:
    inside = {None: "", True: "inside", False: "outside"}[point.is_inside]
    rate = point.setup.nic_bytes_per_s
    nic = bandwidth_text(rate * 8 / 1e9) if rate else "-"
    nic += f", {format_seconds(point.setup.nic_latency_s)}" if point.setup.nic_latency_s else ""
    return layout_text(point), nic, *comparison_cells(point), inside


def layout_text(point: TrainedPoint) -> str:
    """Return nodes and ranks on each: "4 x 2"."""
    return f"{point.setup.num_nodes} x {point.setup.ranks_per_node}"


def comparison_cells(point: TrainedPoint) -> tuple[str, ...]:
    """Return strategy, both times, the error and the interval."""
    times = format_seconds(point.measured), format_seconds(point.predicted)
    interval = " to ".join(map(format_seconds, point.interval)) if point.interval else ""
    return point.series, *times, percent(point.error, "+.1"), interval
