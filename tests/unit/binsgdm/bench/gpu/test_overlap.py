"""Exchanges beside backward are compared with those in the step, bit by bit."""

import subprocess
import threading

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import overlap, sanitized
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule
from binsgdm.comm import groups
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.compressors.residuals import Residuals
from binsgdm.optimizers.diloco import _Hidden
from binsgdm.optimizers.sign_exchange import SCHEMES
from binsgdm.optimizers.worker import Worker

CPU = torch.device("cpu")


@pytest.fixture
def bench(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    ranks = Ranks(
        rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="gloo", groups=groups.make(1)
    )
    yield Bench(record=Record(ranks), ranks=ranks, stop_rule=StopRule())
    dist.destroy_process_group()


def test_every_scheme_and_system_ends_with_the_same_bits(bench):
    overlap.measure(bench, quick=True, seconds=60.0)
    # One scheme with shaped rounding as well.
    assert len(bench.record.checks) == len(SCHEMES) + 1 + len(overlap.EXCHANGES) + len(overlap.RESUMED) + len(SYSTEMS)
    assert [one for one in bench.record.checks if not one["passed"]] == []
    assert bench.record.notes == ["overlap: a CPU has no streams: nothing came late, and no wait could be missing"]


def test_other_bits_are_told_with_what_was_late(bench, monkeypatch):
    calls = []

    def forget_one(worker, bucket, signs, has_gradient, apply=Worker.apply):
        calls.append(bucket)
        if len(calls) < 60:
            apply(worker, bucket, signs, has_gradient)

    monkeypatch.setattr(Worker, "apply", forget_one)
    setting = {"groups": bench.ranks.groups, "device": CPU, "side": overlap.QUICK_SIDE}
    overlap._check(bench, "a system", *next(iter(overlap._compared(setting).values())), overlap.LATE)
    assert bench.record.checks == [
        {"name": "overlap, a system", "passed": False, "count": 3, "detail": "other bits with a late exchange"}
    ]


def test_another_mean_of_a_hidden_exchange_and_another_state_are_told(bench, monkeypatch):
    setting = {"groups": bench.ranks.groups, "device": CPU, "side": overlap.QUICK_SIDE}
    compared = overlap._compared(setting)
    mean, load = _Hidden.mean, Residuals.put
    monkeypatch.setattr(_Hidden, "mean", lambda hidden: mean(hidden) + 2.0**-20)
    overlap._check(bench, "hidden", *compared["DiLoCo, fp32"], ("exchange",))
    calls = []

    def forget_one(residuals, loaded):
        calls.append(loaded)
        load(residuals, loaded if len(calls) < 3 else {})

    monkeypatch.setattr(Residuals, "put", forget_one)
    overlap._check(bench, "resumed", *compared["ef_sign_sgd, resumed"], ("exchange",))
    assert [one["detail"] for one in bench.record.checks] == ["other bits with a late exchange"] * 2


def test_what_is_not_reached_in_time_is_told(bench):
    overlap.measure(bench, quick=True, seconds=0.0)
    assert len(bench.record.checks) == 1
    assert bench.record.notes[0].endswith("random_k: not checked: the time was over")


def test_a_process_alone_is_skipped():
    alone = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)
    with pytest.raises(NotMeasurableError, match="needs a process group"):
        overlap.measure(Bench(record=Record(alone), ranks=alone, stop_rule=StopRule()), quick=True, seconds=5.0)


@pytest.mark.parametrize(("late", "thread"), [("backward", "main"), ("exchange", "exchange"), ("update", "main")])
def test_what_is_late_waits_where_it_is_done(bench, monkeypatch, late, thread):
    paused = set()

    def note(training, what):
        if training.late == what:
            paused.add("main" if threading.current_thread() is threading.main_thread() else "exchange")

    monkeypatch.setattr(overlap.LateTraining, "_pause", note)
    training = overlap.LateTraining(groups=bench.ranks.groups, device=CPU, side=4, late=late)
    trains = (
        lambda: training.with_binsgdm(SCHEMES[0], overlap=True),
        lambda: training.with_system("dense"),
        lambda: training.with_resumed_system("dense"),
        lambda: training.with_diloco("one_bit", overlap=True),
    )
    for train in trains:
        paused.clear()
        train()
        assert paused == {thread}


def ended(code, stdout, stderr):
    return lambda command, **_: subprocess.CompletedProcess(command, code, stdout, stderr)


def test_what_the_sanitizer_finds_is_a_check_that_fails(bench):
    overlap._check_by_sanitizer(bench, ended(0, "\n", ""))
    overlap._check_by_sanitizer(bench, ended(0, "a data race\n", ""))
    assert [(one["passed"], one["detail"]) for one in bench.record.checks] == [(True, ""), (False, "a data race")]


def test_a_sanitizer_that_fails_or_blocks_is_a_note(bench, monkeypatch):
    def block(command, **_):
        raise subprocess.TimeoutExpired(command, 1.0)

    overlap._check_by_sanitizer(bench, block)
    overlap._check_by_sanitizer(bench, ended(1, "", "Traceback\nAttributeError: no sanitizer\n"))
    assert [note.partition("sanitizer: ")[2] for note in bench.record.notes] == [
        "did not judge within 40 s",
        "cannot judge here: AttributeError: no sanitizer",
    ]
    assert bench.record.checks == []


def test_the_process_of_the_sanitizer_trains_what_it_is_shown(capsys, monkeypatch):
    seen = []

    def show(work):
        with Noting(seen):
            work()
        return ""

    monkeypatch.setattr(sanitized, "found_by_sanitizer", show)
    sanitized.main("cpu")
    assert capsys.readouterr().out == "\n"
    assert "aten.tanh_backward.default" in seen
    assert not dist.is_initialized()


class Noting(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._seen.append(str(func))
        return func(*args, **(kwargs or {}))
