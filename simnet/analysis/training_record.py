"""What the trainings of a system say beside the time of its steps: whether it reached the target, how much sooner."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from simnet.analysis.convergence import Convergence, TrainingCurve
from simnet.analysis.tuned_steps import StepCost, StepCosts
from simnet.analysis.verdict import Speedup
from simnet.engine import intervals
from simnet.strategies import AnyStrategy
from simnet.strategies.base import train_alike


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


class TrainedCurves(NamedTuple):
    """A system in a file of trainings, with its curves and those of the baseline there, on as many ranks.

    Attributes:
        scale: steps of the whole training that one step of the curves stands for.
    """

    title: str
    strategy: AnyStrategy
    curves: tuple[TrainingCurve, ...]
    baseline: tuple[TrainingCurve, ...]
    target: float
    is_lower_better: bool
    scale: float = 1.0

    @property
    def steps(self) -> list[float]:
        """Steps of the whole training up to the target, of each curve; infinite if it never got there."""
        return [self._steps(curve) for curve in self.curves]

    @property
    def num_reached(self) -> int:
        """How many trainings reached the target."""
        return sum(map(math.isfinite, self.steps))

    @property
    def is_missed(self) -> bool:
        """Whether half or more of the trainings missed the target."""
        return 2 * self.num_reached <= len(self.curves)

    def times_s(self, costs: Sequence[StepCost]) -> list[float]:
        """Return the time to the target of each training at each cost; infinite if it never got there [s]."""
        return [cost.elapsed_s(steps) for steps in self.steps for cost in costs]

    def speedup(self, costs: StepCosts, baseline: StepCosts, error: float | None) -> Speedup | None:
        """Return how much sooner the system is at the target than the baseline; None where the baseline never is.

        Steps cost as in as many draws on both sides; `error` is the model's own on a speedup, a factor at 90 %, None
        for no interval.
        """
        values = self._ratios([costs.usual], [baseline.usual])
        if not values:
            return None
        spread = self._ratios(costs.drawn, baseline.drawn)
        return Speedup(
            value=statistics.median(values),
            interval=None if error is None else intervals.middle_90_percent(spread, error),
            if_kernels_slow=statistics.median(self._ratios([costs.slow], [baseline.usual])) if costs.slow else None,
            unmeasured=costs.unmeasured,
        )

    def _ratios(self, costs: Sequence[StepCost], baseline: Sequence[StepCost]) -> list[float]:
        """Return the baseline's time to the target over this system's, of trainings with one seed and one draw."""
        # Pairs of one seed and one draw: what both sides share cancels in their ratio.
        dense = {curve.seed: steps for curve in self.baseline if math.isfinite(steps := self._steps(curve))}
        return [
            base.elapsed_s(dense[curve.seed]) / cost.elapsed_s(self._steps(curve))
            for curve in self.curves
            if curve.seed in dense
            for cost, base in zip(costs, baseline, strict=True)
        ]

    def _steps(self, curve: TrainingCurve) -> float:
        step = curve.step_at(self.target, is_lower_better=self.is_lower_better)
        return math.inf if step is None else step * self.scale

    def record(
        self, task: str, costs: StepCosts, baseline: StepCosts, *, error: float | None = None, is_of_user: bool = False
    ) -> TrainingRecord:
        """Return what the trainings say of steps that cost so much; arguments as of `TrainingRecord` and `speedup`."""
        return TrainingRecord(
            task=task,
            trained_as=self.title,
            ranks=self.curves[0].ranks,
            is_of_user=is_of_user,
            num_trainings=len(self.curves),
            num_reached=self.num_reached,
            num_diverged=sum(curve.values[-1] is None for curve in self.curves),
            speedup=None if self.is_missed else self.speedup(costs, baseline, error),
        )


def trained_as(convergence: Convergence, strategy: AnyStrategy) -> TrainedCurves | None:
    """Return the system of a file that trains as a strategy does, on the most ranks; None if there is none.

    A system in another topology trains otherwise (`train_alike`), and may have been trained on fewer ranks. Of
    several systems, it is the one with the most options in common.
    """
    alike = {name: system for name, system in convergence.systems.items() if train_alike(strategy, system.strategy)}
    # More ranks are nearer to the cluster that is asked about.
    ranks = max((curve.ranks for curve in convergence.curves if curve.system in alike), default=0)
    named = {name: system for name, system in alike.items() if convergence.of(name, ranks)}
    if convergence.target is None or not named:
        return None

    def num_common_options(name: str) -> int:
        trained = named[name].strategy
        return sum(getattr(trained, key, None) == getattr(strategy, key, None) for key in trained.__struct_fields__)

    name = max(named, key=num_common_options)
    baseline = best_dense(convergence, ranks)
    if baseline is None:
        return None
    return TrainedCurves(
        title=named[name].title,
        strategy=named[name].strategy,
        curves=convergence.of(name, ranks),
        baseline=convergence.of(baseline, ranks),
        target=convergence.target,
        is_lower_better=convergence.is_lower_better,
    )


def missed_otherwise(convergence: Convergence, strategy: AnyStrategy) -> bool | None:
    """Return whether a system missed the target in each form in which it was trained; None if it was in none.

    Of a strategy whose own form, such as its topology, was not trained.
    """
    ranks = convergence.rank_counts[-1] if convergence.rank_counts else 0
    same_kind = [name for name, system in convergence.systems.items() if type(system.strategy) is type(strategy)]
    curves = [curves for name in same_kind if (curves := convergence.of(name, ranks))]
    if convergence.target is None or not curves:
        return None
    untrained = TrainedCurves(same_kind[0], strategy, (), (), convergence.target, convergence.is_lower_better)
    return all(untrained._replace(curves=of_one).is_missed for of_one in curves)


def best_dense(convergence: Convergence, ranks: int) -> str | None:
    """Return the system without compression that ends best; None if each ends in no number for some seed."""
    sign = 1.0 if convergence.is_lower_better else -1.0
    finals = {
        name: [curve.values[-1] for curve in convergence.of(name, ranks)]
        for name, system in convergence.systems.items()
        if not system.strategy.compresses
    }
    # A baseline that diverged for one seed would make every rival look good.
    known = {
        name: sign * statistics.median(value for value in values if value is not None)
        for name, values in finals.items()
        if values and None not in values
    }
    return min(known, key=lambda name: known[name]) if known else None
