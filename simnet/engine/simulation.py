"""Simulate a scenario: the one entry for commands, sweeps and the Python API."""

import math
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from simnet.cluster.faults.node_failure import Availability, NodeFailure
from simnet.cluster.faults.windows import TimedFault
from simnet.cluster.hardware import Calibration, Cluster
from simnet.cluster.nccl_costs import SAME_NETWORK
from simnet.collectives import algorithms
from simnet.core.schema import tag_of
from simnet.core.version import VERSION
from simnet.engine import intervals, memory_fit
from simnet.engine.prepared_scenario import SAME_TIME, UNEVEN_MATTERS, PreparedScenario
from simnet.engine.result import References, RunResult, StrategyResult, compared_with
from simnet.engine.scenario import Scenario, settings_of
from simnet.engine.timeline import Timeline
from simnet.strategies import Strategy


def simulate(
    scenario: Scenario,
    on_progress: Callable[[], None] | None = None,
    *,
    with_model_error: bool = True,
    references: References | None = None,
) -> RunResult:
    """Simulate iterations of a scenario's strategy, and of what it is compared with, if anything.

    An iteration is one of many: DDP's buckets are those from the second iteration on.

    Args:
        scenario: what to simulate.
        on_progress: called now and then, `num_calls` times in all.
        with_model_error: whether intervals hold the model's own error, not only those of calibration and workload.
        references: what the strategy is compared with; by default the scenario's baseline.

    Raises:
        SimnetError: the parts do not fit together (see the message).
    """
    whole = _simulate_once(scenario, on_progress, references)
    if not scenario.run.draws:
        return whole
    # Draws give ratios to the result as calibrated, which is simulated once and in full.
    bounds = intervals.intervals(whole, with_model_error=with_model_error)
    return replace(whole, intervals=bounds)


def with_influences(result: RunResult) -> RunResult:
    """Return a result with the values that it hangs on most; each takes two simulations."""
    return replace(result, sensitive_to=intervals.influences(result))


def _simulate_once(
    scenario: Scenario, on_progress: Callable[[], None] | None, references: References | None
) -> RunResult:
    """Simulate without intervals."""
    prepared = PreparedScenario(scenario, on_progress)
    result = _strategy_result(prepared, scenario.strategy)
    baseline = None
    if compared := compared_with(scenario, references):
        # A reference may cut its batch otherwise to fit the GPU: its compute then takes other times, and is prepared
        # anew.
        is_cut_alike = settings_of(compared) == settings_of(scenario)
        beside = prepared if is_cut_alike else PreparedScenario(compared, on_progress)
        baseline = _strategy_result(beside, compared.strategy)
    return RunResult(
        scenario=scenario,
        world_size=prepared.topology.world_size,
        result=result,
        baseline=baseline,
        speedup=baseline.step_s / result.step_s if baseline else None,
        end_to_end_speedup=_ratio(baseline.total_s, result.total_s) if baseline else None,
        gradient_bytes=prepared.step.gradient_bytes,
        version=VERSION,
        notes=(
            *_notes(prepared, compared),
            *_notes_of_executor((result, baseline)),
            *_notes_of_windows(scenario, result),
            *_notes_of_memory(scenario, result),
            *(_notes_of_memory(compared, baseline) if compared and baseline else ()),
        ),
        references=references,
    )


def check(scenario: Scenario) -> None:
    """Check that the parts of a scenario fit together, without running it."""
    prepared = PreparedScenario(scenario)
    for strategy in _run_strategies(scenario, compared_with(scenario, None)):
        prepared.plan(strategy)


def num_calls(scenario: Scenario, references: References | None = None) -> int:
    """Return how often `simulate` tells of its progress: 0 where it takes milliseconds.

    The exact executor does so whenever rank 0 has finished a round, the grouped one after each step.
    """
    prepared = PreparedScenario(scenario)
    # One node that stands for all takes milliseconds, in which a bar would only flicker.
    if prepared.fidelity == "folded":
        return 0
    plans = [prepared.plan(strategy) for strategy in _run_strategies(scenario, compared_with(scenario, references))]
    if prepared.fidelity == "exact":
        return sum(prepared.num_rounds(plan) for plan in plans)
    return sum(prepared.num_steps(plan) for plan in plans)


def kernel_names(scenario: Scenario) -> frozenset[str]:
    """Return the kernels that an iteration of a scenario's strategy runs around its messages."""
    return PreparedScenario(scenario).plan(scenario.strategy).program.kernels


