"""Backward is timed beside copies where there is one rank, and a load begins before backward and ends behind it."""

import threading
from types import SimpleNamespace

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import interference
from binsgdm.bench.interference import backwards
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import WARM_UP, StopRule
from tests.helpers.pretend_card import pretended_card

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


@pytest.fixture
def bench():
    return Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))


def test_one_rank_measures_backward_beside_copies_at_three_shares_and_says_what_they_stand_for(bench):
    interference.measure(bench, quick=True, seconds=5.0)
    found = [(one["name"], one["labels"]["collective"], one["labels"]["share"]) for one in bench.record.series]
    assert found == [
        (name, "copy", share) for share in interference.SHARES for name in ("backward_alone", "backward_beside")
    ]
    assert "stand for its kernels" in bench.record.notes[0]


def test_copies_stay_inside_their_buffer_and_stop_when_they_are_asked_to():
    load = interference.CopyLoad(CPU, 1000)
    load._source.copy_(torch.arange(1000) % 251)
    busy, running = threading.Event(), threading.Event()
    busy.set()
    thread = threading.Thread(target=load.repeat, args=(0.4, busy, running))
    thread.start()
    assert running.wait(5.0)
    busy.clear()
    thread.join(5.0)
    assert not thread.is_alive()
    assert load._target.any()
    assert torch.equal(load._target[load._target != 0], load._source[load._target != 0])


def test_on_a_gpu_copies_wait_for_their_stream_and_pauses_are_on_it(monkeypatch):
    slept = []
    with pretended_card(monkeypatch):
        load = interference.CopyLoad(torch.device("cuda:0"), 4096)
        busy, running = threading.Event(), threading.Event()
        busy.set()
        stream = SimpleNamespace(synchronize=busy.clear)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
        load.repeat(0.4, busy, running)
    assert running.is_set()
    assert slept == [int(0.6 * interference.PERIOD_S * load._cycles_per_s)] * interference.AHEAD


def test_a_load_runs_before_backward_begins_and_has_ended_before_the_next_forward(bench):
    now, seen = [], []
    weight = torch.nn.Linear(2, 1)

    def forward():
        assert not now
        loss = weight(torch.ones(1, 2)).sum()
        loss.register_hook(lambda _: seen.append(list(now)))
        return loss

    def load(busy, running):
        now.append("load")
        running.set()
        while busy.is_set():
            pass
        now.clear()

    backwards(bench, weight, forward, {"load": load})
    assert sorted(seen) == [[]] * (len(seen) // 2) + [["load"]] * (len(seen) // 2)
    assert len(seen) >= 2 * (WARM_UP + 1)


def test_a_load_that_fails_fails_the_measurement(bench):
    weight = torch.nn.Linear(2, 1)

    def load(busy, running):
        raise ValueError("no copy")

    with pytest.raises(ValueError, match="no copy"):
        backwards(bench, weight, lambda: weight(torch.ones(1, 2)).sum(), {"load": load})


def test_the_stream_of_a_load_belongs_to_the_device_of_the_rank(bench, monkeypatch):
    from contextlib import contextmanager

    from binsgdm.bench.interference import _own_stream

    asked = []

    @contextmanager
    def entered(what):
        asked.append(what)
        yield

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: ("stream", device))
    second = torch.device("cuda", 1)
    with _own_stream(second):
        pass
    assert asked == [second, ("stream", second)]
