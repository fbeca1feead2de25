"""The communication thread: jobs in order, a failure told where it is waited for, and no more cores than allowed."""

import threading

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm.thread import CommunicationThread

CPU = torch.device("cpu")


def test_jobs_are_done_in_the_order_in_which_they_are_handed_over() -> None:
    done: list[int] = []
    thread = CommunicationThread[int]("test", CPU, done.append)
    for job in range(100):
        thread.submit(job)
    thread.finish()
    assert done == list(range(100))


def test_a_failure_gives_up_that_job_and_all_after_it_and_is_raised_where_it_is_waited_for() -> None:
    done: list[int] = []
    given_up: list[tuple[int, str]] = []

    def do(job: int) -> None:
        if job == 2:
            raise ValueError("no")
        done.append(job)

    thread = CommunicationThread[int]("test", CPU, do, lambda job, error: given_up.append((job, str(error))))
    for job in range(5):
        thread.submit(job)
    with pytest.raises(ValueError, match="no"):
        thread.finish()
    assert done == [0, 1]
    assert given_up == [(2, "no"), (3, "no"), (4, "no")]


def test_it_ends_when_there_are_no_more() -> None:
    before = threading.active_count()
    CommunicationThread[int]("test", CPU, print).finish()
    assert threading.active_count() == before


def test_it_computes_without_gradients_on_as_many_cores_as_who_started_it() -> None:
    seen: list[tuple[int, bool]] = []
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        thread = CommunicationThread[None](
            "test", CPU, lambda _: seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        )
        thread.submit(None)
        thread.finish()
    finally:
        torch.set_num_threads(cores)
    assert seen == [(1, False)]
