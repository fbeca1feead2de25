"""A scenario made ready to run: its links, its step, and the program of each strategy with the time of each kernel.

`StepTimer` gives the step times of many strategies on one scenario, `StepLanes` on many that differ in numbers. A step
is the mean one of a long training: steps of a dense stage count by their share.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from simnet.cluster import hardware
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Cluster
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.core.errors import SimnetError
from simnet.core.lanes import UnlikeLanesError
from simnet.engine.plan import LaneNumbers, PlanNumbers, StrategyPlan, is_fixed, program_of
from simnet.engine.scenario import Scenario
from simnet.engine.timeline import Streams, Timeline, num_collectives
from simnet.strategies import Strategy
from simnet.strategies.base import check_calibration
from simnet.workload import training_step
from simnet.workload.training_step import Step

if TYPE_CHECKING:
    from simnet.engine.random_factors import Variation


UNEVEN_MATTERS = 1e-3
"""Part of a step by which it may be off before every rank is simulated."""
EXACT_MAX_SENDS = 20_000_000
"""Most sends that the exact executor takes on: several minutes."""


class PreparedScenario:
    """A scenario with what follows from it, the same for every strategy."""

    def __init__(
        self,
        scenario: Scenario,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        """Take a scenario, and what to call after each round of the exact executor, or each step of the grouped one."""
        check_calibration(scenario.calibration)
        step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
        self.scenario = scenario
        self._cluster = with_numbers(scenario)
        self.topology: Topology = topologies.build(self._cluster, scenario.calibration)
        self._topologies: dict[str, Topology] = {}
        # The times of a step are those of one micro-batch; how many there are is a matter of the run.
        self.step: Step = replace(step, micro_batches=scenario.grad_accumulation)
        self.fidelity = _fidelity(scenario, self.topology)
        self._on_progress = on_progress
        self._plans: dict[Strategy, StrategyPlan] = {}

    def plan(self, strategy: Strategy) -> StrategyPlan:
        """Return the program of a strategy, made once."""
        # One answer asks for it again and again: for its timeline, its notes, its memory and its draws.
        if strategy not in self._plans:
            self.check(strategy)
            # Whoever chooses an algorithm, as NCCL's tuner does, knows of no fault.
            usual = topologies.without_faults(self.topology_of(strategy))
            self._plans[strategy] = StrategyPlan(strategy, program_of(strategy, self.step_of(strategy), usual))
        return self._plans[strategy]

    def numbers(self, strategy: Strategy) -> PlanNumbers:
        """Return what gives the parts of a strategy's plan their times."""
        return PlanNumbers(self.step_of(strategy), self.topology_of(strategy), self.scenario.calibration)

    def step_of(self, strategy: Strategy) -> Step:
        """Return the step as a strategy has it: some wait for the slowest rank."""
        return self.step.of_slowest_rank if strategy.waits_for_hosts else self.step

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that the cluster's GPU cannot run, where its data sheet is known."""
        if (gpu := hardware.known_gpu(self.scenario.cluster.gpu)) is not None:
            strategy.check_gpu(gpu)

    def topology_of(self, strategy: Strategy) -> Topology:
        """Return the links as a strategy's exchange finds them: a library of its own may carry it."""
        calibration, kind = self.scenario.calibration, strategy.kind
        # Nearly always: one topology for all is one key of every cache of what a collective takes.
        if calibration.library_of(kind) is None:
            return self.topology
        if kind not in self._topologies:
            self._topologies[kind] = topologies.build(self._cluster, calibration, kind)
        return self._topologies[kind]

    def run(self, plan: StrategyPlan) -> Timeline:
        """Run one iteration, the mean one of a period where steps are not all alike.

        Raises:
            SimnetError: it takes no time or never ends, or it is too much for the exact executor.
        """
        if self.fidelity == "exact":
            timeline = self._run_exact(plan)
        elif self.fidelity == "grouped" or self.ends_apart(plan):
            timeline = self._run_ranks(plan)
        else:
            timeline = self._run_alike(plan)
        self.checked_s(timeline.iteration_s)
        return timeline

    def iteration_s(self, plan: StrategyPlan) -> float:
        """Return the time of an iteration, as `run` does but for rounding [s]."""
        # Without spans: a search asks for times alone, and `two_streams` gives them faster.
        if self.fidelity == "folded" and not self.ends_apart(plan):
            return self.checked_s(plan.iteration_s(self.numbers(plan.strategy)))
        if self.fidelity == "exact":
            return self.run(plan).iteration_s
        return self.checked_s(self._run_ranks(plan, with_spans=False).iteration_s)

    def timed(self, plan: StrategyPlan) -> Streams:
        """Return the operations of a program with their seconds."""
        return plan.timed(plan.prices(self.numbers(plan.strategy)))

    def ends_apart(self, plan: StrategyPlan) -> bool:
        """Tell whether each rank is simulated though all are alike, since collectives leave them at different times.

        Not where one node was asked to stand for all, where that makes next to no difference, or where it is more than
        can be looked at.
        """
        schedules = [collective.schedule for collective in plan.collectives]
        bounds = [schedule for schedule in schedules if link_loads.is_upper_bound(self.topology, schedule)]
        if not bounds or self.scenario.run.fidelity != "auto":
            return False
        most = max(schedule.num_rounds for schedule in bounds) * self.topology.world_size
        at = self.numbers(plan.strategy)
        return most <= link_loads.MOST_FOLLOWED and plan.uneven_s(at) > UNEVEN_MATTERS * plan.iteration_s(at)

    def _run_alike(self, plan: StrategyPlan) -> Timeline:
        """Run the rank that stands for all."""
        at = self.numbers(plan.strategy)
        timeline = plan.timeline(at)
        return replace(
            timeline,
            iterations_s=(timeline.iteration_s,) * self.scenario.num_iterations,
            off_s=timeline.off_s + plan.uneven_s(at),
        )

    def checked_s(self, iteration_s: float) -> float:
        """Return the time of an iteration [s]."""
        if not 0 < iteration_s < math.inf:
            raise SimnetError(
                f"{self.scenario.name}: an iteration of {iteration_s:g} s: must take some time and end; give "
                "workload.forward and workload.backward as they are"
            )
        return iteration_s

    def _run_ranks(self, plan: StrategyPlan, *, with_spans: bool = True) -> Timeline:
        """Run every rank, collectives as wholes."""
        from simnet.engine import ranks

        at = self.numbers(plan.strategy)
        steps = ranks.period_of(plan, at) * self.num_periods(plan)
        variation = self._variation(at.topology)
        return ranks.run(steps, at.topology, at.slowdown, variation, self._on_progress, with_spans=with_spans)

    def _run_exact(self, plan: StrategyPlan) -> Timeline:
        """Run every rank and every send."""
        from simnet.engine import exact
        from simnet.engine.collective_times import rank_times
        from simnet.engine.every_send import Exact

        # Before anything is made: the first thing that so many sends fill is memory.
        if (sends := self.num_sends(plan)) > EXACT_MAX_SENDS:
            raise SimnetError(
                f"run.fidelity: 'exact': about {sends} sends: at most {EXACT_MAX_SENDS}; use fewer nodes or "
                "iterations, larger buckets, or 'grouped'"
            )
        at = self.numbers(plan.strategy)
        variation = self._variation(at.topology)
        timed = {id(part): part.timed(part.prices(at)) for part in (plan.inner, plan) if part is not None}
        period = [(timed[id(part)], num_steps) for part, num_steps in plan.of_period]
        steps = period * self.num_periods(plan)
        drawn = [variation.of(n, num_collectives(streams)) for n, (streams, _) in enumerate(steps)]
        # Where no two collectives meet on a link, each takes what it takes alone, and needs no events of its own.
        regular = rank_times if _is_regular(plan) else None
        make = partial(Exact, on_round=self._on_progress, regular=regular)
        return exact.run_exact(steps, at.topology, at.slowdown, drawn, make)

    def _variation(self, topology: Topology) -> "Variation":
        from simnet.engine.random_factors import Variation

        return Variation(topology, self.scenario.run.seed)

    def num_periods(self, plan: StrategyPlan) -> int:
        """Return how many periods hold as many iterations as asked for."""
        return -(-self.scenario.num_iterations // plan.program.period)

    def num_steps(self, plan: StrategyPlan) -> int:
        """Return how many steps run one after the other."""
        return self.num_periods(plan) * len(plan.of_period)

    def num_sends(self, plan: StrategyPlan) -> int:
        """Return about how many sends all iterations have."""
        return self.num_rounds(plan) * self.topology.world_size

    def num_rounds(self, plan: StrategyPlan) -> int:
        """Return how many rounds a rank goes through in all iterations."""
        return plan.program.num_rounds * self.num_periods(plan)


def with_numbers(scenario: Scenario) -> Cluster:
    """Return the cluster of a scenario whose faults hold numbers in place of names."""
    cluster = scenario.cluster
    if not cluster.faults:
        return cluster

    def compute_s(gpu: str) -> float:
        step = training_step.resolve(scenario.workload, replace(cluster, gpu=gpu), scenario.calibration)
        return step.forward_s + step.backward_s

    return replace(cluster, faults=tuple(fault.on(cluster, compute_s) for fault in cluster.faults))


def is_folded(scenario: Scenario) -> bool:
    """Tell whether one node stands for all in a scenario, so that it is simulated in milliseconds."""
    return _fidelity(scenario, topologies.build(scenario.cluster, scenario.calibration)) == "folded"


def _fidelity(scenario: Scenario, topology: Topology) -> str:
    """Return the executor to use, the fastest one that holds."""
    asked = scenario.run.fidelity
    if asked == "folded" and not topology.is_symmetric:
        raise SimnetError(
            "run.fidelity: 'folded': needs nodes that are all alike; drop slow_nodes and faults, fill every leaf, or "
            "use 'auto'"
        )
    if asked == "grouped" and not topology.leaves_are_filled:
        raise SimnetError(
            f"run.fidelity: 'grouped': needs leaves that are all filled, not {topology.num_nodes} nodes in leaves of "
            f"{topology.nodes_per_leaf}; use 'exact', or as many nodes as fill every leaf"
        )
    if asked != "auto":
        return asked
    # The order is that of cost: milliseconds, seconds with all ranks as arrays, minutes with all sends as events.
    if topology.is_symmetric:
        return "folded"
    return "grouped" if topology.leaves_are_filled else "exact"


def _is_regular(plan: StrategyPlan) -> bool:
    """Tell whether no two collectives of a program ever use the same links."""
    from simnet.engine.every_send import never_share_links

    steps = [plan.steps, *([plan.inner.steps] if plan.inner else [])]
    sending = max(sum(any(step.sends for step in stream) for stream in streams) for streams in steps)
    return sending <= 1 and never_share_links(collective.schedule for collective in plan.collectives)


# Relative: times this near each other differ by rounding alone.
SAME_TIME = 1e-12


class StageTimes(NamedTuple):
    """What a step takes, and one of the dense stage, None without one [s]."""

    step_s: float
    dense_s: float | None = None

    def mean_s(self, dense_fraction: float) -> float:
        """Return the mean step of a training in which this part of the steps is dense [s]."""
        return self.step_s if self.dense_s is None else self.step_s + dense_fraction * (self.dense_s - self.step_s)


class StepTimer:
    """The step times of many strategies on one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        """Take a scenario; its own strategy, baseline and number of steps do not matter."""
        self.prepared = PreparedScenario(scenario)
        self._known: dict[Strategy, float] = {}

    def of(self, strategy: Strategy) -> float:
        """Return what a step takes [s]."""
        return self.stages(strategy).mean_s(strategy.dense_fraction)

    def stages(self, strategy: Strategy) -> StageTimes:
        """Return what a step takes, and one of the dense stage [s]."""
        stage = strategy.dense_stage(None)
        return StageTimes(self.iteration_s(strategy), None if stage is None else self.iteration_s(stage.strategy))

    def fastest(self, strategies: Sequence[Strategy]) -> Strategy:
        """Return the fastest strategy, the first of equals."""
        return strategies[first_of_least([self.of(strategy) for strategy in strategies])]

    def kernels(self, strategy: Strategy) -> frozenset[str]:
        """Return the kernels of an iteration."""
        return self.prepared.plan(strategy).program.kernels

    def iteration_s(self, strategy: Strategy) -> float:
        """Return what an iteration takes, without a dense stage, as `simulate` does but for rounding [s]."""
        if strategy not in self._known:
            self._known[strategy] = self.prepared.iteration_s(self.prepared.plan(strategy))
        return self._known[strategy]


class StepLanes:
    """The step times of many strategies on scenarios that differ in numbers: rates, latencies, costs, times."""

    def __init__(
        self, scenarios: Sequence[Scenario], base: "StepTimer | StepLanes | None" = None, *, in_arrays: bool = True
    ) -> None:
        """Take scenarios of one cluster shape and model.

        Args:
            scenarios: at least one.
            base: whose programs all run, as drawn calibrations do, whose algorithms were chosen as calibrated, or
                others on the same links; without it algorithms are chosen anew in each.
            in_arrays: whether many are timed in one pass; not where loading arrays takes longer than that saves.
        """
        self._in_arrays = in_arrays
        self._timers = [StepTimer(scenario) for scenario in scenarios]
        self._base = base
        self._known: dict[Strategy, list[float]] = {}
        self._plans: dict[Strategy, StrategyPlan | None] = {}
        self._numbers: dict[tuple[str | None, bool], LaneNumbers] = {}

    def kernels(self, strategy: Strategy) -> frozenset[str]:
        """Return the kernels of an iteration, the same in each scenario."""
        plan = self._plan(strategy)
        return self._timers[0].kernels(strategy) if plan is None else plan.program.kernels

    def stages(self, strategy: Strategy) -> list[StageTimes]:
        """Return what a step takes in each scenario, and one of the dense stage [s]."""
        stage, mean_s = strategy.dense_stage(None), self.iterations_s(strategy)
        dense: Sequence[float | None] = [None] * len(mean_s) if stage is None else self.iterations_s(stage.strategy)
        return [StageTimes(*both) for both in zip(mean_s, dense, strict=True)]

    def of(self, strategy: Strategy) -> list[float]:
        """Return what a step takes in each scenario [s]."""
        return [times.mean_s(strategy.dense_fraction) for times in self.stages(strategy)]

    def iterations_s(self, strategy: Strategy) -> list[float]:
        """Return what an iteration takes in each scenario [s]."""
        if strategy not in self._known:
            together = self._together(strategy)
            self._known[strategy] = (
                [timer.iteration_s(strategy) for timer in self._timers] if together is None else together
            )
        return self._known[strategy]

    def _together(self, strategy: Strategy) -> list[float] | None:
        """Return the iterations by one plan; None where each needs its own."""
        plan, prepared = self._plan(strategy), [timer.prepared for timer in self._timers]
        if plan is None:
            return None
        # Ranks that are not alike are lanes themselves: draws and ranks are then two axes of the same arrays.
        if any(lane.fidelity != "folded" for lane in prepared):
            return self._on_ranks(plan)
        try:
            seconds = plan.iterations_s(self._numbers_of(strategy), in_arrays=self._in_arrays)
        except UnlikeLanesError:
            return None
        return [lane.checked_s(iteration_s) for lane, iteration_s in zip(prepared, seconds, strict=True)]

    def _numbers_of(self, strategy: Strategy) -> LaneNumbers:
        """Return the numbers of each scenario, the same for all strategies but those that another library carries."""
        prepared = [timer.prepared for timer in self._timers]
        library = strategy.kind if prepared[0].scenario.calibration.library_of(strategy.kind) else None
        carried = library, strategy.waits_for_hosts
        if carried not in self._numbers:
            self._numbers[carried] = LaneNumbers([lane.numbers(strategy) for lane in prepared])
        return self._numbers[carried]

    def _on_ranks(self, plan: StrategyPlan) -> list[float]:
        """Return the iterations of draws whose ranks are not alike."""
        prepared = [timer.prepared for timer in self._timers]
        first = prepared[0]
        together = None
        # Faults that draw or come and go change from step to step, so that steps must be run one after the other.
        if first.fidelity == "grouped" and first.topology.next_change_s(0.0) == math.inf and not first.topology.varies:
            from simnet.engine import random_factors, ranks

            factor = random_factors.Variation(first.topology, 0).constant
            together = ranks.draws_s(plan, self._numbers_of(plan.strategy), factor)
        return [lane.iteration_s(plan) for lane in prepared] if together is None else together

    def _plan(self, strategy: Strategy) -> StrategyPlan | None:
        """Return the plan that all share; None where each needs its own."""
        if strategy not in self._plans:
            self._plans[strategy] = self._shared_plan(strategy)
        return self._plans[strategy]

    def _shared_plan(self, strategy: Strategy) -> StrategyPlan | None:
        if not is_fixed(strategy):
            return None
        # Whoever chose an algorithm chose it once: draws run the programs of their base, as NCCL does not know its own
        # error.
        if isinstance(self._base, StepLanes):
            return self._base._plan(strategy)
        if self._base is not None:
            return self._base.prepared.plan(strategy)
        if any(timer.prepared.fidelity != "folded" for timer in self._timers):
            return None
        try:
            return self._plan_for_all(strategy)
        except UnlikeLanesError:
            return None

    def _plan_for_all(self, strategy: Strategy) -> StrategyPlan:
        """Return a plan that chooses algorithms anew for each scenario.

        Raises:
            UnlikeLanesError: each needs its own.
        """
        first = self._timers[0].prepared
        first.check(strategy)
        plan = StrategyPlan(
            strategy, program_of(strategy, first.step_of(strategy), self._numbers_of(strategy).topology)
        )
        every = [
            schedule
            for collective in plan.collectives
            for schedule in collective.schedule.alternatives or (collective.schedule,)
        ]
        if any(link_loads.is_upper_bound(first.topology, schedule) for schedule in every):
            raise UnlikeLanesError  # what is an upper bound in one lane may not be chosen in another
        return plan


def first_of_least(times: Sequence[float]) -> int:
    """Return the place of the least time, the first of those that differ from it by rounding."""
    limit_s = min(times) * (1 + SAME_TIME)
    return next(place for place, step_s in enumerate(times) if step_s <= limit_s)
