"""The two references of every speedup: flat DDP, with which papers compare, and DDP at its best on the cluster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from simnet.analysis.batches import BatchSettings, fitting, settings_of, that_fit, with_settings
from simnet.analysis.tune import PLAIN, Variants, dense_systems, flat_name, needs_training, systems
from simnet.cluster.hardware import Link
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration
from simnet.engine.result import References, RunResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.engine.step_timer import StepLanes, StepTimer, first_of_least
from simnet.strategies import AnyStrategy, RecordedStep, choices

NO_LINK = Link(bytes_per_s=Bandwidth(1), alpha_s=Duration(0))


def without_faults(scenario: Scenario) -> Scenario:
    """Return a scenario with nodes that are all alike."""
    cluster = replace(scenario.cluster, slow_nodes=(), faults=())
    return replace(scenario, cluster=cluster, run=replace(scenario.run, iterations=None))


def with_references(result: RunResult) -> RunResult:
    """Return a result with its references; without where they would take the exact executor."""
    return replace(result, references=references([result.scenario])[0])


def references(scenarios: Sequence[Scenario]) -> list[References | None]:
    """Return the references of each scenario: those that differ in rates alone are tuned in one pass.

    Returns:
        None where they cannot be predicted, or take the exact executor.
    """
    groups: dict[object, list[tuple[Scenario, list[int]]]] = {}
    plain = [_plain(one) for one in scenarios]
    for place, one in enumerate(plain):
        shape = _shape(one)
        alike = groups.setdefault(_key(one), [])
        places = next((places for other, places in alike if other == shape), None)
        if places is None:
            alike.append((shape, places := []))
        places.append(place)
    found: list[References | None] = [None] * len(plain)
    for places in (places for alike in groups.values() for _, places in alike):
        try:
            for place, known in zip(places, _of_group([plain[place] for place in places]), strict=True):
                found[place] = _with_faults(scenarios[place], known)
        except SimnetError:
            continue
    return found


def _plain(scenario: Scenario) -> Scenario:
    """Return a scenario as references see it: nodes are alike, strategy and baseline do not matter."""
    same = without_faults(scenario)
    given = same.run
    run = RunSettings(grad_accumulation=given.grad_accumulation, global_batch=given.global_batch, fidelity="folded")
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


class _BothReferences(NamedTuple):
    """What stands for both references, and their steps where all nodes are alike."""

    flat: _Cut
    tuned: _Cut
    found: References


def _of_group(scenarios: Sequence[Scenario]) -> list[_BothReferences]:
    """Return the references of scenarios of one shape."""
    first = scenarios[0]
    dense = list(dense_systems(first.workload.dtype).values())
    flats, tuned = _cuts(first, [(PLAIN,)], [(PLAIN,)]), _cuts(first, compared(first, systems).values(), dense)
    cuts = [*dict.fromkeys([*flats, *tuned])]
    times = _times_s(scenarios, cuts)
    found = []
    for lane, scenario in enumerate(scenarios):
        best = []
        for chosen in (flats, tuned):
            one = chosen[first_of_least([times[cut][lane] for cut in chosen])]
            # Trees over some numbers of nodes are followed rank by rank: too long for all that are tried.
            there = with_settings(scenario, one.settings)
            timer = StepTimer(replace(there, run=replace(there.run, fidelity="auto")))
            best.append((one, timer.of(one.strategy)))
        (flat, flat_s), (own, tuned_s) = best
        cut = "" if own.settings == settings_of(scenario) else own.settings.text()
        named = tuned_name(own.strategy, cut)
        made = References(flat_s=flat_s, tuned_s=tuned_s, flat=flat_name(first.workload.dtype), tuned=named)
        found.append(_BothReferences(flat, own, made))
    return found


def compared(scenario: Scenario, known: Callable[[], Mapping[str, Variants]]) -> dict[str, Variants]:
    """Return the systems that tuned DDP is chosen from: DDP where it fits as given, else all that train alike."""
    dense = dense_systems(scenario.workload.dtype)
    if any(fitting(scenario, variants) for variants in dense.values()):
        return dense
    alike = {
        name: variants
        for name, variants in known().items()
        if not any(needs_training(one) or isinstance(one, RecordedStep) for one in variants)
    }
    return {**dense, **alike}


def _cuts(scenario: Scenario, known: Iterable[Variants], otherwise: Iterable[Variants]) -> list[_Cut]:
    """Return every variant in each cut of the batch in which it fits; where none does, others as they are given."""
    found = [
        _Cut(variant, settings_of(one.scenario))
        for variants in known
        for one in that_fit(scenario, variants)
        for variant in one.variants
    ]
    return found or [_Cut(one, settings_of(scenario)) for variants in otherwise for one in variants]


def _times_s(scenarios: Sequence[Scenario], cuts: Iterable[_Cut]) -> dict[_Cut, list[float]]:
    """Return the steps of each cut in each scenario [s]; those that differ in rates alone are timed together."""
    lanes: dict[BatchSettings, Callable[[AnyStrategy], list[float]]] = {}
    found = {}
    for cut in cuts:
        if cut.settings not in lanes:
            there = [with_settings(one, cut.settings) for one in scenarios]
            lanes[cut.settings] = StepLanes(there).of if len(there) > 1 else _alone(there[0])
        found[cut] = lanes[cut.settings](cut.strategy)
    return found


def _alone(scenario: Scenario) -> Callable[[AnyStrategy], list[float]]:
    timer = StepTimer(scenario)
    return lambda strategy: [timer.of(strategy)]


def tuned_name(strategy: AnyStrategy, cut: str = "") -> str:
    """Return what people call the other reference, with what was tuned: "tuned DDP (bf16, hierarchical)"."""
    casts = (getattr(strategy, key, None) for key in ("wire_dtype", "gather_dtype"))
    said = [*dict.fromkeys(one for one in casts if one), choices.form(strategy), cut]
    return f"tuned {strategy.title} ({', '.join(filter(None, said)) or 'its best buckets'})"


def _with_faults(scenario: Scenario, known: _BothReferences) -> References:
    """Return the references on a cluster as it is: settings are tuned where all nodes are alike."""
    if not scenario.cluster.all_faults:
        return known.found
    run = replace(scenario.run, draws=0, steps=None)
    flat_s, tuned_s = (
        simulate(
            replace(with_settings(scenario, one.settings), strategy=one.strategy, baseline=None, run=run)
        ).result.iteration_s
        for one in (known.flat, known.tuned)
    )
    return replace(known.found, flat_s=flat_s, tuned_s=tuned_s)
