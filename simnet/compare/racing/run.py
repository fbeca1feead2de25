"""Let the systems of measured trainings run on a cluster."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from simnet import draws
from simnet.compare.advise import whatif
from simnet.compare.advise.kernels import known_of
from simnet.compare.convergence import LARGEST, Convergence, Curve
from simnet.compare.racing.standings import Heat, Pace, Race, Runner
from simnet.errors import SimnetError
from simnet.result import RunResult, StrategyResult
from simnet.scenario import Scenario
from simnet.strategies import AllReduce, AnyStrategy, BinSGDM, OneBitAdam
from simnet.units import Bandwidth

Simulate = Callable[[Scenario], RunResult]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    convergence: Convergence
    curves: dict[str, tuple[Curve, ...]]
    target: float
    scale: float
    baseline: str

    def steps_of(self, curve: Curve) -> float | None:
        """Return the steps of the whole training up to the target; None if it never got there."""
        step = curve.step_at(self.target, is_lower_better=self.convergence.is_lower_better)
        return None if step is None else step * self.scale


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
    plain = structs.replace(scenario, baseline=None, strategy=AllReduce())
    heats = tuple(_heat(settings, whatif.at_bandwidth(plain, rate), simulate, left_out, notes) for rate in bandwidths)
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
    return 3 * len(convergence.systems) * num_bandwidths * (2 + num_draws)


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
    if not abs(chosen) <= LARGEST:
        raise SimnetError(f"--target: {chosen}: must be finite, at most {LARGEST:g}; give a {convergence.metric}")
    return chosen


def _baseline(convergence: Convergence, curves: dict[str, tuple[Curve, ...]]) -> str:
    """Return the system without compression that ends best."""
    sign = 1.0 if convergence.is_lower_better else -1.0
    dense = {name: found for name, found in curves.items() if isinstance(convergence.systems[name].strategy, AllReduce)}
    if not dense:
        raise SimnetError(f"{convergence.task}: curves: none without compression to compare with; train 'all_reduce'")
    finals = {name: sign * final for name, found in dense.items() if (final := _final(found)) is not None}
    if not finals:
        names = ", ".join(map(repr, dense))
        raise SimnetError(
            f"{convergence.task}: curves of {names}: end in null for some seed: a baseline must have a value at the "
            "end of every training; train it with a smaller step size, or drop that seed from all systems"
        )
    return min(finals, key=lambda name: finals[name])


def _heat(
    settings: _Settings, scenario: Scenario, simulate: Simulate, left_out: dict[str, str], notes: dict[str, None]
) -> Heat:
    """Return all systems at one bandwidth; fills what is left out, and the notes."""
    entries: dict[str, _Entry] = {}
    for name in settings.curves:
        try:
            entries[name] = _entry(settings, name, scenario, simulate, notes)
        except SimnetError as error:
            if name == settings.baseline:
                raise
            left_out[name] = str(error)
    runners = [_runner(settings, name, entries) for name in entries]
    return Heat(
        bandwidth=scenario.cluster.inter_node.bytes_per_s,
        runners=tuple(sorted(runners, key=lambda one: math.inf if one.time_s is None else one.time_s)),
    )


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A system's pace as calibrated, on each draw, and with slow kernels (None if that makes no difference)."""

    pace: Pace
    drawn: tuple[Pace, ...]
    slow: Pace | None
    unmeasured: tuple[str, ...]


def _entry(settings: _Settings, name: str, scenario: Scenario, simulate: Simulate, notes: dict[str, None]) -> _Entry:
    strategy = settings.convergence.systems[name].strategy
    if isinstance(strategy, OneBitAdam):
        strategy = structs.replace(strategy, dense_steps=round(strategy.dense_steps * settings.scale))
    numbers = range(scenario.run.draws if draws.are_possible(scenario) else 0)
    plain = structs.replace(scenario, run=structs.replace(scenario.run, draws=0, steps=None))
    kernels = known_of(_without_start(strategy), plain)

    def pace(given: Scenario) -> Pace:
        return _pace(strategy, given, simulate, notes)

    return _Entry(
        pace=pace(plain),
        drawn=tuple(pace(draws.scenario(plain, number)) for number in numbers),
        slow=pace(whatif.slow_kernels(plain)) if kernels.are_estimated else None,
        unmeasured=kernels.unmeasured,
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
    """Return the time to the target by seed and pace [s]; infinite if never."""
    steps = {curve.seed: settings.steps_of(curve) for curve in settings.curves[name]}
    return {
        (seed, number): math.inf if step is None else pace.elapsed_s(step)
        for seed, step in steps.items()
        for number, pace in enumerate(paces)
    }


def _ratios(own: dict[tuple[int, int], float], base: dict[tuple[int, int], float]) -> list[float]:
    """Return the speedups of all pairs in which the baseline gets there."""
    return [base[key] / own[key] for key in own if math.isfinite(base.get(key, math.inf))]


def _runner(settings: _Settings, name: str, entries: dict[str, _Entry]) -> Runner:
    own, base, curves = entries[name], entries[settings.baseline], settings.curves[name]
    found = [settings.steps_of(curve) for curve in curves]
    steps = _median([math.inf if step is None else step for step in found])
    at_once, base_at_once = _times(settings, name, [own.pace]), _times(settings, settings.baseline, [base.pace])
    time_s = _median(list(at_once.values()))
    uncertain = _times(settings, name, own.drawn or [own.pace])
    ratios = _ratios(uncertain, _times(settings, settings.baseline, base.drawn or [base.pace]))
    slow = _ratios(_times(settings, name, [own.slow]), base_at_once) if own.slow else []
    is_comparable = steps is not None and bool(ratios) and name != settings.baseline
    return Runner(
        name=name,
        title=settings.convergence.systems[name].title,
        pace=own.pace,
        num_seeds=len(curves),
        num_reached=sum(step is not None for step in found),
        steps=steps,
        time_s=time_s,
        interval_s=_interval(list(uncertain.values()), time_s) if time_s is not None else None,
        speedup=statistics.median(_ratios(at_once, base_at_once)) if is_comparable else None,
        speedup_interval=draws.interval(ratios) if is_comparable else None,
        speedup_if_slow=statistics.median(slow) if is_comparable and slow else None,
        unmeasured=own.unmeasured,
        sent_bytes=None if steps is None else own.pace.sent_bytes(steps),
        final=_final(curves),
    )


def _interval(values: Sequence[float], middle: float) -> tuple[float, float | None]:
    """Return the middle 90 %, drawn out to hold what is told beside it: of two values that is the larger."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = draws.interval(finite)
    return min(low, middle), max(high, middle) if len(finite) == len(values) else None


def _median(values: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite."""
    middle = statistics.median_high(values) if len(values) % 2 == 0 else statistics.median(values)
    return middle if math.isfinite(middle) else None


def _final(curves: Sequence[Curve]) -> float | None:
    """Return the median of the last values; None if one is no number."""
    values = [curve.values[-1] for curve in curves]
    finite = [value for value in values if value is not None]
    return statistics.median(finite) if len(finite) == len(values) else None
