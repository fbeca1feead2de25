"""Rank all systems on the cluster and the workload of one scenario."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from simnet import draws
from simnet.compare.advise import whatif
from simnet.compare.advise.advice import OFF, PAYS, Advice, Bound, Row
from simnet.compare.advise.kernels import known_of
from simnet.compare.advise.systems import PLAIN, SYSTEMS, Variants, candidates, dense_systems
from simnet.compare.advise.times import Settings, Simulate, Timed, Times, fastest, timed
from simnet.errors import SimnetError
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy

Watch = Callable[[Sequence[str]], Iterable[str]]

FREED: dict[Bound, Callable[[Scenario, RunResult], Scenario]] = {
    "compute": whatif.free_compute,
    "wire": whatif.free_wire,
    "latency": whatif.free_latency,
    "codec": whatif.free_codec,
}
DRAWS = 100
"""Calibrations drawn where there are intervals and the scenario does not say how many."""


def advise(
    scenario: Scenario, simulate: Simulate, *, names: Sequence[str] = tuple(SYSTEMS), watch: Watch = iter
) -> Advice:
    """Rank systems; the scenario's own strategy, baseline and number of steps do not matter.

    Args:
        scenario: cluster, workload and calibration; `run.draws` are those of the intervals.
        simulate: the simulator.
        names: which of `SYSTEMS`; DDP is always among them.
        watch: goes through the names, as a progress bar does.

    Raises:
        SimnetError: not even DDP can be predicted.
    """
    plain = replace(scenario, baseline=None, run=replace(scenario.run, draws=0, steps=None), strategy=PLAIN)
    ranking = _Ranking(plain, simulate, num_draws=scenario.run.draws or DRAWS)
    left_out: list[tuple[str, str]] = []
    rows = [ranking.dense_row(name) for name in ranking.dense]
    for name in watch(names):
        try:
            rows.append(ranking.row(name, SYSTEMS[name]))
        except SimnetError as error:
            left_out.append((name, str(error)))
    return Advice(
        scenario=plain,
        baseline=ranking.baseline_name,
        plain_s=ranking.plain_s,
        ceiling=ranking.ceiling,
        rows=tuple(sorted(rows, key=lambda row: row.iteration_s)),
        left_out=tuple(left_out),
    )


class _Ranking:
    """Everything that the rows share."""

    def __init__(self, scenario: Scenario, simulate: Simulate, *, num_draws: int) -> None:
        self._scenario = scenario
        self._simulate = simulate
        self.dense: dict[str, Settings] = {
            name: tuple(candidates(variants)) for name, variants in dense_systems(scenario.workload.dtype).items()
        }
        every = tuple(strategy for settings in self.dense.values() for strategy in settings)
        self._times = Times(scenario, simulate, every)
        self.plain_s = self._times.of(PLAIN).iteration_s
        self._baseline = self._times.baseline()
        self.baseline_name = next(name for name, found in self.dense.items() if self._baseline.strategy in found)
        free = whatif.free_communication(scenario, self._baseline.result)
        self.ceiling = self._baseline.iteration_s / timed(self._baseline.strategy, free, simulate).iteration_s
        numbers = range(num_draws if draws.are_possible(scenario) else 0)
        self._drawn = [draws.scenario(scenario, number) for number in numbers]
        self._drawn_baseline_s = self._drawn_s(self._baseline.strategy)

    def dense_row(self, name: str) -> Row:
        """Return the row of DDP in one precision."""
        return self._row(name, self.dense[name], is_dense=True)

    def row(self, name: str, variants: Variants) -> Row:
        """Return the row of a system that compresses."""
        return self._row(name, tuple(candidates(variants)), is_dense=False)

    def _row(self, name: str, settings: Settings, *, is_dense: bool) -> Row:
        found = self._times.best(settings)
        kernels = known_of(found.strategy, self._scenario)
        return Row(
            name=name,
            is_dense=is_dense,
            strategy=found.strategy,
            iteration_s=found.iteration_s,
            speedup=self._baseline.iteration_s / found.iteration_s,
            speedup_interval=self._interval(found.strategy),
            speedup_if_slow=self._speedup_if_slow(settings) if kernels.are_estimated else None,
            may_be_off=1.0 if self._scenario.calibration.kind == "measured" else OFF,
            speedup_vs_plain=self.plain_s / found.iteration_s,
            room_s=self._baseline.iteration_s / PAYS - found.iteration_s,
            nic_bytes_per_node=found.result.result.nic_bytes_per_node,
            saved=self._saved(found),
            unmeasured=kernels.unmeasured,
            faster_in=() if is_dense else self._times.faster_in(settings),
            pays_in=() if is_dense else self._times.faster_in(settings, PAYS),
            curve=() if is_dense else self._times.curve(settings),
            notes=found.result.notes,
        )

    def _interval(self, strategy: AnyStrategy) -> tuple[float, float] | None:
        """Return the interval of the speedup; both see the same draws."""
        if not self._drawn or strategy == self._baseline.strategy:
            return None
        pairs = zip(self._drawn_baseline_s, self._drawn_s(strategy), strict=True)
        return draws.interval([baseline_s / own_s for baseline_s, own_s in pairs])

    def _drawn_s(self, strategy: AnyStrategy) -> list[float]:
        return [timed(strategy, scenario, self._simulate).iteration_s for scenario in self._drawn]

    def _speedup_if_slow(self, settings: Settings) -> float:
        slow = whatif.slow_kernels(self._scenario)
        own = fastest(timed(strategy, slow, self._simulate) for strategy in settings)
        return self._baseline.iteration_s / own.iteration_s

    def _saved(self, found: Timed) -> dict[Bound, float]:
        """Return which part of a step would be gone if one thing took no time."""
        return {
            bound: 1
            - timed(found.strategy, freed(self._scenario, found.result), self._simulate).iteration_s / found.iteration_s
            for bound, freed in FREED.items()
        }
