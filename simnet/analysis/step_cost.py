"""What steps of a system take and send on a cluster: simulated as calibrated, on draws, and with slow kernels."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct, structs

from simnet.analysis import whatif
from simnet.engine import intervals
from simnet.engine.result import RunResult, StrategyResult
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy, choices

Simulate = Callable[[Scenario], RunResult]
Notes = dict[str, None]


class StepCost(Struct, frozen=True, kw_only=True):
    """What steps of a system take, and send out of a node.

    Attributes:
        strategy: says how many steps are dense.
        first_s: of the first step beyond another: DDP then has one bucket of all gradients, after backward [s].
        step_s: of a step [s].
        step_bytes: out of a node.
        dense_s: of a step of its dense stage [s]; 0 without one.
        dense_bytes: out of a node in such a step.
    """

    strategy: AnyStrategy
    first_s: float
    step_s: float
    step_bytes: float
    dense_s: float = 0.0
    dense_bytes: float = 0.0

    def elapsed_s(self, num_steps: float) -> float:
        """Return the time of the first steps, those of a dense stage and the first one counted as they are [s]."""
        dense = self._num_dense(num_steps)
        return self.first_s + dense * self.dense_s + (num_steps - dense) * self.step_s

    def sent_bytes(self, num_steps: float) -> float:
        """Return what the first steps send out of a node."""
        dense = self._num_dense(num_steps)
        return dense * self.dense_bytes + (num_steps - dense) * self.step_bytes

    def _num_dense(self, num_steps: float) -> float:
        stage = self.strategy.dense_stage(math.floor(num_steps))
        return min(num_steps, stage.steps) if stage else 0.0


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """The cost of a system's steps as calibrated, on each draw, and with slow kernels (None if none is estimated)."""

    usual: StepCost
    drawn: tuple[StepCost, ...]
    slow: StepCost | None
    unmeasured: tuple[str, ...]


def step_costs(strategy: AnyStrategy, scenario: Scenario, simulate: Simulate, notes: Notes) -> StepCosts:
    """Simulate what a system's steps cost.

    Args:
        strategy: of the whole training, its dense stage included.
        scenario: of one bandwidth; `run.draws` costs are drawn, too.
        simulate: the simulator.
        notes: those of the simulations are added.

    Raises:
        SimnetError: it cannot be predicted.
    """
    plain = structs.replace(scenario, run=structs.replace(scenario.run, draws=0, steps=None))
    # A training 0 times as long has no dense steps, which a scenario without run.steps would refuse.
    kernels = whatif.kernel_coverage(choices.for_longer_training(strategy, 0.0), plain)

    def cost(given: Scenario) -> StepCost:
        return _step_cost(strategy, given, simulate, notes)

    usual = cost(plain)
    draws = scenario.run.draws or 0
    intervals.check_draws(draws)
    # Without an interval every draw is the scenario itself, which need not be simulated again.
    has_intervals = intervals.has_intervals(plain)
    return StepCosts(
        usual=usual,
        drawn=tuple(map(cost, intervals.drawn_scenarios(plain, draws))) if has_intervals else (usual,) * draws,
        slow=cost(whatif.slow_kernels(plain)) if kernels.are_estimated else None,
        unmeasured=kernels.unmeasured,
    )


def _step_cost(strategy: AnyStrategy, scenario: Scenario, simulate: Simulate, notes: Notes) -> StepCost:
    def run(one: AnyStrategy) -> StrategyResult:
        result = simulate(structs.replace(scenario, strategy=one))
        notes.update(dict.fromkeys(result.notes))
        return result.result

    stage = strategy.dense_stage(None)
    own, dense = run(choices.for_longer_training(strategy, 0.0)), run(stage.strategy) if stage else None
    first = stage.strategy if stage and stage.steps else strategy
    usual_s = dense.iteration_s if dense and first is not strategy else own.iteration_s
    return StepCost(
        strategy=strategy,
        first_s=run(_in_one_bucket(first)).iteration_s - usual_s if _has_ddp_buckets(first) else 0.0,
        step_s=own.iteration_s,
        step_bytes=own.nic_bytes_per_node,
        dense_s=dense.iteration_s if dense else 0.0,
        dense_bytes=dense.nic_bytes_per_node if dense else 0.0,
    )


def _has_ddp_buckets(strategy: AnyStrategy) -> bool:
    """Tell whether DDP forms the buckets, anew after its first step."""
    return strategy.bucketing == "ddp" and strategy.uses_ddp_buckets


def _in_one_bucket(strategy: AnyStrategy) -> AnyStrategy:
    return structs.replace(strategy, bucketing="fused", bucket_cap=None, overlap=False)
