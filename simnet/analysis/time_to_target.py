"""The time of each system to a target metric: measured steps to the target, times the simulated time of a step."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct, structs

from simnet.analysis import same_task, whatif
from simnet.analysis.convergence import MAX_METRIC, Convergence, TrainingCurve
from simnet.analysis.references import references
from simnet.analysis.step_cost import Notes, Simulate, StepCost, StepCosts, step_costs
from simnet.analysis.tune import PLAIN, trained_variants, with_known_kernels
from simnet.analysis.verdict import Speedup
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.intervals import ModelError
from simnet.engine.result import References
from simnet.engine.scenario import Scenario
from simnet.engine.step_timer import StepTimer
from simnet.strategies import choices

HOUR_S = 3600.0
SeedTimes = dict[tuple[int, int], float]
"""Time to the target by seed and number of the cost [s]; infinite if never."""


class TargetTime(Struct, frozen=True, kw_only=True):
    """What a system takes to the target at one bandwidth.

    Attributes:
        name: in the convergence file.
        num_seeds: trainings.
        num_reached: of them that reached the target.
        steps: to the target, the median of trainings (a training that never got there counts as the slowest); None if
            half or more did not.
        time_s: likewise, the simulated time.
        interval_s: 90 % over trainings and drawn calibrations; the upper end is None where a training never got there.
        speedup: baseline's time / this one's, of trainings with the same seed and the same draw; None where one of the
            two has none.
        unmeasured: kernels that have neither a time nor an estimate that is worth the name.
        has_estimated_kernels: some kernels have an estimate in place of a time.
        sent_bytes: out of a node up to the target.
        final: median of the last values; None where a training had no number at its end.
    """

    name: str
    title: str
    cost: StepCost
    num_seeds: int
    num_reached: int
    steps: float | None
    time_s: float | None
    interval_s: tuple[float, float | None] | None
    speedup: Speedup | None
    unmeasured: tuple[str, ...]
    has_estimated_kernels: bool
    sent_bytes: float | None
    final: float | None


class AtBandwidth(Struct, frozen=True, kw_only=True):
    """All systems at one bandwidth, the first to the target first.

    Attributes:
        references: what a step takes there with flat and with tuned DDP; None where that is not known.
    """

    bandwidth: Bandwidth
    systems: tuple[TargetTime, ...]
    references: References | None = None

    def find(self, name: str) -> TargetTime | None:
        """Return what a system takes, if it could be predicted."""
        return next((system for system in self.systems if system.name == name), None)


class TimesToTarget(Struct, frozen=True, kw_only=True):
    """All systems at all bandwidths.

    Attributes:
        scale: steps of the training that one measured step stands for.
        is_same_task: the trained model has as many parameters as the simulated one; else the user has said that it
            counts.
        price_per_gpu_hour: what a GPU costs an hour, in any currency; None if nobody asks.
        left_out: systems that cannot be predicted here or were not trained on this number of ranks, with the reason.
        notes: of the simulations.
    """

    scenario: Scenario
    convergence: Convergence
    ranks: int
    target: float
    scale: float
    baseline: str
    bandwidths: tuple[AtBandwidth, ...]
    is_same_task: bool = True
    price_per_gpu_hour: float | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def baseline_at(self, there: AtBandwidth) -> TargetTime:
        """Return the baseline at a bandwidth, where it always is."""
        found = there.find(self.baseline)
        assert found is not None
        return found

    def baseline_training_s(self, there: AtBandwidth) -> float:
        """Return the time of the baseline's whole training at a bandwidth [s]."""
        last = max(curve.steps[-1] for curve in self.convergence.of(self.baseline, self.ranks))
        return self.baseline_at(there).cost.elapsed_s(last * self.scale)

    def price_of(self, time_s: float) -> float | None:
        """Return what the cluster's GPUs cost for a time; None without a price."""
        if self.price_per_gpu_hour is None:
            return None
        return time_s / HOUR_S * self.scenario.cluster.world_size * self.price_per_gpu_hour


@dataclass(frozen=True, kw_only=True)
class _Trainings:
    """The trainings on one number of ranks, and the target that they are compared at.

    Attributes:
        scale: steps of the training that one measured step stands for.
    """

    convergence: Convergence
    curves: dict[str, tuple[TrainingCurve, ...]]
    target: float
    scale: float
    baseline: str

    def steps_of(self, curve: TrainingCurve) -> float | None:
        """Return the steps of the whole training up to the target; None if it never got there."""
        step = curve.step_at(self.target, is_lower_better=self.convergence.is_lower_better)
        return None if step is None else step * self.scale

    def seed_times(self, name: str, costs: Sequence[StepCost]) -> SeedTimes:
        """Return what a system takes with every seed and cost."""
        steps = {curve.seed: self.steps_of(curve) for curve in self.curves[name]}
        return {
            (seed, number): math.inf if step is None else cost.elapsed_s(step)
            for seed, step in steps.items()
            for number, cost in enumerate(costs)
        }


