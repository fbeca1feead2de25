"""Tasks on executors of any kind: few wait, results come as they are ready, and what fails is told."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import code_hash, sweeps, workers
from simnet.analysis.code_hash import Computing
from simnet.analysis.sweeps import SweepTask
from simnet.analysis.workers import Pool, pool_of, run_on
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION
from tests.helpers.journals import rows
from tests.helpers.refusals import refused

AXES = {"cluster.num_nodes": [2, 4]}
JITTER = {"cluster.ranks_per_node": 2, "cluster.faults": [{"kind": "compute_jitter", "cv": 0.05}], "run.iterations": 2}


class Now:
    """An executor that does a task when it is given."""

    _max_workers = 0

    def __init__(self) -> None:
        self.given: list[Future[Any]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        self.given.append(future)
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Held(Now):
    """An executor that does a task when it is told to."""

    _max_workers = 3

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        self.given.append(Future())
        return self.given[-1]


@pytest.fixture(scope="module")
def expected() -> Any:
    return simnet.sweep("bert_base_10gbit", AXES, settings=JITTER, draws=0, progress=False)


@pytest.mark.parametrize("make", [Now, lambda: ThreadPoolExecutor(4)])
def test_any_executor_gives_what_one_process_gives(make: Callable[[], Any], expected: Any) -> None:
    found = simnet.sweep("bert_base_10gbit", AXES, settings=JITTER, draws=0, executor=make(), progress=False)
    assert found.to_json() == expected.to_json()
    assert any(len(set(run.result.iterations_s)) > 1 for run in found)


@pytest.mark.slow
def test_what_a_worker_hands_back_is_done_by_another_task(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    monkeypatch.setattr(sweeps, "ENOUGH_S", 0)
    monkeypatch.setattr(sweeps, "TASKS_PER_WORKER", 1 / 64)  # tasks of more than the one point that is done
    executor, axes = Now(), {"cluster.num_nodes": [2, 3, 4, 5, 6, 7]}
    executor._max_workers = 1  # so that not all points are given before it is known how long one takes
    found = simnet.sweep("bert_base_10gbit", axes, settings=JITTER, draws=0, executor=executor, progress=False)
    assert len(found.points) == len(executor.given) == 6
    assert found.points[0].result == expected.points[0].result


def test_what_only_a_worker_refuses_is_told_and_not_kept(tmp_path: Path) -> None:
    class Lacking(Now):
        def submit(self, work: Callable[..., Any], /, task: Any) -> Any:
            future = super().submit(work, task)
            future._result = future.result()._replace(outcomes=["/data/a.json: no such file"])
            return future

    rule = "refused by a worker, not here; name files by absolute paths, on a disk that all workers share"
    with refused(start=f"sweep: /data/a.json: no such file: {rule}"):
        simnet.sweep("bert_base_10gbit", AXES, draws=0, executor=Lacking(), output=tmp_path, progress=False)
    assert rows(tmp_path) == []


def test_what_cannot_take_tasks_or_bring_results_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
            return work

    class Gone(Pool):
        def check(self) -> None:
            raise SimnetError("no workers")

    with refused(start="executor: list: must have submit(function, *arguments), as concurrent.futures and distributed"):
        pool_of([1])
    rule = "its submit must return a future of concurrent.futures; give one whose does, or a client of Dask"
    with refused(start=f"executor: Own: {rule}"):
        next(run_on(pool_of(Own()), twice([1]), str))
    monkeypatch.setattr(workers, "CHECK_S", 0.01)
    with refused(start="no workers"):
        next(run_on(Gone(Held()), twice([1]), str))


def twice(tasks: Iterable[Any]) -> Callable[[], tuple[Any, Any] | None]:
    """Return what makes the next task, of which nothing else is known."""
    waiting = iter(tasks)
    return lambda: next(((task, task) for task in waiting), None)


def test_a_task_that_was_cancelled_before_it_began_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class FirstAtOnce(Held):
        def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
            future = super().submit(work, *arguments)
            if len(self.given) == 1:
                future.set_result("at once")
            return future

    monkeypatch.setattr(workers, "CHECK_S", 0.01)
    executor = FirstAtOnce()
    found = run_on(Pool(executor), twice(range(9)), str)
    next(found)
    executor.given[1].cancel()  # as an executor that is shut down does, without a word to those who wait
    with refused(start="executor: its tasks were cancelled; start again with another one"):
        next(found)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(code_hash, "foreign_code", lambda: {"my_systems": b"code"})
    return


def test_what_is_the_same_is_no_difference(plugin: None) -> None:
    assert code_hash.difference(code_hash.computing()) is None


@pytest.mark.parametrize(
    ("code", "packages", "told"),
    [
        ({"simnet": "1"}, {}, f"other code of simnet {VERSION}"),
        ({"my_systems": "1"}, {}, "other code of my_systems"),
        ({}, {"numpy": "0.1"}, r"numpy [\d.]+, not 0\.1"),
        ({}, {"nonesuch": "2"}, r"nonesuch \(none\), not 2"),
    ],
)
def test_a_task_of_another_process_is_not_done(
    plugin: None, code: dict[str, str], packages: dict[str, str], told: str
) -> None:
    own = code_hash.computing()
    task = SweepTask(Computing({**own.code, **code}, {**own.packages, **packages}), (), ())
    with pytest.raises(SimnetError, match=rf"^\S+: a worker has {told}: install the same on all workers$"):
        sweeps.simulate_task(task)
