"""Pools of workers beside this process: processes of this machine, or workers of Dask."""

import gc
import logging
import multiprocessing
import os
import pickle
import platform
import re
import signal
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, TypeVar

from simnet.analysis import journal
from simnet.core.errors import SimnetError, install
from simnet.core.version import VERSION

Task = TypeVar("Task")
Result = TypeVar("Result")
About = TypeVar("About")

# A worker process takes 0.3 s to start. So the first tasks are done in this process for PROBE_S of CPU time, and
# workers are started only if the rest would take longer than WORKERS_PAY_S at that pace.
PROBE_S, WORKERS_PAY_S = 0.5, 2.0
# Objects made since the last collection at which Python's garbage collector looks for reference cycles; its own: 700.
GC_THRESHOLD = 50_000
# Tasks in flight for each that is done at a time: one waits beside it, so that no worker waits for its next.
TASKS_PER_SLOT = 2
# Time without a result after which a pool is asked whether any can still come.
CHECK_S = 10.0
# Of Dask: time within which a scheduler must answer and a first worker be there; in which all workers must say what
# they have; without any worker, after which a sweep ends, since they may come back where a job is requeued; and for
# which the number of workers is taken to be the same.
ANSWER_S, CHECKED_S, WITHOUT_WORKERS_S, COUNTED_S = 10, 30.0, 60.0, 1.0
# What Dask does beside the work, for a dashboard that a cluster of its own does not have.
_UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
_ADDRESS = re.compile(r"((tcp|tls)://)?([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")
_SAME = "install the same on all workers"
_RESUMES = "the same sweep resumes from the finished points"


class Pool(ABC):
    """Workers that do tasks, each in a process of its own."""

    @abstractmethod
    def num_slots(self) -> int:
        """Return how many tasks are done at a time; it may change."""

    @abstractmethod
    def submit(self, work: Callable[[Any], Any], task: Any) -> "Future[Any]":
        """Have work done with a task."""

    @abstractmethod
    def explained(self, error: Exception) -> Exception:
        """Return the error of a task as a sentence if it is one of the workers, else as it is."""

    @abstractmethod
    def check(self) -> None:
        """Check that results can still come, which raises a SimnetError if no worker is left."""


def run_on(
    pool: Pool, next_task: Callable[[], tuple[Task, About] | None], work: Callable[[Task], Result]
) -> Iterator[tuple[About, Result]]:
    """Do tasks on a pool; few of them are in flight, so that memory does not grow with their number.

    `next_task` makes the next task, with what is known of it here; None where there is none until a result comes.
    `work`, a function of a module, is done with each.

    Yields:
        What is known of each task, with its result, as they are ready.
    """
    in_flight: dict[Future[Any], About] = {}
    try:
        while True:
            while len(in_flight) < TASKS_PER_SLOT * pool.num_slots() and (next_pair := next_task()) is not None:
                task, about = next_pair
                in_flight[_explaining(pool, pool.submit, work, task)] = about
            if not in_flight:
                return
            wait(in_flight, timeout=CHECK_S, return_when=FIRST_COMPLETED)
            # Not what `wait` returns: it never tells of a task that was cancelled before it began.
            ended = [future for future in in_flight if future.done()]
            if not ended:
                pool.check()
            for future in ended:
                yield in_flight.pop(future), _explaining(pool, future.result)
    finally:
        for future in in_flight:
            future.cancel()


def _explaining(pool: Pool, ask: Callable[..., Any], *arguments: Any) -> Any:
    """Ask for something that raises an error as a sentence where it is one of the pool."""
    try:
        return ask(*arguments)
    except Exception as error:
        explained = pool.explained(error)
        if explained is error:
            raise
        raise explained from error


def raise_gc_threshold() -> None:
    """Let the garbage collector run less often: simulating makes hardly any reference cycles.

    With thousands of schedules in memory its runs took a fifth of the time of `simnet advise`, and freed nothing.
    """
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Do the same for a while, in a process that is not simnet's own."""
    before = gc.get_threshold()
    raise_gc_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalPool(Pool):
    """Processes of this machine."""

    def __init__(self, executor: Executor, num_processes: int) -> None:
        self._executor, self._num_processes = executor, num_processes

    def num_slots(self) -> int:
        """Return the number of processes."""
        return self._num_processes

    def submit(self, work: Callable[[Any], Any], task: Any) -> "Future[Any]":
        """Hand a task on, which may start a process: Ctrl-C is for this one, which ends the others."""
        with interrupts_held():
            return self._executor.submit(work, task)

    def check(self) -> None:
        """Check nothing: a process that dies ends its task with an error."""

    def explained(self, error: Exception) -> Exception:
        """Return a sentence where a process died."""
        if not isinstance(error, BrokenExecutor):
            return error
        rule = "start again with fewer --jobs (a sweep resumes)"
        return SimnetError(f"a worker process died: too little memory, or a script without a main guard; {rule}")


