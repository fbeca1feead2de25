"""One experiment to many points, simulated in chunks into a journal, here or by workers; refused points are skipped."""

import hashlib
import itertools
import math
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simnet.analysis import journal
from simnet.analysis.journal import Entry, Journal, Outcome
from simnet.analysis.workers import Pool, local_pool, raised_gc_threshold, run_on
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine.intervals import with_default_draws
from simnet.engine.result import RefusedPoint, RunResult, SweepResult, SweptAxis, point_result, to_json
from simnet.engine.scenario import Experiment, Scenario

# Most points of a sweep that is written as JSON and CSV, of some ten kilobytes a point, and of one in memory alone or
# written as Parquet.
MAX_POINTS, MAX_HELD = 100_000, 1_000_000
# Points of a sweep up to which each gets an interval by default; beyond, it would take minutes.
MOST_DRAWN = 200
# Points that this process hands to `run_points` at a time.
CHUNK = 500
# Time after which this process writes down what it has finished of a chunk.
PART_S = 0.1
# A worker's task that would take longer is cut, since an interrupted task is simulated again; one that does take as
# long as ENOUGH_S, as its points take longer than those before, hands back what is left.
LONGEST_TASK_S, ENOUGH_S = 0.5, 1.0
# Tasks that each worker gets at least, so that all of them end at about the same time.
TASKS_PER_WORKER = 4
# Time spent on points in this process before workers are considered, and the least remaining time for which they are
# started, which takes about 0.2 s.
PROBE_S, WORKERS_PAY_S = 0.3, 1.0
_NOT_YET = 0


def run_points(scenarios: Sequence[Scenario]) -> Iterator[Outcome]:
    """Simulate a chunk of points, and yield in their order what each comes to: a result in JSON, or a refusal.

    All that sweeps ask of the engine, here and in workers. Scenarios of one cluster shape follow each other, since they
    share cached schedules. Whoever takes what is yielded may stop in between: what is left goes to another call.
    """
    from simnet.analysis.tune import references
    from simnet.engine.simulation import simulate

    for scenario, known in zip(scenarios, references(scenarios), strict=True):
        try:
            yield to_json(simulate(scenario, references=known).without_spans())
        except SimnetError as error:
            yield str(error)


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One scenario of a sweep, with its values of the swept keys."""

    values: dict[str, object]
    scenario: Scenario

    @cached_property
    def key(self) -> str:
        """Content hash of the scenario, the files of its own that it names, and the simulator's code."""
        # Results of other code are never taken from the journal: a model that changed would go unnoticed.
        digest = hashlib.sha256(journal.hash_of_simnet().encode())
        for _, code in sorted(journal.foreign_code().items()):
            digest.update(code)
        # In one order: equal scenarios have one key, however their files were written.
        digest.update(msgspec.json.encode(self.scenario, enc_hook=float, order="deterministic"))
        # By content and not by name: a file that was edited makes another point.
        for path in _input_files(self.scenario):
            digest.update(files.read_bytes(path))
        return digest.hexdigest()


def _input_files(scenario: Scenario) -> Iterator[Path]:
    """Yield the files that a scenario names by path: gradients, and those of its strategies."""
    gradients = scenario.workload.gradients
    if gradients and files.is_path(gradients):
        yield files.gradients_path(gradients)
    for strategy in filter(None, (scenario.strategy, scenario.baseline)):
        yield from (Path(getattr(strategy, key)) for key in strategy.path_keys)


Point = SweepPoint | RefusedPoint


def points_of(experiment: Experiment, most: int = MAX_POINTS) -> tuple[Point, ...]:
    """Return every point of an experiment: those listed in their order, each with the grid, the last axis fastest.

    Not all may be refused, and there must be some, but at most so many.
    """
    _check_size(experiment, most)
    keys = [axis.key for axis in experiment.axes]
    values = [
        {**point, **dict(zip(keys, place, strict=True))}
        for point in (experiment.listed.points() if experiment.listed else ({},))
        for place in itertools.product(*(axis.values for axis in experiment.axes))
    ]
    points = tuple(
        RefusedPoint(set=plain(at), reason=str(scenario))
        if isinstance(scenario, SimnetError)
        else SweepPoint(values=at, scenario=scenario)
        for at, scenario in zip(values, experiment.each(values), strict=True)
    )
    check_any(points)
    return points


