"""Scenarios of a sweep to tasks and back: cut as long as suits those who do them, simulated here or by workers."""

import itertools
import math
import socket
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from simnet.analysis import code_hash
from simnet.analysis.worker_pools import WorkerPool, run_on
from simnet.analysis.workers import local_pool, rare_looks_for_circles
from simnet.core.errors import SimnetError
from simnet.engine.result import to_json
from simnet.engine.scenario import Scenario

# Least time of a worker's task: below it, passing the task costs as much as the simulation.
TASK_S = 0.02
# Tasks longer than this are cut, since an interrupted task is simulated again.
LONGEST_TASK_S = 0.5
# Time after which a worker hands back what is left of a task: its scenarios take longer than those before.
ENOUGH_S = 2 * LONGEST_TASK_S
# Time spent on points in this process before workers are considered.
PROBE_S = 0.3
# Least remaining time for which workers are started: starting them takes about 0.2 s.
WORKERS_PAY_S = 1.0
# Tasks that each worker gets at least, so that all of them end at about the same time.
TASKS_PER_WORKER = 4

Outcome = bytes | str
"""The result of a scenario in JSON, or the reason why it is refused."""


class KeyedScenario(NamedTuple):
    """A scenario with the content hash of its point."""

    key: str
    scenario: Scenario


class SweepTask(NamedTuple):
    """What a worker does in one go.

    Attributes:
        computing: what the worker must have.
        scenarios: to simulate, in this order.
    """

    computing: code_hash.Computing
    scenarios: tuple[KeyedScenario, ...]


class FinishedTask(NamedTuple):
    """What a task came to.

    Attributes:
        seconds: that it took.
        outcomes: of the first of its scenarios; the others took too long together, and are to be done by another task.
    """

    seconds: float
    outcomes: tuple[Outcome, ...]


class ScenarioQueue:
    """Scenarios that wait to be simulated.

    Those of one cluster shape follow each other: they share cached schedules and loads.

    Attributes:
        num_left: how many wait, at most.
    """

    def __init__(self, windows: Iterable[Sequence[KeyedScenario]], num_scenarios: int) -> None:
        """Take scenarios window by window: the next one is asked for when the one before is empty.

        Args:
            windows: all scenarios, in parts that fit into memory.
            num_scenarios: how many there are at most.
        """
        self.num_left = num_scenarios
        self._windows = iter(windows)
        self._window: deque[KeyedScenario] = deque()

    def smallest(self) -> KeyedScenario | None:
        """Take the scenario with the smallest cluster of the window; None if there is none left."""
        if not self._has_some():
            return None
        self.num_left -= 1
        return self._window.popleft()

    def largest(self, least: int, most: int) -> tuple[KeyedScenario, ...]:
        """Take scenarios with the largest clusters of the window; none if there are none left.

        The largest clusters take longest; at the end they would keep one worker busy while the other workers idle.

        Args:
            least: how many at least, if there are as many.
            most: how many at most; beyond the least ones only those that share a cluster shape.
        """
        taken: list[KeyedScenario] = []
        while len(taken) < most and self._has_some():
            if len(taken) >= least and _shape(self._window[-1]) != _shape(taken[-1]):
                break
            taken.append(self._window.pop())
        self.num_left -= len(taken)
        return tuple(taken)

    def put_back(self, scenarios: Sequence[KeyedScenario]) -> None:
        """Take scenarios back, to be the next ones."""
        self._window.extend(reversed(scenarios))
        self.num_left += len(scenarios)

    def _has_some(self) -> bool:
        while not self._window:
            window = next(self._windows, None)
            if window is None:
                return False
            self._window.extend(sorted(window, key=_shape))
        return True


