"""Who reaches a metric first: measured convergence by step, times what a step takes on a cluster."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct, structs

from simnet import draws
from simnet.convergence import Convergence, Curve
from simnet.errors import SimnetError
from simnet.result import RunResult, StrategyResult
from simnet.spec import Scenario
from simnet.strategies import AllReduce, AnyStrategy, BinSGDM, OneBitAdam
from simnet.units import Bandwidth

Simulate = Callable[[Scenario], RunResult]
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
    sent_bytes: float | None
    final: float | None


class Heat(Struct, frozen=True, kw_only=True):
    """All systems at one bandwidth, the first to the target first."""

    bandwidth: Bandwidth
    runners: tuple[Runner, ...]


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


@dataclass(frozen=True, kw_only=True)
class _Settings:
    convergence: Convergence
    curves: dict[str, tuple[Curve, ...]]
    target: float
    scale: float
    baseline: str


def race(  # noqa: PLR0913 - the arguments of one command
    scenario: Scenario,
    convergence: Convergence,
    simulate: Simulate,
    *,
    bandwidths: Sequence[Bandwidth],
    ranks: int | None = None,
    target: float | None = None,
    steps: int | None = None,
) -> Race:
    """Let all systems of measured trainings run on a cluster, once for each bandwidth.

    Args:
        scenario: cluster, workload and calibration; `run.draws` are those of the intervals.
        convergence: measured trainings.
        simulate: the simulator.
        bandwidths: of a NIC.
        ranks: those of the trainings; default the most there are.
        target: of the metric; default that of the file.
        steps: of the whole training; default those measured. A measured step then stands for more or fewer of them:
            the curves are stretched, 1-bit Adam's dense stage with them; a sync period of Marsit stays.

    Raises:
        SimnetError: no such ranks, no target, or not even the baseline can be predicted.
    """
    ranks = _ranks(convergence, ranks)
    curves = {name: found for name in convergence.systems if (found := convergence.of(name, ranks))}
    settings = _Settings(
        convergence=convergence,
        curves=curves,
        target=_target(convergence, target),
        scale=1.0 if steps is None else steps / max(curve.steps[-1] for all_ in curves.values() for curve in all_),
        baseline=_baseline(convergence, curves),
    )
    left_out = {name: f"not trained on {ranks} ranks" for name in convergence.systems if name not in curves}
    notes: dict[str, None] = {}
    heats = tuple(_heat(settings, _at(scenario, rate), simulate, left_out, notes) for rate in bandwidths)
    return Race(
        scenario=scenario,
        convergence=convergence,
        ranks=ranks,
        target=settings.target,
        scale=settings.scale,
        baseline=settings.baseline,
        heats=heats,
        left_out=tuple(left_out.items()),
        notes=tuple(notes),
    )


def num_simulations(convergence: Convergence, num_bandwidths: int, num_draws: int) -> int:
    """Return at most how many simulations `race` takes, for a progress bar."""
    return 3 * len(convergence.systems) * num_bandwidths * (1 + num_draws)


def _ranks(convergence: Convergence, ranks: int | None) -> int:
    known = convergence.rank_counts
    if not known:
        raise SimnetError(f"{convergence.task}: curves: there are none; train at least one system")
    if ranks is not None and ranks not in known:
        raise SimnetError(f"--ranks: {ranks}: must be one of {', '.join(map(str, known))}, those of the trainings")
    return known[-1] if ranks is None else ranks


def _target(convergence: Convergence, target: float | None) -> float:
    chosen = convergence.target if target is None else target
    if chosen is None:
        raise SimnetError(f"{convergence.task}: target: missing; give one with --target")
    if not math.isfinite(chosen):
        raise SimnetError(f"--target: {chosen}: must be finite; give a {convergence.metric}")
    return chosen


def _baseline(convergence: Convergence, curves: dict[str, tuple[Curve, ...]]) -> str:
    """Return the system without compression that ends best."""
    sign = 1.0 if convergence.is_lower_better else -1.0
    finals = {
        name: sign * final
        for name, found in curves.items()
        if isinstance(convergence.systems[name].strategy, AllReduce) and (final := _final(found)) is not None
    }
    if not finals:
        raise SimnetError(f"{convergence.task}: curves: none without compression to compare with; train 'all_reduce'")
    return min(finals, key=lambda name: finals[name])


def _at(scenario: Scenario, bandwidth: Bandwidth) -> Scenario:
    link = structs.replace(scenario.cluster.inter_node, bytes_per_s=bandwidth)
    return structs.replace(scenario, cluster=structs.replace(scenario.cluster, inter_node=link), baseline=None)


def _heat(
    settings: _Settings, scenario: Scenario, simulate: Simulate, left_out: dict[str, str], notes: dict[str, None]
) -> Heat:
    """Return all systems at one bandwidth; fills what is left out, and the notes."""
    paces: dict[str, list[Pace]] = {}
    for name in settings.curves:
        try:
            paces[name] = _paces(settings, name, scenario, simulate, notes)
        except SimnetError as error:
            if name == settings.baseline:
                raise
            left_out[name] = str(error)
    times = {name: _times(settings, name, found) for name, found in paces.items()}
    runners = [_runner(settings, name, paces[name][0], times) for name in paces]
    return Heat(
        bandwidth=scenario.cluster.inter_node.bytes_per_s,
        runners=tuple(sorted(runners, key=lambda one: math.inf if one.time_s is None else one.time_s)),
    )


def _paces(
    settings: _Settings, name: str, scenario: Scenario, simulate: Simulate, notes: dict[str, None]
) -> list[Pace]:
    """Return the pace on the cluster as calibrated, then on each draw."""
    strategy = settings.convergence.systems[name].strategy
    if isinstance(strategy, OneBitAdam):
        strategy = structs.replace(strategy, dense_steps=round(strategy.dense_steps * settings.scale))
    has_intervals = bool(scenario.calibration.intervals or scenario.workload.intervals)
    drawn = [_drawn(scenario, number) for number in range(scenario.run.draws if has_intervals else 0)]
    run = structs.replace(scenario.run, draws=0, steps=None)
    return [_pace(strategy, structs.replace(one, run=run), simulate, notes) for one in [scenario, *drawn]]


def _drawn(scenario: Scenario, number: int) -> Scenario:
    return structs.replace(
        scenario,
        calibration=draws.calibration(scenario.calibration, number),
        workload=draws.workload(scenario.workload, number),
    )


def _pace(strategy: AnyStrategy, scenario: Scenario, simulate: Simulate, notes: dict[str, None]) -> Pace:
    def run(one: AnyStrategy) -> StrategyResult:
        result = simulate(structs.replace(scenario, strategy=one))
        notes.update(dict.fromkeys(result.notes))
        return result.result

    stage = strategy.dense_stage(None)
    own, dense = run(_without_start(strategy)), run(stage.strategy) if stage else None
    first = stage.strategy if stage and isinstance(strategy, OneBitAdam) and stage.steps else strategy
    usual_s = dense.iteration_s if dense and first is not strategy else own.iteration_s
    return Pace(
        strategy=strategy,
        first_s=run(_in_one_bucket(first)).iteration_s - usual_s if _has_ddp_buckets(first) else 0.0,
        step_s=own.iteration_s,
        step_bytes=own.nic_bytes_per_node,
        dense_s=dense.iteration_s if dense else 0.0,
        dense_bytes=dense.nic_bytes_per_node if dense else 0.0,
    )


def _without_start(strategy: AnyStrategy) -> AnyStrategy:
    """Return a strategy whose dense stage is over."""
    return structs.replace(strategy, dense_steps=0) if isinstance(strategy, OneBitAdam) else strategy


def _has_ddp_buckets(strategy: AnyStrategy) -> bool:
    """Tell whether DDP forms the buckets, anew after its first step."""
    return strategy.bucketing == "ddp" and not isinstance(strategy, BinSGDM)


def _in_one_bucket(strategy: AnyStrategy) -> AnyStrategy:
    return structs.replace(strategy, bucketing="fused", bucket_cap=None, overlap=False)


def _times(settings: _Settings, name: str, paces: Sequence[Pace]) -> dict[tuple[int, int], float]:
    """Return the time to the target by seed and draw (0 is the calibration as it is) [s]; infinite if never."""
    found = {}
    for curve in settings.curves[name]:
        step = curve.step_at(settings.target, is_lower_better=settings.convergence.is_lower_better)
        for number, pace in enumerate(paces):
            found[curve.seed, number] = math.inf if step is None else pace.elapsed_s(step * settings.scale)
    return found


def _runner(settings: _Settings, name: str, pace: Pace, times: dict[str, dict[tuple[int, int], float]]) -> Runner:
    curves = settings.curves[name]
    found = [c.step_at(settings.target, is_lower_better=settings.convergence.is_lower_better) for c in curves]
    steps = _median([math.inf if step is None else step * settings.scale for step in found])
    own, base = times[name], times[settings.baseline]
    ratios = [base[key] / own[key] for key in own if math.isfinite(base.get(key, math.inf))]
    at_once = [base[key] / own[key] for key in own if key[1] == 0 and math.isfinite(base.get(key, math.inf))]
    is_comparable = steps is not None and bool(at_once) and name != settings.baseline
    return Runner(
        name=name,
        title=settings.convergence.systems[name].title,
        pace=pace,
        num_seeds=len(curves),
        num_reached=sum(step is not None for step in found),
        steps=steps,
        time_s=_median([own[key] for key in own if key[1] == 0]),
        interval_s=_interval([own[key] for key in _uncertain(own)]) if steps is not None else None,
        speedup=statistics.median(at_once) if is_comparable else None,
        speedup_interval=draws.interval(ratios) if is_comparable else None,
        sent_bytes=None if steps is None else pace.sent_bytes(steps),
        final=_final(curves),
    )


def _uncertain(times: dict[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Return the keys of drawn calibrations, or of the one as it is where there are no draws."""
    drawn = [key for key in times if key[1] > 0]
    return drawn or list(times)


def _interval(values: Sequence[float]) -> tuple[float, float | None]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = draws.interval(finite)
    return low, high if len(finite) == len(values) else None


def _median(values: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite."""
    middle = statistics.median_high(values) if len(values) % 2 == 0 else statistics.median(values)
    return middle if math.isfinite(middle) else None


def _final(curves: Sequence[Curve]) -> float | None:
    """Return the median of the last values; None if one is no number."""
    values = [curve.values[-1] for curve in curves]
    finite = [value for value in values if value is not None]
    return statistics.median(finite) if len(finite) == len(values) else None
