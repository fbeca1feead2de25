"""The speed of a shared machine in each launch, and by how much times of the CPU follow it.

A virtual machine has other speeds in other launches. Every launch times fixed pieces of work, the probes. Work follows
them by a power, the elasticity, fitted to what a campaign measures in place more than once; so is the spread that is
left. Predicted steps take no part: a probe of their launch says how fast the machine was, and nothing else does.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from simnet.calibration.measurement_file import MeasurementFile, Series
from simnet.core.errors import SimnetError
from simnet.engine.intervals import SIGMAS

PRIOR, PRIOR_WEIGHT = 0.7, 0.01
"""Elasticity without any measurement, and its weight as a sum of squared logarithms: as two launches whose speeds
differ by 14 %. A judgment: work follows the speed of a core in full, and a probe's own noise lowers the power."""


def slowness_s(whole: MeasurementFile) -> float:
    """Return what the probes of a launch took: the geometric mean of their medians [s].

    Raises:
        SimnetError: the launch has no probes.
    """
    medians = [statistics.median(one.values) for one in whole.series if one.kind == "speed"]
    if not medians:
        raise SimnetError(f"{whole.command}: no series of kind speed: measure again with --speed")
    return math.exp(statistics.fmean(map(math.log, medians)))


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The same things, measured in several launches.

    Attributes:
        slowness_s: of each launch.
        times_s: of each thing in each launch, its median.
    """

    slowness_s: tuple[float, ...]
    times_s: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, launches: Sequence[MeasurementFile], name: str = "") -> "Repeated":
        """Collect the series, but probes and those of single ranks, that all of some launches have.

        Args:
            launches: of one part and layout.
            name: of the series; empty for all.

        Raises:
            SimnetError: a launch has no probes.
        """
        found = [
            {
                _key(one): statistics.median(one.values)
                for one in whole.series
                if one.kind != "speed" and "rank" not in one.labels and name in {"", one.name}
            }
            for whole in launches
        ]
        common = [key for key in found[0] if all(key in one for one in found)]
        return cls(
            slowness_s=tuple(map(slowness_s, launches)),
            times_s=tuple(tuple(one[key] for one in found) for key in common),
        )

    @property
    def together(self) -> "Repeated":
        """All things as one, with the geometric mean of their times."""
        means = tuple(math.exp(statistics.fmean(map(math.log, column))) for column in zip(*self.times_s, strict=True))
        return Repeated(slowness_s=self.slowness_s, times_s=(means,))


@dataclass(frozen=True, kw_only=True)
class SpeedFit:
    """How times of the CPU follow the probes.

    Attributes:
        elasticity: a machine whose probes take twice as long takes 2 ** elasticity as long for other work.
        doubt: standard deviation of the elasticity.
        spread: standard deviation of the logarithm of a time that is left from launch to launch.
        freedom: differences between launches that the spread was found from.
    """

    elasticity: float
    doubt: float
    spread: float
    freedom: int

    def factor(self, slowness_s: float, than_s: float) -> float:
        """Return how many times longer work takes at one slowness than at another."""
        return math.exp(self.elasticity * math.log(slowness_s / than_s))

    def reach(self, num_launches: int, slowness_s: float, than_s: float) -> float:
        """Return the end, as a factor, of the 90 % interval of a time in a new launch, predicted from some launches.

        The further the speed of the new launch is from theirs, the more the elasticity's own doubt counts.

        Source: the 95 % point of Student's distribution, to the first order of its expansion; Abramowitz and Stegun,
        "Handbook of Mathematical Functions", 26.7.5.
        """
        deviations = SIGMAS + (SIGMAS**3 + SIGMAS) / (4 * self.freedom)
        of_launches = self.spread * math.sqrt(1 + 1 / num_launches)
        return math.exp(deviations * math.hypot(of_launches, self.doubt * math.log(slowness_s / than_s)))


def fit(repeated: Sequence[Repeated], known: SpeedFit | None = None) -> SpeedFit:
    """Fit an elasticity from 0 to 1 by least squares, drawn to `PRIOR`, and the spread that it leaves.

    Args:
        repeated: of one layout each; every thing in them counts alike.
        known: gives the elasticity and its doubt; only the spread is fitted.

    Raises:
        SimnetError: nothing was measured in two launches.
    """
    # Centred: only differences between launches of the same thing say how it follows the probes.
    pairs = [
        (_centred(one.slowness_s), _centred(times_s))
        for one in repeated
        for times_s in one.times_s
        if len(one.slowness_s) > 1
    ]
    freedom = sum(len(slow) - 1 for slow, _ in pairs)
    if not freedom:
        raise SimnetError("the spread between launches needs two launches of the same: give starts = 2 or more")
    x, y = (tuple(chain.from_iterable(side)) for side in zip(*pairs, strict=True))
    along, of_probes = sum(a * b for a, b in zip(x, y, strict=True)), sum(a * a for a in x) + PRIOR_WEIGHT
    elasticity = known.elasticity if known else min(max((along + PRIOR_WEIGHT * PRIOR) / of_probes, 0.0), 1.0)
    spread = math.sqrt(sum((b - elasticity * a) ** 2 for a, b in zip(x, y, strict=True)) / freedom)
    doubt = known.doubt if known else spread / math.sqrt(of_probes)
    return SpeedFit(elasticity=elasticity, doubt=doubt, spread=spread, freedom=freedom)


def _centred(values: Sequence[float]) -> list[float]:
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    return [log - mean for log in logs]


def _key(series: Series) -> str:
    return f"{series.kind} {series.name} {json.dumps(series.labels, sort_keys=True)}"
