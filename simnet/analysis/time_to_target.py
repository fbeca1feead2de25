"""The time of each system to a target metric: measured steps to the target, times the simulated time of a step."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.analysis.convergence import MAX_METRIC, Convergence, TrainingCurve, is_same_task
from simnet.analysis.references import references
from simnet.analysis.training_record import TrainedCurves, best_dense
from simnet.analysis.tune import PLAIN
from simnet.analysis.tuned_steps import StepCost, StepCosts, TunedSteps, num_dense, step_costs
from simnet.analysis.verdict import Speedup
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.intervals import ModelError
from simnet.engine.result import References
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, choices

HOUR_S = 3600.0
Costs = Callable[[AnyStrategy, TunedSteps], StepCosts]


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
        baseline = there.find(self.baseline)
        assert baseline is not None
        return baseline

    def baseline_training_s(self, there: AtBandwidth) -> float:
        """Return the time of the baseline's whole training at a bandwidth [s]."""
        last = max(curve.steps[-1] for curve in self.convergence.of(self.baseline, self.ranks))
        return self.baseline_at(there).cost.elapsed_s(last * self.scale)

    def price_of(self, time_s: float | None) -> float | None:
        """Return what the cluster's GPUs cost for a time; None without one of the two."""
        if time_s is None or self.price_per_gpu_hour is None:
            return None
        return time_s / HOUR_S * self.scenario.cluster.world_size * self.price_per_gpu_hour


def times_to_target(  # noqa: PLR0913 - the arguments of one command
    scenario: Scenario,
    convergence: Convergence,
    *,
    bandwidths: Sequence[Bandwidth],
    ranks: int | None = None,
    target: float | None = None,
    steps: int | None = None,
    price_per_gpu_hour: float | None = None,
    costs: Costs = step_costs,
    progress: Callable[[int], object] = int,
) -> TimesToTarget:
    """Return what all systems of measured trainings take to a target, at each bandwidth.

    Args:
        scenario: cluster, workload and calibration; `run.draws` drawn calibrations make the intervals.
        convergence: measured trainings.
        bandwidths: of a NIC.
        ranks: those of the trainings; default the most there are.
        target: of the metric; default that of the file.
        steps: of the whole training; default those measured. A measured step then stands for more or fewer of them:
            the curves are stretched, 1-bit Adam's dense stage with them; a sync period of Marsit stays.
        price_per_gpu_hour: what a GPU costs an hour.
        costs: what steps cost; by default they are simulated.
        progress: called with 1 whenever a system is done at a bandwidth, or left out.

    Raises:
        SimnetError: no such ranks, no target, or not even the baseline can be predicted.
    """
    ranks = _ranks(convergence, ranks)
    curves = {name: trainings for name in convergence.systems if (trainings := convergence.of(name, ranks))}
    goal = _target(convergence, target)
    scale = 1.0 if steps is None else steps / max(curve.steps[-1] for all_ in curves.values() for curve in all_)
    baseline = _baseline(convergence, ranks)
    trained = {
        name: TrainedCurves(
            title=convergence.systems[name].title,
            strategy=choices.for_longer_training(convergence.systems[name].strategy, scale),
            curves=trainings,
            baseline=curves[baseline],
            target=goal,
            is_lower_better=convergence.is_lower_better,
            scale=scale,
        )
        for name, trainings in curves.items()
    }
    left_out = {name: _untrained(convergence, name, ranks) for name in convergence.systems if name not in curves}
    notes: dict[str, None] = {}
    num_draws = scenario.run.draws or 0
    intervals.check_draws(num_draws)
    run = replace(scenario.run, draws=0, steps=None)
    plain = replace(scenario, baseline=None, strategy=PLAIN, run=run)
    # Without draws the interval is that of the seeds alone.
    error = intervals.model_error(scenario.calibration) if num_draws else ModelError(time=1.0, speedup=1.0, source="")
    there = [whatif.at_bandwidth(plain, rate) for rate in bandwidths]
    by_bandwidth = []
    for plain_there, both in zip(there, references(there), strict=True):
        costed, reasons = _costed_at(plain_there, trained, baseline, num_draws, costs, progress)
        left_out |= reasons
        notes |= {note: None for system in costed.values() for note in system.notes}
        base = costed[baseline].costs
        rows = [_target_time(name, each, None if name == baseline else base, error) for name, each in costed.items()]
        # What never gets there comes last.
        rows.sort(key=lambda row: math.inf if row.time_s is None else row.time_s)
        rate = plain_there.cluster.inter_node.bytes_per_s
        by_bandwidth.append(AtBandwidth(bandwidth=rate, systems=tuple(rows), references=both))
    return TimesToTarget(
        scenario=scenario,
        convergence=convergence,
        ranks=ranks,
        target=goal,
        scale=scale,
        baseline=baseline,
        bandwidths=tuple(by_bandwidth),
        is_same_task=is_same_task(convergence, scenario),
        price_per_gpu_hour=price_per_gpu_hour,
        left_out=tuple(left_out.items()),
        notes=tuple(notes),
    )


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


