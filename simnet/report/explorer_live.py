"""What the explorer shows at one place of its knobs, fast enough to follow a slider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.analysis.references import compared
from simnet.core.errors import SimnetError
from simnet.engine.intervals import with_default_draws
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.engine.step_timer import StepLanes
from simnet.report import chart_plotly
from simnet.report.chart import Chart, Curve, Guide, line, number_scale, speedup_scale
from simnet.report.contents import verdict_sentence
from simnet.report.explorer_knobs import Knobs, Places, toml_of
from simnet.report.figure import VERMILION
from simnet.report.result_page import reference_sentence
from simnet.report.step_charts import breakdown
from simnet.report.text import capitalized, printable, speedup_text

MOST_NODES = 256
"""Up to which the curve over nodes goes."""
RATES = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800)
HEIGHT = 320


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """What stands beside the knobs.

    Attributes:
        verdict: the answer in one sentence, or why there is none.
        is_error: whether the knobs mean no scenario.
        figures: of plotly: speedup over bandwidth, over nodes, where a step goes; none where there is no answer.
        notes: what a reader must know to trust the numbers.
        command: that prints the same numbers.
        toml: a scenario file that gives them.
    """

    verdict: str
    is_error: bool
    figures: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    command: str
    toml: str


def view(knobs: Knobs, places: Places) -> LiveAnswer:
    """Return what the knobs show."""
    try:
        scenario = knobs.scenario_at(places)
        result = simulate(replace(scenario, run=replace(scenario.run, draws=0)))
        figures = _figures(knobs, places, result)
    except SimnetError as error:
        return LiveAnswer(verdict=printable(str(error)), is_error=True, figures=(), notes=(), command="", toml="")
    return LiveAnswer(
        verdict=capitalized(verdict_sentence(result)),
        is_error=False,
        figures=figures,
        notes=tuple(map(printable, result.notes)),
        command=knobs.command_at(places),
        toml=toml_of(scenario),
    )


def interval_text(knobs: Knobs, places: Places) -> str:
    """Return the 90 % interval of the speedup, and both references, in sentences; it takes longer than a view."""
    try:
        result = compared(with_default_draws(knobs.scenario_at(places)))
    except SimnetError:
        return ""
    ends = result.intervals.get("speedup")
    between = (
        f"90 % interval of {speedup_text(result.speedup)}: {' to '.join(map(speedup_text, ends))}. " if ends else ""
    )
    said = reference_sentence(result)
    return f"{between}{capitalized(said)}." if said else between.strip()


def _figures(knobs: Knobs, places: Places, result: RunResult) -> tuple[dict[str, Any], ...]:
    scenario, cluster = result.scenario, result.scenario.cluster
    own_rate = cluster.inter_node.bytes_per_s * 8 / 1e9
    rates = sorted({*map(float, RATES), own_rate})
    nodes = sorted(
        {2**power for power in range(MOST_NODES.bit_length()) if 2**power <= MOST_NODES} | {cluster.num_nodes}
    )
    here = replaced(places, gbit_per_s=own_rate)
    knobs.speedups.setdefault(here, result.speedup)
    for count in nodes:
        if count == cluster.num_nodes or replaced(here, nodes=count) not in knobs.speedups:
            there = replace(scenario, cluster=replace(cluster, num_nodes=count))
            _find_speedups(
                there, {rate: replaced(here, nodes=count, gbit_per_s=rate) for rate in rates}, knobs.speedups
            )
    over_rate = _curve({rate: replaced(here, gbit_per_s=rate) for rate in rates}, knobs.speedups)
    over_nodes = _curve({count: replaced(here, nodes=count) for count in nodes}, knobs.speedups)
    return (
        _figure("NIC bandwidth [Gbit/s]", over_rate, own_rate),
        _figure("nodes", over_nodes, float(cluster.num_nodes)),
        chart_plotly.figure(breakdown([result])),
    )


def _curve(places: Mapping[float, Places], known: Mapping[Places, float | None]) -> list[tuple[float, float]]:
    """Return the speedup at each value at which the scenario holds together."""
    return [(value, speedup) for value, place in places.items() if (speedup := known[place]) is not None]


def _find_speedups(scenario: Scenario, places: Mapping[float, Places], known: dict[Places, float | None]) -> None:
    """Find the speedups at bandwidths that are not known, all of them together: the next knob is likely one of them.

    Args:
        scenario: at any of them.
        places: of the knobs by bandwidth [Gbit/s].
        known: speedups by place, to which those are added.
    """
    missing = [rate for rate, place in places.items() if place not in known]
    if not missing:
        return
    known |= dict.fromkeys((places[rate] for rate in missing), None)
    try:
        lanes = StepLanes([whatif.at_bandwidth(scenario, rate * 1e9 / 8) for rate in missing])
        assert scenario.baseline is not None
        pairs = zip(lanes.iterations_s(scenario.baseline), lanes.iterations_s(scenario.strategy), strict=True)
    except SimnetError:  # a fabric, say, that has not so many nodes
        return
    known |= {places[rate]: dense_s / own_s for rate, (dense_s, own_s) in zip(missing, pairs, strict=True)}


def _figure(title: str, points: Sequence[tuple[float, float]], own: float) -> dict[str, Any]:
    """Return a curve, with the place of the knob as a ring on it."""
    x, y = zip(*points, strict=True)
    here = [(value, speedup) for value, speedup in points if abs(value / own - 1) < 1e-9]
    ring = Curve(
        x=[one for one, _ in here], y=[one for _, one in here], colour=VERMILION, dash="", marker="o", is_open=True,
        size=2.0,
    )  # fmt: skip
    curve = line(0, "", x, y, hover=[f"{value:g}: {speedup_text(speedup)}" for value, speedup in points])
    chart = Chart(
        x=number_scale(title, {value: f"{value:g}" for value in x}),
        y=speedup_scale("speedup", y),
        curves=[curve, ring],
        guides=[Guide(value=1.0)],
    )
    found = chart_plotly.figure(chart, height=HEIGHT)
    found["layout"] |= {"margin": {"l": 60, "r": 15, "t": 15, "b": 50}, "height": HEIGHT}
    return found