def times_to_target(  # noqa: PLR0913 - the arguments of one command
    scenario: Scenario,
    convergence: Convergence,
    simulate: Simulate,
    *,
    bandwidths: Sequence[Bandwidth],
    ranks: int | None = None,
    target: float | None = None,
    steps: int | None = None,
    price_per_gpu_hour: float | None = None,
) -> TimesToTarget:
    """Return what all systems of measured trainings take to a target, at each bandwidth.

    Args:
        scenario: cluster, workload and calibration; `run.draws` drawn calibrations make the intervals.
        convergence: measured trainings.
        simulate: the simulator.
        bandwidths: of a NIC.
        ranks: those of the trainings; default the most there are.
        target: of the metric; default that of the file.
        steps: of the whole training; default those measured. A measured step then stands for more or fewer of them:
            the curves are stretched, 1-bit Adam's dense stage with them; a sync period of Marsit stays.
        price_per_gpu_hour: what a GPU costs an hour.

    Raises:
        SimnetError: no such ranks, no target, or not even the baseline can be predicted.
    """
    ranks = _ranks(convergence, ranks)
    curves = {name: found for name in convergence.systems if (found := convergence.of(name, ranks))}
    trainings = _Trainings(
        convergence=convergence,
        curves=curves,
        target=_target(convergence, target),
        scale=1.0 if steps is None else steps / max(curve.steps[-1] for all_ in curves.values() for curve in all_),
        baseline=_baseline(convergence, curves),
    )
    left_out = {name: _untrained(convergence, name, ranks) for name in convergence.systems if name not in curves}
    notes: Notes = {}
    plain = structs.replace(scenario, baseline=None, strategy=PLAIN)
    there = [whatif.at_bandwidth(plain, rate) for rate in bandwidths]
    times = tuple(
        structs.replace(_at(trainings, one, simulate, left_out, notes), references=both)
        for one, both in zip(there, references(there), strict=True)
    )
    return TimesToTarget(
        scenario=scenario,
        convergence=convergence,
        ranks=ranks,
        target=trainings.target,
        scale=trainings.scale,
        baseline=trainings.baseline,
        bandwidths=times,
        is_same_task=same_task.is_same_task(convergence, scenario),
        price_per_gpu_hour=price_per_gpu_hour,
        left_out=tuple(left_out.items()),
        notes=tuple(notes),
    )


def num_simulations(convergence: Convergence, num_bandwidths: int, num_draws: int) -> int:
    """Return at most how many simulations `times_to_target` takes, for a progress bar."""
    return 3 * len(convergence.systems) * num_bandwidths * (2 + num_draws)


def _ranks(convergence: Convergence, ranks: int | None) -> int:
    known = convergence.rank_counts
    if not known:
        raise SimnetError(f"{convergence.task}: curves: none; train at least one system")
    if ranks is not None and ranks not in known:
        raise SimnetError(f"--ranks: {ranks}: must be one of {', '.join(map(str, known))}, those of the trainings")
    return known[-1] if ranks is None else ranks


def _untrained(convergence: Convergence, name: str, ranks: int) -> str:
    """Return why a system has no curves, and where it has some."""
    others = [other for other in convergence.rank_counts if convergence.of(name, other)]
    return f"not trained on {ranks} ranks" + (f"; --ranks {others[-1]} has it" if others else "")


def _target(convergence: Convergence, target: float | None) -> float:
    chosen = convergence.target if target is None else target
    if chosen is None:
        raise SimnetError(f"{convergence.task}: target: missing; give one with --target")
    if not abs(chosen) <= MAX_METRIC:
        raise SimnetError(f"--target: {chosen}: must be finite, at most {MAX_METRIC:g}; give a {convergence.metric}")
    return chosen


