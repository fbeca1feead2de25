"""One experiment to many scenarios, simulated in parallel, resumable at every point; refused points are skipped."""

import hashlib
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from simnet import files, schema
from simnet.collectives import algorithms
from simnet.errors import SimnetError
from simnet.hardware import FAULTS
from simnet.journal import Journal
from simnet.registry import is_foreign
from simnet.result import RefusedPoint, RunResult, SweepResult, SweptAxis, point_result, to_json
from simnet.scenario import Experiment, Scenario
from simnet.strategies import STRATEGIES
from simnet.uncertainty import with_default_draws
from simnet.workers import run_in_workers

MAX_POINTS = 100_000
# Least time of a worker's task: below it, passing the task costs as much as the simulation.
TASK_S = 0.02
# Tasks longer than this are cut, since an interrupted task is simulated again.
LONGEST_TASK_S = 0.5
# Time spent on points in this process before workers are considered.
PROBE_S = 0.3
# Least remaining time for which workers are started: starting them takes about 0.2 s.
WORKERS_PAY_S = 1.0
MOST_DRAWN = 200
"""Points of a sweep up to which each gets an interval by default; beyond, it would take minutes."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One scenario of a sweep, with its values of the swept keys."""

    values: dict[str, object]
    scenario: Scenario

    @cached_property
    def key(self) -> str:
        """Content hash of the scenario, the files of its own that it names, and the simulator's code."""
        # Results of other code are never taken from the journal: a model that changed would go unnoticed.
        digest = hashlib.sha256(_code_hash().encode())
        digest.update(_foreign_code())
        digest.update(msgspec.json.encode(self.scenario, enc_hook=float, order="deterministic"))
        for path in _input_files(self.scenario):
            digest.update(files.read_bytes(path))
        return digest.hexdigest()


def _input_files(scenario: Scenario) -> Iterator[Path]:
    """Yield the files that a scenario names by path: gradients, and those of its strategies.

    Raises:
        SimnetError: the gradients file is not there.
    """
    gradients = scenario.workload.gradients
    if gradients and files.is_path(gradients):
        yield files.gradients_path(gradients)
    for strategy in filter(None, (scenario.strategy, scenario.baseline)):
        yield from (Path(getattr(strategy, key)) for key in strategy.path_keys)


def points_of(experiment: Experiment) -> tuple[SweepPoint | RefusedPoint, ...]:
    """Return every point of an experiment: those listed in their order, each with the grid, the last axis fastest.

    Raises:
        SimnetError: there is nothing to sweep, too much of it, or no point holds together.
    """
    axes = experiment.axes
    if not experiment.swept_keys:
        rule = "nothing to sweep; add a [sweep] table or --set KEY=V1,V2, or use: simnet simulate"
        raise SimnetError(f"{experiment.where}: {rule}")
    listed: list[dict[str, object]] = list(experiment.listed.points()) if experiment.listed else [{}]
    num_points = len(listed) * math.prod(len(axis.values) for axis in axes)
    if num_points > MAX_POINTS:
        rule = f"at most {MAX_POINTS}; split it into several sweeps, or drop some values"
        raise SimnetError(f"{experiment.where}: sweep: {num_points} points: {rule}")
    keys = [axis.key for axis in axes]
    grid = [dict(zip(keys, place, strict=True)) for place in itertools.product(*(axis.values for axis in axes))]
    values = [{**point, **place} for point in listed for place in grid]
    points = tuple(map(_point, values, experiment.each(values)))
    check_any(points)
    return points


def expand(experiment: Experiment) -> tuple[SweepPoint, ...]:
    """Return every point of an experiment, as `points_of`, none of which may be refused.

    Raises:
        SimnetError: as `points_of`, or a point does not hold together.
    """
    points = points_of(experiment)
    for point in points:
        if isinstance(point, RefusedPoint):
            raise SimnetError(f"{point.reason} (at {at_text(point.set)})")
    return tuple(point for point in points if isinstance(point, SweepPoint))


