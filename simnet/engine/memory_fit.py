"""Whether a step fits the GPU under a strategy, and which change would make it fit."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from simnet import strategies
from simnet.cluster import hardware
from simnet.cluster import topology as topologies
from simnet.cluster.topology import Topology
from simnet.core.errors import SimnetError, blamed_on_package
from simnet.core.schema import is_foreign, tag_of
from simnet.core.units import format_bytes
from simnet.engine.prepared_scenario import PreparedScenario, StepTimer, is_folded
from simnet.engine.scenario import BatchSettings, Scenario, settings_of, with_settings
from simnet.strategies import AnyStrategy, Strategy
from simnet.workload import gpu_memory, training_step
from simnet.workload.gpu_memory import GpuMemory, ModelMemory, RankMemory
from simnet.workload.training_step import Step
from simnet.workload.workload import Adam

CHECKPOINTED = (0.0, 0.5, 1.0)
"""Parts of the repeated blocks that are computed again."""
SHARDING = (("fsdp", "full sharding"), ("hsdp", "hybrid sharding"), ("zero1", "ZeRO-1"), ("zero2", "ZeRO-2"))
"""Strategies that hold less of a model, by kind, in the order in which they are tried."""
DOES_NOT_FIT = "does not fit: "
"""How a `sentence` begins."""
MORE_NODES = (2, 4, 8, 16, 32, 64)
"""How many times as many nodes are tried where nothing else fits."""


class Fitting(NamedTuple):
    """A scenario in which some variants of a system fit the GPU."""

    scenario: Scenario
    variants: tuple[AnyStrategy, ...]


class Repair(NamedTuple):
    """A change that makes a step fit.

    Attributes:
        text: what to change, for people: "workload.batch_per_rank = 4 with run.grad_accumulation = 2".
        scenario: the changed scenario, whose `strategy` is the one to take.
        memory: what it holds then.
    """

    text: str
    scenario: Scenario
    memory: GpuMemory


def memory_of(scenario: Scenario, strategy: Strategy) -> GpuMemory | None:
    """Return what a GPU holds when that is most, in a step of a scenario under a strategy.

    Returns:
        None where that is not known: of a recorded step.
    """
    return memories(scenario)(strategy)


def memories(scenario: Scenario, step: Step | None = None) -> Callable[[Strategy], GpuMemory | None]:
    """Return a function that returns what `memory_of` does, of one strategy after another.

    Args:
        scenario: whose strategy does not matter.
        step: that of a scenario with other settings: nothing that is held hangs on its times, and they take long to
            find.
    """
    step = step or training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    step = replace(step, samples=scenario.workload.batch_per_rank, micro_batches=scenario.grad_accumulation)
    topology = topologies.build(scenario.cluster, scenario.calibration)
    return lambda strategy: _at_peak(scenario, strategy, step, topology)


def memory_in(prepared: PreparedScenario, strategy: Strategy) -> GpuMemory | None:
    """Return what `memory_of` does, of a prepared scenario."""
    return _at_peak(prepared.scenario, strategy, prepared.step, prepared.topology)


def _at_peak(scenario: Scenario, strategy: Strategy, step: Step, topology: Topology) -> GpuMemory | None:
    model = gpu_memory.of_model(scenario.workload, scenario.cluster, step)
    rank, gpu = _held(strategy, model, step, topology), hardware.known_gpu(scenario.cluster.gpu)
    return None if rank is None else gpu_memory.at_peak(rank, model, step, float(gpu.memory_bytes) if gpu else None)


def _held(strategy: Strategy, model: ModelMemory, step: Step, topology: Topology) -> RankMemory | None:
    """Return what one rank holds."""
    # Errors of foreign code are named as such; one of ours is a defect and keeps its traceback.
    if not is_foreign(type(strategy)):
        return strategy.memory(model, step, topology)
    with blamed_on_package(f"strategy {strategy.kind!r}: memory"):
        return strategy.memory(model, step, topology)


def fitting(scenario: Scenario, variants: Iterable[AnyStrategy], step: Step | None = None) -> tuple[AnyStrategy, ...]:
    """Return the variants that are not known to need more memory than the GPU has, and can be predicted.

    Args:
        scenario: whose strategy does not matter.
        variants: which fit?
        step: that of a scenario with other settings, which saves the time to find it.
    """
    memory_of, kept = memories(scenario, step), []
    for variant in variants:
        try:
            memory = memory_of(variant)
        # A variant that cannot be made here fits nowhere, and others may.
        except SimnetError:
            continue
        if memory is None or memory.fits is not False:
            kept.append(variant)
    return tuple(kept)


def that_fit(scenario: Scenario, variants: Sequence[AnyStrategy], step: Step | None = None) -> list[Fitting]:
    """Return the scenarios of the same global batch in which some of the variants fit, none of which changes training.

    All samples of a step in one micro-batch without checkpointing, where some fit so: that is never slower. Else for
    each part of the blocks that may be checkpointed the largest micro-batch that fits. So what is found is the same
    however the batch was cut before. As it is given where activations are not known. Gradients as views of buckets and
    a fused Adam cost nothing, and are taken where they are needed. Adam's states in 8 bit are rounded: whoever wants
    them says so in `workload.memory.adam`.

    Args:
        scenario: whose strategy does not matter.
        variants: of a system.
        step: as in `fitting`.
    """
    step = step or training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    scenario = _uncut(scenario, variants)
    # Uncut first: where it fits nothing else needs to be tried, since no cut is faster.
    if kept := fitting(scenario, variants, step):
        return [Fitting(scenario, kept)]
    # The largest that fits at each level alone: smaller micro-batches launch more kernels and are never faster.
    largest: list[Fitting] = []
    for level in _tried(scenario, variants):
        fits = (fitting_cut for cut in level if (fitting_cut := _with_fewest(scenario, cut, variants, step)))
        largest += itertools.islice(fits, 1)
    return largest


def fits_uncut(scenario: Scenario, variants: Sequence[AnyStrategy]) -> bool:
    """Tell whether some variants fit with a step in one micro-batch, and what saves memory at no cost."""
    whole = _uncut(scenario, variants)
    settings = settings_of(whole)
    adam: Adam = "fused" if _is_adam(whole) else settings.adam
    return bool(fitting(with_settings(whole, settings._replace(gradient_as_bucket_view=True, adam=adam)), variants))


def _is_adam(scenario: Scenario) -> bool:
    """Tell whether Adam steps as torch does by default."""
    return settings_of(scenario).adam == "foreach" and "adam" in scenario.workload.optimizers


def _uncut(scenario: Scenario, variants: Iterable[AnyStrategy]) -> Scenario:
    """Return a scenario with all samples of a step in one micro-batch, and nothing computed again to save memory."""
    settings, memory = settings_of(scenario), scenario.workload.memory
    if memory is None or memory.activations_per_sample is None:
        return scenario
    if all(variant.takes_other_micro_batches for variant in variants):
        settings = settings._replace(batch_per_rank=settings.batch_per_rank * settings.micro_batches, micro_batches=1)
    return with_settings(scenario, settings._replace(checkpointing=0.0))


def _tried(scenario: Scenario, variants: Iterable[AnyStrategy]) -> Iterator[list[tuple[BatchSettings, ...]]]:
    """Yield for each part that may be checkpointed the cuts to try, the largest micro-batch first.

    Each comes with fewer and with more of what saves memory at no cost; the last has all of it.
    """
    settings, memory = settings_of(scenario), scenario.workload.memory
    if memory is None:
        return
    takes_others = all(variant.takes_other_micro_batches for variant in variants)
    parts = [number for number in range(1, settings.batch_per_rank + 1) if settings.batch_per_rank % number == 0]
    levels = [level for level in CHECKPOINTED if level >= settings.checkpointing] if memory.checkpointed else []
    adams: list[Adam] = [settings.adam, "fused"] if _is_adam(scenario) else [settings.adam]
    free = [(view, adam) for adam in adams for view in dict.fromkeys((settings.gradient_as_bucket_view, True))]
    for level in levels or [settings.checkpointing]:
        yield [
            tuple(
                BatchSettings(settings.batch_per_rank // number, settings.micro_batches * number, level, *each)
                for each in free
            )
            for number in (parts if takes_others else [1])
        ]


def _with_fewest(
    scenario: Scenario, cut: tuple[BatchSettings, ...], variants: Sequence[AnyStrategy], step: Step
) -> Fitting | None:
    """Return the first settings in which as many variants fit as in the last; None where none does."""
    # The last has all that saves memory at no cost: if not even that fits, fewer of it do not.
    kept = fitting(with_settings(scenario, cut[-1]), variants, step)
    if not kept:
        return None
    scenarios = (with_settings(scenario, settings) for settings in cut)
    there = next(changed for changed in scenarios if fitting(changed, variants, step) == kept)
    try:  # What fits must have a time, too: a smaller batch may be shorter than its optimizer.
        training_step.resolve(there.workload, there.cluster, there.calibration)
    except SimnetError:
        return None
    return Fitting(there, kept)


def least(scenario: Scenario, variants: Sequence[AnyStrategy]) -> Fitting:
    """Return the settings tried, and the variant, that take the least memory, where none fits."""
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    tried = [settings for level in _tried(scenario, variants) for cut in level for settings in cut]
    smallest, least_bytes = Fitting(scenario, tuple(variants[:1])), math.inf
    # As the user has it comes first, so that of equals it is what is shown.
    for settings in (settings_of(scenario), *tried):
        there = with_settings(scenario, settings)
        memory_of = memories(there, step)
        for variant in variants:
            try:
                memory = memory_of(variant)
                if memory is not None and memory.total_bytes < least_bytes:
                    training_step.resolve(there.workload, there.cluster, there.calibration)
                    smallest, least_bytes = Fitting(there, (variant,)), memory.total_bytes
            except SimnetError:
                continue
    return smallest


def what_fits(scenario: Scenario, strategy: AnyStrategy) -> Repair | None:
    """Return the first change that changes nothing in training and with which a step fits; None if there is none.

    As far as its parts are known. Tried are, in this order: the fastest of `that_fit`; full sharding, hybrid sharding,
    ZeRO; shards over more ranks; full sharding with the fastest of `that_fit`; the same on more nodes.
    """
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    for text, changed in _changes(replace(scenario, strategy=strategy, baseline=None), step):
        try:
            memory = _of_change(changed, step)
            if memory is not None and memory.fits is not False:
                training_step.resolve(changed.workload, changed.cluster, changed.calibration)
                return Repair(text, changed, memory)
        except (SimnetError, ValueError):
            continue
    return None


def _of_change(changed: Scenario, step: Step) -> GpuMemory | None:
    """Return what a GPU holds after a change of the scenario that `step` is of; None where that is too much at once."""
    workload, cluster = changed.workload, changed.cluster
    step = replace(step, samples=workload.batch_per_rank, micro_batches=changed.grad_accumulation)
    activations, gpu = gpu_memory.of_model(workload, cluster, step).activations, hardware.known_gpu(cluster.gpu)
    # Activations alone are known at once; what a rank holds beside them takes as long as a simulation in large models.
    if gpu is not None and activations is not None and activations > gpu.memory_bytes:
        return None
    return _at_peak(changed, changed.strategy, step, topologies.build(cluster, changed.calibration))


def sentence(scenario: Scenario, strategy: AnyStrategy, memory: GpuMemory) -> str:
    """Say that a step does not fit, and what would: "does not fit: ..."."""
    assert memory.gpu_bytes is not None
    largest = sorted(memory.parts.items(), key=lambda part: -part[1])[:2]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size)
    sizes = f"{size_text(memory)} of {format_bytes(memory.gpu_bytes)} on {scenario.cluster.gpu} ({parts})"
    repair = what_fits(scenario, strategy)
    if repair is None:
        text = "nothing that was tried fits: smaller batches, sharding, more nodes; take a GPU with more memory"
    else:
        text = f"{repair.text} takes {size_text(repair.memory)}"
    if repair is None or repair.scenario.strategy != strategy:
        text += _in_8_bit(replace(scenario, strategy=strategy, baseline=None))
    return f"{DOES_NOT_FIT}{strategy.title} takes {sizes}; {text}"


def _in_8_bit(scenario: Scenario) -> str:
    """Say what fits if Adam's states are rounded to 8 bit, which changes training a little; nothing where none does."""
    if "adam" not in scenario.workload.optimizers or scenario.workload.memory is None:
        return ""
    rounded = with_settings(scenario, settings_of(scenario)._replace(adam="8bit"))
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    for text, changed in _own_changes(scenario, rounded, step):
        memory = _of_change(changed, step)
        assert memory is not None
        return f"; if Adam may round its state, {text} takes {size_text(memory)}"
    return ""


