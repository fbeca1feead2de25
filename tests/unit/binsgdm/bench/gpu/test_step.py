"""Optimizers are timed on the shapes of real models."""

import itertools
import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import step
from binsgdm.bench.gpu.step import LAYOUTS
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule
from tests.helpers.pretend_card import pretended_card

GRADIENTS = Path(__file__).resolve().parents[5] / "scenarios" / "workloads" / "gradients"
CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


def bench(ranks=ALONE):
    return Bench(record=Record(ranks), ranks=ranks, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_shapes_of_the_shipped_model(name):
    tensors = json.loads((GRADIENTS / f"{name}.json").read_text())["tensors"]
    assert sorted(LAYOUTS[name]) == sorted(tuple(shape) for _, shape, _ in tensors)


def test_every_optimizer_is_timed_and_memory_is_left_to_a_gpu():
    one = bench()
    step.measure(one, quick=True, seconds=5.0)
    found = [(series["kind"], series["name"], series["labels"]["optimizer"]) for series in one.record.series]
    assert found == [("optimizer_step", "step", name) for name in step.OPTIMIZERS]
    assert [name for names in step.TURNS for name in names] == list(step.OPTIMIZERS)
    assert {"adamw", "binsgdm", "binsgdm_random", "one_bit_adam", "binsgdm_25mib"} == set(step.OPTIMIZERS)
    assert {series["labels"]["num_tensors"] for series in one.record.series} == {46}
    assert one.record.notes == ["memory is counted on a GPU alone: left out"]


def test_1_bit_adam_has_left_its_dense_stage_before_it_is_timed():
    parameters = [torch.nn.Parameter(torch.ones(8))]
    parameters[0].grad = torch.ones(8)
    optimizer = step.OPTIMIZERS["one_bit_adam"](parameters)
    for _ in range(step.SETTLING_STEPS):
        optimizer.step()
    assert not optimizer.is_dense


def test_one_optimizer_works_in_the_buckets_of_ddp():
    parameters = [torch.nn.Parameter(torch.ones(2**20)) for _ in range(10)]  # 40 MiB
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    alone, in_buckets = (step.OPTIMIZERS[name](parameters) for name in ("binsgdm", "binsgdm_25mib"))
    for optimizer in (alone, in_buckets):
        optimizer.step()
    assert [len(one.session.worker.buckets) for one in (alone, in_buckets)] == [1, 2]


@pytest.mark.parametrize(("most_bytes", "passed"), [(2**20, True), (4 * 512, False)])
def test_tables_made_anew_in_a_step_are_found(counted, monkeypatch, most_bytes, passed):
    needs("triton")
    monkeypatch.setattr(step, "BUCKET_MIB", 1)
    monkeypatch.setattr(step.tables._rows, "_most_bytes", most_bytes)
    monkeypatch.setattr("binsgdm.kernels.triton_kernels.launch", lambda *_, **__: None)
    monkeypatch.setenv("BINSGDM_KERNELS", "triton")
    monkeypatch.setattr(step, "OPTIMIZERS", {"binsgdm_25mib": step.OPTIMIZERS["binsgdm_25mib"]})
    step.tables._rows.cache_clear()
    parameters = [torch.nn.Parameter(torch.ones(2**18)) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    one = bench()
    step._check_host_cost(one.record, "tiny", parameters)
    step.tables._rows.cache_clear()
    assert {check["name"]: (check["passed"], check["detail"]) for check in one.record.checks} == {
        "no table anew in a step of binsgdm_25mib, tiny": (passed, f"{0 if passed else 8} for 4 buckets"),
        "waits for the GPU in a step of binsgdm_25mib, tiny": (True, "0 waits; at most 1: the finite check"),
    }


def test_a_layout_that_does_not_fit_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr(step, "free_bytes", lambda ranks: 10**6)
    one = bench()
    step.measure(one, quick=True, seconds=5.0)
    assert not one.record.series
    assert one.record.notes[-1] == "bert_tiny: needs 0.0 GB and 0.0 GB are free: left out"


def test_on_a_gpu_memory_is_counted_beyond_parameters_and_gradients(monkeypatch):
    allocated = itertools.cycle([100, 130])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 150)
    for name in ("reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)
    monkeypatch.setattr(step, "QUICK", {"tiny": ((8, 8), (8,))})
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    with pretended_card(monkeypatch):
        one = bench(replace(ALONE, device=torch.device("cuda:0")))
        step.measure(one, quick=True, seconds=5.0)
    num_optimizers = len(step.OPTIMIZERS)
    memory = [(s["labels"]["optimizer"], s["name"], s["values"]) for s in one.record.series if s["kind"] == "memory"]
    assert memory == [(name, *found) for name in step.OPTIMIZERS for found in (("peak", [50]), ("state", [30]))]
    assert [series["unit"] for series in one.record.series] == ["B"] * 2 * num_optimizers + ["s"] * num_optimizers


@pytest.fixture
def counted(monkeypatch):
    """Let PyTorch's counters of a GPU count on a CPU; a call of `wait` counts as a wait while they warn."""
    state = {"mode": "default", "requests": 5}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {step.REQUESTS: state["requests"]})
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: state.update(mode=mode))

    def wait():
        state["requests"] += 2
        if state["mode"] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    return state, wait


def test_waits_and_requests_of_a_call_are_counted_and_others_are_not(counted):
    state, wait = counted
    wait()
    assert step.host_cost(lambda: [wait(), wait(), warnings.warn("other", stacklevel=1)]) == (2, 4)
    assert state["mode"] == "default"


@pytest.mark.parametrize(("waits", "passed"), [(1, True), (2, False)])
def test_a_step_that_waits_twice_fails(counted, monkeypatch, waits, passed):
    class Waiting(torch.optim.SGD):
        def step(self):
            for _ in range(waits):
                counted[1]()

    monkeypatch.setattr(step, "OPTIMIZERS", {"binsgdm": Waiting})
    one = bench()
    step._check_host_cost(one.record, "tiny", [torch.nn.Parameter(torch.ones(3))])
    assert [check["passed"] for check in one.record.checks] == [passed]
    assert one.record.notes == [f"tiny: requests for memory in a step: binsgdm {2 * waits}"]