def check_any(points: Sequence[SweepPoint | RunResult | RefusedPoint]) -> None:
    """Check that not all points, or their results, are refused.

    Raises:
        SimnetError: they are.
    """
    refused = [point for point in points if isinstance(point, RefusedPoint)]
    if not refused or len(refused) < len(points):
        return
    first = refused[0]
    is_common = all(point.reason == first.reason for point in refused)
    others = "" if is_common else f" (at {at_text(first.set)}; all {len(refused)} points are refused)"
    raise SimnetError(f"{first.reason}{others}")


def with_draws(points: Sequence[SweepPoint | RefusedPoint]) -> tuple[SweepPoint | RefusedPoint, ...]:
    """Return the points with draws for their intervals, fewer the more points there are; of very many, without."""
    if len(points) > MOST_DRAWN:
        return tuple(points)
    return tuple(_drawn(point, len(points)) for point in points)


def _drawn(point: SweepPoint | RefusedPoint, num_points: int) -> SweepPoint | RefusedPoint:
    if isinstance(point, RefusedPoint):
        return point
    try:
        return replace(point, scenario=with_default_draws(point.scenario, num_points))
    except SimnetError as error:  # a cluster whose links do not hold together
        return RefusedPoint(set=point.values, reason=str(error))


def at_text(values: Mapping[str, object]) -> str:
    """Return the values of a point as messages name them: "cluster.num_nodes = 8, strategy = binsgdm"."""
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def run(
    points: Sequence[SweepPoint | RefusedPoint],
    out_dir: Path | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = lambda _: None,
) -> list[RunResult | RefusedPoint]:
    """Simulate points, and return their results, or why they are refused, in the order of the points.

    Args:
        points: what to simulate; the same scenario is simulated once.
        out_dir: directory of the journal: points that it has are not simulated again. None keeps no journal.
        jobs: number of processes at most.
        progress: called first with the number of points that the journal has, then for each simulation with the number
            of points that it serves.

    Raises:
        SimnetError: the directory cannot be used, or a process died; the journal keeps what is finished.
    """
    known = [_with_key(point) for point in points]
    keys = [_key(point) for point in known]
    num_points = Counter(keys)
    with Journal(out_dir) if out_dir else nullcontext() as journal:
        found: dict[str, RunResult | str] = journal.outcomes_of(keys) if journal else {}
        todo = {key: point for key, point in zip(keys, known, strict=True) if key not in found}
        progress(sum(num_points[key] for key in found))
        for key, outcome in _outcomes(todo, jobs):
            point = todo[key]
            if isinstance(outcome, bytes) and isinstance(point, SweepPoint):
                result = schema.decode(RunResult, outcome, "sweep")
                # Scenarios of points share parts, decoded ones would not: Python's collector walks through all of them.
                found[key] = msgspec.structs.replace(result, scenario=point.scenario)
            else:
                found[key] = str(outcome)
            if journal:
                journal.append(key, outcome, _values(point))
            progress(num_points[key])
    return [_result(point, found[key]) for key, point in zip(keys, known, strict=True)]


def collect_results(
    experiment: Experiment,
    points: Sequence[SweepPoint | RefusedPoint],
    results: Sequence[RunResult | RefusedPoint],
) -> SweepResult:
    """Return the results of all points of an experiment, as results.json holds them.

    Raises:
        SimnetError: all points are refused.
    """
    check_any(results)
    ran = [(point, result) for point, result in zip(points, results, strict=True) if isinstance(result, RunResult)]
    return SweepResult(
        version=ran[0][1].version,
        name=experiment.name,
        question=experiment.question,
        axes=tuple(SweptAxis(key=axis.key, values=tuple(map(_plain, axis.values))) for axis in experiment.axes),
        points=tuple(point_result(_values(point), result) for point, result in ran),
        refused=tuple(result for result in results if isinstance(result, RefusedPoint)),
    )


def _point(values: dict[str, object], scenario: Scenario | SimnetError) -> SweepPoint | RefusedPoint:
    if isinstance(scenario, SimnetError):
        return RefusedPoint(set=_plain(values), reason=str(scenario))
    return SweepPoint(values=values, scenario=scenario)


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it, a whole number of more than 64 bits as text: only a refused point has such."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return str(value) if type(value) is int and value.bit_length() >= 64 else value


