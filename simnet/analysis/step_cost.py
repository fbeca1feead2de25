"""What the steps of a training take on a cluster: as calibrated, on draws, and with slow kernels."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from simnet.analysis import whatif
from simnet.analysis.tune import trained_variants, with_known_kernels
from simnet.analysis.tuned_steps import TunedSteps
from simnet.engine.memory_fit import fitting
from simnet.engine.step_timer import StageTimes, StepTimer
from simnet.strategies import AnyStrategy


class StepCost(Struct, frozen=True, kw_only=True):
    """What the steps of a system take, one after the other.

    Attributes:
        strategy: says how many steps are dense.
        first_s: of the first step beyond another: DDP then has one bucket of all gradients, after backward [s].
        step_s: of a step [s].
        dense_s: of a step of its dense stage [s]; 0 without one.
    """

    strategy: AnyStrategy
    first_s: float
    step_s: float
    dense_s: float = 0.0

    def elapsed_s(self, num_steps: float) -> float:
        """Return the time of the first steps, those of a dense stage and the first one counted as they are [s]."""
        if math.isinf(num_steps):
            return math.inf
        dense = num_dense(self.strategy, num_steps)
        return self.first_s + dense * self.dense_s + (num_steps - dense) * self.step_s


def num_dense(strategy: AnyStrategy, num_steps: float) -> float:
    """Return how many of the first steps are dense."""
    stage = strategy.dense_stage(math.floor(num_steps))
    return min(num_steps, stage.steps) if stage else 0.0


class StepCosts(NamedTuple):
    """The cost of a system's steps, tuned.

    Attributes:
        usual: as calibrated.
        drawn: in drawn calibrations; one is as good as many of its like.
        slow: with estimated kernels at their slowest; None if none is estimated.
        unmeasured: kernels that have neither a time nor a usable estimate.
    """

    usual: StepCost
    drawn: Sequence[StepCost]
    slow: StepCost | None = None
    unmeasured: tuple[str, ...] = ()


def step_costs(strategy: AnyStrategy, times: TunedSteps) -> StepCosts:
    """Return what a system's steps cost at the fastest of the settings that train as it does.

    Args:
        strategy: of the whole training, its dense stage included.
        times: of steps on the cluster, with draws.
    """
    here, calibration = times.here, times.scenario.calibration
    tried = trained_variants(strategy, times.scenario.workload.dtype)
    variants = with_known_kernels(fitting(times.scenario, tried) or tried, here.kernels, calibration)
    fastest = here.fastest(variants)
    kernels = whatif.coverage(here.kernels(fastest), calibration)
    found = costs_of(fastest, times)._replace(unmeasured=kernels.unmeasured)
    if not kernels.are_estimated:
        return found
    slow = times.at(times.cluster_rate, slow=True)
    return found._replace(slow=_cost_on(slow, slow.fastest(variants)))


def costs_of(strategy: AnyStrategy, times: TunedSteps) -> StepCosts:
    """Return what the steps of one setting cost, as it is."""
    stages, first = times.drawn.stages(strategy), _first_step(strategy)
    firsts = [None] * len(stages) if first is None else times.drawn.iterations_s(first)
    return StepCosts(
        usual=_cost_on(times.here, strategy),
        drawn=[_cost(strategy, *both) for both in zip(stages, firsts, strict=True)],
    )


def _cost_on(timer: StepTimer, strategy: AnyStrategy) -> StepCost:
    first = _first_step(strategy)
    return _cost(strategy, timer.stages(strategy), None if first is None else timer.iteration_s(first))


def _first_step(strategy: AnyStrategy) -> AnyStrategy | None:
    """Return what the first step is where DDP forms its buckets, which it does anew after it; else None."""
    stage = strategy.dense_stage(None)
    first = stage.strategy if stage and stage.steps else strategy
    if first.bucketing != "ddp" or not first.uses_ddp_buckets:
        return None
    return structs.replace(first, bucketing="fused", bucket_cap=None, overlap=False)


def _cost(strategy: AnyStrategy, stages: StageTimes, first_s: float | None) -> StepCost:
    stage = strategy.dense_stage(None)
    usual_s = stages.dense_s if stage and stage.steps and stages.dense_s is not None else stages.step_s
    return StepCost(
        strategy=strategy,
        first_s=0.0 if first_s is None else first_s - usual_s,
        step_s=stages.step_s,
        dense_s=stages.dense_s or 0.0,
    )