def repair_in(note: str) -> str | None:
    """Return what would fit, as a `sentence` says; None of any other note."""
    return note.partition("); ")[2] if note.startswith(DOES_NOT_FIT) else None


def size_text(memory: GpuMemory) -> str:
    """Return the sum for people: "66.2 GB", or "66.2 GB or more" where parts are not known."""
    return format_bytes(memory.total_bytes) + (" or more" if memory.unknown else "")


Change = tuple[str, Scenario]


def _changes(scenario: Scenario, step: Step) -> Iterator[Change]:
    sharded = list(_sharded(scenario))
    yield from _own_changes(scenario, scenario, step)
    yield from sharded
    yield from _longer_shards(scenario)
    for text, changed in sharded:
        for settings_text, other in _own_changes(changed, changed, step):
            yield f"{text} with {settings_text}", other
    for text, changed in sharded:
        for factor in MORE_NODES:
            cluster = replace(changed.cluster, num_nodes=changed.cluster.num_nodes * factor)
            yield from _made(f"{text} on {cluster.num_nodes} nodes", changed, cluster=cluster)


def _own_changes(scenario: Scenario, changed: Scenario, step: Step) -> Iterator[Change]:
    """Yield the fastest settings in which a scenario's own strategy fits, if there are any.

    Args:
        scenario: as the user has it.
        changed: from which settings are searched.
        step: that of a scenario with other settings.
    """
    strategy = scenario.strategy
    scenarios = [fits.scenario for fits in that_fit(changed, (strategy,), step)]
    if not scenarios:
        return
    # A time is only asked for where there is a choice.
    best = scenarios[0] if len(scenarios) == 1 else min(scenarios, key=_alike_s(strategy))
    settings, before = settings_of(best), settings_of(scenario)
    if scenario.run.global_batch is not None:
        # With a global batch the number of micro-batches follows, and is no key to set.
        before = before._replace(micro_batches=settings.micro_batches)
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.changes(before).items())
    yield f"{settings.text()} ({keys})", replace(best, strategy=strategy)


