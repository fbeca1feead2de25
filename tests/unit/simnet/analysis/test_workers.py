"""Tasks on executors of any kind: few wait, results come as they are ready, and what fails is told."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import sweeps, workers
from simnet.analysis.workers import Pool, pool_of, run_on
from simnet.core.errors import SimnetError
from tests.helpers.journals import rows

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
    with pytest.raises(SimnetError, match=f"^sweep: /data/a.json: no such file: {rule}$"):
        simnet.sweep("bert_base_10gbit", AXES, draws=0, executor=Lacking(), output=tmp_path, progress=False)
    assert rows(tmp_path) == []


def test_what_cannot_take_tasks_is_refused() -> None:
    rule = r"must have submit\(function, \*arguments\), as concurrent.futures and distributed.Client have; give one"
    with pytest.raises(SimnetError, match=f"^executor: list: {rule}"):
        pool_of([1])


def test_an_executor_with_futures_of_its_own_is_refused() -> None:
    class Own:
        def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
            return work

    rule = "its submit must return a future of concurrent.futures; give one whose does, or a client of Dask"
    with pytest.raises(SimnetError, match=f"^executor: Own: {rule}$"):
        next(run_on(pool_of(Own()), twice([1]), str))


def twice(tasks: Iterable[Any]) -> Callable[[], tuple[Any, Any] | None]:
    """Return what makes the next task, of which nothing else is known."""
    waiting = iter(tasks)
    return lambda: next(((task, task) for task in waiting), None)


def _answering(executor: Held, at_once: set[int]) -> Callable[..., Any]:
    """Return a `submit` that has some tasks answered when they are given."""

    def submit(work: Callable[..., Any], /, *arguments: Any) -> Any:
        executor.given.append(Future())
        if len(executor.given) - 1 in at_once:
            executor.given[-1].set_result("at once")
        return executor.given[-1]

    return submit


def test_a_pool_is_asked_whether_results_can_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK_S", 0.01)

    class Gone(Pool):
        def check(self) -> None:
            raise SimnetError("no workers")

    with pytest.raises(SimnetError, match=r"^no workers$"):
        next(run_on(Gone(Held()), twice([1]), str))


def test_a_task_that_was_cancelled_before_it_began_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK_S", 0.01)
    executor = Held()
    found = run_on(Pool(executor), twice(range(9)), str)
    executor.submit = _answering(executor, {0})  # type: ignore[method-assign]
    next(found)
    executor.given[1].cancel()  # as an executor that is shut down does, without a word to those who wait
    with pytest.raises(SimnetError, match=r"^executor: its tasks were cancelled; start again with another one"):
        next(found)
