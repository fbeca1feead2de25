"""Optimizers are timed on the shapes of real models."""

import json
import warnings
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import step
from binsgdm.bench.gpu.step import LAYOUTS

GRADIENTS = Path(__file__).resolve().parents[5] / "scenarios" / "workloads" / "gradients"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_shapes_of_the_shipped_model(name):
    tensors = json.loads((GRADIENTS / f"{name}.json").read_text())["tensors"]
    assert sorted(LAYOUTS[name]) == sorted(tuple(shape) for _, shape, _ in tensors)


def test_every_optimizer_is_timed_and_memory_is_left_to_a_gpu(bench):
    step.measure(bench, quick=True, seconds=5.0)
    found = [(series["kind"], series["name"], series["labels"]["optimizer"]) for series in bench.record.series]
    assert found == [("optimizer_step", "step", name) for name in step.OPTIMIZERS]
    assert {"adamw", "binsgdm", "binsgdm_random", "one_bit_adam", "binsgdm_25mib"} == set(step.OPTIMIZERS)
    assert bench.record.notes == ["memory is counted on a GPU alone: left out"]


def test_a_layout_that_does_not_fit_is_left_out_with_a_reason(bench, monkeypatch):
    monkeypatch.setattr(step, "free_bytes", lambda ranks: 10**6)
    step.measure(bench, quick=True, seconds=5.0)
    assert not bench.record.series
    assert bench.record.notes[-1] == "bert_tiny: needs 0.0 GB and 0.0 GB are free: left out"


@pytest.mark.parametrize(("waits", "passed"), [(1, True), (2, False)])
def test_a_step_that_waits_for_the_gpu_twice_fails(bench, monkeypatch, waits, passed):
    state = {"mode": "default", "requests": 5}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {step.REQUESTS: state["requests"]})
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: state.update(mode=mode))

    class Waiting(torch.optim.SGD):
        def step(self):
            for _ in range(waits):
                state["requests"] += 2
                if state["mode"] == "warn":
                    warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    monkeypatch.setattr(step, "OPTIMIZERS", {"binsgdm": Waiting})
    step._check_host_cost(bench.record, "tiny", [torch.nn.Parameter(torch.ones(3))])
    assert [check["passed"] for check in bench.record.checks] == [passed]
    assert bench.record.notes == [f"tiny: requests for memory in a step: binsgdm {2 * waits}"]
    assert state["mode"] == "default"
