"""Rank all systems on the cluster and workload of one scenario against the fastest DDP without compression."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from simnet import calibration_draws, model_error
from simnet.compare import whatif
from simnet.compare.advice import Advice, Bound, RankedSystem
from simnet.compare.convergence import missed_in
from simnet.compare.crossing import Range
from simnet.compare.tune import PLAIN, Variants, dense_systems, systems
from simnet.compare.tuned_steps import SystemVsBaseline, TunedStep, TunedSteps
from simnet.compare.verdict import PAYS, Speedup
from simnet.errors import SimnetError
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.simulate import StepTimer, simulate
from simnet.strategies import AnyStrategy
from simnet.workers import run_in_workers

FREED: dict[Bound, Callable[[Scenario, RunResult], Scenario]] = {
    "compute": whatif.free_compute,
    "wire": whatif.free_wire,
    "latency": whatif.free_latency,
    "codec": whatif.free_codec,
}
# A worker process takes 0.3 s to start. So the first systems are ranked in this process for PROBE_S of CPU time, and
# workers are started only if the rest would take longer than WORKERS_PAY_S at that pace.
PROBE_S, WORKERS_PAY_S = 0.5, 2.0
# Drawn calibrations for the intervals, where the scenario does not set run.draws.
DRAWS = 100


def advise(
    scenario: Scenario,
    *,
    names: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = int,
) -> Advice:
    """Rank systems; the scenario's own strategy, baseline and number of steps do not matter.

    Args:
        scenario: cluster, workload and calibration; `run.draws` drawn calibrations make the intervals.
        names: which of `tune.systems`, by default all; DDP is always among them.
        jobs: number of processes at most; the advice is the same for any.
        progress: called with 1 whenever a system is done.

    Raises:
        SimnetError: not even DDP can be predicted.
    """
    plain = replace(scenario, baseline=None, run=replace(scenario.run, draws=0, steps=None), strategy=PLAIN)
    names = tuple(systems()) if names is None else names
    ranking = _Ranking(plain, num_draws=DRAWS if scenario.run.draws is None else scenario.run.draws)
    found: dict[str, RankedSystem | str] = {}
    for name, row in _rows(ranking, names, jobs):
        found[name] = row
        progress(1)
    rows = [ranking.dense_row(name) for name in ranking.dense]
    rows += [row for name in names if isinstance(row := found[name], RankedSystem)]
    return Advice(
        scenario=plain,
        baseline=ranking.baseline_name,
        plain_iteration_s=ranking.plain_iteration_s,
        speedup_without_comm=ranking.speedup_without_comm,
        systems=tuple(sorted(rows, key=lambda row: row.iteration_s)),
        left_out=tuple((name, row) for name in names if isinstance(row := found[name], str)),
    )


def _rows(ranking: "_Ranking", names: Sequence[str], jobs: int) -> Iterator[tuple[str, RankedSystem | str]]:
    """Yield each name with its ranked system or the reason why it has none; from workers if that pays."""
    start_s = time.process_time()
    for done, name in enumerate(names):
        elapsed_s, rest = time.process_time() - start_s, names[done:]
        if jobs > 1 and done and elapsed_s > PROBE_S and len(rest) * elapsed_s / done > WORKERS_PAY_S:
            yield from run_in_workers(rest, _row_in_worker, jobs, prepare=partial(_prepare, ranking))
            return
        yield name, ranking.row_or_reason(name)


# The ranking of a worker process, put there once by `_prepare` and not with every name.
_in_worker: list["_Ranking"] = []


def _prepare(ranking: "_Ranking") -> None:
    _in_worker.append(ranking)


def _row_in_worker(name: str) -> tuple[str, RankedSystem | str]:
    return name, _in_worker[0].row_or_reason(name)


class _Ranking:
    """What all systems share: the baseline, the drawn calibrations, and every step already timed."""

    def __init__(self, scenario: Scenario, *, num_draws: int) -> None:
        self._scenario = scenario
        self._times = TunedSteps(scenario)
        self._systems = systems()
        self.dense: dict[str, Variants] = dense_systems(scenario.workload.dtype)
        self._every_dense = tuple(strategy for variants in self.dense.values() for strategy in variants)
        self.plain_iteration_s = self._times.at(self._times.cluster_rate).of(PLAIN)
        self._baseline = self._times.best(self._every_dense, self._times.cluster_rate)
        self.baseline_name = next(name for name, found in self.dense.items() if self._baseline.strategy in found)
        dense = self._baseline.strategy
        free = whatif.free_communication(scenario, simulate(replace(scenario, strategy=dense)))
        self.speedup_without_comm = self._baseline.step_s / StepTimer(free).of(dense)
        draws = list(calibration_draws.draws(num_draws))
        has_intervals = calibration_draws.has_intervals(scenario)
        # Without an interval every draw is the scenario itself, which need not be timed again.
        drawn = [calibration_draws.draw_scenario(scenario, draw) for draw in draws] if has_intervals else [scenario]
        self._drawn = [StepTimer(one) for one in drawn]
        error = model_error.of(scenario.calibration).speedup
        self._errors = [calibration_draws.model_error_factor(error, draw) for draw in draws]
        self._drawn_baseline_s = self._drawn_s(dense)

    def dense_row(self, name: str) -> RankedSystem:
        """Return DDP in one precision, ranked."""
        return self._row(name, SystemVsBaseline(self._times, self.dense[name], self._every_dense), is_dense=True)

    def row_or_reason(self, name: str) -> RankedSystem | str:
        """Return a compressing system, ranked, or the reason why it cannot be predicted."""
        try:
            return self.row(name)
        except SimnetError as error:
            return str(error)

    def row(self, name: str) -> RankedSystem:
        """Return a compressing system, ranked."""
        versus = SystemVsBaseline(self._times, self._systems[name], self._every_dense)
        row = self._row(name, versus, is_dense=False)
        return replace(
            row,
            faster_in=versus.ranges(SystemVsBaseline.gain),
            pays_in=self._pays_in(versus, row.speedup),
            curve=versus.curve(),
            missed_in=missed_in(row.strategy) if row.speedup.pays else (),
        )

    def _row(self, name: str, versus: SystemVsBaseline, *, is_dense: bool) -> RankedSystem:
        found = versus.best(self._times.cluster_rate)
        result = simulate(replace(self._scenario, strategy=found.strategy))
        return RankedSystem(
            name=name,
            is_dense=is_dense,
            strategy=found.strategy,
            iteration_s=found.step_s,
            speedup=self._speedup(found, versus),
            speedup_vs_plain=self.plain_iteration_s / found.step_s,
            headroom_s=self._baseline.step_s / PAYS - found.step_s,
            nic_bytes_per_node=result.result.nic_bytes_per_node,
            saved=self._saved(found, result),
            notes=result.notes,
        )

    def _speedup(self, found: TunedStep, versus: SystemVsBaseline) -> Speedup:
        kernels = whatif.kernel_coverage(found.strategy, self._scenario)
        return Speedup(
            value=self._baseline.step_s / found.step_s,
            interval=self._interval(found.strategy),
            if_kernels_slow=versus.slow_speedup(self._times.cluster_rate) if kernels.are_estimated else None,
            unmeasured=kernels.unmeasured,
        )

    def _interval(self, strategy: AnyStrategy) -> tuple[float, float] | None:
        """Return the 90 % interval of the speedup.

        System and baseline are timed on the same draws: an error of the calibration that slows both cancels.
        """
        if strategy == self._baseline.strategy or not self._errors:
            return None
        pairs = zip(self._drawn_baseline_s, self._drawn_s(strategy), strict=True)
        ratios = [baseline_s / own_s for baseline_s, own_s in pairs]
        if len(ratios) < len(self._errors):
            ratios *= len(self._errors)
        return calibration_draws.middle_90_percent(
            [ratio * error for ratio, error in zip(ratios, self._errors, strict=True)]
        )

    def _drawn_s(self, strategy: AnyStrategy) -> list[float]:
        return [steps.of(strategy) for steps in self._drawn]

    def _pays_in(self, versus: SystemVsBaseline, here: Speedup) -> tuple[Range, ...]:
        """Return the bandwidths at which the system pays by the rule of the verdict.

        The interval is known at the cluster's own bandwidth (`here`) and taken to be as wide in proportion elsewhere:
        drawing at each step of the search would take a hundred times as long.
        """
        if here.unmeasured:
            return ()
        margin = here.interval[0] / here.value if here.interval else 1.0

        def excess(versus: SystemVsBaseline, rate: float) -> float:
            found = margin * versus.speedup(rate) - PAYS
            if found <= 0 or here.if_kernels_slow is None:
                return found  # does not pay, or has no slow kernels: they need no simulation
            return min(found, versus.slow_speedup(rate) - PAYS)

        return versus.ranges(excess, slow=here.if_kernels_slow is not None)

    def _saved(self, found: TunedStep, result: RunResult) -> dict[Bound, float]:
        """Return the fraction of a step that goes away if one part takes no time."""
        return {
            bound: 1 - StepTimer(freed(self._scenario, result)).of(found.strategy) / found.step_s
            for bound, freed in FREED.items()
        }
