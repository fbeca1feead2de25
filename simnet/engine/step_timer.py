"""The step times of many strategies on one scenario, as a search over settings, bandwidths and draws asks for them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from simnet.engine import bucket_recurrence
from simnet.engine.bucket_recurrence import ComputeStream, Exchanges, Turn
from simnet.engine.prepared_scenario import PreparedScenario, updates_parameters
from simnet.engine.scenario import Scenario
from simnet.strategies import Strategy
from simnet.strategies.base import kernel_costs_of
from simnet.strategies.program import Kernel, Operation
from simnet.workload.kernel_cost import KernelCost

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
    """The step times of many strategies on one scenario.

    A step is the mean one of a long training: steps of a dense stage count by their share.
    """

    def __init__(self, scenario: Scenario, shared: dict[Strategy, Exchanges | None] | None = None) -> None:
        """Take a scenario; its own strategy, baseline and number of steps do not matter.

        Args:
            scenario: whose steps are timed.
            shared: exchanges are kept here where they are the same for scenarios that differ in rates and kernel times
                alone, which may share them.
        """
        self._prepared = PreparedScenario(scenario)
        self._known: dict[Strategy, float] = {}
        self._exchanges: dict[Strategy, Exchanges | None] = {}
        self._shared = shared
        self._costs: dict[str, KernelCost] = {}
        self._kernels_s: dict[tuple[str, float, int], float] = {}

    def of(self, strategy: Strategy) -> float:
        """Return what a step takes, as `simulated` does but for rounding [s].

        Raises:
            SimnetError: as `simulate`.
        """
        return self.stages(strategy).mean_s(strategy.dense_fraction)

    def stages(self, strategy: Strategy) -> StageTimes:
        """Return what a step takes, and one of the dense stage [s].

        Raises:
            SimnetError: as `simulate`.
        """
        return _stages(strategy, self.iteration_s)

    def simulated(self, strategy: Strategy) -> float:
        """Return what a step takes, to the bit as `simulate` does [s].

        Raises:
            SimnetError: as `simulate`.
        """
        return _stages(strategy, self._simulated_s).mean_s(strategy.dense_fraction)

    def fastest(self, strategies: Sequence[Strategy]) -> Strategy:
        """Return the fastest strategy, the first of equals.

        Raises:
            SimnetError: as `simulate`, of any of them.
        """
        times = [self.of(strategy) for strategy in strategies]
        limit_s = min(times) * (1 + SAME_TIME)
        return next(strategy for strategy, step_s in zip(strategies, times, strict=True) if step_s <= limit_s)

    def kernels(self, strategy: Strategy) -> frozenset[str]:
        """Return the kernels of an iteration.

        Raises:
            SimnetError: as `simulate`.
        """
        found = self._exchanges_of(strategy)
        return self._prepared.plan(strategy).program.kernels if found is None else found.kernels

    def iteration_s(self, strategy: Strategy) -> float:
        """Return what an iteration takes, without a dense stage, as `simulate` does but for rounding [s].

        Raises:
            SimnetError: as `simulate`.
        """
        if strategy not in self._known:
            found = self._exchanges_of(strategy)
            self._known[strategy] = self._simulated_s(strategy) if found is None else self._iteration_s(strategy, found)
        return self._known[strategy]

    def _simulated_s(self, strategy: Strategy) -> float:
        iteration_s = self._prepared.run(self._prepared.plan(strategy)).iteration_s
        self._prepared.forget_plans()
        return iteration_s

    def _iteration_s(self, strategy: Strategy, found: Exchanges) -> float:
        prepared = self._prepared
        step, calibration = prepared.step, prepared.scenario.calibration
        costs = self._costs_of(found.kernels)
        turns = partial(self._turns, strategy)
        compute = ComputeStream(
            before_s=step.micro_batches * step.forward_s + (step.micro_batches - 1) * step.backward_s,
            backward_s=step.exchanged_backward_s,
            optimizer_s=0.0 if updates_parameters(costs, calibration) else step.optimizer_s,
            comm_slowdown=float(calibration.backward_slowdown),
        )
        iteration_s = bucket_recurrence.iteration_s(
            compute, found, [turns(operations) for operations in found.distinct], turns(found.epilogue)
        )
        return prepared.checked_s(iteration_s)

    def _turns(self, strategy: Strategy, operations: Sequence[Operation]) -> tuple[Turn, ...]:
        return bucket_recurrence.as_turns(operations, self._kernel_s, self._prepared.topology_of(strategy))

    def _kernel_s(self, kernel: Kernel) -> float:
        key = kernel.name, kernel.num_elements, kernel.num_vectors
        if key not in self._kernels_s:
            self._kernels_s[key] = self._costs[kernel.name].seconds(self._prepared.scenario.calibration, *key[1:])
        return self._kernels_s[key]

    def _costs_of(self, names: frozenset[str]) -> dict[str, KernelCost]:
        if not names <= self._costs.keys():
            self._costs |= kernel_costs_of(names)
        return {name: self._costs[name] for name in names}

    def _exchanges_of(self, strategy: Strategy) -> Exchanges | None:
        # The class itself must say that rates do not matter: a class derived from it may choose by times.
        chooses_by_rate = self._prepared.topology.nccl is not None
        is_shared = vars(type(strategy)).get("is_rate_independent") and not chooses_by_rate
        kept = self._shared if self._shared is not None and is_shared else self._exchanges
        if strategy not in kept:
            prepared = self._prepared
            prepared.check(strategy)
            topology = prepared.topology_of(strategy)
            is_folded = prepared.fidelity == "folded"
            kept[strategy] = bucket_recurrence.exchanges_of(strategy, prepared.step, topology) if is_folded else None
        return kept[strategy]


def _stages(strategy: Strategy, seconds: Callable[[Strategy], float]) -> StageTimes:
    stage = strategy.dense_stage(None)
    return StageTimes(seconds(strategy), None if stage is None else seconds(stage.strategy))
