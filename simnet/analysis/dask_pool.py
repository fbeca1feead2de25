"""Workers of Dask: a scheduler that is there or one of this machine, checked before anything is submitted."""

import logging
import pickle
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

from simnet.analysis import code_hash
from simnet.analysis.worker_pools import TaskFuture
from simnet.analysis.workers import interrupts_held, look_rarely_for_circles
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION

Made = TypeVar("Made")

ANSWER_S = 10
"""Time within which a scheduler must answer, and a first worker be there."""
CHECKED_S = 30.0
"""Time within which all workers must say which versions they have."""
WITHOUT_WORKERS_S = 60.0
"""Time without any worker after which a sweep ends: they may come back, as where a job is requeued."""
# Time for which the number of workers is taken to be the same.
COUNTED_S = 1.0
# What Dask does beside the work, for a dashboard that a cluster of its own does not have.
_UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
_ADDRESS = re.compile(r"((tcp|tls)://)?([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")
_SAME = "install the same on all workers"
_RESUMES = "the same sweep resumes from the finished points"


@contextmanager
def scheduler(address: str) -> Iterator["DaskPool"]:
    """Yield the workers of a scheduler that is there.

    Args:
        address: such as "tcp://10.0.0.1:8786".

    Raises:
        SimnetError: Dask is missing, the scheduler does not answer, or its workers cannot be used.
    """
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
def local_cluster(num_processes: int) -> Iterator["DaskPool"]:
    """Yield workers of a scheduler of this machine, a process each, which end with this one.

    Raises:
        SimnetError: Dask is missing, or they cannot be started.
    """
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


class DaskPool:
    """The workers of a client of Dask, all of which have this version of simnet and of Python."""

    def __init__(self, client: Any, where: str) -> None:
        """Take the workers, once they are there.

        Args:
            client: of the scheduler.
            where: how messages call it.

        Raises:
            SimnetError: there are none after a while, or one has another version of simnet or Python.
        """
        self._client, self._where = client, where
        self._counted_at_s, self._num_slots = 0.0, 0
        self._seen_at_s = time.monotonic()
        self._await_workers()
        try:
            _within(CHECKED_S, self._check_versions)
        except TimeoutError as error:
            rule = f"not all workers say within {CHECKED_S:.0f} s what they have; end those that hang"
            raise SimnetError(f"{where}: {self._address}: {rule}") from error
        except (OSError, KeyError) as error:
            rule = "a worker was lost while it was asked what it has; start again"
            raise SimnetError(f"{where}: {self._address}: {rule}") from error

    def num_slots(self) -> int:
        """Return the number of threads of all workers; they may come and go."""
        now_s = time.monotonic()
        if now_s - self._counted_at_s > COUNTED_S:
            self._num_slots = self._count()
            self._counted_at_s = now_s
        return max(1, self._num_slots)

    def submit(self, work: Callable[[Any], Any], task: Any) -> TaskFuture:
        """Have work done with a task; a task whose worker is lost is done by another one."""
        # As bytes: Dask would look for futures in all that a task holds, which takes longer than to simulate it.
        future: TaskFuture = self._client.submit(_done, work, _packed(task), pure=False)
        return future

    def check(self) -> None:
        """Check that there are workers, or were a while ago.

        Raises:
            SimnetError: there have been none for a while.
        """
        if self._count():
            self._seen_at_s = time.monotonic()
        elif time.monotonic() - self._seen_at_s > WITHOUT_WORKERS_S:
            rule = f"no workers for {WITHOUT_WORKERS_S:.0f} s; start some: {_RESUMES}"
            raise SimnetError(f"{self._where}: {self._address}: {rule}")

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
        return SimnetError(f"{self._where}: {self._address}: {what}: {_RESUMES}")

    @property
    def _address(self) -> str:
        found = self._client.scheduler
        return str(found.address) if found is not None else "its scheduler"

    def _count(self) -> int:
        """Return the number of threads of all workers, 0 where the scheduler does not answer."""
        with suppress(OSError):
            return sum(self._client.nthreads().values())
        return 0

    def _await_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=ANSWER_S)
        except (TimeoutError, OSError) as error:
            rule = f"no workers after {ANSWER_S} s; start some with: dask worker {self._address} --nthreads 1"
            raise SimnetError(f"{self._where}: {self._address}: {rule}") from error

    def _check_versions(self) -> None:
        """Check Python first: code of another minor version cannot be run to ask for the rest."""
        for worker, about in self._client.get_versions()["workers"].items():
            self._check_same(worker, "Python", _minor(about["host"]["python"]), _minor(platform.python_version()))
        for worker, version in self._client.run(_version_by_value()).items():
            self._check_same(worker, "simnet", version, VERSION)
        for worker, difference in self._client.run(_difference_by_value(code_hash.computing())).items():
            if difference:
                raise SimnetError(f"{self._where}: worker {worker} has {difference}: {_SAME}")

    def _check_same(self, worker: str, what: str, found: str, wanted: str) -> None:
        if not found:
            raise SimnetError(f"{self._where}: worker {worker} has no {what}: install {what} {wanted} on all workers")
        if found != wanted:
            raise SimnetError(f"{self._where}: worker {worker} has {what} {found}, not {wanted}: {_SAME}")