@contextmanager
def local_pool(jobs: int, prepare: Callable[[], object] = int) -> Iterator[Pool]:
    """Yield processes of this machine, `jobs` at most, which end with this one whatever ends it.

    Each starts when there is a task for it, and first calls `prepare`, a function of a module.
    """
    # Children of the caller must outlive an interrupt: only those started here are ended.
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, context, _start, (prepare,))
    try:
        yield LocalPool(executor, jobs)
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - set(others):
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def run_where_it_pays(
    tasks: Sequence[Task],
    work_here: Callable[[Task], Result],
    jobs: int,
    *,
    work_there: Callable[[Task], Result],
    prepare: Callable[[], object] = int,
) -> Iterator[Result]:
    """Do the first tasks in this process, and the others in a `local_pool` where they would take long.

    Yields:
        Results in the order in which they are ready.
    """
    start_s = time.process_time()
    for done, task in enumerate(tasks):
        elapsed_s, rest = time.process_time() - start_s, tasks[done:]
        if jobs > 1 and done and elapsed_s > PROBE_S and len(rest) * elapsed_s / done > WORKERS_PAY_S:
            waiting = partial(next, iter(zip(rest, rest, strict=True)), None)
            with local_pool(min(jobs, len(rest)), prepare) as pool:
                yield from (result for _, result in run_on(pool, waiting, work_there))
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
    raise_gc_threshold()

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait_for_end, daemon=True).start()
    prepare()


@contextmanager
def dask_scheduler(address: str) -> Iterator["DaskPool"]:
    """Yield the workers of a scheduler of Dask that is there, at an address such as "tcp://10.0.0.1:8786"."""
    if not _ADDRESS.fullmatch(address):
        raise SimnetError(f"--scheduler: {address!r}: write its address, such as tcp://10.0.0.1:8786")
    distributed = _distributed("--scheduler")
    try:
        with _without_logs():
            client = _within(ANSWER_S, lambda: distributed.Client(address, timeout=2 * ANSWER_S, set_as_default=False))
    except Exception as error:  # of many kinds, by what answers there
        rule = f"no scheduler of Dask answers within {ANSWER_S} s; start one with: dask scheduler"
        raise SimnetError(f"--scheduler: {address!r}: {rule}") from error
    with _without_logs(), closing(client):
        yield DaskPool(client, "--scheduler")


