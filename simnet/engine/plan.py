"""A strategy's program with what its parts take left open: made once, then priced for a scenario, or for many like it.

Compute is linear in what forward, backward and the optimizer take, and a collective is a form that links fill with
numbers. So drawn calibrations, bandwidths and batches share one plan; whoever chose an algorithm chose it once, as
NCCL's tuner does, which does not know its own error.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.cluster.topology import Topology, lanes_of
from simnet.collectives import link_loads, pace
from simnet.core.errors import blamed_on_package
from simnet.core.lanes import Number, UnlikeLanesError, least, stacked
from simnet.core.schema import is_foreign
from simnet.engine import recurrence
from simnet.engine.recurrence import MeetingRanks, OneRank, Price, PricedStep, Steps, TwoStreams
from simnet.engine.timeline import Streams, TimedOperation, Timeline, make_span, make_timeline
from simnet.strategies import Strategy
from simnet.strategies.base import kernel_costs_of
from simnet.strategies.program import (
    NO_SHARE,
    Communicate,
    Compute,
    Kernel,
    Operation,
    OperationId,
    Program,
    check_program,
    step_times,
)
from simnet.workload import training_step
from simnet.workload.kernel_cost import KernelCost

NO_TIME = 0
"""Number of the price of what takes no time."""
PAUSE_S = 0.07
"""A pause of a host. Source: torchtitan logs collections of garbage of 0.06 to 0.08 s (pull request 1287)."""
LEAST_LANES = 4
"""From as many on one pass over arrays takes less time than one pass each, which numpy's calls cost."""


class PlanNumbers(NamedTuple):
    """What gives the parts of a plan their times: one scenario's, or a draw's.

    Attributes:
        step: compute of one rank.
        topology: the links that carry the strategy's exchange.
        calibration: kernel times, and how much communication slows compute.
    """

    step: training_step.Step
    topology: Topology
    calibration: Calibration

    @property
    def slowdown(self) -> float:
        """Factor on compute while communication runs."""
        return float(self.calibration.backward_slowdown)

    @property
    def times(self) -> tuple[Number, ...]:
        """Those of which a `StepShare` is."""
        return step_times(self.step)


class LaneNumbers:
    """The same of many scenarios that differ in numbers alone.

    Attributes:
        lanes: each of them.
    """

    def __init__(self, lanes: Sequence[PlanNumbers]) -> None:
        """Take at least one."""
        self.lanes = lanes

    # Each on first use: most plans ask for some of these alone, and stacking hundreds of lanes takes as long as a pass.
    @cached_property
    def topology(self) -> Topology:
        """All their links.

        Raises:
            UnlikeLanesError: more differs than numbers.
        """
        return lanes_of([lane.topology for lane in self.lanes])

    @cached_property
    def times(self) -> tuple[Number, ...]:
        """All their compute, as of one."""
        return stacked([lane.times for lane in self.lanes])

    @cached_property
    def pause_s(self) -> Number:
        """All their pauses of hosts, as of one."""
        return stacked([lane.step.host_pause_s for lane in self.lanes])

    @cached_property
    def slowdown(self) -> Number:
        """All their factors, as of one."""
        return stacked([lane.slowdown for lane in self.lanes])

    @cached_property
    def calibrations(self) -> tuple[Calibration, ...]:
        """Those of all lanes; one where all share it."""
        first = self.lanes[0].calibration
        # Identity first: points of a sweep share the object, and to compare hundreds of numbers takes long.
        is_shared = all(lane.calibration is first or lane.calibration == first for lane in self.lanes)
        return (first,) if is_shared else tuple(lane.calibration for lane in self.lanes)


def is_fixed(strategy: Strategy) -> bool:
    """Tell whether a strategy's program is the same in draws.

    It is not where buckets are cut by what exchanges take, nor is foreign code known not to do so.
    """
    return strategy.bucketing != "mg_wfbp" and not is_foreign(type(strategy))