def _alike_s(strategy: AnyStrategy) -> Callable[[Scenario], float]:
    """Return the key that sorts scenarios by the step of a strategy where all nodes are alike [s]."""

    def step_s(scenario: Scenario) -> float:
        cluster = replace(scenario.cluster, slow_nodes=(), faults=())
        alike = replace(scenario, cluster=cluster, run=replace(scenario.run, iterations=None, fidelity="auto"))
        if not is_folded(alike):  # leaves that are not filled, which take long
            alike = replace(alike, cluster=replace(cluster, fabric=None))
        return StepTimer(alike).of(strategy)

    return step_s


def _sharded(scenario: Scenario) -> Iterator[Change]:
    for kind, title in SHARDING:
        made = next((strategy for strategy in strategies.STRATEGIES.built_in() if tag_of(strategy) == kind), None)
        if made is not None and kind != scenario.strategy.kind:
            yield from _made(f"{title} (strategy = {kind!r})", scenario, strategy=made())


def _longer_shards(scenario: Scenario) -> Iterator[Change]:
    cluster = scenario.cluster
    for nodes in range(2, cluster.num_nodes + 1):
        # Shards must divide the ranks.
        if cluster.num_nodes % nodes == 0:
            ranks = nodes * cluster.ranks_per_node
            hybrid = strategies.HybridShard(shard_ranks=ranks)
            yield from _made(f"hybrid sharding with strategy.shard_ranks = {ranks}", scenario, strategy=hybrid)


def _made(text: str, scenario: Scenario, **changes: Any) -> Iterator[Change]:
    """Yield a change, unless the scenario does not hold together with it."""
    try:
        yield text, replace(scenario, **changes)
    except (SimnetError, ValueError):
        return
