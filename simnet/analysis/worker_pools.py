"""Workers that take tasks, on this machine or on others: few tasks wait, and results come as they are ready."""

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

from simnet.core.errors import SimnetError

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_PER_SLOT = 2
"""Tasks in flight for each that is done at a time: one waits beside it, so that no worker waits for its next."""
UNKNOWN_SLOTS = 32
"""Tasks that are done at a time by an executor that does not say how many."""
CHECK_S = 10.0
"""Time without a result after which a pool is asked whether any can still come."""


class TaskFuture(Protocol):
    """What a task comes to, later."""

    def result(self) -> Any:
        """Wait, and return what the task came to, or raise what it raised."""


class TaskExecutor(Protocol):
    """What takes tasks as the executors of `concurrent.futures` do."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        """Have work done with arguments, and return the future of its result."""


@runtime_checkable
class WorkerPool(Protocol):
    """Workers that simnet knows how to use."""

    def num_slots(self) -> int:
        """Return how many tasks are done at a time; it may change."""

    def submit(self, work: Callable[[Any], Any], task: Any) -> TaskFuture:
        """Have work done with a task."""

    def check(self) -> None:
        """Check that results can still come.

        Raises:
            SimnetError: no worker is left.
        """

    def explained(self, error: Exception) -> Exception:
        """Return the error of a task as a sentence if it is one of the pool, else as it is."""


class ExecutorPool:
    """Any executor: `concurrent.futures`, those of mpi4py, parsl or loky, or whatever has `submit`."""

    def __init__(self, executor: TaskExecutor) -> None:
        self._executor = executor

    def num_slots(self) -> int:
        """Return the number of its workers, or a guess where it does not say."""
        known = getattr(self._executor, "_max_workers", None)
        return known if isinstance(known, int) and known > 0 else UNKNOWN_SLOTS

    def submit(self, work: Callable[[Any], Any], task: Any) -> TaskFuture:
        """Hand a task on."""
        future: TaskFuture = self._executor.submit(work, task)
        return future

    def check(self) -> None:
        """Take for granted that results come."""

    def explained(self, error: Exception) -> Exception:
        """Return a sentence where the executor itself is broken."""
        if not isinstance(error, BrokenExecutor | CancelledError):
            return error
        what = "its tasks were cancelled" if isinstance(error, CancelledError) else "a worker died"
        return SimnetError(f"executor: {what}; start again with another one (a sweep resumes)")


def run_on(
    pool: WorkerPool, next_task: Callable[[], Task | None], work: Callable[[Task], Result]
) -> Iterator[tuple[Task, Result]]:
    """Do tasks on a pool; few of them are in flight, so that memory does not grow with their number.

    Args:
        pool: does them.
        next_task: makes the next task, or returns None where there is none; asked again after each result.
        work: done with each; a function of a module.

    Yields:
        Each task with its result, in the order in which they are ready.

    Raises:
        SimnetError: `work` raised it, or no worker is left.
    """
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()
    numbers = itertools.count()
    in_flight: dict[int, tuple[Task, TaskFuture]] = {}
    try:
        while True:
            while len(in_flight) < TASKS_PER_SLOT * pool.num_slots() and (task := next_task()) is not None:
                number = next(numbers)
                in_flight[number] = task, _submitted(pool, work, task, partial(finished.put, number))
            if not in_flight:
                return
            task, future = in_flight.pop(_next(finished, pool))
            yield task, _result(pool, future)
    finally:
        for _, future in in_flight.values():
            getattr(future, "cancel", int)()


def _submitted(pool: WorkerPool, work: Callable[[Task], object], task: Task, note: Callable[[], object]) -> TaskFuture:
    """Submit a task, whose end is noted; one that cannot tell its end is waited for in its turn."""
    try:
        future = pool.submit(work, task)
    except Exception as error:
        _raise(pool, error)
    if hasattr(future, "add_done_callback"):
        future.add_done_callback(lambda _: note())
    else:
        note()
    return future


def _next(finished: "queue.SimpleQueue[int]", pool: WorkerPool) -> int:
    while True:
        try:
            return finished.get(timeout=CHECK_S)
        except queue.Empty:
            pool.check()


def _result(pool: WorkerPool, future: TaskFuture) -> Any:
    try:
        return future.result()
    except Exception as error:
        _raise(pool, error)


def _raise(pool: WorkerPool, error: Exception) -> NoReturn:
    explained = pool.explained(error)
    if explained is error:
        raise error
    raise explained from error