class _HostPauses(NamedTuple):
    """The wait of a program for hosts that pause before any of so many messages."""

    messages: int

    def seconds(self, mean_s: Number, num_ranks: int) -> Number:
        """Return the wait [s] for ranks whose hosts pause for so long in a step each, on average [s].

        Pauses before the same message overlap, others add up: of L seconds each, before K messages, by P ranks that
        pause L q = mean_s of a step, they take K L (1 - (1 - q / K) ** P).
        """
        most_s = self.messages * PAUSE_S
        return most_s * (1 - (1 - least(mean_s / most_s, 1.0)) ** num_ranks)


class StrategyPlan:
    """A strategy's program on a scenario, its operations numbered by what they take.

    Attributes:
        strategy: whose program it is.
        program: what one rank does.
        steps: its operations, each with the number of its price.
        inner: the same for further steps of the period that are all alike; None if there are none.
        num_inner: how many these are.
        is_fixed: see the function.
    """

    def __init__(self, strategy: Strategy, program: Program) -> None:
        """Take a program, as `program_of` gives it or with other operations."""
        self.strategy = strategy
        self.program = program
        self.is_fixed = is_fixed(strategy)
        self._costs = kernel_costs_of(program.kernels)
        # A program of a thousand operations has some ten prices: buckets and layers are alike. Each is priced once.
        self._numbers: dict[object, int] = {None: NO_TIME}
        self._priced: list[Operation | _HostPauses] = []
        self.steps: Steps = tuple(tuple(map(self._step, stream)) for stream in program.streams)
        # Further steps wait for no other, so that one of them is run and counted as often as there are.
        self.inner = StrategyPlan(strategy, program.inner.program) if program.inner else None
        self.num_inner = program.inner.number if program.inner else 0

    def _step(self, operation: Operation) -> PricedStep:
        key: object
        part: Operation | _HostPauses = operation
        if isinstance(operation, Communicate):
            # Without rounds it sends nothing, as in a group of one rank: it has the price of what takes no time.
            key = (operation.schedule, operation.message_bytes) if operation.schedule.rounds else None
        elif isinstance(operation, Kernel):
            # Neither the bucket nor the part of the iteration changes what it takes.
            key = operation.name, operation.num_elements, operation.num_vectors
        elif operation.part == "wait" and self.strategy.waits_for_hosts:
            key = part = _HostPauses(_num_messages(self.program))
        else:
            # A kernel that moves the parameters takes the place of the optimizer's compute, so that it has its price.
            key = operation.share, operation.seconds, operation.part == "optimizer"
        number = self._numbers.setdefault(key, len(self._priced) + 1)
        if number > len(self._priced):
            self._priced.append(part)
        return PricedStep(number != NO_TIME and isinstance(operation, Communicate), number, operation.after, operation)

    @cached_property
    def two_streams(self) -> TwoStreams | None:
        """The program as one stream that communicates and one that computes; None if it is none."""
        return recurrence.as_two_streams(self.steps)

    @cached_property
    def collectives(self) -> tuple[Communicate, ...]:
        """Every distinct collective that sends something, those of further steps too."""
        of_streams = tuple(part for part in self._priced if isinstance(part, Communicate))
        return of_streams + (self.inner.collectives if self.inner else ())

    def prices(self, at: PlanNumbers) -> list[Price]:
        """Return the seconds of every distinct part."""
        moved = updates_parameters(self._costs, at.calibration)
        kernel_s = partial(self._kernel_s, calibration=at.calibration)
        return self._prices(at.times, at.step.host_pause_s, at.topology, kernel_s, moved=moved)

    def _kernel_s(self, kernel: Kernel, calibration: Calibration) -> float:
        return self._costs[kernel.name].seconds(calibration, kernel.num_elements, kernel.num_vectors)

    def _prices(
        self,
        times: Sequence[Number],
        pause_s: Number,
        topology: Topology,
        kernel_s: Callable[[Kernel], Number],
        *,
        moved: bool,
    ) -> list[Price]:
        prices: list[Price] = [0.0]
        for part in self._priced:
            if isinstance(part, Communicate):
                prices.append(self._collective_price(topology, part))
            elif isinstance(part, Kernel):
                prices.append(kernel_s(part))
            elif isinstance(part, _HostPauses):
                prices.append(part.seconds(pause_s, topology.world_size))
            elif part.part == "optimizer" and moved:  # a kernel does it
                prices.append(0.0)
            else:
                prices.append(part.share.seconds(times) + part.seconds)
        return prices

    def _collective_price(self, topology: Topology, part: Communicate) -> Price:
        """Return what a collective takes [s], or what tells it where others or the GPU may slow it.

        Raises:
            UnlikeLanesError: lanes in which another schedule may be the fastest, on links that the GPU slows.
        """
        # Then nothing that happens meanwhile changes what it takes, and a number will do.
        if self.are_apart and not topology.compute_slows_links:
            return link_loads.seconds(topology, part.schedule, part.message_bytes)
        if part.schedule.alternatives:
            raise UnlikeLanesError  # which of them is fastest depends on what the GPU does
        # Beside others on its links it has no time of its own: `OneRank` asks its price from event to event.
        return pace.pace(topology, part.schedule, part.message_bytes)

    def iteration_s(self, at: PlanNumbers) -> float:
        """Return the mean iteration of the period where all ranks are alike [s]."""
        streams_s = self._total_s(self.prices(at), at.slowdown)
        return float(self._of_period(streams_s, lambda inner: inner.iteration_s(at)))

    def uneven_s(self, at: PlanNumbers) -> float:
        """Return by how much an iteration may be too long for collectives whose times are upper bounds [s]."""
        # Bounds are added as if every collective were exposed: which of them are is what the bound leaves open.
        bounded_s = sum(
            link_loads.duration_s(at.topology, sent.schedule, sent.message_bytes)
            for sent in self.program.collectives
            if link_loads.is_upper_bound(at.topology, sent.schedule)
        )
        return float(self._of_period(link_loads.UNEVEN * bounded_s, lambda inner: inner.uneven_s(at)))

    def iterations_s(self, at: LaneNumbers, *, in_arrays: bool = True) -> list[float]:
        """Return the same for many, in one pass where they differ in numbers alone.

        Args:
            at: the numbers of each.
            in_arrays: whether to make one pass, for which arrays must be loaded.
        """
        together = self._together(at) if in_arrays and len(at.lanes) >= LEAST_LANES else None
        return [self.iteration_s(lane) for lane in at.lanes] if together is None else together

    def _together(self, at: LaneNumbers) -> list[float] | None:
        import numpy as np  # which one answer without draws does not need, and takes longer to load than to give

        # Where the GPU slows links, a price is known once it is known what the GPU does meanwhile: `two_streams` asks
        # for it then, the other recurrence over arrays cannot.
        if self.two_streams is None and (at.lanes[0].topology.compute_slows_links or not self.can_sweep):
            return None
        prices = self.prices_of(at)
        if prices is None:
            return None
        total_s = self.end_s(prices, at.slowdown, start_s=np.zeros(len(at.lanes)))
        whole_s = self._of_period(total_s, lambda inner: np.asarray(inner.iterations_s(at)))
        # One number where no lane differs in what counts, such as draws of links on one rank.
        iterations_s: list[float] = np.broadcast_to(whole_s, len(at.lanes)).tolist()
        return iterations_s

    def prices_of(self, at: LaneNumbers) -> list[Price] | None:
        """Return the prices in many lanes, arrays where they differ; None where more differs than numbers."""

        def kernel_s(kernel: Kernel) -> Number:
            return stacked([self._kernel_s(kernel, calibration) for calibration in at.calibrations])

        try:
            # Draws change what a kernel takes, never whether its time is known: the first tells it for all.
            moved = updates_parameters(self._costs, at.calibrations[0])
            return self._prices(at.times, at.pause_s, at.topology, kernel_s, moved=moved)
        except UnlikeLanesError:
            return None

    def _of_period(self, streams: Any, of_inner: "Callable[[StrategyPlan], Any]") -> Any:
        """Return the mean over the steps of a period, of which the streams take so much."""
        if self.inner is not None:
            streams = streams + self.num_inner * of_inner(self.inner)
        return streams / self.program.period

    @property
    def of_period(self) -> "list[tuple[StrategyPlan, int]]":
        """All that runs in a period, in this order: plans, each with the optimizer steps that it holds."""
        return [*([(self.inner, 1)] * self.num_inner if self.inner else ()), (self, self.program.num_steps)]

    def _total_s(self, prices: Sequence[Price], slowdown: float) -> float:
        # Floats, not arrays of one lane: a call of numpy costs more than the sum that it makes then.
        if self.two_streams is not None:
            return float(recurrence.two_streams(self.two_streams, prices, slowdown))
        return OneRank(self.steps, prices, slowdown).run().now

    @property
    def runs_in_arrays(self) -> bool:
        """Whether `end_s` holds; the table in `recurrence` says why."""
        return self.two_streams is not None or self.can_sweep

    def end_s(
        self, prices: Sequence[Price], slowdown: Number, *, start_s: Any, ranks: MeetingRanks | None = None
    ) -> Any:
        """Return when lanes or ranks are done that begin at these times [s]; arguments as of `two_streams`."""
        if self.two_streams is not None:
            return recurrence.two_streams(
                self.two_streams, prices, slowdown, start_s=start_s, ranks=ranks, in_arrays=True
            )
        return recurrence.sweep(self.steps, prices, slowdown, start_s=start_s, ranks=ranks)

    @cached_property
    def can_sweep(self) -> bool:
        """Whether one stream computes, and no two that communicate may use the same links."""
        return recurrence.one_computes(self.steps) and self.are_apart

    @cached_property
    def are_apart(self) -> bool:
        """Whether no two streams that communicate may use the same links."""
        # By kinds of groups and not by ranks: two groups that both leave nodes meet at some NIC.
        groups = [
            {step.operation.schedule.group for step in stream if isinstance(step.operation, Communicate) and step.sends}
            for stream in self.steps
        ]
        pairs = itertools.combinations(groups, 2)
        return not any(recurrence.share_links(a, b) for some, others in pairs for a in some for b in others)

    def timeline(self, at: PlanNumbers) -> Timeline:
        """Return one iteration of the rank that stands for all, the mean one of the period."""
        prices = self.prices(at)
        # `two_streams` is faster and knows no spans: it sums what compute has done without telling which part it was.
        rank = OneRank(self.steps, prices, at.slowdown).run()
        spans = [
            make_span(self.steps[stream][place].operation, OperationId(stream, place), start_s, end_s)
            for stream, place, start_s, end_s in rank.spans
        ]
        timeline = make_timeline(rank.now, rank.busy_s, spans)
        if not self.are_apart:
            timeline = replace(timeline, off_s=self._off_s(prices, rank.spans))
        inner = self.inner.timeline(at) if self.inner else None
        return timeline.of_period(self.program.period, self.num_inner, inner)

    def _off_s(self, prices: Sequence[Price], spans: Sequence[tuple[int, int, float, float]]) -> float:
        """Return by how much a step may be off whose collectives run beside others of other streams [s].

        Latencies pass before the bytes do, while sends of a round alternate with those of others: off by less than all
        latencies. Sends that are posted at once take more of a link than a send alone, and here as much.
        """
        off_s, last = 0.0, dict[int, tuple[float, PricedStep]]()  # of each stream: when its latest collective ends
        counted: set[int] = set()
        # By time of their start, so that `last` holds what was under way then, whichever stream it is in.
        for start_s, end_s, stream, place in sorted((begin, end, stream, place) for stream, place, begin, end in spans):
            step = self.steps[stream][place]
            if not step.sends:
                continue
            beside = [sent for other, (until_s, sent) in last.items() if other != stream and until_s > start_s]
            for sent in (step, *beside) if beside else ():
                cost = prices[sent.price]
                # By identity: two steps of one bucket may be equal, and each has latencies of its own.
                if id(sent) not in counted and isinstance(cost, pace.OverlappedCost):
                    counted.add(id(sent))
                    off_s += float(cost.latency_s)
            if beside and any(_posts_at_once(sent.operation) for sent in (step, *beside)):
                off_s += min(end_s, max(until_s for until_s, sent in last.values() if sent in beside)) - start_s
            last[stream] = end_s, step
        return off_s

    def timed(self, prices: Sequence[Price]) -> Streams:
        """Return the operations with their seconds, as the executors that run them one by one take them."""
        return tuple(tuple(_timed(step, prices[step.price]) for step in stream) for stream in self.steps)

    def without_time(self, calibration: Calibration) -> tuple[str, ...]:
        """Return the kernels whose time a calibration does not know; they cost nothing."""
        return tuple(sorted(name for name, cost in self._costs.items() if not cost.is_known(calibration)))

    def timed_otherwise(self, calibration: Calibration) -> tuple[str, ...]:
        """Return a sentence for each kernel that was timed with other options than the strategy's."""
        options, timed_as = self.strategy.kernel_options(), self.strategy.timed_as
        others = {name: self._costs[name].other_options(calibration, options, timed_as) for name in sorted(self._costs)}
        return tuple(f"{name} was timed with {timed}" for name, timed in others.items() if timed)

    def timed_by_others(self, calibration: Calibration) -> tuple[str, ...]:
        """Return a sentence for each kernel that takes the time of another one."""
        return tuple(text for name in sorted(self._costs) if (text := self._costs[name].stand_in_text(calibration)))

    def nic_bytes_per_node(self, topology: Topology) -> float:
        """Return the bytes that leave the busiest node in one iteration, the mean one of a period."""
        sent = sum(
            link_loads.nic_bytes_per_node(topology, collective.schedule, collective.message_bytes)
            for collective in self.program.collectives
        )
        return float(self._of_period(sent, lambda inner: inner.nic_bytes_per_node(topology)))