def outcomes(
    windows: Iterable[Sequence[KeyedScenario]], num_scenarios: int, jobs: int, pool: WorkerPool | None = None
) -> Generator[tuple[str, Outcome], None, None]:
    """Simulate scenarios: on a pool, or else some here to see how long they take, and the rest in workers if that pays.

    Args:
        windows: all scenarios, in parts that fit into memory.
        num_scenarios: how many there are at most.
        jobs: number of processes of this machine at most, without a pool.
        pool: does all of them.

    Yields:
        Key and outcome of each, in the order in which they finish.

    Raises:
        SimnetError: a worker died, or cannot be used.
    """
    queue = ScenarioQueue(windows, num_scenarios)
    if pool is not None:
        yield from _outcomes_on(pool, queue, None, is_elsewhere=True)
        return
    taken_s = 0.0
    for done in itertools.count():
        if jobs > 1 and done and taken_s > PROBE_S and queue.num_left * taken_s / done > WORKERS_PAY_S:
            with local_pool(jobs) as workers:
                yield from _outcomes_on(workers, queue, taken_s / done, is_elsewhere=False)
            return
        one = queue.smallest()
        if one is None:
            return
        start = time.perf_counter()
        outcome = _outcome(one.scenario)
        taken_s += time.perf_counter() - start
        yield one.key, outcome


def _outcomes_on(
    pool: WorkerPool, queue: ScenarioQueue, scenario_s: float | None, *, is_elsewhere: bool
) -> Iterator[tuple[str, Outcome]]:
    """Simulate what is in a queue; the first tasks are of one scenario each where nobody knows how long it takes."""
    computing = code_hash.computing()

    def next_task() -> SweepTask | None:
        least, most = _sizes(scenario_s, queue.num_left, pool.num_slots())
        scenarios = queue.largest(least, most)
        return SweepTask(computing, scenarios) if scenarios else None

    for task, finished in run_on(pool, next_task, simulate_task):
        num_done = len(finished.outcomes)
        queue.put_back(task.scenarios[num_done:])
        scenario_s = finished.seconds / num_done
        for one, outcome in zip(task.scenarios, finished.outcomes, strict=False):
            if is_elsewhere and isinstance(outcome, str):
                _check_refused_here(one.scenario, outcome)
            yield one.key, outcome


def _sizes(scenario_s: float | None, num_left: int, num_slots: int) -> tuple[int, int]:
    """Return the least and the largest number of scenarios of the next task."""
    if scenario_s is None:
        return 1, 1
    scenario_s = max(scenario_s, 1e-6)
    most = max(1, min(int(LONGEST_TASK_S / scenario_s), math.ceil(num_left / (TASKS_PER_WORKER * num_slots))))
    return min(math.ceil(TASK_S / scenario_s), most), most


def _shape(one: KeyedScenario) -> tuple[int, int]:
    """Return what the schedules of collectives depend on."""
    return one.scenario.cluster.num_nodes, one.scenario.cluster.ranks_per_node


def _check_refused_here(scenario: Scenario, reason: str) -> None:
    """Check that what a worker refuses is refused here as well: the journal would keep the refusal.

    Raises:
        SimnetError: it is not, as where the worker lacks a file.
    """
    if not isinstance(_outcome(scenario), str):
        rule = "refused by a worker, not here; name files by absolute paths, on a disk that all workers share"
        raise SimnetError(f"{reason}: {rule}")


def simulate_task(task: SweepTask) -> FinishedTask:
    """Simulate the scenarios of a task, in a worker.

    Raises:
        SimnetError: the worker computes with something else than the task's sender: its results could differ.
    """
    if (other := code_hash.difference(task.computing)) is not None:
        raise SimnetError(f"{socket.gethostname()}: a worker has {other}: install the same on all workers")
    start = time.perf_counter()
    found = []
    with rare_looks_for_circles():
        for one in task.scenarios:
            found.append(_outcome(one.scenario))
            if time.perf_counter() - start > ENOUGH_S:
                break
    return FinishedTask(time.perf_counter() - start, tuple(found))


def _outcome(scenario: Scenario) -> Outcome:
    from simnet.engine.simulation import simulate

    try:
        return to_json(simulate(scenario).without_spans())
    except SimnetError as error:
        return str(error)