def _run_strategies(scenario: Scenario, compared: Scenario | None) -> Iterator[Strategy]:
    """Yield every strategy that `simulate` runs: the scenario's, what it is compared with, and their dense stages."""
    for strategy in (scenario.strategy, *([compared.strategy] if compared else [])):
        yield strategy
        if stage := strategy.dense_stage(scenario.run.steps):
            yield stage.strategy


def _run(prepared: PreparedScenario, strategy: Strategy) -> tuple[Timeline, float | None, float | None]:
    """Return an iteration, and the time of one of the dense stage and of all steps [s], None where there is none."""
    timeline = prepared.run(prepared.plan(strategy))
    steps = prepared.scenario.run.steps
    stage = strategy.dense_stage(steps)
    dense_s = prepared.run(prepared.plan(stage.strategy)).iteration_s if stage else None
    return timeline, dense_s, intervals.total_s(strategy, steps, timeline.iteration_s, dense_s)


def _strategy_result(prepared: PreparedScenario, strategy: Strategy) -> StrategyResult:
    timeline, dense_s, total_s = _run(prepared, strategy)
    plan = prepared.plan(strategy)
    step, program = prepared.step, plan.program
    samples = prepared.topology.world_size * step.samples * step.micro_batches
    return StrategyResult(
        strategy=strategy.kind,
        fidelity=timeline.fidelity or prepared.fidelity,
        algorithm=program.algorithm,
        iterations_s=timeline.iterations_s or (timeline.iteration_s,),
        samples_per_s=samples / timeline.iteration_s,
        breakdown=timeline.breakdown,
        comm_s=timeline.comm_s,
        overlap=timeline.overlap,
        nic_bytes_per_node=plan.nic_bytes_per_node(prepared.topology_of(strategy)),
        compression_ratio=step.gradient_bytes / program.payload_bytes,
        num_buckets=program.num_buckets,
        longest_pause_s=timeline.longest_pause_s if program.period > 1 else None,
        dense_iteration_s=dense_s,
        dense_fraction=strategy.dense_fraction,
        total_s=total_s,
        memory=memory_fit.memory_in(prepared, strategy),
        waits=timeline.waits,
        availability=_availability(prepared.scenario),
        approximation=timeline.off_s / timeline.iteration_s
        if timeline.off_s > SAME_TIME * timeline.iteration_s
        else 0.0,
        spans=timeline.spans,
    )


def _availability(scenario: Scenario) -> Availability | None:
    """Return which part of a day trains; None where no fault says that nodes fail."""
    cluster = scenario.cluster
    failures = [fault for fault in cluster.faults if isinstance(fault, NodeFailure)]
    return failures[0].availability(cluster.num_nodes, scenario.run.seed) if failures else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _notes(prepared: PreparedScenario, compared: Scenario | None) -> tuple[str, ...]:
    """Say what a reader must know to trust the numbers."""
    cluster, calibration = prepared.scenario.cluster, prepared.scenario.calibration
    strategies = [*_run_strategies(prepared.scenario, compared)]
    plans = [prepared.plan(strategy) for strategy in strategies]
    notes = list(prepared.step.notes)
    if cluster.faults:
        titles = ", ".join(dict.fromkeys(fault.title or tag_of(fault) for fault in cluster.faults))
        notes.append(f"the cluster has faults: {titles}")
    notes += calibration_notes(cluster, calibration)
    if prepared.scenario.run.draws and not intervals.has_intervals(prepared.scenario):
        notes.append(
            f"{calibration.label} and the workload have no intervals of their own: those of the result "
            "hold the model's error alone"
        )
    # Once each: a strategy and what it is compared with may say the same.
    notes += dict.fromkeys(note for plan in plans for note in plan.program.notes)
    notes += _beyond_measured_nodes(cluster.num_nodes, calibration)
    notes += _beyond_nccl(prepared, strategies)
    free = sorted({kernel for plan in plans for kernel in plan.without_time(calibration)})
    if free:
        notes.append(
            f"no time for kernels {', '.join(free)}: they cost nothing here; give calibration.memory_bandwidth"
        )
    stand_ins = {sentence for plan in plans for sentence in plan.timed_by_others(calibration)}
    notes += [f"{sentence}: measure it" for sentence in sorted(stand_ins)]
    others = {sentence for plan in plans for sentence in plan.timed_otherwise(calibration)}
    notes += [f"kernel {sentence}: measure again with the strategy's options" for sentence in sorted(others)]
    return tuple(notes)