def _with_key(point: SweepPoint | RefusedPoint) -> SweepPoint | RefusedPoint:
    """Return a point whose key can be had: the gradients file of another cannot be read."""
    try:
        _key(point)
    except SimnetError as error:
        return RefusedPoint(set=_values(point), reason=str(error))
    return point


def _key(point: SweepPoint | RefusedPoint) -> str:
    """Return the content hash of a point; that of a refused one has its values and the reason."""
    if isinstance(point, SweepPoint):
        return point.key
    return hashlib.sha256(f"{point.set!r} {point.reason}".encode(errors="replace")).hexdigest()


def _values(point: SweepPoint | RefusedPoint) -> dict[str, object]:
    return point.values if isinstance(point, SweepPoint) else point.set


def _result(point: SweepPoint | RefusedPoint, outcome: RunResult | str) -> RunResult | RefusedPoint:
    return RefusedPoint(set=_values(point), reason=outcome) if isinstance(outcome, str) else outcome


def _outcomes(todo: Mapping[str, SweepPoint | RefusedPoint], jobs: int) -> Iterator[tuple[str, bytes | str]]:
    """Yield the key of each point with its result in JSON, or with the reason why it is refused."""
    yield from ((key, point.reason) for key, point in todo.items() if isinstance(point, RefusedPoint))
    yield from _simulate_all([point for point in todo.values() if isinstance(point, SweepPoint)], jobs)


def _simulate_all(points: Sequence[SweepPoint], jobs: int) -> Iterator[tuple[str, bytes | str]]:
    """Simulate points, some here to see how long they take, and the rest in workers if that pays.

    Points of one cluster shape follow each other: they share cached schedules and loads.

    Yields:
        Key and result in JSON of each point, or the reason why it is refused, in the order in which they finish.
    """
    points = sorted(points, key=_shape)
    start = time.perf_counter()
    for done, point in enumerate(points):
        elapsed_s = time.perf_counter() - start
        rest = points[done:]
        if jobs > 1 and done and elapsed_s > PROBE_S and len(rest) * elapsed_s / done > WORKERS_PAY_S:
            for results in run_in_workers(_tasks(rest, jobs, point_s=elapsed_s / done), _simulate_points, jobs):
                yield from results
            return
        yield _simulate_point(point)


def _shape(point: SweepPoint) -> tuple[int, int]:
    """Return what the schedules of collectives depend on."""
    return point.scenario.cluster.num_nodes, point.scenario.cluster.ranks_per_node


def _tasks(points: Sequence[SweepPoint], jobs: int, point_s: float) -> list[list[SweepPoint]]:
    """Cut points into tasks of workers: whole shapes if the tasks are not too long, the largest clusters first.

    The largest clusters take longest; at the end they would keep one worker busy while the other workers idle.
    """
    most = max(1, min(int(LONGEST_TASK_S / point_s), math.ceil(len(points) / (4 * jobs))))
    least = min(math.ceil(TASK_S / point_s), most)
    tasks: list[list[SweepPoint]] = [[]]
    for _, alike in itertools.groupby(reversed(points), _shape):
        for point in alike:
            if len(tasks[-1]) >= most:
                tasks.append([])
            tasks[-1].append(point)
        if len(tasks[-1]) >= least:
            tasks.append([])
    return [task for task in tasks if task]


def _simulate_points(points: Sequence[SweepPoint]) -> list[tuple[str, bytes | str]]:
    return [_simulate_point(point) for point in points]


def _simulate_point(point: SweepPoint) -> tuple[str, bytes | str]:
    from simnet.simulation import simulate

    try:
        result = simulate(point.scenario)
    except SimnetError as error:
        return point.key, str(error)
    return point.key, to_json(result.without_spans())


@cache
def _code_hash() -> str:
    """Return a hash of the simulator's code and of the gradients files that come with it."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")) + sorted(files.folder("gradients").glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _foreign_code() -> bytes:
    """Return the code of registered strategies, faults and algorithms that are not simnet's own."""
    made: list[object] = [*STRATEGIES.built_in(), *FAULTS.built_in(), *(one.variants for one in algorithms.every())]
    modules = {str(getattr(one, "__module__", "")) for one in made if is_foreign(one)}
    paths = {getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return b"".join(Path(path).read_bytes() for path in sorted(filter(None, paths)))
