"""Who is lost, how ranks wait on the host for a GPU, and how groups are aborted over NCCL."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import failure
from binsgdm.comm.failure import Company, Home, Pending
from binsgdm.comm.groups import Groups, store_key
from binsgdm.errors import BinsgdmError

ME, OTHER = 5, 7
HERE = Home(*failure._home())
FAR = Home(1, 4711, 1)


@pytest.fixture
def store(monkeypatch):
    made = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(failure, "ANSWER_S", 0.2)
    return made


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def home_of(process: subprocess.Popen) -> Home:
    found = failure._stat(process.pid)
    assert found is not None
    return Home(HERE.host, process.pid, found[1])


def company(**homes: Home) -> Company:
    by_rank = {int(name[1:]): home for name, home in homes.items()}
    return Company(name="x", rank=ME, homes={ME: HERE, **by_rank}, wait_s=0.1)


def find(one: Company) -> str:
    one.sign_in()
    return one.find()


def test_a_process_that_has_ended_is_gone_also_before_its_parent_has_asked(store, child):
    one = company(r7=home_of(child), r8=HERE)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert find(one) == f"rank 7 is gone (process {child.pid})"
    child.wait()
    assert failure.state_of(one.homes[OTHER]) == "ended"


def test_another_process_of_the_same_number_is_not_the_rank(store):
    assert failure.state_of(HERE) == "running"
    assert failure.state_of(HERE._replace(start=HERE.start - 1)) == "ended"


def test_a_stopped_process_is_named_as_stopped(store, child):
    one = company(r7=home_of(child))
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert find(one) == f"rank 7 is stopped (process {child.pid})"


def test_the_one_rank_of_another_host_that_has_not_signed_in_is_named(store):
    store.set("x/8", "here")
    assert find(company(r7=FAR, r8=FAR)) == "rank 7 is gone, or did not take this step"


def test_ranks_that_may_be_late_are_waited_for(store):
    assert find(company(r7=FAR, r8=HERE)) == "ranks [7, 8] are gone, or did not take this step"


def test_what_the_first_rank_has_found_is_said_by_all(store):
    store.set("x/found", "rank 8 is gone")
    assert find(company(r7=FAR)) == "rank 8 is gone"


def test_where_all_ranks_have_signed_in_none_is_gone(store):
    store.set("x/7", "here")
    assert find(company(r7=FAR)) == "no rank is gone, but the connection of two of them"


def test_the_store_is_gone_with_rank_0(monkeypatch):
    class TCPStore:
        def check(self, *_):
            raise RuntimeError("Broken pipe")

        set = check

    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", TCPStore)
    assert find(company(r0=FAR, r7=FAR)) == (
        "rank 0 is gone, or did not take this step, and the store of torch.distributed does not answer"
    )


def test_a_store_that_does_not_answer_is_asked_once(store, monkeypatch):
    calls = []

    def hang(_):
        calls.append(1)
        time.sleep(0.5)

    for _ in range(2):
        with pytest.raises(failure.StoreError):
            failure.ask(hang)
    assert len(calls) == 1


@pytest.mark.slow
def test_ranks_do_not_wait_for_each_other_at_a_store_that_does_not_answer(store, monkeypatch):
    silent = type("Store", (), {"add": lambda *_: threading.Event().wait()})()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: silent)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    group = type("Group", (), {"group_name": "g"})()
    with pytest.raises(BinsgdmError, match=r"detach: the store of torch\.distributed is gone or does not answer"):
        failure.store_barrier("detach", group, timedelta(seconds=0.1))


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


@pytest.mark.slow
def test_a_reason_that_a_rank_left_before_torchrun_started_all_again_is_not_read(groups, monkeypatch) -> None:
    groups[1].set(store_key("refused", "g"), "rank 2 refused: no")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RuntimeError, match="no answer for"):
        waiting(Work(ended=False), None, monkeypatch).wait(groups[0])


@pytest.mark.slow
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


@pytest.mark.slow
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


class Group:
    """A group with the backend of one version of PyTorch."""

    group_name = "g"

    def __init__(self, backend: object) -> None:
        self.backend = backend

    def _get_backend(self, device: torch.device) -> object:
        assert device.type == "cuda"
        return self.backend


@pytest.fixture
def store_of_rank_2(monkeypatch):
    made = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    return made


def groups_with(*backends: object) -> Groups:
    made: Any = [Group(backend) for backend in backends]
    return Groups(
        world=made[0], intra_node=made[-1], inter_node=made[-1], rank=2, world_size=3, ranks_per_node=1, uses_nccl=True
    )


def backend_with(**methods: Any) -> object:
    return type("Backend", (), {name: staticmethod(method) for name, method in methods.items()})()


def test_every_group_is_aborted_once_by_the_name_that_its_version_has(store_of_rank_2) -> None:
    called: list[str] = []
    old = backend_with(_shutdown=lambda: called.append("_shutdown"))
    new = backend_with(abort=lambda: called.append("abort"), shutdown=lambda: called.append("shutdown"))
    for backends in ((old, old), (new,), (type("Wrapper", (), {"wrapped_pg": new})(),)):
        failure.abort(groups_with(*backends), "no")
    assert called == ["_shutdown", "_shutdown", "abort", "abort"]
    assert failure.abort_reason(groups_with(old)) == "rank 2 refused: no"


def test_the_abort_of_one_communicator_does_not_wait_for_that_of_another(store_of_rank_2) -> None:
    """NCCL waits in an abort for the GPU, on which a kernel of a group not yet aborted may spin."""
    both = threading.Barrier(2, timeout=10)
    failure.abort(groups_with(backend_with(abort=both.wait), backend_with(abort=both.wait)), "no")
    assert not both.broken


def test_an_abort_that_hangs_or_fails_does_not_hold_up_the_sentence(store_of_rank_2, monkeypatch) -> None:
    monkeypatch.setattr(failure, "ABORT_S", 0.05)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("NCCL error")

    failure.abort(
        groups_with(backend_with(abort=lambda: done.wait(30)), backend_with(abort=fail)), "too late", "gave up"
    )
    assert failure.abort_reason(groups_with(None)) == "rank 2 gave up: too late"
    done.set()
