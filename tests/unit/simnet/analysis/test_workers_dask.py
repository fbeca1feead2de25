"""Workers of Dask: addresses, versions, what is missing, and what is left when all of them are gone."""

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import simnet
from simnet.analysis import workers
from simnet.analysis.workers import DaskPool
from tests.helpers.dask_processes import ROOT, DaskProcesses, dask_processes, wait_until
from tests.helpers.needs import needs
from tests.helpers.refusals import refused

needs("distributed")
import distributed

AXES = {"cluster.num_nodes": [1, 2, 4], "workload.batch_per_rank": [8, 64]}


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path_factory.mktemp("dask"), num_workers=0) as processes:
        yield processes


@pytest.fixture(scope="module")
def client(dask: DaskProcesses) -> Iterator[Any]:
    with distributed.Client(dask.address, set_as_default=False) as connected:
        yield connected


@pytest.mark.slow
def test_a_client_of_dask_simulates_and_is_left_open(dask: DaskProcesses, client: Any) -> None:
    worker = dask.add_worker()
    try:
        swept = simnet.sweep("bert_base_10gbit", AXES, draws=20, dask_client=client, progress=False)
        assert client.status == "running"
    finally:
        _end(worker, client)
    assert swept.to_json() == simnet.sweep("bert_base_10gbit", AXES, draws=20, progress=False).to_json()


def _end(worker: Any, client: Any) -> None:
    worker.kill()
    wait_until(lambda: not client.nthreads(), "the scheduler misses a worker")


def _without_simnet(folder: Path) -> Path:
    (folder / "simnet.py").write_text("raise ImportError('none')")
    return folder


