"""The time of a data-parallel iteration by a recurrence over its buckets, without its program and its spans.

One stream computes without a break; the other exchanges bucket after bucket and shares the GPU with it. What both have
done by the end of each operation follows from what they had done at its start: a kernel of the exchange and backward
each run at half speed, and a collective slows backward by the calibration's factor. `folded_runner` gives the same time
but for rounding; a search over hundreds of settings needs no more than the time, and equal buckets are priced once.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.core.registry import is_foreign
from simnet.engine import folded_runner
from simnet.engine.folded_runner import Leg
from simnet.strategies import Strategy
from simnet.strategies.program import Communicate, Compute, Kernel, Operation
from simnet.workload import buckets as bucketing
from simnet.workload.buckets import LinearCost
from simnet.workload.training_step import Step

NO_COST = LinearCost(start_up_s=0.0, s_per_byte=0.0)


class Exchanges(NamedTuple):
    """What a strategy does with the gradients of one iteration, equal buckets told once.

    Attributes:
        ready: part of the last backward that must have ended before each bucket can travel, 0 to 1.
        number: which of `distinct` each bucket goes through.
        distinct: operations of an exchange, in order.
        epilogue: operations after the last bucket.
    """

    ready: tuple[float, ...]
    number: tuple[int, ...]
    distinct: tuple[tuple[Operation, ...], ...]
    epilogue: tuple[Operation, ...]

    @property
    def kernels(self) -> frozenset[str]:
        """Names of all kernels."""
        every = (*self.distinct, self.epilogue)
        return frozenset(one.name for operations in every for one in operations if isinstance(one, Kernel))


def exchanges_of(strategy: Strategy, step: Step, topology: Topology) -> Exchanges | None:
    """Return the exchanges of a strategy; None if only its program tells what it does.

    Raises:
        SimnetError: as `Strategy.exchange`.
    """
    kind = type(strategy)
    if kind.program is not Strategy.program or strategy.bucketing == "mg_wfbp" or is_foreign(kind):
        return None
    buckets = bucketing.build(strategy, step, NO_COST)
    seen: dict[object, int] = {}
    distinct: list[tuple[Operation, ...]] = []
    number: list[int] = []
    for bucket in buckets:
        key = bucket.num_elements, bucket.shapes
        if key not in seen:
            seen[key] = len(distinct)
            distinct.append(strategy.exchange(bucket, step, topology).operations)
        number.append(seen[key])
    ready = accumulate(bucket.backward_fraction for bucket in buckets) if strategy.overlap else [1.0] * len(buckets)
    return Exchanges(tuple(ready), tuple(number), tuple(distinct), strategy.epilogue(buckets, topology))


class CollectiveBesideCompute(NamedTuple):
    """A collective over links that are slower while the GPU computes.

    Attributes:
        launch_s: before its first phase [s].
        phases: the legs of every phase, in order.
        host_s: CPU time of the whole [s].
    """

    launch_s: float
    phases: tuple[tuple[Leg, ...], ...]
    host_s: float

    def seconds(self, computing_s: float) -> float:
        """Return what it takes if the GPU computes for so long from its start on [s]."""
        now = self.launch_s
        for phase in self.phases:
            now = max(_leg_end_s(leg, now + leg.latency_s, computing_s) for leg in phase)
        return max(now, self.host_s)


def _leg_end_s(leg: Leg, begin_s: float, computing_s: float) -> float:
    if not leg.inflated_bytes:
        return begin_s
    alone, beside = leg.rates
    beside_s = max(computing_s - begin_s, 0.0)
    if beside_s * beside >= leg.inflated_bytes:
        return begin_s + leg.inflated_bytes / beside
    return begin_s + beside_s + (leg.inflated_bytes - beside_s * beside) / alone


# Seconds of kernels, then the collective that follows them: its seconds, or the collective itself where these depend on
# what the GPU does meanwhile.
Turn = tuple[float, "float | CollectiveBesideCompute"]


def priced_collective(topology: Topology, schedule: Schedule, message_bytes: float) -> float | CollectiveBesideCompute:
    """Return what a collective takes [s], or what tells it once it is known how long the GPU computes meanwhile."""
    if not schedule.rounds:
        return 0.0
    if not topology.compute_slows_links:
        return link_loads.duration_s(topology, schedule, message_bytes)
    return CollectiveBesideCompute(
        link_loads.launch_s(topology, schedule),
        folded_runner.legs(topology, schedule, message_bytes),
        link_loads.host_s(topology, schedule, message_bytes),
    )


class ComputeStream(NamedTuple):
    """What the GPU computes beside the exchange, in seconds of an idle GPU.

    Attributes:
        before_s: before the last backward.
        backward_s: the last backward.
        optimizer_s: after the last exchange.
        comm_slowdown: factor on compute while a collective runs.
    """

    before_s: float
    backward_s: float
    optimizer_s: float
    comm_slowdown: float


def iteration_s(
    compute: ComputeStream, exchanges: Exchanges, turns: Sequence[Sequence[Turn]], epilogue: Sequence[Turn]
) -> float:
    """Return the time of an iteration [s].

    Args:
        compute: of the GPU.
        exchanges: which exchange each bucket goes through, and when it may begin.
        turns: what each of the distinct exchanges takes.
        epilogue: what follows the last bucket.
    """
    compute_s = compute.before_s + compute.backward_s
    now = done_s = 0.0  # the time, and what of `compute_s` is done by then
    last = len(exchanges.number) - 1
    for place, (ready, number) in enumerate(zip(exchanges.ready, exchanges.number, strict=True)):
        ready_s = min(compute.before_s + ready * compute.backward_s, compute_s)
        if done_s < ready_s:
            now, done_s = now + (ready_s - done_s), ready_s
        of_bucket = turns[number]
        for kernel_s, collective in (*of_bucket, *epilogue) if place == last else of_bucket:
            shared_s = min(kernel_s, compute_s - done_s)
            now, done_s = now + kernel_s + shared_s, done_s + shared_s
            left_s = (compute_s - done_s) * compute.comm_slowdown
            taken_s = collective if isinstance(collective, float) else collective.seconds(left_s)
            now += taken_s
            done_s = compute_s if taken_s >= left_s else done_s + taken_s / compute.comm_slowdown
    return now + (compute_s - done_s) + compute.optimizer_s


def as_turns(
    operations: Sequence[Operation], kernel_s: Callable[[Kernel], float], topology: Topology
) -> tuple[Turn, ...]:
    """Return operations as turns; kernels that follow each other are joined, and so are collectives.

    Args:
        operations: of an exchange, in order.
        kernel_s: what a kernel takes on an idle GPU [s].
        topology: the links.
    """
    turns: list[Turn] = [(0.0, 0.0)]
    for operation in operations:
        before_s, last = turns[-1]
        if isinstance(operation, Communicate):
            found = priced_collective(topology, operation.schedule, operation.message_bytes)
            if isinstance(found, float) and isinstance(last, float):
                turns[-1] = before_s, last + found
            else:
                turns.append((0.0, found))
            continue
        seconds = operation.seconds if isinstance(operation, Compute) else kernel_s(operation)
        if last == 0.0:
            turns[-1] = before_s + seconds, last
        else:
            turns.append((seconds, 0.0))
    return tuple(turns)