def _baseline(convergence: Convergence, curves: dict[str, tuple[TrainingCurve, ...]]) -> str:
    """Return the system without compression that ends best."""
    sign = 1.0 if convergence.is_lower_better else -1.0
    dense = {name: found for name, found in curves.items() if not convergence.systems[name].strategy.compresses}
    if not dense:
        raise SimnetError(f"{convergence.task}: curves: none without compression; train 'all_reduce'")
    finals = {name: sign * final for name, found in dense.items() if (final := _final(found)) is not None}
    if not finals:
        names = ", ".join(map(repr, dense))
        raise SimnetError(
            f"{convergence.task}: curves of {names}: end in null for some seed: a baseline must have a value at the "
            "end of every training; train it with a smaller step size, or drop that seed from all systems"
        )
    return min(finals, key=lambda name: finals[name])


def _at(
    trainings: _Trainings, scenario: Scenario, simulate: Simulate, left_out: dict[str, str], notes: Notes
) -> AtBandwidth:
    """Return all systems at one bandwidth; fills in those left out, and the notes."""
    costs: dict[str, StepCosts] = {}
    steps = StepTimer(scenario)
    for name in trainings.curves:
        strategy = choices.for_longer_training(trainings.convergence.systems[name].strategy, trainings.scale)
        try:
            variants = trained_variants(strategy, scenario.workload.dtype)
            fastest = steps.fastest(with_known_kernels(variants, steps.kernels, scenario.calibration))
            costs[name] = step_costs(fastest, scenario, simulate, notes)
        except SimnetError as error:
            if name == trainings.baseline:
                raise
            left_out[name] = str(error)
    # Without draws the interval is that of the seeds alone.
    known = intervals.model_error(scenario.calibration) if scenario.run.draws else None
    systems = [_target_time(trainings, name, costs[name], costs[trainings.baseline], known) for name in costs]
    return AtBandwidth(
        bandwidth=scenario.cluster.inter_node.bytes_per_s,
        systems=tuple(sorted(systems, key=lambda one: math.inf if one.time_s is None else one.time_s)),
    )


def _target_time(
    trainings: _Trainings, name: str, own: StepCosts, base: StepCosts, error: ModelError | None
) -> TargetTime:
    curves = trainings.curves[name]
    found = [trainings.steps_of(curve) for curve in curves]
    steps = _median([math.inf if step is None else step for step in found])
    time_s = _median(list(trainings.seed_times(name, [own.usual]).values()))
    drawn = list(trainings.seed_times(name, own.drawn or [own.usual]).values())
    has_speedup = steps is not None and name != trainings.baseline
    return TargetTime(
        name=name,
        title=trainings.convergence.systems[name].title,
        cost=own.usual,
        num_seeds=len(curves),
        num_reached=sum(step is not None for step in found),
        steps=steps,
        time_s=time_s,
        interval_s=_interval(drawn, time_s, error.time if error else 1.0) if time_s is not None else None,
        speedup=_speedup(trainings, name, own, base, error.speedup if error else 1.0) if has_speedup else None,
        unmeasured=own.unmeasured,
        has_estimated_kernels=own.slow is not None,
        sent_bytes=None if steps is None else own.usual.sent_bytes(steps),
        final=_final(curves),
    )


def _speedup(trainings: _Trainings, name: str, own: StepCosts, base: StepCosts, error: float) -> Speedup | None:
    """Return how much sooner a system is than the baseline; None where the baseline never gets there."""

    def ratios(costs: Sequence[StepCost], base_costs: Sequence[StepCost]) -> list[float]:
        dense_s = trainings.seed_times(trainings.baseline, base_costs)
        mine = trainings.seed_times(name, costs)
        return [dense_s[key] / mine[key] for key in mine if math.isfinite(dense_s.get(key, math.inf))]

    usual = ratios([own.usual], [base.usual])
    if not usual:
        return None
    return Speedup(
        value=statistics.median(usual),
        interval=intervals.middle_90_percent(ratios(own.drawn or [own.usual], base.drawn or [base.usual]), error),
        if_kernels_slow=statistics.median(ratios([own.slow], [base.usual])) if own.slow else None,
        unmeasured=own.unmeasured,
    )


def _interval(values: Sequence[float], median: float, error: float) -> tuple[float, float | None]:
    """Return the middle 90 %, widened to hold the median that stands in the same row: of two values the larger one."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = intervals.middle_90_percent(finite, error)
    return min(low, median), max(high, median) if len(finite) == len(values) else None


def _median(values: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite."""
    middle = statistics.median_high(values) if len(values) % 2 == 0 else statistics.median(values)
    return middle if math.isfinite(middle) else None


def _final(curves: Sequence[TrainingCurve]) -> float | None:
    """Return the median of the last values; None if one is no number."""
    values = [curve.values[-1] for curve in curves]
    finite = [value for value in values if value is not None]
    return statistics.median(finite) if len(finite) == len(values) else None