def _check_size(experiment: Experiment, most: int) -> None:
    """Check that there is something to sweep, and not too much of it."""
    if not experiment.swept_keys:
        rule = "nothing to sweep; add a [sweep] table or --set KEY=V1,V2, or use: simnet simulate"
        raise SimnetError(f"{experiment.where}: {rule}")
    num_listed = len(experiment.listed.rows) if experiment.listed else 1
    num_points = num_listed * math.prod(len(axis.values) for axis in experiment.axes)
    if num_points > most:
        more = f", or {MAX_HELD} with --format parquet" if num_points <= MAX_HELD else ""
        rule = f"at most {most}{more}; split it into several sweeps, or drop some values"
        raise SimnetError(f"{experiment.where}: sweep: {num_points} points: {rule}")


def expand(experiment: Experiment) -> tuple[SweepPoint, ...]:
    """Return every point of an experiment, as `points_of`, none of which may be refused."""
    points = points_of(experiment)
    for point in points:
        if isinstance(point, RefusedPoint):
            raise SimnetError(f"{point.reason} (at {at_text(point.set)})")
    return tuple(point for point in points if isinstance(point, SweepPoint))


def check_any(points: Sequence[Point | RunResult]) -> None:
    """Check that not all points, or their results, are refused."""
    refused = [point for point in points if isinstance(point, RefusedPoint)]
    if not refused or len(refused) < len(points):
        return
    first = refused[0]
    is_common = all(point.reason == first.reason for point in refused)
    others = "" if is_common else f" (at {at_text(first.set)}; all {len(refused)} points are refused)"
    raise SimnetError(f"{first.reason}{others}")


