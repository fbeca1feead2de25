"""What the trainings of a system say beside the time of its steps: whether it reached the target, how much sooner."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from simnet.analysis.convergence import Convergence, TrainingCurve
from simnet.analysis.step_cost import StepCost
from simnet.analysis.verdict import Speedup
from simnet.engine import intervals
from simnet.engine.step_timer import StageTimes
from simnet.strategies import AnyStrategy, choices


class TrainingRecord(Struct, frozen=True, kw_only=True):
    """The trainings of one system on one task.

    Attributes:
        task: name of the task.
        trained_as: title of the system there.
        ranks: that trained, the most there are.
        is_of_user: the user gave the trainings as those of the workload, so that they count with all their doubts;
            those of other models only warn.
        num_trainings: trainings with different seeds.
        num_reached: of them that reached the target.
        num_diverged: of them that had no number at their end.
        speedup: of the time to the target, over the baseline; None if the target was missed.
    """

    task: str
    trained_as: str
    ranks: int
    is_of_user: bool
    num_trainings: int
    num_reached: int
    num_diverged: int
    speedup: Speedup | None

    @property
    def judged(self) -> Speedup | None:
        """What of the speedup counts for the verdict on the system: of another model the value alone."""
        return self.speedup if self.speedup is None or self.is_of_user else Speedup(value=self.speedup.value)

    @property
    def is_missed(self) -> bool:
        """Whether half or more of the trainings missed the target."""
        return self.speedup is None


class TimedStages(NamedTuple):
    """What steps of a system take beside those of the baseline, in one drawn calibration."""

    own: StageTimes
    baseline_s: float


class TimedSystem(NamedTuple):
    """What steps of a system take in every calibration that is asked for.

    Attributes:
        usual: as calibrated.
        drawn: in drawn calibrations; one is as good as many of its like.
        slow: with estimated kernels at their slowest; None if none is estimated.
        unmeasured: kernels that have neither a time nor a usable estimate.
    """

    usual: TimedStages
    drawn: Sequence[TimedStages]
    slow: TimedStages | None = None
    unmeasured: tuple[str, ...] = ()


class TrainedCurves(NamedTuple):
    """A system in a file of trainings, with its curves and those of the baseline there, on the most ranks."""

    title: str
    strategy: AnyStrategy
    curves: tuple[TrainingCurve, ...]
    baseline: tuple[TrainingCurve, ...]
    target: float
    is_lower_better: bool

    def record(
        self, task: str, timed: TimedSystem, *, error: float | None = None, is_of_user: bool = False
    ) -> TrainingRecord:
        """Return what the trainings say of steps that take so long.

        Args:
            task: name of the task.
            timed: steps of the system as it was trained.
            error: the model's own on a speedup, a factor at 90 %; None for no interval.
            is_of_user: as in `TrainingRecord`.
        """
        reached = [self._steps(curve) is not None for curve in self.curves]
        return TrainingRecord(
            task=task,
            trained_as=self.title,
            ranks=self.curves[0].ranks,
            is_of_user=is_of_user,
            num_trainings=len(reached),
            num_reached=sum(reached),
            num_diverged=sum(curve.values[-1] is None for curve in self.curves),
            speedup=self._speedup(timed, error) if 2 * sum(reached) > len(reached) else None,
        )

    def _speedup(self, timed: TimedSystem, error: float | None) -> Speedup | None:
        values = self._ratios(timed.usual)
        if not values:
            return None
        spread = [ratio for one in timed.drawn for ratio in self._ratios(one)]
        return Speedup(
            value=statistics.median(values),
            interval=intervals.middle_90_percent(spread, error) if spread and error else None,
            if_kernels_slow=statistics.median(self._ratios(timed.slow)) if timed.slow else None,
            unmeasured=timed.unmeasured,
        )

    def _ratios(self, times: TimedStages) -> list[float]:
        """Return the baseline's time to the target over this system's, of trainings with the same seed."""
        dense = {curve.seed: steps for curve in self.baseline if (steps := self._steps(curve)) is not None}
        cost = StepCost(
            strategy=self.strategy,
            first_s=0.0,
            step_s=times.own.step_s,
            step_bytes=0.0,
            dense_s=times.own.dense_s or 0.0,
        )
        own_s = {
            curve.seed: math.inf if (steps := self._steps(curve)) is None else cost.elapsed_s(steps)
            for curve in self.curves
        }
        return [dense[seed] * times.baseline_s / own_s[seed] for seed in own_s if seed in dense]

    def _steps(self, curve: TrainingCurve) -> int | None:
        return curve.step_at(self.target, is_lower_better=self.is_lower_better)


def trained_as(found: Convergence, strategy: AnyStrategy) -> TrainedCurves | None:
    """Return the system of a file that trains as a strategy does, on the most ranks; None if there is none.

    A system in another topology trains otherwise (`choices.train_alike`), and may have been trained on fewer ranks. Of
    several systems, it is the one with the most options in common.
    """
    alike = {name: system for name, system in found.systems.items() if choices.train_alike(strategy, system.strategy)}
    ranks = max((curve.ranks for curve in found.curves if curve.system in alike), default=0)
    named = {name: system for name, system in alike.items() if found.of(name, ranks)}
    if found.target is None or not named:
        return None
    name = max(named, key=lambda one: _num_common(named[one].strategy, strategy))
    baseline = _baseline(found, ranks)
    if baseline is None:
        return None
    return TrainedCurves(
        title=named[name].title,
        strategy=named[name].strategy,
        curves=found.of(name, ranks),
        baseline=found.of(baseline, ranks),
        target=found.target,
        is_lower_better=found.is_lower_better,
    )


def missed_otherwise(found: Convergence, strategy: AnyStrategy) -> bool | None:
    """Return whether a system missed the target in each form in which it was trained; None if it was in none.

    Of a strategy whose own form, such as its topology, was not trained.
    """
    ranks = found.rank_counts[-1] if found.rank_counts else 0
    same_kind = [name for name, system in found.systems.items() if type(system.strategy) is type(strategy)]
    curves = [curves for name in same_kind if (curves := found.of(name, ranks))]
    if found.target is None or not curves:
        return None
    return all(_is_missed(found, found.target, of_one) for of_one in curves)


def _is_missed(found: Convergence, target: float, curves: Sequence[TrainingCurve]) -> bool:
    reached = [curve.step_at(target, is_lower_better=found.is_lower_better) is not None for curve in curves]
    return 2 * sum(reached) <= len(reached)


def _num_common(one: AnyStrategy, other: AnyStrategy) -> int:
    return sum(getattr(one, key, None) == getattr(other, key, None) for key in one.__struct_fields__)


def _baseline(found: Convergence, ranks: int) -> str | None:
    """Return the system without compression that ends best; None if each ends in no number for some seed."""
    sign = 1.0 if found.is_lower_better else -1.0
    finals = {
        name: [curve.values[-1] for curve in found.of(name, ranks)]
        for name, system in found.systems.items()
        if not system.strategy.compresses
    }
    known = {
        name: sign * statistics.median(value for value in values if value is not None)
        for name, values in finals.items()
        if values and None not in values
    }
    return min(known, key=lambda name: known[name]) if known else None
