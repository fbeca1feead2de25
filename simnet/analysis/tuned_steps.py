"""What steps of tuned systems take: at each bandwidth of the NICs, on draws, with slow kernels, one after the other."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from simnet.analysis import crossing
from simnet.analysis.crossing import Number, Range
from simnet.analysis.tune import Variants, trained_variants, with_known_kernels
from simnet.analysis.whatif import at_bandwidth, coverage, slow_kernels
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.memory_fit import fitting
from simnet.engine.prepared_scenario import StageTimes, StepLanes, StepTimer, first_of_least
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy

# Tried with the cluster's own bandwidth: the rates at which NICs are sold.
NIC_RATES = tuple(Bandwidth.parse(f"{rate} Gbit/s") for rate in (1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800))
# Where the cluster's bandwidth is below all of these, the fractions of it that are tried, too.
SLOWER_FRACTIONS = (0.1, 0.25, 0.5)
# Bandwidths beyond this multiple of the cluster's own are not tried: nobody asks that of the cluster.
MAX_RATE_RATIO = 100
# Of a crossover, relative: NICs differ by factors of two, and the model by more than a percent.
TOLERANCE = 0.01


class TunedStep(NamedTuple):
    """The fastest variant of a system, and the time of its step [s], a dense stage counted in by its share."""

    strategy: AnyStrategy
    step_s: float


class TunedSteps:
    """The fastest variant of each system at each bandwidth, each timed once.

    Attributes:
        scenario: whose strategies do not matter.
        cluster_rate: bandwidth of a NIC of its cluster [bytes/s].
    """

    def __init__(self, scenario: Scenario, num_draws: int = 0) -> None:
        """Take the scenario, of which the bandwidth of its NICs is varied, and how many calibrations are drawn."""
        self.scenario = scenario
        self._num_draws = num_draws
        self._at: dict[tuple[float, bool], StepTimer] = {}
        self._lanes: dict[bool, StepLanes] = {}
        self._fastest: dict[tuple[float, bool, Variants], TunedStep] = {}
        self.cluster_rate = scenario.cluster.inter_node.bytes_per_s

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: the results, without what it makes again."""
        return {**self.__dict__, "_at": {}, "_lanes": {}}

    @property
    def here(self) -> StepTimer:
        """The times of steps at the cluster's own bandwidth."""
        return self.at(self.cluster_rate)

    @cached_property
    def drawn(self) -> StepLanes:
        """The times there with drawn values; without an interval every draw is the scenario itself."""
        # Without intervals all draws are alike: one is simulated.
        is_drawn = self._num_draws and intervals.has_intervals(self.scenario)
        drawn = list(intervals.drawn_scenarios(self.scenario, self._num_draws)) if is_drawn else [self.scenario]
        return StepLanes(drawn, self.here)

    @cached_property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first, ascending; none where no byte leaves a node."""
        if self.scenario.cluster.num_nodes == 1:
            return ()
        cluster_rate = self.cluster_rate
        slower = (
            [Bandwidth(max(1.0, cluster_rate * part)) for part in SLOWER_FRACTIONS]
            if cluster_rate <= NIC_RATES[0]
            else []
        )
        return tuple(
            sorted({*slower, cluster_rate, *(rate for rate in NIC_RATES if rate <= MAX_RATE_RATIO * cluster_rate)})
        )

    def kernels(self, strategy: AnyStrategy) -> frozenset[str]:
        """Return the kernels of an iteration."""
        return (self._lanes_at(slow=False) if self.rates else self.here).kernels(strategy)

    def best(self, variants: Variants, rate: float, *, slow: bool = False) -> TunedStep:
        """Return the fastest variant at a bandwidth.

        Args:
            variants: at least one.
            rate: bandwidth of a NIC [bytes/s].
            slow: take estimated kernels at their slowest.
        """
        key = rate, slow, variants
        if key not in self._fastest:
            times = [self._step_s(variant, rate, slow=slow) for variant in variants]
            place = first_of_least(times)
            self._fastest[key] = TunedStep(variants[place], times[place])
        return self._fastest[key]

    def _step_s(self, strategy: AnyStrategy, rate: float, *, slow: bool) -> float:
        """Return the time of a step: at the bandwidths tried first, all of them together."""
        if rate not in self.rates:
            return self.at(rate, slow=slow).of(strategy)
        return self._lanes_at(slow=slow).of(strategy)[self.rates.index(rate)]

    def _lanes_at(self, *, slow: bool) -> StepLanes:
        """Return the times at the bandwidths tried first; how slow kernels are leaves programs as they are."""
        if slow not in self._lanes:
            there = [self._there(rate, slow=slow) for rate in self.rates]
            self._lanes[slow] = StepLanes(there, self._lanes_at(slow=False) if slow else None)
        return self._lanes[slow]

    def at(self, rate: float, *, slow: bool = False) -> StepTimer:
        """Return the times of steps at a bandwidth [bytes/s], with estimated kernels at their slowest if `slow`."""
        if (rate, slow) not in self._at:
            self._at[rate, slow] = StepTimer(self._there(rate, slow=slow))
        return self._at[rate, slow]

    def _there(self, rate: float, *, slow: bool) -> Scenario:
        there = at_bandwidth(self.scenario, rate)
        return slow_kernels(there) if slow else there


Placed = tuple[TunedSteps, Variants]
"""Variants of a system, and the times of steps for one way to cut the batch in which they fit."""


class SystemVsBaseline:
    """A system against the baseline, both tuned anew at every bandwidth [bytes/s]: variants, and cuts of the batch."""

    def __init__(self, system: Sequence[Placed], baseline: Sequence[Placed]) -> None:
        """Take all that each of the two is chosen from, at least one of each."""
        self._system, self._baseline = system, baseline

    def gain(self, rate: float) -> float:
        """Return speedup - 1: the time saved relative to the system's own; below 0 if the system is slower."""
        step_s = self.best(rate)[1].step_s
        return (self.baseline_best(rate)[1].step_s - step_s) / step_s

    def speedup(self, rate: float) -> float:
        """Return baseline time / time."""
        return self.baseline_best(rate)[1].step_s / self.best(rate)[1].step_s

    def slow_speedup(self, rate: float) -> float:
        """Return the speedup if the system's estimated kernels are at their slowest."""
        return self.baseline_best(rate)[1].step_s / self.best(rate, slow=True)[1].step_s

    @property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first; they are those of the cluster, however the batch is cut."""
        return self._system[0][0].rates

    def curve(self) -> tuple[tuple[Bandwidth, float], ...]:
        """Return (bandwidth, speedup) at the bandwidths tried first."""
        return tuple((rate, self.speedup(rate)) for rate in self.rates)

    def ranges(self, excess: Callable[["SystemVsBaseline", float], float], *, slow: bool = False) -> tuple[Range, ...]:
        """Return the bandwidths at which a function of both sides and the bandwidth is above 0, within `TOLERANCE`.

        It is monotonic between neighbours of the bandwidths tried first. With `slow` it looks at slow kernels, too.
        """
        rates = self.rates
        if not rates:
            return ()

        def holds(rate: Number) -> bool:
            return excess(self, rate) > 0

        ends: list[Bandwidth | None] = [None] if holds(rates[0]) else []
        for low, high in crossing.transitions(rates, holds):
            between = partial(excess, self._narrowed((low, high), slow=slow))
            around = crossing.bisect_by_guesses(low, high, TOLERANCE, between)
            # The middle of the two on the scale on which the search halves.
            ends.append(Bandwidth((around[0] * around[1]) ** 0.5))
        # Ends come in pairs: where it begins to hold, and where it stops.
        ends += [None] if holds(rates[-1]) else []
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    def _narrowed(self, rates: tuple[float, float], *, slow: bool) -> "SystemVsBaseline":
        """Return the same two sides with what is best at one of two neighbouring bandwidths.

        Trying all at each step of the search would take most of the time of `simnet advise`. The price: one that is the
        fastest between two neighbours only is missed.
        """
        fastest = [self.best(rate) for rate in rates]
        if slow:
            fastest += [self.best(rate, slow=True) for rate in rates]
        return SystemVsBaseline(_once(fastest), _once([self.baseline_best(rate) for rate in rates]))

    def best(self, rate: float, *, slow: bool = False) -> tuple[TunedSteps, TunedStep]:
        """Return the system's fastest variant at a bandwidth, and how the batch is cut for it."""
        return _fastest(self._system, rate, slow=slow)

    def baseline_best(self, rate: float) -> tuple[TunedSteps, TunedStep]:
        """Return the baseline's fastest variant at a bandwidth, and how the batch is cut for it."""
        return _fastest(self._baseline, rate, slow=False)


