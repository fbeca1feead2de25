"""What every speedup is over, tuned DDP; and what stands beside it: flat DDP, with which papers compare."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from simnet.analysis.tune import (
    PLAIN,
    Contender,
    Variants,
    dense_systems,
    first_of_ties,
    flat_name,
    needs_training,
    systems,
)
from simnet.cluster.hardware import Link
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration
from simnet.engine.memory_fit import fits_uncut, memory_of, that_fit
from simnet.engine.prepared_scenario import StepLanes, StepTimer, first_of_least
from simnet.engine.result import References, RunResult
from simnet.engine.scenario import BatchSettings, RunSettings, Scenario, settings_of, with_settings
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, RecordedStep, choices
from simnet.workload.gpu_memory import GpuMemory

NO_LINK = Link(bytes_per_s=Bandwidth(1), alpha_s=Duration(0))


def without_faults(scenario: Scenario) -> Scenario:
    """Return a scenario with nodes that are all alike."""
    cluster = replace(scenario.cluster, slow_nodes=(), faults=())
    return replace(scenario, cluster=cluster, run=replace(scenario.run, iterations=None))


def compared(
    scenario: Scenario, on_progress: Callable[[], None] | None = None, known: References | None = None
) -> RunResult:
    """Simulate a scenario against its references; where there are none, against the baseline that it names.

    References that are known are not looked for again.
    """
    return simulate(scenario, on_progress, references=known or references([scenario])[0])


def references(scenarios: Sequence[Scenario]) -> list[References | None]:
    """Return the references of each scenario: those that differ in rates alone are tuned in one pass.

    Returns:
        None where they cannot be predicted, take the exact executor, or nothing that changes nothing fits the GPU.
    """
    groups: dict[object, list[tuple[Scenario, list[int]]]] = {}
    plain = [_plain(scenario) for scenario in scenarios]
    for place, scenario in enumerate(plain):
        # Comparing whole scenarios takes long: those with another key are not alike.
        shape = _shape(scenario)
        alike = groups.setdefault(_key(scenario), [])
        places = next((places for other, places in alike if other == shape), None)
        if places is None:
            alike.append((shape, places := []))
        places.append(place)
    known_references: list[References | None] = [None] * len(plain)
    for places in (places for alike in groups.values() for _, places in alike):
        try:
            for place, known in zip(places, _of_group([plain[place] for place in places]), strict=True):
                known_references[place] = _as_asked(scenarios[place], known)
        # They differ in rates alone: what one of them lacks, all lack.
        except SimnetError:
            continue
    return known_references


def _plain(scenario: Scenario) -> Scenario:
    """Return a scenario as references see it: nodes are alike, strategy and baseline do not matter."""
    same = without_faults(scenario)
    whole_run = same.run
    run = RunSettings(
        grad_accumulation=whole_run.grad_accumulation, global_batch=whole_run.global_batch, fidelity="folded"
    )
    return replace(same, name="", question="", strategy=PLAIN, baseline=None, run=run)


def _shape(scenario: Scenario) -> Scenario:
    """Return what scenarios that differ in rates and latencies of their links alone have in common."""
    cluster = scenario.cluster
    return replace(scenario, cluster=replace(cluster, intra_node=NO_LINK, inter_node=NO_LINK))


def _key(scenario: Scenario) -> object:
    """Return what says quickly that two scenarios have another shape."""
    cluster, workload = scenario.cluster, scenario.workload
    return cluster.num_nodes, cluster.ranks_per_node, cluster.gpu, workload.name, workload.batch_per_rank


class _Cut(NamedTuple):
    """A strategy, and how the batch is cut for it to fit."""

    strategy: AnyStrategy
    settings: BatchSettings


def _of_group(scenarios: Sequence[Scenario]) -> list[References]:
    """Return the references of scenarios of one shape, on nodes that are all alike.

    Raises:
        SimnetError: nothing that changes nothing in training fits the GPU.
    """
    first = scenarios[0]
    flats = _cuts(first, (PLAIN,))
    by_system = [cuts for variants in reference_systems(first, systems).values() if (cuts := _cuts(first, variants))]
    if not by_system:
        raise SimnetError(f"{first.workload.label}: nothing that changes nothing in training fits {first.cluster.gpu}")
    times = _times_s(scenarios, dict.fromkeys([*flats, *(cut for cuts in by_system for cut in cuts)]))
    held: dict[_Cut, GpuMemory | None] = {}
    made = []
    for lane, scenario in enumerate(scenarios):
        fastest = [cuts[first_of_least([times[cut][lane] for cut in cuts])] for cuts in by_system]
        # Memory does not depend on rates, so that it is asked for once.
        held |= {cut: memory_of(with_settings(first, cut.settings), cut.strategy) for cut in fastest if cut not in held}
        steps = [Contender.of(cut.strategy, times[cut][lane], held[cut], first.workload) for cut in fastest]
        best = fastest[first_of_ties(steps)]
        is_uncut = best.settings == settings_of(scenario)
        made.append(
            References(
                strategy=best.strategy,
                settings=best.settings,
                tuned=f"tuned {described(best.strategy, '' if is_uncut else best.settings.text())}",
                tuned_s=_followed_s(scenario, best),
                flat=flat_name(first.workload.dtype),
                flat_s=min((_followed_s(scenario, cut) for cut in flats), default=None),
            )
        )
    return made


def _followed_s(scenario: Scenario, cut: _Cut) -> float:
    """Return a step [s]. Some trees are followed rank by rank, which takes too long for all that are tried."""
    there = with_settings(scenario, cut.settings)
    return StepTimer(replace(there, run=replace(there.run, fidelity="auto"))).of(cut.strategy)


def reference_systems(scenario: Scenario, known: Callable[[], Mapping[str, Variants]]) -> dict[str, Variants]:
    """Return what the reference is chosen from: DDP where it fits with a step at once, else all that train alike."""
    dense = dense_systems(scenario.workload.dtype)
    if any(fits_uncut(scenario, variants) for variants in dense.values()):
        return dense
    alike = {
        name: variants
        for name, variants in known().items()
        if not any(needs_training(variant) or isinstance(variant, RecordedStep) for variant in variants)
    }
    return {**dense, **alike}


def _cuts(scenario: Scenario, variants: Variants) -> list[_Cut]:
    """Return the variants of a system in each cut of the batch in which they fit."""
    return [
        _Cut(variant, settings_of(fitted.scenario))
        for fitted in that_fit(scenario, variants)
        for variant in fitted.variants
    ]


def _times_s(scenarios: Sequence[Scenario], cuts: Iterable[_Cut]) -> dict[_Cut, list[float]]:
    """Return the steps of each cut in each scenario [s]; those that differ in rates alone are timed together."""
    lanes: dict[BatchSettings, Callable[[AnyStrategy], list[float]]] = {}
    times = {}
    for cut in cuts:
        if cut.settings not in lanes:
            there = [with_settings(scenario, cut.settings) for scenario in scenarios]
            lanes[cut.settings] = StepLanes(there).of if len(there) > 1 else _alone(there[0])
        times[cut] = lanes[cut.settings](cut.strategy)
    return times


def _alone(scenario: Scenario) -> Callable[[AnyStrategy], list[float]]:
    timer = StepTimer(scenario)
    return lambda strategy: [timer.of(strategy)]


def described(strategy: AnyStrategy, cut: str = "") -> str:
    """Return a strategy with its settings in words: "DDP (bf16, hierarchical)"."""
    casts = (getattr(strategy, key, None) for key in ("wire_dtype", "gather_dtype"))
    said = [*dict.fromkeys(cast for cast in casts if cast), choices.form(strategy), cut]
    return f"{strategy.title} ({', '.join(filter(None, said)) or 'its best buckets'})"


def _as_asked(scenario: Scenario, known: References) -> References:
    """Return references with the scenario's own baseline beside them, on the cluster as it is.

    Settings are tuned where all nodes are alike.
    """
    as_it_is = replace(scenario, strategy=PLAIN, baseline=None, run=replace(scenario.run, draws=0, steps=None))

    def step_s(there: Scenario) -> float:
        if there.cluster.all_faults:
            return simulate(there).result.step_s
        return StepTimer(there).of(there.strategy)

    if scenario.cluster.all_faults:
        flat_s = None if known.flat_s is None else step_s(as_it_is)
        known = replace(known, tuned_s=step_s(known.scenario_of(as_it_is)), flat_s=flat_s)
    named = scenario.baseline
    if named is None or named in {known.strategy, PLAIN, scenario.strategy}:
        return known
    with_named = replace(scenario, strategy=named, baseline=None, run=replace(scenario.run, draws=0))
    return replace(known, named=f"the baseline, {described(named)}", named_s=step_s(with_named))
