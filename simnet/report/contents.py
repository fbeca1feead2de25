"""What a report holds: the question, the verdict, figures, and what they rest on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from simnet.analysis import convergence, crossover, lost_time, sweeps
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise, check_rankable
from simnet.analysis.crossover import speedup_of
from simnet.analysis.tune import chosen, compared
from simnet.calibration.comparison import Comparison
from simnet.cluster.hardware import Calibration
from simnet.core.bounded_types import Kind
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, format_bytes, format_seconds
from simnet.engine import intervals, memory_fit
from simnet.engine.intervals import with_default_draws
from simnet.engine.memory_fit import size_text
from simnet.engine.result import PointResult, RunResult, SweepResult
from simnet.engine.scenario import Scenario, experiment_of
from simnet.engine.simulation import simulate, with_influences
from simnet.report import charts, comparison_charts, step_charts
from simnet.report.advice import answer, answer_table
from simnet.report.chart import Chart
from simnet.report.crossover import crossover_sentences
from simnet.report.result_page import assumptions, interval_text, noun, reference_sentence
from simnet.report.sweep_page import headlines, is_slower
from simnet.report.table import Table
from simnet.report.text import (
    capitalized,
    nics_text,
    nodes_text,
    panels,
    percent,
    printable,
    sides,
    speedup_text,
    titles,
    varies,
    workload_name,
)
from simnet.report.text import label as label_of

BANDWIDTH = "cluster.inter_node.bandwidth"
NODES = "cluster.num_nodes"
RATES = ("1 Gbit/s", "5 Gbit/s", "10 Gbit/s", "25 Gbit/s", "50 Gbit/s", "100 Gbit/s", "200 Gbit/s", "400 Gbit/s")
"""NIC bandwidths around which a scenario is looked at; its own is among them."""
ENDS = ("0.5 Gbit/s", "800 Gbit/s")
"""Of the search for a crossover."""
TOLERANCE = 1e-3
"""Of a crossover, relative: pages show three digits."""
MOST_NODES = 4
"""Times the scenario's nodes, up to which it is looked at."""
MOST_PANELS = 6
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
Part = tuple[str, str, str, str]
Tick = Callable[[int], object]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        key: its place, such as "speedup".
        title: its heading.
        paragraphs: sentences before the figures.
        charts: its figures.
        tables: further tables, each with a caption.
    """

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A report before it is a page.

    Attributes:
        title: of the page.
        question: what was asked; "" if nobody has written it down.
        verdict: the answer in one sentence, with its interval.
        judgement: the verdict in a word or two, such as "pays"; "" if there is none.
        advised: what to use here, as `simnet advise` answers; "" if nobody asked.
        over_flat: the same over flat DDP, or the worst point; "" if not known.
        sections: in order.
        notes: what a reader must know to trust the numbers.
    """

    title: str
    question: str
    verdict: str
    judgement: str
    over_flat: str = ""
    advised: str = ""
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def num_ticks(scenario: Scenario, systems: Iterable[str] | None = ()) -> int:
    """Return how many simulations `of_scenario` reports."""
    num_systems = 0 if systems is None else len(chosen(systems))
    num_around = len(_nodes_around(scenario)) * len(_rates_around(scenario))
    num_lost = lost_time.num_runs(scenario) if scenario.cluster.all_faults else 0
    return 1 + num_lost + num_around + num_systems + crossover.NUM_STEPS


