"""What settings take at each bandwidth of the NICs, each simulated once, and where one side is faster."""

from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from msgspec import Struct

from simnet.compare import crossing
from simnet.compare.crossing import Number, Range
from simnet.compare.tune import Settings
from simnet.compare.whatif import at_bandwidth, slow_kernels
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Simulate = Callable[[Scenario], RunResult]

RATES = tuple(Bandwidth.parse(f"{rate} Gbit/s") for rate in (1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800))
"""Bandwidths of a NIC that are tried, as NICs are sold, with the cluster's own."""
SLOWER = (0.1, 0.25, 0.5)
"""Parts of the cluster's own bandwidth that are tried, too, where that is below all of these."""
FASTEST = 100
"""Times the cluster's own bandwidth, beyond which none is tried."""
TOLERANCE = 0.01
"""Relative, of a crossover."""


class Timed(Struct, frozen=True, kw_only=True):
    """A setting of a system, and what a step of a training takes with it, `dense_part` of the steps uncompressed."""

    strategy: AnyStrategy
    iteration_s: float
    result: RunResult


class Times:
    """Simulates each setting at each bandwidth once."""

    def __init__(self, scenario: Scenario, simulate: Simulate) -> None:
        """Take the scenario of which only the bandwidth of the NICs is varied."""
        self._scenario = scenario
        self._simulate = simulate
        self._known: dict[tuple[float, bool, AnyStrategy], Timed] = {}
        self._scenarios: dict[tuple[float, bool], Scenario] = {}
        self.here = scenario.cluster.inter_node.bytes_per_s

    @property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first, ascending; none where no byte leaves a node."""
        if self._scenario.cluster.num_nodes == 1:
            return ()
        slower = [Bandwidth(max(1.0, self.here * part)) for part in SLOWER] if self.here <= RATES[0] else []
        return tuple(sorted({*slower, self.here, *(rate for rate in RATES if rate <= FASTEST * self.here)}))

    def of(self, strategy: AnyStrategy, rate: float, *, slow: bool = False) -> Timed:
        """Return what a setting takes at a bandwidth, with estimated kernels at their slowest if `slow`.

        Raises:
            SimnetError: it cannot be predicted.
        """
        key = rate, slow, strategy
        if key not in self._known:
            self._known[key] = timed(strategy, self._at(rate, slow=slow), self._simulate)
        return self._known[key]

    def _at(self, rate: float, *, slow: bool) -> Scenario:
        if (rate, slow) not in self._scenarios:
            there = at_bandwidth(self._scenario, rate)
            self._scenarios[rate, slow] = slow_kernels(there) if slow else there
        return self._scenarios[rate, slow]

    def best(self, settings: Iterable[AnyStrategy], rate: float) -> Timed:
        """Return the fastest of some settings."""
        return fastest(self.of(strategy, rate) for strategy in settings)

    def best_slow(self, settings: Settings, rate: float) -> Timed:
        """Return the fastest if estimated kernels are slow, which may be another."""
        tried: list[Timed] = []
        # Slow kernels shorten no step: what takes longer even before they are slow cannot be the fastest.
        for found in sorted((self.of(strategy, rate) for strategy in settings), key=lambda one: one.iteration_s):
            if tried and found.iteration_s >= fastest(tried).iteration_s:
                break
            tried.append(self.of(found.strategy, rate, slow=True))
        return fastest(tried)


class Versus:
    """A system against DDP, both at their best at every bandwidth."""

    def __init__(self, times: Times, settings: Settings, baseline: Settings) -> None:
        """Take the settings of both."""
        self._times = times
        self._settings = settings
        self._baseline = baseline

    def gain(self, rate: float) -> float:
        """Return by how much of its own time a system is faster, below 0 if it is not."""
        own_s = self.best(rate).iteration_s
        return (self._dense(rate).iteration_s - own_s) / own_s

    def speedup(self, rate: float) -> float:
        """Return baseline time / time."""
        return self._dense(rate).iteration_s / self.best(rate).iteration_s

    def slow_speedup(self, rate: float) -> float:
        """Return the same if estimated kernels are slow."""
        return self._dense(rate).iteration_s / self._times.best_slow(self._settings, rate).iteration_s

    def curve(self) -> tuple[tuple[Bandwidth, float], ...]:
        """Return the speedup at the bandwidths tried first."""
        return tuple((rate, self.speedup(rate)) for rate in self._times.rates)

    def ranges(self, excess: Callable[["Versus", float], float], *, slow: bool = False) -> tuple[Range, ...]:
        """Return the bandwidths at which something of the two is above 0, within `TOLERANCE`.

        Args:
            excess: what; monotonic between two of the bandwidths tried first.
            slow: it looks at slow kernels, too.
        """
        rates = self._times.rates
        if not rates:
            return ()

        def holds(rate: Number) -> bool:
            return excess(self, rate) > 0

        ends: list[Bandwidth | None] = [None] if holds(rates[0]) else []
        for low, high in crossing.changes(rates, holds):
            between = partial(excess, self._narrowed((low, high), slow=slow))
            found = crossing.bisected_once(low, high, TOLERANCE, between)
            ends.append(Bandwidth((found[0] * found[1]) ** 0.5))
        ends += [None] if holds(rates[-1]) else []
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    def _narrowed(self, rates: tuple[float, float], *, slow: bool) -> "Versus":
        """Return the same of the settings that are best at one of two bandwidths: others are not tried in between."""
        own = [self.best(rate) for rate in rates]
        if slow:
            own += [self._times.best_slow(self._settings, rate) for rate in rates]
        dense = [self._dense(rate) for rate in rates]
        return Versus(self._times, *(tuple(dict.fromkeys(one.strategy for one in side)) for side in (own, dense)))

    def best(self, rate: float) -> Timed:
        """Return what the system takes at its best."""
        return self._times.best(self._settings, rate)

    def _dense(self, rate: float) -> Timed:
        return self._times.best(self._baseline, rate)


def timed(strategy: AnyStrategy, scenario: Scenario, simulate: Simulate) -> Timed:
    """Simulate one setting.

    Raises:
        SimnetError: it cannot be predicted.
    """
    result = simulate(msgspec.structs.replace(scenario, strategy=strategy))
    own_s, dense_s = result.result.iteration_s, result.result.dense_iteration_s
    part = strategy.dense_part if dense_s is not None else 0.0
    return Timed(strategy=strategy, iteration_s=own_s + part * ((dense_s or 0.0) - own_s), result=result)


def fastest(times: Iterable[Timed]) -> Timed:
    """Return the one that takes the least."""
    return min(times, key=lambda one: one.iteration_s)
