"""Work that is shared out among processes of this machine."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, TypeVar

from simnet.analysis.worker_pools import ExecutorPool, TaskFuture, WorkerPool, run_on
from simnet.core.errors import SimnetError

Task = TypeVar("Task")
Result = TypeVar("Result")


# A worker process takes 0.3 s to start. So the first tasks are done in this process for PROBE_S of CPU time, and
# workers are started only if the rest would take longer than WORKERS_PAY_S at that pace.
PROBE_S, WORKERS_PAY_S = 0.5, 2.0
# New objects that wait for a look for circles among them, where Python's own number is 700.
OBJECTS_PER_LOOK = 50_000


def look_rarely_for_circles() -> None:
    """Have this process look less often for objects that hold each other alone, of which simulating makes hardly any.

    With thousands of schedules in memory the looks took a fifth of the time of `simnet advise`, and freed nothing.
    """
    gc.set_threshold(OBJECTS_PER_LOOK, *gc.get_threshold()[1:])


@contextmanager
def rare_looks_for_circles() -> Iterator[None]:
    """Do the same for a while, in a process that is not simnet's own."""
    before = gc.get_threshold()
    look_rarely_for_circles()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalPool(ExecutorPool):
    """Processes of this machine."""

    def submit(self, work: Callable[[Any], Any], task: Any) -> TaskFuture:
        """Hand a task on, which may start a process: Ctrl-C is for this one, which ends the others."""
        with interrupts_held():
            return super().submit(work, task)

    def explained(self, error: Exception) -> Exception:
        """Return a sentence where a process died."""
        if not isinstance(error, BrokenExecutor):
            return error
        rule = "start again with fewer --jobs (a sweep resumes)"
        return SimnetError(f"a worker process died: too little memory, or a script without a main guard; {rule}")


@contextmanager
def local_pool(jobs: int, prepare: Callable[[], object] = int) -> Iterator[WorkerPool]:
    """Yield processes of this machine, which end with this one whatever ends it.

    Args:
        jobs: number of processes at most; each starts when there is a task for it.
        prepare: called once in each process, first; a function of a module.
    """
    # Children of the caller must outlive an interrupt: only those started here are ended.
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, context, _start, (prepare,))
    try:
        yield LocalPool(executor)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - set(others):
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def run_in_workers(
    tasks: Sequence[Task], work: Callable[[Task], Result], jobs: int, *, prepare: Callable[[], object] = int
) -> Iterator[Result]:
    """Do tasks in other processes, which end with this one whatever ends it.

    Args:
        tasks: at least one.
        work: done with each; a function of a module, as is `prepare`.
        jobs: number of processes at most.
        prepare: called once in each process, first.

    Yields:
        Results in the order in which they are ready.

    Raises:
        SimnetError: `work` raised it, or a process died.
    """
    waiting = iter(tasks)
    with local_pool(min(jobs, len(tasks)), prepare) as pool:
        for _, result in run_on(pool, lambda: next(waiting, None), work):
            yield result


def run_where_it_pays(
    tasks: Sequence[Task],
    work_here: Callable[[Task], Result],
    jobs: int,
    *,
    work_there: Callable[[Task], Result],
    prepare: Callable[[], object] = int,
) -> Iterator[Result]:
    """Do the first tasks in this process, and the others in workers where they would take long.

    Args:
        tasks: what to do.
        work_here: done with each in this process.
        jobs: as `run_in_workers`.
        work_there: the same in a worker, as `run_in_workers`.
        prepare: as `run_in_workers`.

    Yields:
        Results in the order in which they are ready.

    Raises:
        SimnetError: as `run_in_workers`.
    """
    start_s = time.process_time()
    for done, task in enumerate(tasks):
        elapsed_s, rest = time.process_time() - start_s, tasks[done:]
        if jobs > 1 and done and elapsed_s > PROBE_S and len(rest) * elapsed_s / done > WORKERS_PAY_S:
            yield from run_in_workers(rest, work_there, jobs, prepare=prepare)
            return
        yield work_here(task)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end; what is started meanwhile never gets it: this process ends it."""
    # Starting it takes the hold off the thread that does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(prepare: Callable[[], object]) -> None:
    """Prepare a worker, and let it end when its parent is killed, which a pool's workers do not notice."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    look_rarely_for_circles()

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
    prepare()