def _posts_at_once(operation: Operation) -> bool:
    return isinstance(operation, Communicate) and any(round_.at_once for round_ in operation.schedule.rounds)


def _timed(step: PricedStep, price: Price) -> TimedOperation:
    operation = step.operation
    if isinstance(operation, Communicate):
        return operation
    assert isinstance(price, float | int)
    # Kernels become compute of known seconds, too: who runs operations one by one knows no calibration.
    if isinstance(operation, Compute):
        return replace(operation, seconds=price, share=NO_SHARE)
    return Compute(
        part=operation.part, seconds=price, name=operation.name, bucket=operation.bucket, after=operation.after
    )


def updates_parameters(costs: Mapping[str, KernelCost], calibration: Calibration) -> bool:
    """Tell whether kernels with a known time move the parameters, as BinSGDM's and 1-bit Adam's last one does.

    The workload's optimizer would then count twice.
    """
    updating = [cost for cost in costs.values() if cost.updates]
    return bool(updating) and all(cost.is_known(calibration) for cost in updating)


def _num_messages(program: Program) -> int:
    return sum(1 for collective in program.collectives if collective.schedule.rounds)


def program_of(strategy: Strategy, step: training_step.Step, topology: Topology) -> Program:
    """Return the program of a strategy.

    Raises:
        SimnetError: it cannot be made, or is none, as another package's may be.
    """
    # Foreign code is checked and its errors are named; ours would pay for both at every point of a sweep.
    if not is_foreign(type(strategy)):
        program = strategy.program(step, topology)
        if not (strategy.waits_for_hosts and step.host_pause_s and _num_messages(program)):
            return program
        compute, *others = program.streams
        # Its seconds hold for one rank; a plan, which knows how many wait, prices it (`_HostPauses`).
        waited = Compute(part="wait", name="host pauses", seconds=step.host_pause_s)
        return replace(program, streams=((*compute, waited), *others))
    with blamed_on_package(f"strategy {strategy.kind!r}: program"):
        return check_program(strategy.program(step, topology))