def _changed(name: str, old: str, new: str) -> Callable[[Path], Path]:
    """Return what copies simnet with a change in one of its files."""

    def install(folder: Path) -> Path:
        shutil.copytree(ROOT / "simnet", folder / "simnet", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "simnet" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        return folder

    return install


@pytest.mark.slow
@pytest.mark.parametrize(
    ("install", "what"),
    [
        (_without_simnet, f"has no simnet: install simnet {simnet.__version__}"),
        (
            _changed("core/version.py", "VERSION = ", 'VERSION = "0.0.7"  # '),
            f"has simnet 0.0.7, not {simnet.__version__}: install the same",
        ),
        (
            _changed("analysis/journal.py", "def difference(", "def unlike("),
            f"has other code of simnet {simnet.__version__}: install the same",
        ),
    ],
)
def test_a_worker_with_something_else_is_refused(
    dask: DaskProcesses, client: Any, tmp_path: Path, install: Callable[[Path], Path], what: str
) -> None:
    worker = dask.add_worker({"PYTHONPATH": f"{install(tmp_path)}:{ROOT}"})
    try:
        with refused(f" {what} on all workers", start="--scheduler: worker tcp://127.0.0.1:"):
            DaskPool(client, "--scheduler")
    finally:
        _end(worker, client)


class StubClient:
    """Answers for a scheduler with one worker, which can be made to lack something."""

    def __init__(self, python: str = "3.11.0.final.0", threads: int = 2) -> None:
        self.python, self.threads = python, threads
        self.scheduler = SimpleNamespace(address="tcp://10.0.0.1:8786")
        self.asked = 0

    def get_executor(self, **_: object) -> None:
        return None

    def wait_for_workers(self, count: int, timeout: float) -> None:
        if self.threads < count:
            raise TimeoutError

    def get_versions(self) -> dict[str, Any]:
        return {"workers": {"tcp://10.0.0.2:1": {"host": {"python": self.python}}}}

    def run(self, asked: Any) -> dict[str, str]:
        return {"tcp://10.0.0.2:1": asked()}

    def nthreads(self) -> dict[str, int]:
        self.asked += 1
        return {"tcp://10.0.0.2:1": self.threads} if self.threads else {}


@pytest.fixture
def stub() -> StubClient:
    return StubClient(".".join(map(str, sys.version_info[:3])))


def test_workers_that_are_not_there_or_do_not_answer_are_refused(
    stub: StubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> dict[str, str]:
        raise OSError("closed")

    monkeypatch.setattr(stub, "run", lost)
    with refused("a worker was lost while it was asked what it has; start again"):
        DaskPool(stub, "--scheduler")
    never = socket.socketpair()
    monkeypatch.setattr(workers, "CHECKED_S", 0.05)
    monkeypatch.setattr(stub, "run", lambda _: never[0].recv(1))
    with refused("not all workers say within 0 s what they have; end those that hang"):
        DaskPool(stub, "--scheduler")
    for end in never:
        end.close()
    stub.threads = 0
    start = "start some with: dask worker tcp://10.0.0.1:8786 --nthreads 1"
    with refused(start=f"dask_client: tcp://10.0.0.1:8786: no workers after 10 s; {start}"):
        DaskPool(stub, "dask_client")


def test_workers_may_be_away_for_a_while_but_not_for_good(stub: StubClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(workers.time, "monotonic", lambda: now_s)
    pool = DaskPool(stub, "--scheduler")
    stub.threads = 0
    now_s += workers.WITHOUT_WORKERS_S - 1
    pool.check()
    stub.threads, now_s = 1, now_s + 30
    pool.check()
    stub.threads, now_s = 0, now_s + workers.WITHOUT_WORKERS_S + 1
    rule = "no workers for 60 s; start some: the same sweep resumes from the finished points"
    with refused(start=f"--scheduler: tcp://10.0.0.1:8786: {rule}"):
        pool.check()


def test_the_number_of_threads_is_asked_for_again_when_workers_come(
    stub: StubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(workers.time, "monotonic", lambda: now_s)
    pool = DaskPool(stub, "--scheduler")
    assert [pool.num_slots() for _ in range(5)] == [2] * 5
    assert stub.asked == 1
    stub.threads, now_s = 7, now_s + workers.COUNTED_S + 0.1
    assert pool.num_slots() == 7
    stub.threads, now_s = 0, now_s + workers.COUNTED_S + 0.1
    assert pool.num_slots() == 1  # a task that waits brings the workers that scale with the tasks


def test_what_fails_elsewhere_is_told_in_a_sentence(stub: StubClient) -> None:
    from distributed import KilledWorker

    pool = DaskPool(stub, "--scheduler")
    begin = "--scheduler: tcp://10.0.0.1:8786: "
    rest = ": the same sweep resumes from the finished points"
    for error, what in (
        (CancelledError(), "the scheduler is gone; start it again"),
        (ImportError("No module named 'mine'"), "a worker cannot load what the sweep needs (No module named 'mine'); "
                                                "install the same on all workers"),
        (KilledWorker("a", None, 3), "a task ended several workers, as with too little memory; give them more"),
    ):  # fmt: skip
        assert str(pool.explained(error)) == f"{begin}{what}{rest}"
    of_strategy = ZeroDivisionError("of a strategy")
    assert pool.explained(of_strategy) is of_strategy


@pytest.mark.parametrize(
    "address",
    ["", "scheduler", "10.0.0.1", "tcp://10.0.0.1", "tcp://", "http://10.0.0.1:8786", "ws://10.0.0.1:8786",
     "tcp://a b:1", "inproc://a/1/1",
     "tcp://10.0.0.1:8786/path", "tcp://10.0.0.1:port", "tcp://10.0.0.1:123456", "\u0661.0.0.1:8786\n", "tcp://[zz]:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_distributed", lambda _: pytest.fail("asked the network"))
    with refused("write its address, such as tcp://10.0.0.1:8786"), workers.dask_scheduler(address):
        pass


def test_a_scheduler_that_takes_connections_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        rule = "no scheduler of Dask answers within 0.2 s; start one with: dask scheduler"
        with refused(start=f"--scheduler: '{address}': {rule}"), workers.dask_scheduler(address):
            pass


def test_without_dask_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    rule = "Dask is missing: it runs the workers; in the checkout: pip install '.[dask]'"
    with refused(start=f"--dask-local: {rule}"), workers.dask_local(2):
        pass
    with refused(start=f"--scheduler: {rule}"), workers.dask_scheduler("tcp://127.0.0.1:8786"):
        pass
