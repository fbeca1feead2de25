"""Who is lost: a process that has ended, one that is stopped, one on a host that cannot be seen, or none."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from tests.helpers.needs import needs

needs("torch")

import torch.distributed as dist

from binsgdm.comm import failure
from binsgdm.comm.failure import Company, Home
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


def test_ranks_do_not_wait_for_each_other_at_a_store_that_does_not_answer(store, monkeypatch):
    silent = type("Store", (), {"add": lambda *_: threading.Event().wait()})()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: silent)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    group = type("Group", (), {"group_name": "g"})()
    with pytest.raises(BinsgdmError, match=r"detach: the store of torch\.distributed is gone or does not answer"):
        failure.store_barrier("detach", group, timedelta(seconds=0.1))
