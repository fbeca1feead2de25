"""A sweep of any number of points: no results are held in memory, only the place of each in the journal."""

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from simnet.analysis import sweeps
from simnet.analysis.journal import Journal
from simnet.analysis.sweep_tasks import KeyedScenario, outcomes
from simnet.analysis.sweeps import SweepPoint
from simnet.analysis.worker_pools import WorkerPool
from simnet.engine.result import PointResult, RefusedPoint, point_result
from simnet.engine.scenario import Experiment

WINDOW = 5_000
"""Points that are in memory at a time: those of one cluster shape among them are simulated one after another."""
_NOT_YET = -1


class _Waiting(NamedTuple):
    """A point that is being simulated: its values, and the numbers of the points that have the same scenario."""

    values: dict[str, object]
    numbers: list[int]


class SweepStream:
    """A sweep that is simulated into a journal, and read from there.

    Attributes:
        num_points: how many points there are.
        num_before: how many of them the journal had before.
    """

    def __init__(self, experiment: Experiment, journal: Journal) -> None:
        """Take an experiment; nothing is simulated yet.

        Raises:
            SimnetError: there is nothing to sweep, or too much of it.
        """
        self.num_points = sweeps.check_size(experiment, sweeps.MAX_STREAMED)
        self.num_before = 0
        self._experiment, self._journal = experiment, journal
        self._places = array("q")
        self._waiting: dict[str, _Waiting] = {}

    def simulate(
        self, jobs: int = 1, progress: Callable[[int], object] = lambda _: None, pool: WorkerPool | None = None
    ) -> None:
        """Simulate all points that the journal does not have.

        Args:
            jobs: as in `sweeps.run`.
            progress: called with the number of further points that are done.
            pool: as in `sweeps.run`.

        Raises:
            SimnetError: as `sweeps.run`.
        """
        # Closed at once: else workers would go on for as long as an error is held.
        with closing(outcomes(self._windows(progress), self.num_points, jobs, pool)) as found:
            for key, outcome in found:
                waiting = self._waiting.pop(key)
                place = self._journal.append(key, outcome, waiting.values)
                for number in waiting.numbers:
                    self._places[number] = place
                progress(len(waiting.numbers))

    def results(self) -> Iterator[PointResult | RefusedPoint]:
        """Yield every point with what it came to, in the order of the points; all must be simulated.

        Raises:
            SimnetError: the journal is damaged.
        """
        for values, place in zip(sweeps.each_values(self._experiment), self._places, strict=True):
            outcome = self._journal.outcome_at(place)
            if isinstance(outcome, str):
                yield RefusedPoint(set=sweeps.plain(values), reason=outcome)
            else:
                yield point_result(values, outcome)

    def _windows(self, progress: Callable[[int], object]) -> Iterator[list[KeyedScenario]]:
        """Yield what is to be simulated; points that the journal has are counted on the way, refused ones written."""
        points = iter(_points(self._experiment, self.num_points))
        while window := list(itertools.islice(points, WINDOW)):
            start = len(self._places)
            new = [one for point in window if (one := self._new(sweeps.with_key(point))) is not None]
            progress(sum(place != _NOT_YET for place in self._places[start:]))
            yield new

    def _new(self, point: SweepPoint | RefusedPoint) -> KeyedScenario | None:
        """Note where a point is or will be, and return it if it is to be simulated."""
        key = sweeps.key_of(point)
        number, place = len(self._places), self._journal.places.get(key)
        if place is not None:
            self.num_before += place < self._journal.end_before
        elif isinstance(point, RefusedPoint):
            place = self._journal.append(key, point.reason, point.set)
        self._places.append(_NOT_YET if place is None else place)
        if isinstance(point, RefusedPoint) or place is not None:
            return None
        if key in self._waiting:
            self._waiting[key].numbers.append(number)
            return None
        self._waiting[key] = _Waiting(point.values, [number])
        return KeyedScenario(key, point.scenario)


def _points(experiment: Experiment, num_points: int) -> Iterable[SweepPoint | RefusedPoint]:
    """Return the points one by one, with draws as in a sweep that is held in memory."""
    points = sweeps.each_point(experiment)
    return sweeps.with_draws(tuple(points)) if num_points <= sweeps.MOST_DRAWN else points
