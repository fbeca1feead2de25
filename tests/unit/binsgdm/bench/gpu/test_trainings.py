"""Checks of trainings pass on a CPU, and fail where something is planted that is wrong."""

from contextlib import contextmanager

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import BinSGDM, BinsgdmError
from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import training, trainings
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


@pytest.fixture
def record():
    return Record(ALONE)


def failed(record):
    return [check["name"] for check in record.checks if not check["passed"]]


def test_a_process_alone_passes_all_checks_that_need_no_ranks(record):
    training.measure(Bench(record=record, ranks=ALONE, stop_rule=StopRule()), quick=True, seconds=5.0)
    assert failed(record) == []
    kinds = {check["name"].partition(":")[0] for check in record.checks}
    assert kinds == {"skipped step", "repeated run", "resumed run", "losses"}
    assert len(record.notes) == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_does_not_fall_fails(record, monkeypatch):
    monkeypatch.setitem(trainings.OPTIMIZERS, "BinSGDM", lambda parameters, lr: BinSGDM(parameters, lr=0.0))
    trainings.check_losses(record, CPU, quick=True)
    assert failed(record) == ["losses: patterns in fp32", "losses: patterns in bf16"]


def test_autocast_far_from_fp32_fails(record, monkeypatch):
    monkeypatch.setattr(trainings, "DISTANCE", -1.0)
    trainings.check_losses(record, CPU, quick=True)
    assert failed(record) == ["losses: patterns in fp32", "losses: patterns in bf16"]


def test_a_skipped_step_that_moves_something_fails(record, monkeypatch):
    class Moving(BinSGDM):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].view(-1)[0] += 1.0

    optimizers = {"BinSGDM": lambda parameters, lr: Moving(parameters, lr=lr)}
    monkeypatch.setattr(trainings, "OPTIMIZERS", optimizers)
    trainings.check_skipped_steps(record, CPU)
    assert failed(record) == ["skipped step: BinSGDM in bf16 with a GradScaler"]
    assert "1 of 24 tensors moved" in record.checks[0]["detail"]


def test_a_state_that_is_not_saved_whole_fails_the_resumed_run_alone(record, monkeypatch):
    class Forgetting(BinSGDM):
        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)
            self.state[self.param_groups[0]["params"][0]]["m"].zero_()

    optimizers = {"BinSGDM": lambda parameters, lr: Forgetting(parameters, lr=lr)}
    monkeypatch.setattr(trainings, "OPTIMIZERS", optimizers)
    trainings.check_resumed_runs(record, CPU, quick=True)
    assert failed(record) == [f"resumed run: BinSGDM, patterns in {precision}" for precision in ("fp32", "bf16")]


def test_a_residual_that_is_drawn_anew_fails_the_resumed_run(record, monkeypatch):
    class Redrawing(BinSGDM):
        def load_state_dict(self, state_dict):
            super().load_state_dict(state_dict)
            self.state[self.param_groups[0]["params"][0]]["local_residual"].zero_()

    optimizers = {"BinSGDM": lambda parameters, lr: Redrawing(parameters, lr=lr, rounding="shaped")}
    monkeypatch.setattr(trainings, "OPTIMIZERS", optimizers)
    trainings.check_resumed_runs(record, CPU, quick=True)
    assert failed(record) == [f"resumed run: BinSGDM, patterns in {precision}" for precision in ("fp32", "bf16")]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_step_in_a_cuda_graph_that_is_not_refused_fails(record, monkeypatch, refuses):
    capturing = []

    @contextmanager
    def graph(made, capture_error_mode):
        capturing.append(capture_error_mode)
        yield
        capturing.clear()

    class Refusing(BinSGDM):
        def step(self, closure=None):
            if capturing and refuses:
                raise BinsgdmError("BinSGDM: in a graph")
            super().step(closure)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    optimizers = {"BinSGDM": lambda parameters, lr: Refusing(parameters, lr=lr)}
    monkeypatch.setattr(trainings, "OPTIMIZERS", optimizers)
    trainings.check_graphs_refused(record, CPU)
    assert bool(failed(record)) != refuses


def test_bits_are_compared_and_not_values():
    nan, zero = torch.tensor([float("nan")]), torch.zeros(1)
    assert trainings.same_bits(nan, nan.clone())
    assert not trainings.same_bits(zero, -zero)
    assert not trainings.same_bits(zero, torch.zeros(1, 1))
