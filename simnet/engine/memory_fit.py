"""Whether a step fits the GPU under a strategy, and which change would make it fit."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from simnet import strategies
from simnet.cluster import gpu_models
from simnet.cluster import topology as topologies
from simnet.cluster.topology import Topology
from simnet.core.arguments import checked
from simnet.core.errors import SimnetError
from simnet.core.registry import is_foreign, tag_of
from simnet.core.units import format_bytes
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.strategies import Strategy
from simnet.workload import gpu_memory, training_step
from simnet.workload.gpu_memory import GpuMemory, ModelMemory, RankMemory
from simnet.workload.training_step import Step

SHARDING = (("fsdp", "full sharding"), ("hsdp", "hybrid sharding"), ("zero1", "ZeRO-1"), ("zero2", "ZeRO-2"))
"""Strategies that hold less of a model, by kind, in the order in which they are tried."""
DOES_NOT_FIT = "does not fit: "
"""How a `sentence` begins."""
MORE_NODES = (2, 4, 8, 16, 32, 64)
"""How many times as many nodes are tried where nothing else fits."""


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


def memories(scenario: Scenario) -> Callable[[Strategy], GpuMemory | None]:
    """Return a function that returns what `memory_of` does, of one strategy after another."""
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    step = replace(step, micro_batches=scenario.grad_accumulation)
    topology = topologies.build(scenario.cluster, scenario.calibration)
    return lambda strategy: _at_peak(scenario, strategy, step, topology)


def memory_in(prepared: PreparedScenario, strategy: Strategy) -> GpuMemory | None:
    """Return what `memory_of` does, of a prepared scenario."""
    return _at_peak(prepared.scenario, strategy, prepared.step, prepared.topology)


def _at_peak(scenario: Scenario, strategy: Strategy, step: Step, topology: Topology) -> GpuMemory | None:
    model = gpu_memory.of_model(scenario.workload, scenario.cluster, step)
    rank, gpu = _held(strategy, model, step, topology), gpu_models.known(scenario.cluster.gpu)
    return None if rank is None else gpu_memory.at_peak(rank, model, step, float(gpu.memory_bytes) if gpu else None)


def _held(strategy: Strategy, model: ModelMemory, step: Step, topology: Topology) -> RankMemory | None:
    """Return what one rank holds."""
    if not is_foreign(type(strategy)):
        return strategy.memory(model, step, topology)
    try:
        return strategy.memory(model, step, topology)
    except SimnetError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise SimnetError(f"strategy {strategy.kind!r}: memory: {why}; fix the package that provides it") from error


@checked
def fits(scenario: Scenario, strategy: Strategy) -> bool | None:
    """Tell whether a step fits the cluster's GPU under a strategy.

    Returns:
        None where parts are not known, and those that are fit.

    Raises:
        SimnetError: the cluster names no GPU of the table, or as `memory_of`.
    """
    try:
        gpu_models.find(scenario.cluster.gpu)
    except SimnetError as error:
        raise SimnetError(f"cluster.gpu: {error} Its memory is not known; see simnet show gpus") from error
    memory = memory_of(scenario, strategy)
    return memory.fits if memory is not None else None


def what_fits(scenario: Scenario, strategy: Strategy) -> Repair | None:
    """Return the first change with which a step fits, as far as its parts are known; None if there is none.

    Tried are, in this order: a smaller micro-batch and more of them, full sharding, hybrid sharding, ZeRO, shards over
    more ranks, full sharding with a smaller micro-batch, the same on more nodes.
    """
    step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    for text, changed in _changes(replace(scenario, strategy=strategy, baseline=None)):
        try:
            memory = _of_change(changed, step)
            if memory is not None and memory.fits is not False:
                # What fits must have a time, too: a smaller batch may be shorter than its optimizer.
                training_step.resolve(changed.workload, changed.cluster, changed.calibration)
                return Repair(text, changed, memory)
        except (SimnetError, ValueError):
            continue
    return None


def _of_change(changed: Scenario, step: Step) -> GpuMemory | None:
    """Return what a GPU holds after a change of the scenario that `step` is of; None where that is too much at once.

    The times of the step stay those before the change: nothing that is held hangs on them, and they take long to find.
    """
    workload, cluster = changed.workload, changed.cluster
    step = replace(step, samples=workload.batch_per_rank, micro_batches=changed.grad_accumulation)
    activations, gpu = gpu_memory.of_model(workload, cluster, step).activations, gpu_models.known(cluster.gpu)
    if gpu is not None and activations is not None and activations > gpu.memory_bytes:
        return None
    return _at_peak(changed, changed.strategy, step, topologies.build(cluster, changed.calibration))


def sentence(scenario: Scenario, strategy: Strategy, memory: GpuMemory) -> str:
    """Say that a step does not fit, and what would: "does not fit: ..."."""
    assert memory.gpu_bytes is not None
    largest = sorted(memory.parts.items(), key=lambda part: -part[1])[:2]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size)
    sizes = f"{size_text(memory)} of {format_bytes(memory.gpu_bytes)} on {scenario.cluster.gpu} ({parts})"
    found = what_fits(scenario, strategy)
    if found is None:
        repair = "nothing that was tried fits: smaller batches, sharding, more nodes; take a GPU with more memory"
    else:
        repair = f"{found.text} takes {size_text(found.memory)}"
    return f"{DOES_NOT_FIT}{strategy.title} takes {sizes}; {repair}"


def repair_in(note: str) -> str | None:
    """Return what would fit, as a `sentence` says; None of any other note."""
    return note.partition("); ")[2] if note.startswith(DOES_NOT_FIT) else None


def size_text(memory: GpuMemory) -> str:
    """Return the sum for people: "66.2 GB", or "66.2 GB or more" where parts are not known."""
    return format_bytes(memory.total_bytes) + (" or more" if memory.unknown else "")


Change = tuple[str, Scenario]


def _changes(scenario: Scenario) -> Iterator[Change]:
    sharded = list(_sharded(scenario))
    yield from _smaller_batches(scenario)
    yield from sharded
    yield from _longer_shards(scenario)
    for text, changed in sharded:
        for batch_text, smaller in _smaller_batches(changed):
            yield f"{text} with {batch_text}", smaller
    for text, changed in sharded:
        for factor in MORE_NODES:
            cluster = replace(changed.cluster, num_nodes=changed.cluster.num_nodes * factor)
            yield from _made(f"{text} on {cluster.num_nodes} nodes", changed, cluster=cluster)


def _smaller_batches(scenario: Scenario) -> Iterator[Change]:
    """Yield as many samples a step in smaller micro-batches, the largest first."""
    if not scenario.strategy.takes_other_micro_batches:
        return
    batch = scenario.workload.batch_per_rank
    for parts in range(2, batch + 1):
        if batch % parts:
            continue
        count, run = scenario.grad_accumulation * parts, scenario.run
        if run.global_batch is None:
            run = replace(run, grad_accumulation=count)
        text = f"workload.batch_per_rank = {batch // parts} with run.grad_accumulation = {count}"
        workload = replace(scenario.workload, batch_per_rank=batch // parts)
        yield from _made(text, scenario, workload=workload, run=run)


def _sharded(scenario: Scenario) -> Iterator[Change]:
    for kind, title in SHARDING:
        made = next((one for one in strategies.STRATEGIES.built_in() if tag_of(one) == kind), None)
        if made is not None and kind != scenario.strategy.kind:
            yield from _made(f"{title} (strategy = {kind!r})", scenario, strategy=made())


def _longer_shards(scenario: Scenario) -> Iterator[Change]:
    cluster = scenario.cluster
    for nodes in range(2, cluster.num_nodes + 1):
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
