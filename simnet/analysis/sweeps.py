"""One experiment to many scenarios, simulated in parallel, resumable at every point; refused points are skipped."""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from simnet.analysis import code_hash
from simnet.analysis.journal import Journal
from simnet.analysis.sweep_tasks import KeyedScenario, Outcome, outcomes
from simnet.analysis.worker_pools import WorkerPool
from simnet.core import files, schema
from simnet.core.errors import SimnetError
from simnet.engine.intervals import with_default_draws
from simnet.engine.result import RefusedPoint, RunResult, SweepResult, SweptAxis, point_result
from simnet.engine.scenario import Experiment, Scenario

MAX_POINTS = 100_000
"""Most points of a sweep whose results are held in memory."""
MAX_STREAMED = 10_000_000
"""Most points of a sweep that is streamed, as to a Parquet file."""
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
        digest = hashlib.sha256(code_hash.of_simnet().encode())
        for _, code in sorted(code_hash.foreign_code().items()):
            digest.update(code)
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
    check_size(experiment, MAX_POINTS)
    points = tuple(each_point(experiment))
    check_any(points)
    return points


def check_size(experiment: Experiment, most: int) -> int:
    """Check that there is something to sweep, and not too much of it, and return how many points.

    Raises:
        SimnetError: it is not so.
    """
    if not experiment.swept_keys:
        rule = "nothing to sweep; add a [sweep] table or --set KEY=V1,V2, or use: simnet simulate"
        raise SimnetError(f"{experiment.where}: {rule}")
    num_listed = len(experiment.listed.rows) if experiment.listed else 1
    num_points = num_listed * math.prod(len(axis.values) for axis in experiment.axes)
    if num_points > most:
        more = f", or {MAX_STREAMED} with --format parquet" if num_points <= MAX_STREAMED else ""
        rule = f"at most {most}{more}; split it into several sweeps, or drop some values"
        raise SimnetError(f"{experiment.where}: sweep: {num_points} points: {rule}")
    return num_points


def each_values(experiment: Experiment) -> Iterator[dict[str, object]]:
    """Yield the values of the swept keys at every point, in the order of `points_of`."""
    keys = [axis.key for axis in experiment.axes]
    for point in experiment.listed.points() if experiment.listed else ({},):
        for place in itertools.product(*(axis.values for axis in experiment.axes)):
            yield {**point, **dict(zip(keys, place, strict=True))}


def each_point(experiment: Experiment) -> Iterator[SweepPoint | RefusedPoint]:
    """Yield every point of an experiment, as `points_of`, one at a time."""
    yield from map(_point, each_values(experiment), experiment.each(each_values(experiment)))


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
    pool: WorkerPool | None = None,
) -> list[RunResult | RefusedPoint]:
    """Simulate points, and return their results, or why they are refused, in the order of the points.

    Args:
        points: what to simulate; the same scenario is simulated once.
        out_dir: directory of the journal: points that it has are not simulated again. None keeps no journal.
        jobs: number of processes at most.
        progress: called first with the number of points that the journal has, then for each simulation with the number
            of points that it serves.
        pool: simulates all points, in place of this process and those that it starts.

    Raises:
        SimnetError: the directory cannot be used, or a process died; the journal keeps what is finished.
    """
    known = [with_key(point) for point in points]
    keys = [key_of(point) for point in known]
    num_points = Counter(keys)
    with Journal(out_dir) if out_dir else nullcontext() as journal:
        found: dict[str, RunResult | str] = journal.outcomes_of(keys) if journal else {}
        todo = {key: point for key, point in zip(keys, known, strict=True) if key not in found}
        progress(sum(num_points[key] for key in found))
        # Closed at once: else workers would go on for as long as an error is held.
        with closing(_outcomes(todo, jobs, pool)) as finished:
            for key, outcome in finished:
                found[key] = _kept(todo[key], outcome)
                if journal:
                    journal.append(key, outcome, values_of(todo[key]))
                progress(num_points[key])
    return [_result(point, found[key]) for key, point in zip(keys, known, strict=True)]


def _outcomes(
    todo: Mapping[str, SweepPoint | RefusedPoint], jobs: int, pool: WorkerPool | None
) -> Generator[tuple[str, Outcome], None, None]:
    """Yield the key of each point with its result in JSON, or with the reason why it is refused."""
    yield from ((key, point.reason) for key, point in todo.items() if isinstance(point, RefusedPoint))
    known = [KeyedScenario(key, point.scenario) for key, point in todo.items() if isinstance(point, SweepPoint)]
    yield from outcomes([known], len(known), jobs, pool)


def _kept(point: SweepPoint | RefusedPoint, outcome: Outcome) -> RunResult | str:
    """Return what is held of an outcome in memory."""
    if not isinstance(outcome, bytes) or not isinstance(point, SweepPoint):
        return str(outcome)
    result = schema.decode(RunResult, outcome, "sweep")
    # Scenarios of points share parts, decoded ones would not: Python's collector walks through all of them.
    return msgspec.structs.replace(result, scenario=point.scenario)


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
        axes=swept_axes(experiment),
        points=tuple(point_result(values_of(point), result) for point, result in ran),
        refused=tuple(result for result in results if isinstance(result, RefusedPoint)),
    )


def swept_axes(experiment: Experiment) -> tuple[SweptAxis, ...]:
    """Return the axes of an experiment as results hold them."""
    return tuple(SweptAxis(key=axis.key, values=tuple(map(plain, axis.values))) for axis in experiment.axes)


def _point(values: dict[str, object], scenario: Scenario | SimnetError) -> SweepPoint | RefusedPoint:
    if isinstance(scenario, SimnetError):
        return RefusedPoint(set=plain(values), reason=str(scenario))
    return SweepPoint(values=values, scenario=scenario)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it, a whole number of more than 64 bits as text: only a refused point has such."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return str(value) if type(value) is int and value.bit_length() >= 64 else value


def with_key(point: SweepPoint | RefusedPoint) -> SweepPoint | RefusedPoint:
    """Return a point whose key can be had: the gradients file of another cannot be read."""
    try:
        key_of(point)
    except SimnetError as error:
        return RefusedPoint(set=values_of(point), reason=str(error))
    return point


def key_of(point: SweepPoint | RefusedPoint) -> str:
    """Return the content hash of a point; that of a refused one has its values and the reason."""
    if isinstance(point, SweepPoint):
        return point.key
    return hashlib.sha256(f"{point.set!r} {point.reason}".encode(errors="replace")).hexdigest()


def values_of(point: SweepPoint | RefusedPoint) -> dict[str, object]:
    """Return the values of the swept keys that lead to a point."""
    return point.values if isinstance(point, SweepPoint) else point.set


def _result(point: SweepPoint | RefusedPoint, outcome: RunResult | str) -> RunResult | RefusedPoint:
    return RefusedPoint(set=values_of(point), reason=outcome) if isinstance(outcome, str) else outcome
