"""What each system takes at each bandwidth of the NICs, tuned there, and where it is faster than DDP tuned there."""

import itertools
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from simnet.compare.advise.advice import Range
from simnet.compare.advise.systems import dense_part
from simnet.compare.advise.whatif import at_bandwidth
from simnet.compare.crossover import Number, Trial, bisected
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Simulate = Callable[[Scenario], RunResult]
Settings = tuple[AnyStrategy, ...]

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

    def __init__(self, scenario: Scenario, simulate: Simulate, baseline: Settings) -> None:
        """Take the settings of DDP that everything is compared with."""
        self._scenario = scenario
        self._simulate = simulate
        self._baseline = baseline
        self._known: dict[tuple[float, AnyStrategy], Timed] = {}
        self._here = scenario.cluster.inter_node.bytes_per_s

    @property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths tried first, ascending; none where no byte leaves a node."""
        if self._scenario.cluster.num_nodes == 1:
            return ()
        slower = [Bandwidth(max(1.0, self._here * part)) for part in SLOWER] if self._here <= RATES[0] else []
        return tuple(sorted({*slower, self._here, *(rate for rate in RATES if rate <= FASTEST * self._here)}))

    def of(self, strategy: AnyStrategy, rate: float | None = None) -> Timed:
        """Return what a setting takes, by default at the cluster's own bandwidth.

        Raises:
            SimnetError: it cannot be predicted.
        """
        key = self._here if rate is None else rate, strategy
        if key not in self._known:
            self._known[key] = timed(strategy, at_bandwidth(self._scenario, key[0]), self._simulate)
        return self._known[key]

    def best(self, settings: Iterable[AnyStrategy], rate: float | None = None) -> Timed:
        """Return the fastest of some settings."""
        return fastest(self.of(strategy, rate) for strategy in settings)

    def baseline(self, rate: float | None = None) -> Timed:
        """Return DDP at its best."""
        return self.best(self._baseline, rate)

    def curve(self, settings: Settings) -> tuple[tuple[Bandwidth, float], ...]:
        """Return the speedup over DDP at the bandwidths tried first, both tuned at each."""
        return tuple(
            (rate, self.baseline(rate).iteration_s / self.best(settings, rate).iteration_s) for rate in self.rates
        )

    def faster_in(self, settings: Settings, speedup: float = 1.0) -> tuple[Range, ...]:
        """Return the ranges of bandwidth in which a system is so many times as fast as DDP, within `TOLERANCE`."""
        if not self.rates:
            return ()
        trials = [self._trial(rate, settings, self._baseline, speedup) for rate in self.rates]
        ends: list[Bandwidth | None] = [None] if trials[0].is_faster else []
        for low, high in itertools.pairwise(trials):
            if low.is_faster != high.is_faster:
                ends.append(self._crossing(low, high, settings, speedup))
        ends += [None] if trials[-1].is_faster else []
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    def _crossing(self, low: Trial, high: Trial, settings: Settings, speedup: float) -> Bandwidth:
        """Return where the faster one changes; in between only settings that are best at one of the ends are tried."""
        rates = low.value, high.value
        own, dense = (
            tuple(self.best(several, rate).strategy for rate in rates) for several in (settings, self._baseline)
        )
        found = bisected(low, high, TOLERANCE, lambda rate: self._trial(rate, own, dense, speedup))
        return Bandwidth((found.low.value * found.high.value) ** 0.5)

    def _trial(self, rate: Number, settings: Settings, baseline: Settings, speedup: float) -> Trial:
        """Return what both take, the system's time as many times as long as it must be faster."""
        return Trial(
            value=Bandwidth(rate),
            text=f"{rate:g} B/s",
            iteration_s=speedup * self.best(settings, rate).iteration_s,
            baseline_iteration_s=self.best(baseline, rate).iteration_s,
        )


def timed(strategy: AnyStrategy, scenario: Scenario, simulate: Simulate) -> Timed:
    """Simulate one setting.

    Raises:
        SimnetError: it cannot be predicted.
    """
    result = simulate(msgspec.structs.replace(scenario, strategy=strategy))
    own_s, dense_s = result.result.iteration_s, result.result.dense_iteration_s
    part = dense_part(strategy) if dense_s is not None else 0.0
    return Timed(strategy=strategy, iteration_s=own_s + part * ((dense_s or 0.0) - own_s), result=result)


def fastest(times: Iterable[Timed]) -> Timed:
    """Return the one that takes the least."""
    return min(times, key=lambda one: one.iteration_s)
