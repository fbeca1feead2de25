"""Rank all systems on the cluster and the workload of one scenario, against DDP at its best."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from simnet import draws
from simnet.compare import whatif
from simnet.compare.advice import Advice, Bound, Row
from simnet.compare.convergence import missed_in
from simnet.compare.crossing import Range
from simnet.compare.times import Timed, Times, Versus
from simnet.compare.tune import PLAIN, Settings, dense_systems, systems
from simnet.compare.verdict import PAYS, Speedup, model_error
from simnet.errors import SimnetError
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.simulate import StepTimes, simulate
from simnet.strategies import AnyStrategy
from simnet.workers import in_workers

FREED: dict[Bound, Callable[[Scenario, RunResult], Scenario]] = {
    "compute": whatif.free_compute,
    "wire": whatif.free_wire,
    "latency": whatif.free_latency,
    "codec": whatif.free_codec,
}
PROBE_S, WORKERS_PAY_S = 0.5, 2.0
"""CPU time in which systems are ranked in this process before others are considered, and the least left for which they
are started: each takes 0.3 s to start."""
DRAWS = 100
"""Calibrations drawn where there are intervals and the scenario does not say how many."""


def advise(
    scenario: Scenario,
    *,
    names: Sequence[str] | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = int,
) -> Advice:
    """Rank systems; the scenario's own strategy, baseline and number of steps do not matter.

    Args:
        scenario: cluster, workload and calibration; `run.draws` are those of the intervals.
        names: which of `tune.systems`, by default all; DDP is always among them.
        jobs: number of processes at most; the advice is the same for any.
        progress: called with 1 whenever a system is done.

    Raises:
        SimnetError: not even DDP can be predicted.
    """
    plain = replace(scenario, baseline=None, run=replace(scenario.run, draws=0, steps=None), strategy=PLAIN)
    names = tuple(systems()) if names is None else names
    ranking = _Ranking(plain, num_draws=scenario.run.draws or DRAWS)
    found: dict[str, Row | str] = {}
    for name, row in _rows(ranking, names, jobs):
        found[name] = row
        progress(1)
    rows = [ranking.dense_row(name) for name in ranking.dense]
    rows += [row for name in names if isinstance(row := found[name], Row)]
    return Advice(
        scenario=plain,
        baseline=ranking.baseline_name,
        plain_s=ranking.plain_s,
        ceiling=ranking.ceiling,
        rows=tuple(sorted(rows, key=lambda row: row.iteration_s)),
        left_out=tuple((name, row) for name in names if isinstance(row := found[name], str)),
    )


def _rows(ranking: "_Ranking", names: Sequence[str], jobs: int) -> Iterator[tuple[str, Row | str]]:
    """Yield every system with its row, or why it has none; in other processes if enough is left to do."""
    start_s = time.process_time()
    for done, name in enumerate(names):
        elapsed_s, rest = time.process_time() - start_s, names[done:]
        if jobs > 1 and done and elapsed_s > PROBE_S and len(rest) * elapsed_s / done > WORKERS_PAY_S:
            yield from in_workers(rest, _row_in_worker, jobs, prepare=partial(_prepare, ranking))
            return
        yield name, ranking.row_or_reason(name)


_in_worker: list["_Ranking"] = []
"""That of a worker process."""


def _prepare(ranking: "_Ranking") -> None:
    _in_worker.append(ranking)


def _row_in_worker(name: str) -> tuple[str, Row | str]:
    return name, _in_worker[0].row_or_reason(name)


class _Ranking:
    """Everything that the rows share."""

    def __init__(self, scenario: Scenario, *, num_draws: int) -> None:
        self._scenario = scenario
        self._times = Times(scenario)
        self._systems = systems()
        self.dense: dict[str, Settings] = dense_systems(scenario.workload.dtype)
        self._every_dense = tuple(strategy for settings in self.dense.values() for strategy in settings)
        self.plain_s = self._times.at(self._times.here).of(PLAIN)
        self._baseline = self._times.best(self._every_dense, self._times.here)
        self.baseline_name = next(name for name, found in self.dense.items() if self._baseline.strategy in found)
        dense = self._baseline.strategy
        free = whatif.free_communication(scenario, simulate(replace(scenario, strategy=dense)))
        self.ceiling = self._baseline.step_s / StepTimes(free).of(dense)
        numbers = range(num_draws if draws.are_possible(scenario) else 0)
        self._drawn = [StepTimes(draws.scenario(scenario, number)) for number in numbers]
        self._drawn_baseline_s = self._drawn_s(dense)

    def dense_row(self, name: str) -> Row:
        """Return the row of DDP in one precision."""
        return self._row(name, Versus(self._times, self.dense[name], self._every_dense), is_dense=True)

    def row_or_reason(self, name: str) -> Row | str:
        """Return the row of a system that compresses, or why it cannot be predicted."""
        try:
            return self.row(name)
        except SimnetError as error:
            return str(error)

    def row(self, name: str) -> Row:
        """Return the row of a system that compresses."""
        versus = Versus(self._times, self._systems[name], self._every_dense)
        row = self._row(name, versus, is_dense=False)
        return replace(
            row,
            faster_in=versus.ranges(Versus.gain),
            pays_in=self._pays_in(versus, row.speedup),
            curve=versus.curve(),
            missed_in=missed_in(row.strategy) if row.speedup.pays else (),
        )

    def _row(self, name: str, versus: Versus, *, is_dense: bool) -> Row:
        found = versus.best(self._times.here)
        result = simulate(replace(self._scenario, strategy=found.strategy))
        return Row(
            name=name,
            is_dense=is_dense,
            strategy=found.strategy,
            iteration_s=found.step_s,
            speedup=self._speedup(found, versus),
            speedup_vs_plain=self.plain_s / found.step_s,
            headroom_s=self._baseline.step_s / PAYS - found.step_s,
            nic_bytes_per_node=result.result.nic_bytes_per_node,
            saved=self._saved(found, result),
            notes=result.notes,
        )

    def _speedup(self, found: Timed, versus: Versus) -> Speedup:
        kernels = whatif.known_kernels(found.strategy, self._scenario)
        return Speedup(
            value=self._baseline.step_s / found.step_s,
            interval=self._interval(found.strategy),
            model_error=model_error(self._scenario.calibration),
            if_kernels_slow=versus.slow_speedup(self._times.here) if kernels.are_estimated else None,
            unmeasured=kernels.unmeasured,
        )

    def _interval(self, strategy: AnyStrategy) -> tuple[float, float] | None:
        """Return the interval of the speedup; both see the same draws."""
        if not self._drawn or strategy == self._baseline.strategy:
            return None
        pairs = zip(self._drawn_baseline_s, self._drawn_s(strategy), strict=True)
        return draws.interval([baseline_s / own_s for baseline_s, own_s in pairs])

    def _drawn_s(self, strategy: AnyStrategy) -> list[float]:
        return [steps.of(strategy) for steps in self._drawn]

    def _pays_in(self, versus: Versus, here: Speedup) -> tuple[Range, ...]:
        """Return the bandwidths at which the rule of the verdict holds, the interval in proportion to that here."""
        if here.unmeasured:
            return ()
        low = here.interval[0] / here.value if here.interval else 1.0
        least = min(low, 1 / here.model_error)

        def excess(versus: Versus, rate: float) -> float:
            found = least * versus.speedup(rate) - PAYS
            if found <= 0 or here.if_kernels_slow is None:
                return found
            return min(found, versus.slow_speedup(rate) - PAYS)

        return versus.ranges(excess, slow=here.if_kernels_slow is not None)

    def _saved(self, found: Timed, result: RunResult) -> dict[Bound, float]:
        """Return which part of a step would be gone if one thing took no time."""
        return {
            bound: 1 - StepTimes(freed(self._scenario, result)).of(found.strategy) / found.step_s
            for bound, freed in FREED.items()
        }
