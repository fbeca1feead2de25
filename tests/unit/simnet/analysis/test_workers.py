"""Tasks on a pool: few wait, results come as they are ready, and what fails is told."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import journal, sweeps, workers
from simnet.analysis.journal import Computing
from simnet.analysis.sweeps import SweepTask
from simnet.analysis.workers import LocalPool, run_on
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION
from simnet.engine.result import RefusedPoint, RunResult
from simnet.engine.scenario import load_experiment
from tests.helpers.journals import rows
from tests.helpers.refusals import refused

AXES = {"cluster.num_nodes": [2, 4]}
JITTER = {"cluster.ranks_per_node": 2, "cluster.faults": [{"kind": "compute_jitter", "cv": 0.05}], "run.iterations": 2}


class Now(Executor):
    """An executor that does a task when it is given."""

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

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        self.given.append(Future())
        return self.given[-1]


@pytest.fixture(scope="module")
def expected() -> Any:
    return simnet.sweep("bert_base_10gbit", AXES, settings=JITTER, draws=0, progress=False)


def swept(executor: Executor, num_nodes: list[int], out: Path | None = None) -> list[RunResult | RefusedPoint]:
    """Return what points come to that an executor simulates, one at a time."""
    points = sweeps.points_of(load_experiment("bert_base_10gbit", JITTER, {"cluster.num_nodes": num_nodes}))
    return sweeps.run(points, out, pool=LocalPool(executor, 1))


def test_a_pool_gives_what_this_process_gives(expected: Any) -> None:
    results = swept(Now(), AXES["cluster.num_nodes"])
    assert [result.result for result in results if isinstance(result, RunResult)] == [run.result for run in expected]
    assert any(len(set(run.result.iterations_s)) > 1 for run in expected)


@pytest.mark.slow
def test_what_a_worker_hands_back_is_done_by_another_task(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    monkeypatch.setattr(sweeps, "ENOUGH_S", 0)
    monkeypatch.setattr(sweeps, "TASKS_PER_WORKER", 1 / 64)  # tasks of more than the one point that is done
    executor = Now()
    results = swept(executor, [2, 3, 4, 5, 6, 7])
    assert len(results) == len(executor.given) == 6
    assert isinstance(results[0], RunResult)
    assert results[0].result == expected.points[0].result


def test_what_only_a_worker_refuses_is_told_and_not_kept(tmp_path: Path) -> None:
    class Lacking(Now):
        def submit(self, work: Callable[..., Any], /, task: Any) -> Any:
            future = super().submit(work, task)
            future._result = future.result()._replace(outcomes=["/data/a.json: no such file"])
            return future

    rule = "refused by a worker, not here; name files by absolute paths, on a disk that all workers share"
    with refused(start=f"/data/a.json: no such file: {rule}"):
        swept(Lacking(), [2, 4], tmp_path)
    assert rows(tmp_path) == []


def test_what_is_no_client_of_dask_and_a_pool_without_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(LocalPool):
        def check(self) -> None:
            raise SimnetError("no workers")

    rule = "must be a distributed.Client; without one, processes of this machine simulate (jobs)"
    with refused(start=f"sweep: dask_client: Now: {rule}"):
        simnet.sweep("bert_base_10gbit", AXES, draws=0, dask_client=Now(), progress=False)
    monkeypatch.setattr(workers, "CHECK_S", 0.01)
    with refused(start="no workers"):
        next(run_on(Gone(Held(), 3), twice([1]), str))


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
    results = run_on(LocalPool(executor, 3), twice(range(9)), str)
    next(results)
    executor.given[1].cancel()  # as an executor that is shut down does, without a word to those who wait
    with pytest.raises(CancelledError):
        next(results)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(journal, "foreign_code", lambda: {"my_systems": b"code"})
    return


def test_what_is_the_same_is_no_difference(plugin: None) -> None:
    assert journal.difference(journal.computing()) is None


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
    here = journal.computing()
    task = SweepTask(Computing({**here.code, **code}, {**here.packages, **packages}), (), ())
    with pytest.raises(SimnetError, match=rf"^\S+: a worker has {told}: install the same on all workers$"):
        sweeps.simulate_task(task)
