"""The step times of tuned systems on draws and at each bandwidth of the NICs, and where one is faster."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

from simnet.analysis import crossing
from simnet.analysis.crossing import Number, Range
from simnet.analysis.tune import Variants
from simnet.analysis.whatif import at_bandwidth, slow_kernels
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.scenario import Scenario
from simnet.engine.step_timer import StepLanes, StepTimer, first_of_least
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
        is_drawn = self._num_draws and intervals.has_intervals(self.scenario)
        drawn = list(intervals.drawn_scenarios(self.scenario, self._num_draws)) if is_drawn else [self.scenario]
        return StepLanes(drawn, self.here)

    @cached_property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first, ascending; none where no byte leaves a node."""
        if self.scenario.cluster.num_nodes == 1:
            return ()
        own = self.cluster_rate
        slower = [Bandwidth(max(1.0, own * part)) for part in SLOWER_FRACTIONS] if own <= NIC_RATES[0] else []
        return tuple(sorted({*slower, own, *(rate for rate in NIC_RATES if rate <= MAX_RATE_RATIO * own)}))

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
            times = [self._step_s(one, rate, slow=slow) for one in variants]
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
            there = [self._there(one, slow=slow) for one in self.rates]
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


class SystemVsBaseline:
    """A system against the baseline, both tuned anew at every bandwidth [bytes/s].

    Attributes:
        variants: over which the system is tuned.
    """

    def __init__(self, times: TunedSteps, variants: Variants, baseline_times: TunedSteps, baseline: Variants) -> None:
        """Take the variants over which each of the two is tuned, and the times of each."""
        self._times, self.variants = times, variants
        self._baseline_times, self._baseline = baseline_times, baseline

    def gain(self, rate: float) -> float:
        """Return speedup - 1: the time saved relative to the system's own; below 0 if the system is slower."""
        own_s = self.best(rate).step_s
        return (self.baseline_best(rate).step_s - own_s) / own_s

    def speedup(self, rate: float) -> float:
        """Return baseline time / time."""
        return self.baseline_best(rate).step_s / self.best(rate).step_s

    def slow_speedup(self, rate: float) -> float:
        """Return the speedup if the system's estimated kernels are at their slowest."""
        return self.baseline_best(rate).step_s / self._times.best(self.variants, rate, slow=True).step_s

    def curve(self) -> tuple[tuple[Bandwidth, float], ...]:
        """Return (bandwidth, speedup) at the bandwidths tried first."""
        return tuple((rate, self.speedup(rate)) for rate in self._times.rates)

    def ranges(self, excess: Callable[["SystemVsBaseline", float], float], *, slow: bool = False) -> tuple[Range, ...]:
        """Return the bandwidths at which a function of both sides and the bandwidth is above 0, within `TOLERANCE`.

        Args:
            excess: the function; monotonic between neighbours of the bandwidths tried first.
            slow: the function looks at slow kernels, too.
        """
        rates = self._times.rates
        if not rates:
            return ()

        def holds(rate: Number) -> bool:
            return excess(self, rate) > 0

        ends: list[Bandwidth | None] = [None] if holds(rates[0]) else []
        for low, high in crossing.transitions(rates, holds):
            between = partial(excess, self._narrowed((low, high), slow=slow))
            found = crossing.bisect_by_guesses(low, high, TOLERANCE, between)
            ends.append(Bandwidth((found[0] * found[1]) ** 0.5))
        ends += [None] if holds(rates[-1]) else []
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    def _narrowed(self, rates: tuple[float, float], *, slow: bool) -> "SystemVsBaseline":
        """Return the same two sides with the variants that are best at one of two neighbouring bandwidths.

        Trying all variants at each step of the search would take most of the time of `simnet advise`. The price: one
        that is the fastest between two neighbours only is missed.
        """
        fastest = [self.best(rate) for rate in rates]
        if slow:
            fastest += [self._times.best(self.variants, rate, slow=True) for rate in rates]
        dense = [self.baseline_best(rate) for rate in rates]
        kept = (tuple(dict.fromkeys(one.strategy for one in side)) for side in (fastest, dense))
        own, baseline = kept
        return SystemVsBaseline(self._times, own, self._baseline_times, baseline)

    def best(self, rate: float) -> TunedStep:
        """Return the system's fastest variant at a bandwidth."""
        return self._times.best(self.variants, rate)

    def baseline_best(self, rate: float) -> TunedStep:
        """Return the baseline's fastest variant at a bandwidth."""
        return self._baseline_times.best(self._baseline, rate)
