"""The step times of many strategies on one scenario, or on many that differ in numbers, as searches ask for them.

A step is the mean one of a long training: steps of a dense stage count by their share.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from simnet.collectives import link_loads
from simnet.core.lanes import UnlikeLanesError
from simnet.engine.plan import LaneNumbers, StrategyPlan, is_fixed, program_of
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.strategies import Strategy

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