@contextmanager
def dask_local(num_processes: int) -> Iterator["DaskPool"]:
    """Yield workers of a scheduler of Dask on this machine, a process each, which end with this one."""
    distributed = _distributed("--dask-local")
    import dask

    try:
        # Ctrl-C is for this process, which ends the others.
        with _without_logs(), interrupts_held(), dask.config.set(_UNWATCHED):
            cluster = distributed.LocalCluster(
                n_workers=num_processes,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
    except (OSError, RuntimeError) as error:
        raise SimnetError(f"--dask-local: {num_processes}: cannot be started ({error}); use fewer") from error
    with _without_logs(), closing(cluster), closing(distributed.Client(cluster, set_as_default=False)) as client:
        yield DaskPool(client, "--dask-local")


class DaskPool(Pool):
    """The workers of a client of Dask, all of which have this version of simnet and of Python."""

    def __init__(self, client: Any, where: str) -> None:
        """Take the workers of a client once they are there and checked; `where` is how messages call it."""
        if not hasattr(client, "get_executor"):
            rule = "must be a distributed.Client; without one, processes of this machine simulate (jobs)"
            raise SimnetError(f"{where}: {type(client).__name__}: {rule}")
        self._executor = client.get_executor(pure=False)
        self._client, self._where = client, where
        self._counted_at_s, self._num_slots = 0.0, 0
        self._seen_at_s = time.monotonic()
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except (TimeoutError, OSError) as error:
            rule = f"no workers after {ANSWER_S} s; start some with: dask worker {self._address} --nthreads 1"
            raise self._error(rule) from error
        try:
            _within(CHECKED_S, self._check_versions)
        except TimeoutError as error:
            rule = f"not all workers say within {CHECKED_S:.0f} s what they have; end those that hang"
            raise self._error(rule) from error
        except (OSError, KeyError) as error:
            raise self._error("a worker was lost while it was asked what it has; start again") from error

    def num_slots(self) -> int:
        """Return the number of threads of all workers; they may come and go."""
        now_s = time.monotonic()
        if now_s - self._counted_at_s > COUNTED_S:
            self._num_slots = self._count()
            self._counted_at_s = now_s
        return max(1, self._num_slots)

    def submit(self, work: Callable[[Any], Any], task: Any) -> "Future[Any]":
        """Have work done with a task; a task whose worker is lost is done by another one."""
        # As bytes: Dask would look for futures in all that a task holds, which takes longer than to simulate it.
        future: Future[Any] = self._executor.submit(_done, work, _packed(task))
        return future

    def check(self) -> None:
        """Check that there are workers, or were a while ago."""
        if self._count():
            self._seen_at_s = time.monotonic()
        elif time.monotonic() - self._seen_at_s > WITHOUT_WORKERS_S:
            raise self._error(f"no workers for {WITHOUT_WORKERS_S:.0f} s; start some: {_RESUMES}")

    def explained(self, error: Exception) -> Exception:
        """Return a sentence where workers, the scheduler or what is installed there failed."""
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        if isinstance(error, KilledWorker):
            what = "a task ended several workers, as with too little memory; give them more"
        elif isinstance(error, CancelledError | CommClosedError):
            what = "the scheduler is gone; start it again"
        elif isinstance(error, ImportError):
            what = f"a worker cannot load what the sweep needs ({error}); {_SAME}"
        else:
            return error
        return self._error(f"{what}: {_RESUMES}")

    @property
    def _address(self) -> str:
        scheduler = self._client.scheduler
        return str(scheduler.address) if scheduler is not None else "its scheduler"

    def _error(self, what: str) -> SimnetError:
        return SimnetError(f"{self._where}: {self._address}: {what}")

    def _count(self) -> int:
        """Return the number of threads of all workers, 0 where the scheduler does not answer."""
        with suppress(OSError):
            return sum(self._client.nthreads().values())
        return 0

    def _check_versions(self) -> None:
        """Check Python first: code of another minor version cannot be run to ask for the rest."""
        wanted = _minor(platform.python_version())
        for worker, about in self._client.get_versions()["workers"].items():
            self._check(worker, "Python", _minor(about["host"]["python"]), wanted)
        for worker, (version, difference) in self._client.run(_asking(journal.computing())).items():
            self._check(worker, "simnet", version, VERSION)
            if difference:
                raise SimnetError(f"{self._where}: worker {worker} has {difference}: {_SAME}")

    def _check(self, worker: str, what: str, installed: str, wanted: str) -> None:
        if not installed:
            raise SimnetError(f"{self._where}: worker {worker} has no {what}: install {what} {wanted} on all workers")
        if installed != wanted:
            raise SimnetError(f"{self._where}: worker {worker} has {what} {installed}, not {wanted}: {_SAME}")


def _packed(task: Any) -> bytes:
    """Return a task as bytes; classes of a script or a notebook travel as code, which takes five times as long."""
    with suppress(pickle.PicklingError, AttributeError):
        packed = pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in packed:
            return packed
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(task)
    return pickled


def _done(work: Callable[[Any], Any], packed: bytes) -> Any:
    """Do work with a packed task, in a worker."""
    # For good: between two tasks, going through all that the work has cached took a tenth of its time.
    raise_gc_threshold()
    return work(pickle.loads(packed))


def _minor(version: str) -> str:
    """Return a version of Python without what code does not depend on: "3.11" of "3.11.7.final.0"."""
    return ".".join(version.split(".")[:2])


def _asking(wanted: journal.Computing) -> Callable[[], tuple[str, str]]:
    """Return a function that returns the version of simnet where it runs, and what computes in another way there.

    Both are "" where there is none. Being inside another function, it travels as code: a worker need not have simnet.
    """
    code, packages, here = dict(wanted.code), dict(wanted.packages), VERSION

    def asked() -> tuple[str, str]:
        try:
            from simnet.core.version import VERSION as FOUND
        except ImportError:
            return "", ""
        if here != FOUND:
            return FOUND, ""
        try:
            from simnet.analysis import journal

            return FOUND, journal.difference(journal.Computing(code, packages)) or ""
        except (ImportError, AttributeError):  # code before or after there was such a function
            return FOUND, f"other code of simnet {here}"

    return asked


def _within(seconds: float, ask: Callable[[], Result]) -> Result:
    """Return what a function returns, or raise TimeoutError where it does not in time; its thread is left alone."""
    answer: Future[Result] = Future()

    def answered() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=answered, daemon=True).start()
    return answer.result(timeout=seconds)


def _distributed(where: str) -> Any:
    """Return Dask's `distributed`, which takes half a second to load."""
    try:
        import distributed
    except ImportError as error:
        raise SimnetError(f"{where}: Dask is missing: it runs the workers; {install('dask')}") from error
    return distributed


@contextmanager
def _without_logs() -> Iterator[None]:
    """Keep Dask from logging on the terminal what a sentence says or nobody needs to know.

    After an error it stays quiet: what is left of it ends with this process, and would say so.
    """
    handlers = [(handler, handler.level) for handler in logging.getLogger("distributed").handlers]
    for handler, _ in handlers:
        handler.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for handler, level in handlers:
        handler.setLevel(level)