def _baseline(convergence: Convergence, ranks: int) -> str:
    """Return the system without compression that ends best."""
    if (best := best_dense(convergence, ranks)) is not None:
        return best
    dense = [name for name, system in convergence.systems.items() if not system.strategy.compresses]
    trained = [name for name in dense if convergence.of(name, ranks)]
    if not trained:
        raise SimnetError(f"{convergence.task}: curves: none without compression; train 'all_reduce'")
    raise SimnetError(
        f"{convergence.task}: curves of {', '.join(map(repr, trained))}: end in null for some seed: a baseline must "
        "have a value at the end of every training; train it with a smaller step size, or drop that seed from all "
        "systems"
    )


class _Costed(NamedTuple):
    """Trainings of a system with what its steps cost; bytes out of a node in a step, and in one of its dense stage."""

    trained: TrainedCurves
    costs: StepCosts
    step_bytes: float
    dense_bytes: float
    notes: tuple[str, ...]

    def sent_bytes(self, num_steps: float) -> float:
        """Return what the first steps send out of a node."""
        dense = num_dense(self.trained.strategy, num_steps)
        return dense * self.dense_bytes + (num_steps - dense) * self.step_bytes


def _costed_at(  # noqa: PLR0913, PLR0917
    scenario: Scenario,
    trained: Mapping[str, TrainedCurves],
    baseline: str,
    num_draws: int,
    costs: Costs,
    progress: Callable[[int], object],
) -> tuple[dict[str, _Costed], dict[str, str]]:
    """Return each system with its costs, and why others cannot be predicted."""
    times, costed, reasons = TunedSteps(scenario, num_draws), {}, {}
    for name, curves in trained.items():
        try:
            costed[name] = _costed(curves, costs(curves.strategy, times), scenario)
        except SimnetError as error:
            # Without it no speedup is left to tell.
            if name == baseline:
                raise
            reasons[name] = str(error)
        progress(1)
    return costed, reasons


def _costed(trained: TrainedCurves, costs: StepCosts, scenario: Scenario) -> _Costed:
    strategy = costs.usual.strategy
    stage = strategy.dense_stage(None)
    # A training 0 times as long has no dense steps, which a scenario without run.steps would refuse.
    run = simulate(replace(scenario, strategy=choices.for_longer_training(strategy, 0.0)))
    dense = simulate(replace(scenario, strategy=stage.strategy)) if stage else None
    return _Costed(
        trained,
        costs,
        run.result.nic_bytes_per_node,
        dense.result.nic_bytes_per_node if dense else 0.0,
        run.notes + (dense.notes if dense else ()),
    )


def _target_time(name: str, system: _Costed, baseline: StepCosts | None, error: ModelError) -> TargetTime:
    """Return what a system takes to the target; `baseline` is None of the baseline itself."""
    trained, costs = system.trained, system.costs
    steps, time_s = _median(trained.steps), _median(trained.times_s([costs.usual]))
    return TargetTime(
        name=name,
        title=trained.title,
        cost=costs.usual,
        num_seeds=len(trained.curves),
        num_reached=trained.num_reached,
        steps=steps,
        time_s=time_s,
        interval_s=_interval(trained.times_s(costs.drawn), time_s, error.time) if time_s is not None else None,
        speedup=trained.speedup(costs, baseline, error.speedup) if steps is not None and baseline else None,
        unmeasured=costs.unmeasured,
        has_estimated_kernels=costs.slow is not None,
        sent_bytes=None if steps is None else system.sent_bytes(steps),
        final=_final(trained.curves),
    )


def _interval(values: Sequence[float], median: float, error: float) -> tuple[float, float | None]:
    """Return the middle 90 %, widened to hold the median that stands in the same row: of two values the larger one."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = intervals.middle_90_percent(finite, error)
    # A training that never got there has no longest time.
    return min(low, median), max(high, median) if len(finite) == len(values) else None


def _median(values: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite."""
    # Of two middle ones the later: half that never got there is a miss.
    middle = statistics.median_high(values) if len(values) % 2 == 0 else statistics.median(values)
    return middle if math.isfinite(middle) else None


def _final(curves: Sequence[TrainingCurve]) -> float | None:
    """Return the median of the last values; None if one is no number."""
    values = [curve.values[-1] for curve in curves]
    finite = [value for value in values if value is not None]
    return statistics.median(finite) if len(finite) == len(values) else None
