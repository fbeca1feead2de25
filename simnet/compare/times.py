"""What settings take at each bandwidth of the NICs, each simulated once, and where one side is faster."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from simnet.compare import crossing
from simnet.compare.crossing import Number, Range
from simnet.compare.tune import Settings
from simnet.compare.whatif import at_bandwidth, slow_kernels
from simnet.scenario import Scenario
from simnet.simulate import StepTimes
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

RATES = tuple(Bandwidth.parse(f"{rate} Gbit/s") for rate in (1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800))
"""Bandwidths of a NIC that are tried, as NICs are sold, with the cluster's own."""
SLOWER = (0.1, 0.25, 0.5)
"""Parts of the cluster's own bandwidth that are tried, too, where that is below all of these."""
FASTEST = 100
"""Times the cluster's own bandwidth, beyond which none is tried."""
TOLERANCE = 0.01
"""Relative, of a crossover."""


class Timed(NamedTuple):
    """A setting of a system, and what a step of a long training takes with it [s]."""

    strategy: AnyStrategy
    step_s: float


class Times:
    """The fastest settings at each bandwidth, each simulated once and only where it may be among the fastest."""

    def __init__(self, scenario: Scenario, steps: type[StepTimes] = StepTimes) -> None:
        """Take the scenario of which only the bandwidth of the NICs is varied."""
        self._scenario = scenario
        self._steps = steps
        self._at: dict[tuple[float, bool], StepTimes] = {}
        self._fastest: dict[tuple[float, bool, Settings], Timed] = {}
        self._plans: dict[bool, dict[Any, Any]] = {False: {}, True: {}}
        self.here = scenario.cluster.inter_node.bytes_per_s

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: what was found, without what can be made again."""
        return {**self.__dict__, "_at": {}, "_plans": {False: {}, True: {}}}

    @property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first, ascending; none where no byte leaves a node."""
        if self._scenario.cluster.num_nodes == 1:
            return ()
        slower = [Bandwidth(max(1.0, self.here * part)) for part in SLOWER] if self.here <= RATES[0] else []
        return tuple(sorted({*slower, self.here, *(rate for rate in RATES if rate <= FASTEST * self.here)}))

    def best(self, settings: Settings, rate: float, *, slow: bool = False) -> Timed:
        """Return the fastest of some settings at a bandwidth, with estimated kernels at their slowest if `slow`.

        Raises:
            SimnetError: one of them cannot be predicted.
        """
        key = rate, slow, settings
        if key not in self._fastest:
            steps = self.at(rate, slow=slow)
            strategy = steps.fastest(settings)
            self._fastest[key] = Timed(strategy, steps.of(strategy))
        return self._fastest[key]

    def at(self, rate: float, *, slow: bool = False) -> StepTimes:
        """Return the times of steps at a bandwidth."""
        if (rate, slow) not in self._at:
            there = at_bandwidth(self._scenario, rate)
            self._at[rate, slow] = self._steps(slow_kernels(there) if slow else there, self._plans[slow])
        return self._at[rate, slow]


class Versus:
    """A system against DDP, both at their best at every bandwidth."""

    def __init__(self, times: Times, settings: Settings, baseline: Settings) -> None:
        """Take the settings of both."""
        self._times = times
        self._settings = settings
        self._baseline = baseline

    def gain(self, rate: float) -> float:
        """Return by how much of its own time a system is faster, below 0 if it is not."""
        own_s = self.best(rate).step_s
        return (self._dense(rate).step_s - own_s) / own_s

    def speedup(self, rate: float) -> float:
        """Return baseline time / time."""
        return self._dense(rate).step_s / self.best(rate).step_s

    def slow_speedup(self, rate: float) -> float:
        """Return the same if estimated kernels are slow."""
        return self._dense(rate).step_s / self._times.best(self._settings, rate, slow=True).step_s

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
            own += [self._times.best(self._settings, rate, slow=True) for rate in rates]
        dense = [self._dense(rate) for rate in rates]
        return Versus(self._times, *(tuple(dict.fromkeys(one.strategy for one in side)) for side in (own, dense)))

    def best(self, rate: float) -> Timed:
        """Return what the system takes at its best."""
        return self._times.best(self._settings, rate)

    def _dense(self, rate: float) -> Timed:
        return self._times.best(self._baseline, rate)