def with_draws(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points with draws for their intervals; of very many, without."""
    if len(points) > MOST_DRAWN:
        return tuple(points)

    def drawn(point: Point) -> Point:
        if isinstance(point, RefusedPoint):
            return point
        try:
            return replace(point, scenario=with_default_draws(point.scenario, len(points)))
        except SimnetError as error:  # a cluster whose links do not hold together
            return RefusedPoint(set=point.values, reason=str(error))

    return tuple(map(drawn, points))


def at_text(values: Mapping[str, object]) -> str:
    """Return the values of a point as messages name them: "cluster.num_nodes = 8, strategy = binsgdm"."""
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def plain(value: Any) -> Any:
    """Return a value as JSON holds it, a whole number of more than 64 bits as text: only a refused point has such."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return str(value) if type(value) is int and value.bit_length() >= 64 else value


def key_of(point: Point) -> str:
    """Return the content hash of a point; that of a refused one has its values and the reason."""
    if isinstance(point, SweepPoint):
        return point.key
    return hashlib.sha256(f"{point.set!r} {point.reason}".encode(errors="replace")).hexdigest()


def values_of(point: Point) -> dict[str, object]:
    """Return the values of the swept keys that lead to a point."""
    return point.values if isinstance(point, SweepPoint) else point.set


def run(
    points: Sequence[Point],
    out_dir: Path | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = lambda _: None,
    pool: Pool | None = None,
) -> list[RunResult | RefusedPoint]:
    """Simulate points, and return their results, or why they are refused, in the order of the points.

    Args:
        points: what to simulate; the same scenario is simulated once.
        out_dir: directory of the journal: points that it has are not simulated again. None keeps no journal.
        jobs: number of processes at most.
        progress: called first with the number of points that need no simulation, then with the number of further ones.
        pool: simulates all points, in place of this process and those that it starts.
    """
    with Journal(out_dir) as journal:
        sweep = Sweep(points, journal)
        sweep.simulate(jobs, progress, pool)
        return sweep.results()


def collect_results(
    experiment: Experiment, points: Sequence[Point], results: Sequence[RunResult | RefusedPoint]
) -> SweepResult:
    """Return the results of all points of an experiment, as results.json holds them; not all may be refused."""
    check_any(results)
    ran = [(point, result) for point, result in zip(points, results, strict=True) if isinstance(result, RunResult)]
    return SweepResult(
        version=ran[0][1].version,
        name=experiment.name,
        question=experiment.question,
        axes=tuple(SweptAxis(key=axis.key, values=tuple(map(plain, axis.values))) for axis in experiment.axes),
        points=tuple(point_result(values_of(point), result) for point, result in ran),
        refused=tuple(result for result in results if isinstance(result, RefusedPoint)),
    )


class Sweep:
    """Points that are simulated into a journal, and read from there: of each its place there is in memory.

    Attributes:
        num_before: how many of the points the journal had before.
    """

    def __init__(self, points: Sequence[Point], journal: Journal) -> None:
        """Take points; nothing is simulated yet."""
        self.num_before = 0
        self._points, self._journal = points, journal
        self._places = array("q")
        self._waiting: dict[str, tuple[SweepPoint, list[int]]] = {}

    def simulate(
        self, jobs: int = 1, progress: Callable[[int], object] = lambda _: None, pool: Pool | None = None
    ) -> None:
        """Simulate all points that the journal does not have; arguments are those of `run`."""
        queue = _Queue([point for point in map(self._placed, self._points) if point is not None])
        progress(sum(place != _NOT_YET for place in self._places))
        parts = _on_pool(pool, queue, None, is_elsewhere=True) if pool else _here_or_in_workers(queue, jobs)
        # Closed at once: else workers would go on for as long as an error is held.
        with closing(parts):
            for keys, outcomes, seconds in parts:
                done = [self._waiting.pop(key) for key in keys]
                values = (point.values for point, _ in done)
                places = self._journal.append(map(Entry, keys, outcomes, values), seconds)
                for (_, numbers), place in zip(done, places, strict=True):
                    for number in numbers:
                        self._places[number] = place
                progress(sum(len(numbers) for _, numbers in done))

    def results(self) -> list[RunResult | RefusedPoint]:
        """Return what every point came to; all must be simulated."""
        results: list[RunResult | RefusedPoint] = []
        for point, place in zip(self._points, self._places, strict=True):
            # Scenarios of points share parts, those of the journal would not: they would take most of the memory.
            outcome = self._journal.outcome_at(place, point.scenario if isinstance(point, SweepPoint) else None)
            results.append(RefusedPoint(set=values_of(point), reason=outcome) if isinstance(outcome, str) else outcome)
        return results

    def _placed(self, point: Point) -> SweepPoint | None:
        """Note where a point is or will be in the journal, and return it if it is to be simulated."""
        try:
            key = key_of(point)
        except SimnetError as error:  # a file that it names cannot be read
            point = RefusedPoint(set=values_of(point), reason=str(error))
            key = key_of(point)
        place = self._journal.place_of(key)
        if place is not None:
            self.num_before += place <= self._journal.last_before
        elif isinstance(point, RefusedPoint):
            (place,) = self._journal.append([Entry(key, point.reason, point.set)], 0.0)
        self._places.append(place or _NOT_YET)
        if place is not None or isinstance(point, RefusedPoint):
            return None
        is_new = key not in self._waiting
        # A scenario may stand at several points: it is simulated once, for all of them.
        self._waiting.setdefault(key, (point, []))[1].append(len(self._places) - 1)
        return point if is_new else None


class TaskPart(NamedTuple):
    """Points that were simulated together, by their keys, with what they came to and how long that took."""

    keys: Sequence[str]
    outcomes: Sequence[Outcome]
    seconds: float


class _Queue:
    """Points that wait to be simulated, those with the smallest clusters first."""

    def __init__(self, points: Iterable[SweepPoint]) -> None:
        # Of one shape one after the other: they share cached schedules.
        self._points = deque(sorted(points, key=_shape))

    def __len__(self) -> int:
        return len(self._points)

    def smallest(self, most: int) -> list[SweepPoint]:
        """Take points with the smallest clusters; none if there are none left."""
        return [self._points.popleft() for _ in range(min(most, len(self)))]

    def largest(self, most: int) -> list[SweepPoint]:
        """Take points with the largest clusters.

        They take longest: at the end they would keep one worker busy while the others idle.
        """
        return [self._points.pop() for _ in range(min(most, len(self)))]

    def put_back(self, points: Sequence[SweepPoint]) -> None:
        """Take points back, to be the next largest ones."""
        self._points.extend(reversed(points))


def _shape(point: SweepPoint) -> tuple[int, int]:
    """Return what the schedules of collectives depend on."""
    return point.scenario.cluster.num_nodes, point.scenario.cluster.ranks_per_node


def _here_or_in_workers(queue: _Queue, jobs: int) -> Generator[TaskPart, None, None]:
    """Simulate some points here to see how long they take, and the rest in workers if that pays."""
    taken_s, num_done = 0.0, 0
    while chunk := queue.smallest(CHUNK):
        with closing(_timed(run_points([point.scenario for point in chunk]), PART_S)) as parts:
            for outcomes, seconds in parts:
                done, chunk = chunk[: len(outcomes)], chunk[len(outcomes) :]
                yield TaskPart([point.key for point in done], outcomes, seconds)
                taken_s, num_done = taken_s + seconds, num_done + len(done)
                left_s = (len(queue) + len(chunk)) * taken_s / num_done
                if jobs > 1 and taken_s > PROBE_S and left_s > WORKERS_PAY_S:
                    break
            else:
                continue
        queue.put_back(chunk)
        with local_pool(jobs) as workers:
            yield from _on_pool(workers, queue, taken_s / num_done, is_elsewhere=False)


def _timed(outcomes: Iterator[Outcome], part_s: float) -> Generator[tuple[list[Outcome], float], None, None]:
    """Yield outcomes in parts that take so long, each with the time that it took."""
    part: list[Outcome] = []
    start = time.perf_counter()
    for outcome in outcomes:
        part.append(outcome)
        if (seconds := time.perf_counter() - start) >= part_s:
            yield part, seconds
            part, start = [], time.perf_counter()
    if part:
        yield part, time.perf_counter() - start


class SweepTask(NamedTuple):
    """What a worker does in one go: scenarios to simulate, by their keys, and what it must have for that."""

    computing: journal.Computing
    keys: tuple[str, ...]
    scenarios: tuple[Scenario, ...]


def simulate_task(task: SweepTask) -> TaskPart:
    """Simulate the first scenarios of a task, in a worker: all, unless they take too long together.

    Raises:
        SimnetError: the worker computes with something else than the task's sender: its results could differ.
    """
    if (other := journal.difference(task.computing)) is not None:
        raise SimnetError(f"{socket.gethostname()}: a worker has {other}: install the same on all workers")
    with raised_gc_threshold(), closing(_timed(run_points(task.scenarios), ENOUGH_S)) as parts:
        outcomes, seconds = next(parts)
    return TaskPart(task.keys[: len(outcomes)], outcomes, seconds)


def _on_pool(
    pool: Pool, queue: _Queue, point_s: float | None, *, is_elsewhere: bool
) -> Generator[TaskPart, None, None]:
    """Simulate what is in a queue; the first tasks are of one point each where nobody knows how long it takes."""
    computing = journal.computing()

    def next_task() -> tuple[SweepTask, Sequence[SweepPoint]] | None:
        # Tasks shrink with the queue, so that the workers end together.
        share = math.ceil(len(queue) / (TASKS_PER_WORKER * pool.num_slots()))
        most = 1 if point_s is None else min(int(LONGEST_TASK_S / max(point_s, 1e-6)), share)
        points = queue.largest(max(most, 1))
        task = SweepTask(computing, tuple(point.key for point in points), tuple(point.scenario for point in points))
        return (task, points) if points else None

    for points, part in run_on(pool, next_task, simulate_task):
        # A worker stops a task that takes too long: what is left of it goes to whoever is free.
        queue.put_back(points[len(part.keys) :])
        point_s = part.seconds / len(part.keys)
        for point, outcome in zip(points, part.outcomes, strict=False):
            # The journal would keep what only the worker refuses, as where it lacks a file.
            if is_elsewhere and isinstance(outcome, str) and not isinstance(next(run_points([point.scenario])), str):
                rule = "refused by a worker, not here; name files by absolute paths, on a disk that all workers share"
                raise SimnetError(f"{outcome}: {rule}")
        yield part