def calibration_notes(cluster: Cluster, calibration: Calibration) -> tuple[str, ...]:
    """Say how far a calibration is from a cluster: what it is, and on what GPU, links and cluster it was measured."""
    notes = []
    if calibration.kind != "measured":
        notes.append(f"{calibration.label} is {_of_kind(calibration.kind)}, not measured on this cluster")
    if calibration.gpu and cluster.gpu and calibration.gpu != cluster.gpu:
        notes.append(
            f"kernel times of {calibration.label} are those of {calibration.gpu}, the cluster has {cluster.gpu}"
        )
    for name, link, calibrated in (
        ("inter_node", cluster.inter_node, calibration.inter_node),
        ("intra_node", cluster.intra_node, calibration.intra_node),
    ):
        on = calibrated.measured_on
        # An efficiency is a fraction of the nominal rate: what a host attains does not grow with the rate of its link.
        if on is not None and not math.isclose(on, link.bytes_per_s, rel_tol=0.01):
            nominal = link.bytes_per_s.text()
            notes.append(f"the efficiency of {name} links was measured on {on.text()}, not on the cluster's {nominal}")
    if spread := calibration.nccl_spread(cluster):
        of = f" of {cluster.network}" if spread is SAME_NETWORK else ""
        low, high = spread["from_16_mib"]
        least, most = spread["below_1_mib"]
        notes.append(
            f"NCCL's costs of {calibration.label} are those of another cluster: between clusters{of} its times differ "
            f"by {low:g} to {high:g} times from 16 MiB on, by {least:g} to {most:g} below 1 MiB; fit nccl-tests logs "
            "of yours"
        )
    return tuple(notes)


def _notes_of_executor(results: Iterable[StrategyResult | None]) -> Iterator[str]:
    """Say of which strategy the result is an approximation, and how good it is."""
    for result in results:
        if result is not None and result.approximation > UNEVEN_MATTERS:
            yield (
                f"{result.strategy} on the {result.fidelity} executor is an approximation, off by up to about "
                f"{100 * result.approximation:.2g} %; run.fidelity = 'exact' simulates every send"
            )


def _notes_of_windows(scenario: Scenario, result: StrategyResult) -> Iterator[str]:
    """Say which faults that come and go are not seen as often as they come."""
    # A run of some iterations lasts seconds: a fault that comes every hour may never come in it.
    timed = (fault for fault in scenario.cluster.faults if isinstance(fault, TimedFault))
    yield from filter(None, (fault.missed_in(sum(result.iterations_s)) for fault in timed))


def _notes_of_memory(scenario: Scenario, result: StrategyResult) -> Iterator[str]:
    """Say that a strategy takes more memory than the GPU has, and what would fit."""
    if result.memory is not None and result.memory.fits is False:
        yield memory_fit.sentence(scenario, scenario.strategy, result.memory)


def _beyond_measured_nodes(num_nodes: int, calibration: Calibration) -> Iterator[str]:
    """Say which costs were measured on fewer (or more) nodes alone, so that the cluster lies outside."""
    libraries = ((f"library {name!r}", library.by_nodes) for name, library in calibration.libraries.items())
    for what, points in (("the network", calibration.by_nodes), *libraries):
        if points and num_nodes > 1 and not points[0].nodes <= num_nodes <= points[-1].nodes:
            measured = ", ".join(str(point.nodes) for point in points)
            yield (
                f"{what} was measured on {measured} nodes, not on {num_nodes}: the nearest of these stands for it, "
                "with a wider interval"
            )


def _beyond_nccl(prepared: PreparedScenario, strategies: Iterable[Strategy]) -> Iterator[str]:
    """Say which all-reduces were chosen that NCCL does not have."""
    for strategy in strategies:
        if getattr(strategy, "algorithm", None) == algorithms.ANY:
            chosen = {collective.schedule.algorithm for collective in prepared.plan(strategy).program.collectives}
            names = ", ".join(
                algorithm.name
                for algorithm in algorithms.every()
                if algorithm.name in chosen and not algorithm.is_tuned_over
            )
            if names:
                yield f"{strategy.title}: algorithm 'any' takes {names}, which NCCL does not have"


def _of_kind(kind: str) -> str:
    return {"estimate": "an estimate", "ideal": "ideal (nominal rates, no other cost)"}.get(kind, kind)