def _packed(task: Any) -> bytes:
    """Return a task as bytes; classes of a script or a notebook travel as code, which takes five times as long."""
    with suppress(pickle.PicklingError, AttributeError):
        packed = pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in packed:
            return packed
    import cloudpickle

    found: bytes = cloudpickle.dumps(task)
    return found


def _done(work: Callable[[Any], Any], packed: bytes) -> Any:
    """Do work with a packed task, in a worker."""
    # For good: between two tasks, looks through all that the work has cached took a tenth of its time.
    look_rarely_for_circles()
    return work(pickle.loads(packed))


def _minor(version: str) -> str:
    """Return a version of Python without what code does not depend on: "3.11" of "3.11.7.final.0"."""
    return ".".join(version.split(".")[:2])


def _version_by_value() -> Callable[[], str]:
    """Return a function that returns the version of simnet where it runs, "" without any.

    Being inside another function, it travels as code: a worker need not have simnet to run it.
    """

    def version() -> str:
        try:
            from simnet.core.version import VERSION as FOUND
        except ImportError:
            return ""
        return FOUND

    return version


def _difference_by_value(wanted: code_hash.Computing) -> Callable[[], str]:
    """Return a function that returns what differs where it runs, "" where nothing does; it travels as code, too."""
    code, packages = dict(wanted.code), dict(wanted.packages)

    def difference() -> str:
        try:
            from simnet.analysis import code_hash

            return code_hash.difference(code_hash.Computing(code, packages)) or ""
        except (ImportError, AttributeError):  # code before or after there was such a function
            return f"other code of simnet {VERSION}"

    return difference


def _within(seconds: float, ask: Callable[[], Made]) -> Made:
    """Return what a function returns, which waits for others for an unknown time.

    Raises:
        TimeoutError: it does not return in time; its thread is left alone.
    """
    answers: SimpleQueue[tuple[Made | None, Exception | None]] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    Thread(target=answer, daemon=True).start()
    try:
        made, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return cast(Made, made)


def _distributed(where: str) -> Any:
    """Return Dask's `distributed`, which takes half a second to load.

    Raises:
        SimnetError: it is missing.
    """
    try:
        import distributed
    except ImportError as error:
        raise SimnetError(f"{where}: Dask is missing: it runs the workers; pip install 'binsgdm[dask]'") from error
    return distributed


@contextmanager
def _without_logs() -> Iterator[None]:
    """Keep Dask from logging on the terminal what a sentence says or nobody needs to know.

    After an error it stays quiet: what is left of it ends with this process, and would say so.
    """
    handlers = [(one, one.level) for one in logging.getLogger("distributed").handlers]
    for one, _ in handlers:
        one.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for one, level in handlers:
        one.setLevel(level)