def of_scenario(  # noqa: PLR0913 - what a report may hold
    scenario: Scenario,
    tick: Tick,
    *,
    systems: Iterable[str] | None = (),
    measured: Sequence[Comparison] = (),
    jobs: int = 1,
    known: RunResult | None = None,
) -> Contents:
    """Return the report on a scenario: its own point, what is around it, and what else could be used.

    Args:
        scenario: what is asked about.
        tick: called with the number of further simulations done.
        systems: titles or kinds of alternatives to rank, which takes the longest; by default all, with None none.
        measured: measured values with their predictions.
        jobs: processes at most.
        known: the result of the scenario's own point, where somebody has it; else it is simulated.

    Raises:
        SimnetError: the parts do not fit together, or there is nothing to compare with.
    """
    scenario, change = _that_fits(scenario)
    result = _own_point(scenario, None if change else known, tick)
    if result.baseline is None:
        raise SimnetError(crossover.NOTHING_TO_COMPARE.format(scenario.name))
    around = _around(scenario, tick, jobs)
    advice = None if systems is None else _advice(scenario, systems, tick, jobs)
    sections = [
        _speedup_section(around.points, "", result),
        *_crossover_section(result, tick),
        Section(key="step", title="Where the time goes", charts=_of_run(result)),
        *([_advice_section(advice)] if advice is not None else []),
        *_measured_section(measured),
        _assumed_section(result),
    ]
    return Contents(
        title=f"{workload_name(result)} on {nodes_text(result.num_nodes)} at {nics_text(result)}",
        question=scenario.question,
        verdict=capitalized(_too_large(result) or f"{change}{verdict_sentence(result)}"),
        judgement="does not fit" if _too_large(result) else speedup_of(result, simulate).verdict,
        advised=f"What to use: {answer(advice)['Answer']}" if advice is not None else "",
        over_flat=capitalized(reference_sentence(result)),
        sections=tuple(sections),
        notes=tuple(dict.fromkeys(printable(note) for note in result.notes)),
    )


def _that_fits(scenario: Scenario) -> tuple[Scenario, str]:
    """Return a scenario in which its strategy fits the GPU, if there is one, and how it was changed for that, in words.

    Charts of what does not fit would answer nobody.
    """
    memory = memory_fit.memory_of(scenario, scenario.strategy)
    if memory is None or memory.gpu_bytes is None or memory.fits is not False:
        return scenario, ""
    repair = memory_fit.what_fits(scenario, scenario.strategy)
    if repair is None or repair.scenario.strategy != scenario.strategy:
        return scenario, ""
    sizes = f"{size_text(memory)} of {format_bytes(memory.gpu_bytes)}"
    return repair.scenario, f"as written it takes {sizes}; here with {repair.text}: "


def _too_large(result: RunResult) -> str:
    """Return which side of a run needs more memory than the GPU has, in one sentence; "" where both fit."""
    texts = [
        f"{title} takes {size_text(side.memory)} of {format_bytes(side.memory.gpu_bytes)}"
        for title, side in zip(titles([result]), sides(result), strict=True)
        if side.memory is not None and side.memory.gpu_bytes is not None and side.memory.fits is False
    ]
    return f"does not fit {result.scenario.cluster.gpu}: {' and '.join(texts)}." if texts else ""


def _own_point(scenario: Scenario, known: RunResult | None, tick: Tick) -> RunResult:
    """Return the scenario's result, with what its faults cost."""
    result = known if known and known.references else with_influences(compared(with_default_draws(scenario)))
    tick(1)
    if not scenario.cluster.all_faults:
        return result
    if result.result.lost_time is None:
        return lost_time.with_lost_time(result, tick)
    tick(lost_time.num_runs(scenario))
    return result


def of_sweep(sweep: SweepResult, measured: Sequence[Comparison] = ()) -> Contents:
    """Return the report on the results of a sweep."""
    points = [point for point in sweep.points if point.speedup is not None]
    if not points:
        raise SimnetError(crossover.NOTHING_TO_COMPARE.format(sweep.name))
    by_panel = list(panels(points).items())
    best = max(points, key=lambda point: point.speedup or 0.0)
    if all(len(panel) == 1 for _, panel in by_panel):
        by_panel = [("", points)]
    sections = [_speedup_section(panel, label) for label, panel in by_panel[:MOST_PANELS]]
    return Contents(
        title=printable(sweep.question or sweep.name),
        question=f"Sweep {sweep.name}, {len(sweep.points)} points." if sweep.question else "",
        verdict=f"At best, {_where(best, many=len(by_panel) > 1)}: {verdict_sentence(best)}",
        judgement="",
        over_flat=_worst_sentence(points, many=len(by_panel) > 1),
        sections=(
            Section(key="points", title="Over all points", paragraphs=tuple(headlines(sweep))),
            *sections,
            *_left_out(len(by_panel) - MOST_PANELS),
            Section(
                key="step",
                title="Where the time goes",
                paragraphs=(f"At the largest speedup, {speedup_text(best.speedup)}.",),
                charts=_of_run(best if best.sensitive_to else with_influences(best)),
            ),
            *_measured_section(measured),
            _assumed_section(best),
        ),
        notes=tuple(dict.fromkeys(printable(note) for point in sweep.points for note in point.notes)),
    )  # fmt: skip


