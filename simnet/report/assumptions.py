"""What a result rests on: every part with its source, whether it was measured, and how sure its values are."""

from collections.abc import Iterator

from simnet.cluster.hardware import Calibration
from simnet.core.bounded_types import Kind
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from simnet.report.influences import interval_text, noun
from simnet.report.result_page import assumptions
from simnet.report.table import Table
from simnet.report.text import percent

HEADS = ("part", "as simulated", "measured?", "source")
MEASURED: dict[Kind, str] = {
    "measured": "yes, on this hardware",
    "published": "yes, by others",
    "derived": "no, derived from measurements",
    "estimate": "no, an estimate",
    "ideal": "no, ideal values",
}
NOMINAL = "no, nominal rates"
LINKS = {"intra_node": "links inside nodes", "inter_node": "links between nodes", "nccl": "NCCL's all-reduce"}
"""Parts of a calibration that have sources of their own."""
Row = tuple[str, str, str, str]


def parts_table(result: RunResult) -> Table:
    """Return every part that was assumed, with its source and whether it was measured."""
    return Table(HEADS, _rows(result))


def uncertain_table(result: RunResult) -> Table:
    """Return the 90 % interval of each value that has one, the model's own error last."""
    known = intervals.stated_intervals(intervals.plain_scenario(result.scenario))
    rows = [(noun(key), interval_text(key, ends)) for key, ends in known.items()]
    error = intervals.model_error(result.scenario.calibration)
    rows.append(("the model itself, of a time", f"{1 / error.time:.2g} to {error.time:.2g} times as long"))
    rows.append(("the model itself, of a speedup", f"{1 / error.speedup:.2g} to {error.speedup:.2g} times as large"))
    return Table(("value", "90 % interval, as a factor on what was assumed"), rows)


def _rows(result: RunResult) -> Iterator[Row]:
    scenario, shown = result.scenario, assumptions(result)
    calibration = scenario.calibration
    yield "cluster", shown["cluster"], NOMINAL, scenario.cluster.source
    yield "workload", shown["workload"], "gradients: counted", scenario.workload.source
    yield from _compute_rows(scenario)
    yield "calibration", shown["calibration"], MEASURED[calibration.kind], calibration.source
    yield from _calibration_rows(calibration)
    yield "the model's own error", "in the intervals", "yes", intervals.model_error(calibration).source
    yield "program", shown["simulated"], "", ""


def _compute_rows(scenario: Scenario) -> Iterator[Row]:
    """Yield the timed rows of the workload that are of the cluster's GPU."""
    gpu = scenario.cluster.gpu
    for one in scenario.workload.compute:
        if one.gpu == (gpu or one.gpu):
            yield f"compute, {one.gpu} {one.precision}", f"batch {one.batch}", MEASURED[one.kind], one.source


def _calibration_rows(calibration: Calibration) -> Iterator[Row]:
    """Yield the parts of a calibration that say where they come from by themselves."""
    for key, label in LINKS.items():
        part = getattr(calibration, key)
        if part is not None and part.source:
            where = _measured_text(calibration.kind, getattr(part, "measured_on", None))
            yield label, _efficiency_text(getattr(part, "efficiency", None)), where, part.source
    for name, library in calibration.libraries.items():
        if library.source:
            yield f"library {name}", _efficiency_text(library.efficiency), MEASURED[calibration.kind], library.source


def _measured_text(kind: Kind, measured_on: Bandwidth | None) -> str:
    """Return whether the costs of a link were measured; those of an estimate may have been, on another link."""
    if kind != "measured" and measured_on is not None:
        return f"yes, by others, on {measured_on.text()}"
    return MEASURED[kind]


def _efficiency_text(efficiency: object) -> str:
    """Return the share of the nominal rate that sends reach: one number, or those of the least and largest sends."""
    if isinstance(efficiency, int | float):
        return f"{percent(efficiency)} of the nominal rate"
    if isinstance(efficiency, list | tuple) and efficiency:
        least, most = min(share for _, share in efficiency), max(share for _, share in efficiency)
        return f"{percent(least, '.0')} to {percent(most, '.0')} of the nominal rate, by bytes of a send"
    return "see the source"
