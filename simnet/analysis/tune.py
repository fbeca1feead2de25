"""The systems that are compared, each with the variants over which it is tuned, and the references of all: DDP."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.cluster.hardware import Calibration, Link
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.schema import tag_of
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.axes import Override
from simnet.engine.memory_fit import fits_uncut, memory_of, that_fit
from simnet.engine.prepared_scenario import StepLanes, StepTimer, first_of_least
from simnet.engine.result import References, RunResult
from simnet.engine.scenario import BatchSettings, Experiment, RunSettings, Scenario, settings_of, with_settings
from simnet.engine.simulation import simulate
from simnet.strategies import STRATEGIES, AnyStrategy, DenseAllReduce, RecordedStep, step_file
from simnet.strategies.base import form_of, presets_of, train_alike, variants_of
from simnet.strategies.calls import effort
from simnet.workload.gpu_memory import GpuMemory
from simnet.workload.workload import Workload

# One system with different options, such as bucket sizes; the fastest stands for the system.
Variants = tuple[AnyStrategy, ...]

# Tried as well as one bucket of all gradients after backward. None is DDP's default: 1 MiB, then 25 MiB.
BUCKET_CAPS = (None, Size.parse("5 MiB"), Size.parse("100 MiB"))
# The usual baseline of papers: gradients in their own precision, default buckets, the all-reduce of the calibration, a
# flat ring where it names none.
PLAIN = DenseAllReduce()
TIE = 1.03
"""Steps, and sizes in memory, are taken as equal below this ratio: predictions of steps were off by 3.8 % on average
(docs/evidence/simulator.md)."""


def systems() -> dict[str, Variants]:
    """Return everything that may stand in the place of DDP, by title, each with all its variants."""
    by_kind = (presets_of(kind) for kind in STRATEGIES if not issubclass(kind, DenseAllReduce))
    return {title: _tuned(variants) for systems_ in by_kind for title, variants in systems_.items()}


def without_repeats(names: Iterable[str], known: Mapping[str, Variants], dtype: Dtype) -> tuple[str, ...]:
    """Return the names of what does not send gradients of a format again: "FSDP bf16" is FSDP where they are bf16."""
    return tuple(
        name
        for name in names
        if not all(
            strategy.mathematics == "rounding" and BYTES_PER_ELEMENT[dtype] <= _wire_bytes(strategy)
            for strategy in known[name]
        )
    )


def _wire_bytes(strategy: AnyStrategy) -> float:
    """Return the bytes of an element that a cast leaves; 0 where nothing is cast, or a system rounds besides."""
    if getattr(strategy, "replicas", ""):
        return 0
    dtypes = (getattr(strategy, key, None) for key in ("wire_dtype", "gather_dtype", "reduce_dtype"))
    return min((BYTES_PER_ELEMENT[dtype] for dtype in dtypes if dtype is not None), default=0)


def needs_training(strategy: AnyStrategy) -> bool:
    """Tell whether a strategy changes more of training than casts to 16 bits, which everybody's trainings stand for."""
    return strategy.mathematics != "same" and not (strategy.mathematics == "rounding" and _wire_bytes(strategy) >= 2)


def flat_name(dtype: Dtype) -> str:
    """Return what people call `PLAIN`: one ring, default buckets, gradients in their own precision."""
    return f"flat {dtype} DDP"


def dense_systems(dtype: Dtype) -> dict[str, Variants]:
    """Return DDP without compression, by title; for fp32 gradients also cast to bf16."""
    dense = {f"DDP {dtype}": _tuned([DenseAllReduce(algorithm="auto")])}
    if dtype == "fp32":
        dense["DDP bf16"] = _tuned([DenseAllReduce(algorithm="auto", wire_dtype="bf16")])
    return dense


def recorded_systems(paths: Iterable[str]) -> dict[str, Variants]:
    """Return recorded steps by what to call them; their all-reduces are chosen by message as those of DDP are."""
    every = tuple(dict.fromkeys(paths))
    stems = [Path(path).stem for path in every]
    recorded: dict[str, Variants] = {}
    for path, stem in zip(every, stems, strict=True):
        step_file.read(Path(path))
        recorded[f"recorded {stem if stems.count(stem) == 1 else path}"] = (RecordedStep(file=path, algorithm="auto"),)
    return recorded


def trained_variants(strategy: AnyStrategy, dtype: Dtype) -> Variants:
    """Return the settings of a strategy whose training goes as its own; of DDP all that stand for the baseline."""
    if isinstance(strategy, DenseAllReduce):
        return tuple(variant for variants in dense_systems(dtype).values() for variant in variants)
    return tuple(variant for variant in _tuned([strategy]) if train_alike(variant, strategy))


