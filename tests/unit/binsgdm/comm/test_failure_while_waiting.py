"""Waiting on the host for a GPU: until it is done, and not for ever."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import failure
from binsgdm.comm.failure import Pending
from binsgdm.comm.groups import Groups, store_key


class Work:
    """A collective that has ended, or one that never does."""

    def __init__(self, ended: bool) -> None:
        self.ended, self.num_waits = ended, 0

    def wait(self) -> None:
        self.num_waits += 1

    def is_completed(self) -> bool:
        return self.ended


class Event:
    """An event that the GPU gets to after some looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch):
    """Return groups of this process alone, whose store holds what the test puts there."""
    group: Any = type("Group", (), {"group_name": "g"})()
    store = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1, 2])
    made = Groups(
        world=group, intra_node=group, inter_node=group, rank=0, world_size=3, ranks_per_node=1, uses_nccl=True,
        timeout=timedelta(seconds=0.4),
    )  # fmt: skip
    return made, store


def waiting(work: Work, event: Event | None, monkeypatch: pytest.MonkeyPatch) -> Pending:
    """Return pending work whose stream gives this event; None on a CPU."""
    one = Pending()
    one.add(work, "group", torch.device("cuda", 1))  # type: ignore[arg-type]
    of_gpu = type("Streams", (), {"current": lambda _: "stream", "record": lambda *_: event})()
    monkeypatch.setattr(failure.streams, "of", lambda _: of_gpu)
    return one


def test_it_waits_for_the_gpu_and_asks_nccl_again_for_an_error(groups, monkeypatch) -> None:
    work, event = Work(ended=True), Event(looks=20)
    waiting(work, event, monkeypatch).wait(groups[0])
    assert event.looks < 0
    assert work.num_waits == 2


def test_without_collectives_it_does_not_touch_the_gpu(groups) -> None:
    Pending().wait(groups[0])


def test_it_ends_when_another_rank_has_left_a_reason(groups, monkeypatch) -> None:
    groups[1].set(store_key("refused", "g"), "rank 2 refused: no")
    with pytest.raises(RuntimeError, match="another rank has aborted"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


def test_a_reason_that_a_rank_left_before_torchrun_started_all_again_is_not_read(groups, monkeypatch) -> None:
    groups[1].set(store_key("refused", "g"), "rank 2 refused: no")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RuntimeError, match="no answer for"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


def test_it_names_the_ranks_that_do_not_wait_when_time_is_up(groups, monkeypatch) -> None:
    groups[1].set(store_key("waits", "g", 1), "1")
    groups[1].set(store_key("waits", "g", 2), "7")  # of an earlier step
    with pytest.raises(RuntimeError, match=r"no answer for 0\.4 s, rank 2 not among those that wait"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


def test_it_ends_with_the_store_which_a_process_had_that_is_gone(groups, monkeypatch) -> None:
    def fail(_keys: list[str]) -> bool:
        raise dist.DistNetworkError("Broken pipe")

    gone = type("Store", (), {"check": staticmethod(fail)})()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: gone)
    with pytest.raises(RuntimeError, match=r"the store of torch\.distributed is gone"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


def test_a_store_that_does_not_answer_does_not_hold_the_wait_beyond_its_timeout(groups, monkeypatch) -> None:
    """Its process may be stopped; calls of a store have no timeout."""
    silent = type("Store", (), dict.fromkeys(("check", "get", "set"), lambda *_: threading.Event().wait()))()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: silent)
    monkeypatch.setattr(failure, "ANSWER_S", 0.05)
    with pytest.raises(RuntimeError, match=r"no answer for 0\.4 s$"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


def test_an_error_that_nccl_reported_is_no_end_of_the_work(groups, monkeypatch) -> None:
    """NCCL's collective counts as ended when it has failed; the GPU never gets beyond it."""
    monkeypatch.setattr(failure, "REPORTED_S", 0.01)
    with pytest.raises(RuntimeError, match="NCCL reported an error"):
        waiting(Work(ended=True), Event(looks=10**9), monkeypatch).wait(groups[0])