def _where(point: PointResult, *, many: bool) -> str:
    """Return where a point of a sweep is, of which workload where there are many."""
    workload = f"of {workload_name(point)} " if many else ""
    return f"{workload}on {nodes_text(point.num_nodes)} at {nics_text(point)}"


def _worst_sentence(points: Sequence[PointResult], *, many: bool) -> str:
    """Return the least speedup, and at how many points it is below 1; "" of one point."""
    if len(points) == 1:
        return ""
    worst = min(points, key=lambda point: point.speedup or 0.0)
    slower = sum(map(is_slower, points))
    return (
        f"At worst, {_where(worst, many=many)}: {speedup_text(worst.speedup)}. It is slower at {slower} of "
        f"{len(points)} points."
    )


def _left_out(count: int) -> list[Section]:
    """Say how many panels are not drawn."""
    if count <= 0:
        return []
    return [Section(key="more", title=f"{count} more panels", paragraphs=("They are in the files of the sweep.",))]


def verdict_sentence(result: RunResult) -> str:
    """Return the speedup of a run with its interval in one sentence."""
    strategy, baseline = titles([result])
    ends = result.intervals.get("speedup")
    between = f" (90 % interval {' to '.join(map(speedup_text, ends))})" if ends else ""
    times = [format_seconds(side.iteration_s) for side in sides(result)]
    return (
        f"a step takes {times[0]} with {strategy} and {times[1]} with {baseline}: "
        f"{speedup_text(result.speedup)}{between}."
    )


def _advice(scenario: Scenario, systems: Iterable[str], tick: Tick, jobs: int) -> Advice | None:
    """Return the ranking of alternatives; None for a cluster that needs the exact executor."""
    try:
        check_rankable(scenario)
    except SimnetError:
        return None
    return advise(
        scenario,
        names=chosen(systems),
        recorded={},
        trainings=convergence.shipped(),
        are_of_user=False,
        jobs=jobs,
        progress=tick,
    )


def _around(scenario: Scenario, tick: Tick, jobs: int) -> SweepResult:
    """Return the scenario at other nodes and bandwidths."""
    axes: dict[str, Sequence[object]] = {NODES: _nodes_around(scenario), BANDWIDTH: _rates_around(scenario)}
    experiment = experiment_of(scenario, axes=axes)
    points = sweeps.points_of(experiment)
    drawn = sweeps.with_draws(points)
    return sweeps.collect_results(experiment, drawn, sweeps.run(drawn, jobs=jobs, progress=tick))


def _nodes_around(scenario: Scenario) -> list[int]:
    num_nodes = scenario.cluster.num_nodes
    return sorted({num_nodes, *(2**power for power in range(12) if 2**power <= max(8, MOST_NODES * num_nodes))})


def _rates_around(scenario: Scenario) -> list[str]:
    bytes_per_s = scenario.cluster.inter_node.bytes_per_s
    return [rate.text() for rate in sorted({bytes_per_s, *map(Bandwidth.parse, RATES)})]


def _speedup_section(points: Sequence[PointResult], label: str, asked: RunResult | None = None) -> Section:
    """Return curves and map of one panel, as far as its axes vary."""
    has_nodes = len({point.num_nodes for point in points}) > 1
    has_rates = len({point.nic_gbit_per_s for point in points}) > 1
    places = [(point.num_nodes, point.nic_gbit_per_s) for point in points]
    drawn: list[Chart] = []
    if len(set(places)) == len(places):
        roles = titles(points)
        drawn += [charts.speedups(points, BANDWIDTH, asked=asked, roles=roles)] if has_rates else []
        drawn += [charts.speedups(points, NODES, asked=asked, roles=roles)] if has_nodes else []
        drawn += [charts.heat_map(points, roles=roles)] if has_nodes and has_rates else []
    if not drawn:
        drawn.append(step_charts.breakdown(points, [label_of(point, list(point.set)) for point in points]))
    title = f"How much faster: {label}" if label else "How much faster, and where"
    return Section(key="speedup", title=title, charts=tuple(drawn))