def with_known_kernels(
    variants: Variants, kernels_of: Callable[[AnyStrategy], frozenset[str]], calibration: Calibration
) -> Variants:
    """Return the variants whose kernels all have a time or a usable estimate, or all variants if none has.

    A kernel without either costs nothing, so that a variant with it would win against those that are known.
    """
    known = (variant for variant in variants if not whatif.coverage(kernels_of(variant), calibration).unmeasured)
    return tuple(known) or variants


class Contender(NamedTuple):
    """What decides between systems whose steps take about as long.

    Attributes:
        step_s: time of a step [s].
        effort: as `calls.effort` counts it.
        held_bytes: what a GPU holds; infinite where that is not known.
    """

    step_s: float
    effort: int
    held_bytes: float

    @classmethod
    def of(cls, strategy: AnyStrategy, step_s: float, memory: GpuMemory | None, workload: Workload) -> "Contender":
        """Return a strategy with the time of its step [s] and what a GPU then holds."""
        return cls(step_s, effort(strategy, workload), math.inf if memory is None else memory.total_bytes)


def tied_places(steps_s: Sequence[float]) -> list[int]:
    """Return the places of the fastest, and of those that `TIE` makes as fast."""
    fastest_s = min(steps_s)
    return [place for place, step_s in enumerate(steps_s) if step_s < TIE * fastest_s]


def first_of_ties(contenders: Sequence[Contender]) -> int:
    """Return the place of the one to take: the fastest, unless `TIE` makes others as fast.

    Of those the lines that can be pasted into a PyTorch script win over flags of another framework, then what leaves
    clearly more memory, then the fastest.
    """
    tied = [contenders[place] for place in tied_places([contender.step_s for contender in contenders])]
    easiest = [contender for contender in tied if contender.effort == min(contender.effort for contender in tied)]
    least_bytes = min(contender.held_bytes for contender in easiest)
    return contenders.index(min(contender for contender in easiest if contender.held_bytes <= TIE * least_bytes))


def _tuned(variants: Iterable[AnyStrategy]) -> Variants:
    return tuple(dict.fromkeys(variant for setting in variants for variant in variants_of(setting, BUCKET_CAPS)))


def names_strategy(experiment: Experiment) -> bool:
    """Tell whether an experiment says with what it trains."""
    return "strategy" in experiment.resolved or "strategy" in experiment.swept_keys


def with_any_strategy(experiment: Experiment) -> Experiment:
    """Return an experiment whose strategy does not matter, so that its file need not name one."""
    if names_strategy(experiment):
        return experiment
    return replace(experiment, overrides=(*experiment.overrides, Override(key="strategy", value=PLAIN.kind)))


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the systems of these names or kinds, such as "PowerSGD rank 4" or "power_sgd"; without any, all.

    DDP is no such system, since others are compared with it: asked for alone, it leaves none.
    """
    known = systems()
    kinds: dict[str, list[str]] = {PLAIN.kind: []}
    for system, variants in known.items():
        kinds.setdefault(variants[0].kind, []).append(system)
    titles: list[str] = []
    asked = tuple(names)
    for name in asked:
        if name.partition(":")[0] == tag_of(RecordedStep):
            raise SimnetError(f"--systems: {name!r}: a recorded step is a file; give it by --step FILE")
        kind = STRATEGIES.tag(name)
        if name not in known and kind not in kinds:
            near = did_you_mean(name, [*known, *kinds]) or f" Known: {', '.join(known)}."
            raise SimnetError(f"--systems: {name!r}: unknown system.{near}")
        titles += kinds.get(kind, [name])
    return tuple(dict.fromkeys(titles)) if asked else tuple(known)


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
        # The fastest cut stands for its system; between systems more than the time decides.
        fastest = [cuts[first_of_least([times[cut][lane] for cut in cuts])] for cuts in by_system]
        tied = [fastest[place] for place in tied_places([times[cut][lane] for cut in fastest])]
        # Memory does not depend on rates, so that it is asked for once, and only where it decides.
        if len(tied) > 1:
            held |= {
                cut: memory_of(with_settings(first, cut.settings), cut.strategy) for cut in tied if cut not in held
            }
            steps = [Contender.of(cut.strategy, times[cut][lane], held[cut], first.workload) for cut in tied]
            tied = [tied[first_of_ties(steps)]]
        (best,) = tied
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
    said = [*dict.fromkeys(cast for cast in casts if cast), form_of(strategy), cut]
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