def _fastest(side: Sequence[Placed], rate: float, *, slow: bool) -> tuple[TunedSteps, TunedStep]:
    tuned = [times.best(variants, rate, slow=slow) for times, variants in side]
    place = first_of_least([step.step_s for step in tuned])
    return side[place][0], tuned[place]


def _once(steps: Sequence[tuple[TunedSteps, TunedStep]]) -> list[Placed]:
    """Return what several steps were chosen as, once each."""
    chosen: dict[TunedSteps, dict[AnyStrategy, None]] = {}
    for times, step in steps:
        chosen.setdefault(times, {})[step.strategy] = None
    return [(times, tuple(variants)) for times, variants in chosen.items()]


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

    The strategy is that of the whole training, its dense stage included.
    """
    here, calibration = times.here, times.scenario.calibration
    tried = trained_variants(strategy, times.scenario.workload.dtype)
    variants = with_known_kernels(fitting(times.scenario, tried) or tried, here.kernels, calibration)
    fastest = here.fastest(variants)
    kernels = coverage(here.kernels(fastest), calibration)
    costs = costs_of(fastest, times)._replace(unmeasured=kernels.unmeasured)
    if not kernels.are_estimated:
        return costs
    slow = times.at(times.cluster_rate, slow=True)
    return costs._replace(slow=_cost_on(slow, slow.fastest(variants)))


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
    return replace(first, bucketing="fused", bucket_cap=None, overlap=False)


def _cost(strategy: AnyStrategy, stages: StageTimes, first_s: float | None) -> StepCost:
    stage = strategy.dense_stage(None)
    # The first step belongs to the dense stage where there is one.
    usual_s = stages.dense_s if stage and stage.steps and stages.dense_s is not None else stages.step_s
    return StepCost(
        strategy=strategy,
        first_s=0.0 if first_s is None else first_s - usual_s,
        step_s=stages.step_s,
        dense_s=stages.dense_s or 0.0,
    )