def _crossover_section(result: RunResult, tick: Tick) -> Iterator[Section]:
    done: list[int] = []

    def progress(steps: int) -> None:
        done.append(steps)
        tick(steps)

    experiment = experiment_of(result.scenario)
    try:
        searched = crossover.search(
            experiment,
            key=BANDWIDTH,
            start=ENDS[0],
            end=ENDS[1],
            tolerance=TOLERANCE,
            simulate=compared,
            progress=progress,
        )
    except SimnetError:  # on one node, say, where no NIC matters
        tick(crossover.NUM_STEPS - sum(done))
        return
    strategy, baseline = titles([result])
    has_one = result.scenario.cluster.nics_per_node == 1
    key = "NIC bandwidth" if has_one else "each NIC's bandwidth"
    searched = structs.replace(searched, key=key, strategy=strategy, baseline=baseline)
    said = tuple(crossover_sentences(searched))
    chart = charts.crossover(searched, said[0])
    yield Section(key="crossover", title="At which bandwidth it pays", paragraphs=said[1:], charts=(chart,))


def _of_run(result: RunResult) -> tuple[Chart, ...]:
    drawn = [step_charts.breakdown([result])]
    if varies(result):
        drawn.append(step_charts.distribution(result))
    if result.result.lost_time is not None:
        drawn.append(step_charts.lost_time(result))
    if result.sensitive_to:
        drawn.append(step_charts.tornado(result))
    return tuple(drawn)


def _advice_section(advice: Advice) -> Section:
    return Section(
        key="alternatives",
        title="What else could be used",
        paragraphs=tuple(f"{label}: {text}".replace("\n", "; ") for label, text in answer(advice).items()),
        charts=(comparison_charts.ranking(advice),),
        tables=(("The best of each permitted change, and both references", answer_table(advice)),),
    )


def _measured_section(measured: Sequence[Comparison]) -> Iterator[Section]:
    if measured:
        chart = comparison_charts.predicted_over_measured(measured)
        yield Section(key="measured", title="Predicted and measured", charts=(chart,))


def _assumed_section(result: RunResult) -> Section:
    """Return every assumption with its source, and the interval of every uncertain value."""
    tables = (
        ("What was assumed, where it comes from, and whether it was measured", parts_table(result)),
        ("Values that are not sure", uncertain_table(result)),
    )
    return Section(key="assumptions", title="What this rests on", tables=tables)


def parts_table(result: RunResult) -> Table:
    """Return every part that was assumed, with its source and whether it was measured."""
    return Table(HEADS, _parts(result))


def uncertain_table(result: RunResult) -> Table:
    """Return the 90 % interval of each value that has one, the model's own error last."""
    known = intervals.stated_intervals(intervals.plain_scenario(result.scenario))
    rows = [(noun(key), interval_text(key, ends)) for key, ends in known.items()]
    error = intervals.model_error(result.scenario.calibration)
    rows.append(("the model itself, of a time", f"{1 / error.time:.2g} to {error.time:.2g} times as long"))
    rows.append(("the model itself, of a speedup", f"{1 / error.speedup:.2g} to {error.speedup:.2g} times as large"))
    return Table(("value", "90 % interval, as a factor on what was assumed"), rows)


def _parts(result: RunResult) -> Iterator[Part]:
    scenario, shown = result.scenario, assumptions(result)
    calibration = scenario.calibration
    yield "cluster", shown["cluster"], NOMINAL, scenario.cluster.source
    yield "workload", shown["workload"], "gradients: counted", scenario.workload.source
    yield from _compute_rows(scenario)
    yield "calibration", shown["calibration"], MEASURED[calibration.kind], calibration.source
    yield from _calibration_rows(calibration)
    yield "the model's own error", "in the intervals", "yes", intervals.model_error(calibration).source
    yield "program", shown["simulated"], "", ""


def _compute_rows(scenario: Scenario) -> Iterator[Part]:
    """Yield the timed rows of the workload that are of the cluster's GPU."""
    gpu = scenario.cluster.gpu
    for row in scenario.workload.compute:
        if row.gpu == (gpu or row.gpu):
            yield f"compute, {row.gpu} {row.precision}", f"batch {row.batch}", MEASURED[row.kind], row.source


def _calibration_rows(calibration: Calibration) -> Iterator[Part]:
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
