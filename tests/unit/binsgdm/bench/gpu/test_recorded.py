"""A recorded step has the seconds that it takes; what does not is found."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import recorded, training
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.recording import clocks
from binsgdm.recording.clocks import HostClock

CPU = torch.device("cpu")


@pytest.fixture
def record():
    return Record(
        Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)
    )


class Working(torch.autograd.Function):
    """Takes a second of a pretended clock forward, and one backward."""

    done: list[str] = []  # noqa: RUF012 - of all layers

    @staticmethod
    def forward(_ctx, values):
        Working.done.append("forward")
        return values.clone()

    @staticmethod
    def backward(_ctx, gradient):
        Working.done.append("backward")
        return gradient


class Layer(torch.nn.Linear):
    def forward(self, values):
        return Working.apply(super().forward(values))


@pytest.fixture(autouse=True)
def pretended_clock(monkeypatch):
    """Let time pass in layers alone, so that no other work of this machine counts."""
    Working.done.clear()
    clock = SimpleNamespace(perf_counter=lambda: float(len(Working.done)))
    for module in (clocks, recorded):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(recorded.nn, "Linear", Layer)


@pytest.mark.parametrize("name", recorded.WRAPPERS)
def test_a_step_is_recorded_with_its_seconds(name):
    assert recorded.times_of(name, CPU, 8, 8) == [2.0 * recorded.LAYERS] * 2


def test_a_clock_that_loses_time_is_found(monkeypatch):
    laps, lap = [], HostClock.lap

    def lose_most(clock, *args):
        laps.append(args)
        lap(clock, *args) if len(laps) % 4 == 0 else clock.skip()

    monkeypatch.setattr(HostClock, "lap", lose_most)
    recorded_s, taken_s = recorded.times_of("DDP", CPU, 8, 8)
    assert recorded_s < (1 - recorded.TOLERANCE) * taken_s


def answers(code=0, stdout="", stderr=""):
    return lambda command, **_: subprocess.CompletedProcess(command, code, stdout, stderr)


def test_seconds_too_far_from_those_of_events_fail(record):
    times = {"near": [0.9, 1.0], "less": [0.8, 1.0], "more": [1.2, 1.0], "nothing": [0.0, 1.0]}
    recorded.check_recorded_steps(record, CPU, answers(stdout="a warning\n" + json.dumps(times) + "\n"))
    passed = [check["name"] for check in record.checks if check["passed"]]
    assert passed == ["recorded step of near: its seconds of compute, against events"]
    assert record.checks[0]["detail"] == "900 ms of 1e+03 ms; they may differ by 15%"


def test_a_recording_that_fails_is_a_check_that_fails_and_one_that_hangs_a_note(record):
    def hang(command, **_):
        raise subprocess.TimeoutExpired(command, 1.0)

    recorded.check_recorded_steps(record, CPU, answers(1, "", "Traceback\nRuntimeError: no stream\n"))
    recorded.check_recorded_steps(record, CPU, hang)
    assert [(check["passed"], check["detail"]) for check in record.checks] == [(False, "RuntimeError: no stream")]
    assert record.notes == ["recorded steps: were not recorded within 15 s: left out"]


def test_steps_are_recorded_only_where_there_is_time(record, monkeypatch):
    monkeypatch.setattr(recorded, "check_recorded_steps", lambda record, device: record.note("recorded"))
    for left_s in (1.0, 16.0):
        training._check_recorded_steps(record, CPU, left_s)
    assert record.notes == [
        "recorded steps: no time was left for the 15 s that they may take: left out",
        "recorded",
    ]


def test_the_process_prints_the_times_of_every_wrapper(capsys, monkeypatch):
    monkeypatch.setattr(recorded, "times_of", lambda name, device: [1.0, 2.0])
    recorded.main("cpu")
    assert json.loads(capsys.readouterr().out) == {"DDP": [1.0, 2.0], "FSDP2": [1.0, 2.0]}
