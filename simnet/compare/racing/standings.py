"""The nouns of a race: how fast each system goes, who is where, and how sure that is."""

import math

from msgspec import Struct

from simnet.compare.convergence import Convergence
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Interval = tuple[float, float]


class Pace(Struct, frozen=True, kw_only=True):
    """What steps of a system take, and send out of a node.

    Attributes:
        first_s: of the first step beyond another: DDP then has one bucket of all gradients, after backward [s].
        step_s: of a step [s].
        step_bytes: out of a node.
        dense_s: of a step of its dense stage [s]; 0 without one.
        dense_bytes: out of a node in such a step.
        strategy: says how many steps are dense.
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


class Runner(Struct, frozen=True, kw_only=True):
    """A system at one bandwidth.

    Attributes:
        name: in the convergence file.
        num_seeds: trainings.
        num_reached: of them that reached the target.
        steps: to the target, the median of trainings (a training that never got there counts as the slowest); None if
            half or more did not.
        time_s: likewise, the simulated time.
        interval_s: 90 % over trainings and drawn calibrations; the upper end is None where a training never got there.
        speedup: baseline's time / this one's, of trainings with the same seed; None where one of the two has none.
        speedup_interval: 90 % of it, over the same.
        speedup_if_slow: the same if kernels that are not timed take `SLOW` times as long as estimated; None where all
            are timed, or there are none.
        unmeasured: kernels that have neither a time nor an estimate that is worth the name.
        sent_bytes: out of a node up to the target.
        final: median of the last values; None where a training had no number at its end.
    """

    name: str
    title: str
    pace: Pace
    num_seeds: int
    num_reached: int
    steps: float | None
    time_s: float | None
    interval_s: tuple[float, float | None] | None
    speedup: float | None
    speedup_interval: Interval | None
    speedup_if_slow: float | None
    unmeasured: tuple[str, ...]
    sent_bytes: float | None
    final: float | None

    @property
    def least_speedup(self) -> float | None:
        """The least of the speedup's interval and that with slow kernels."""
        if self.speedup_interval is None:
            return None
        low = self.speedup_interval[0]
        return low if self.speedup_if_slow is None else min(low, self.speedup_if_slow)


class Heat(Struct, frozen=True, kw_only=True):
    """All systems at one bandwidth, the first to the target first."""

    bandwidth: Bandwidth
    runners: tuple[Runner, ...]

    def find(self, name: str) -> Runner | None:
        """Return the runner of a system, if it takes part."""
        return next((runner for runner in self.runners if runner.name == name), None)


class Race(Struct, frozen=True, kw_only=True):
    """All heats.

    Attributes:
        scale: steps of the training that one measured step stands for.
        left_out: systems that cannot be predicted here or were not trained on so many ranks, with the reason.
        notes: of the simulations.
    """

    scenario: Scenario
    convergence: Convergence
    ranks: int
    target: float
    scale: float
    baseline: str
    heats: tuple[Heat, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def base(self, heat: Heat) -> Runner:
        """Return the baseline in a heat, of which it is always part."""
        found = heat.find(self.baseline)
        assert found is not None
        return found

    def base_end_s(self, heat: Heat) -> float:
        """Return what the baseline's whole training takes in a heat [s]."""
        last = self.convergence.of(self.baseline, self.ranks)[0].steps[-1]
        return self.base(heat).pace.elapsed_s(last * self.scale)
