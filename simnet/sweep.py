"""One experiment to many scenarios, simulated in parallel, resumable at every point."""

import hashlib
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec

from simnet import files, schema
from simnet.collectives import algorithms
from simnet.errors import SimnetError
from simnet.hardware import FAULTS
from simnet.journal import Journal
from simnet.registry import is_foreign
from simnet.result import RunResult, SweepResult, SweptAxis, point_result, to_json
from simnet.scenario import Experiment, Scenario
from simnet.strategies import STRATEGIES
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


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One scenario of a sweep, with its values of the axes."""

    values: dict[str, object]
    scenario: Scenario

    @cached_property
    def key(self) -> str:
        """Content hash of the scenario, its gradients file if it has one of its own, and the simulator's code."""
        # Results of other code are never taken from the journal: a model that changed would go unnoticed.
        digest = hashlib.sha256(_code_hash().encode())
        digest.update(_foreign_code())
        digest.update(msgspec.json.encode(self.scenario, enc_hook=float, order="deterministic"))
        gradients = self.scenario.workload.gradients
        if gradients and files.is_path(gradients):
            digest.update(files.read_bytes(files.gradients_path(gradients)))
        return digest.hexdigest()


def expand(experiment: Experiment) -> tuple[SweepPoint, ...]:
    """Return every point of the grid of an experiment's axes, the last axis fastest.

    Raises:
        SimnetError: there is nothing to sweep, too much of it, or a point does not hold together.
    """
    axes = experiment.axes
    if not axes:
        rule = "nothing to sweep; add a [sweep] table or --set KEY=V1,V2, or use: simnet simulate"
        raise SimnetError(f"{experiment.where}: {rule}")
    num_points = math.prod(len(axis.values) for axis in axes)
    if num_points > MAX_POINTS:
        rule = f"at most {MAX_POINTS}; split it into several sweeps, or drop some values"
        raise SimnetError(f"{experiment.where}: sweep: {num_points} points: {rule}")
    grid = itertools.product(*(axis.values for axis in axes))
    points = [dict(zip([axis.key for axis in axes], values, strict=True)) for values in grid]
    scenarios = experiment.each(points)
    return tuple(
        SweepPoint(values=values, scenario=scenario) for values, scenario in zip(points, scenarios, strict=True)
    )


def run(
    points: Sequence[SweepPoint],
    out_dir: Path | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = lambda _: None,
) -> list[RunResult]:
    """Simulate points, and return their results in the order of the points.

    Args:
        points: what to simulate; the same scenario is simulated once.
        out_dir: directory of the journal: points that it has are not simulated again. None keeps no journal.
        jobs: number of processes at most.
        progress: called first with the number of points that the journal has, then for each simulation with the number
            of points that it serves.

    Raises:
        SimnetError: the directory cannot be used, or a point cannot be simulated; the journal keeps the others.
    """
    with Journal(out_dir) if out_dir else nullcontext() as journal:
        results: dict[str, RunResult] = journal.results_of(point.key for point in points) if journal else {}
        todo = {point.key: point for point in points if point.key not in results}
        num_points = Counter(point.key for point in points)
        progress(sum(num_points[key] for key in results))
        for key, result_json in _simulate_all(list(todo.values()), jobs):
            result = schema.decode(RunResult, result_json, "sweep")
            # Scenarios of points share parts, decoded ones would not: Python's collector walks through all of them.
            results[key] = msgspec.structs.replace(result, scenario=todo[key].scenario)
            if journal:
                journal.append(key, result_json)
            progress(num_points[key])
    return [results[point.key] for point in points]


def collect_results(experiment: Experiment, points: Sequence[SweepPoint], results: Sequence[RunResult]) -> SweepResult:
    """Return the results of all points of an experiment, as results.json holds them."""
    return SweepResult(
        version=results[0].version,
        name=experiment.name,
        question=experiment.question,
        axes=tuple(SweptAxis(key=axis.key, values=axis.values) for axis in experiment.axes),
        points=tuple(point_result(point.values, result) for point, result in zip(points, results, strict=True)),
    )


def _simulate_all(points: Sequence[SweepPoint], jobs: int) -> Iterator[tuple[str, bytes]]:
    """Simulate points, some here to see how long they take, and the rest in workers if that pays.

    Points of one cluster shape follow each other: they share cached schedules and loads.

    Yields:
        Key and result in JSON of each point, in the order in which they finish.
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


def _simulate_points(points: Sequence[SweepPoint]) -> list[tuple[str, bytes]]:
    return [_simulate_point(point) for point in points]


def _simulate_point(point: SweepPoint) -> tuple[str, bytes]:
    from simnet.simulate import simulate

    try:
        result = simulate(point.scenario)
    except SimnetError as error:
        at = ", ".join(f"{key} = {value}" for key, value in point.values.items())
        raise SimnetError(f"{point.scenario.name}: sweep: at {at}: {error}") from error
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
