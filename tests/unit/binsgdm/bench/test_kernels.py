"""What does not fit into a card, or fails, costs nothing else its times."""

from typing import Any

from tests.helpers.needs import needs

needs("torch", "numba")
import torch

from binsgdm.bench import kernels
from tests.helpers.pretend_card import pretended_card


def test_sizes_that_do_not_fit_into_a_card_are_left_out_with_a_note(monkeypatch, bench_of):
    bench = bench_of("cuda:0")
    with pretended_card(monkeypatch, free_bytes=200 * 2**10):
        kernels.measure(bench, kernels=("reference",), min_numel=2**10)
    assert {one["labels"]["num_elements"] for one in bench.record.series if one["name"] == "copy"} == {2**10}
    assert bench.record.notes == ["kernels: more than 1,024 elements do not fit into the memory: left out"]


def test_a_system_that_fails_costs_no_other_its_times(monkeypatch, bench):
    def measure(bench: Any, *, systems: Any, **_: Any) -> None:
        if systems[0].name == "qsgd":
            raise RuntimeError("an illegal\nmemory access")
        bench.record.add("kernel", f"{systems[0].name}_encode", [1.0], num_elements=8, dtype="float32", kernels="torch")

    monkeypatch.setattr(kernels, "measure", lambda *_, **__: None)
    monkeypatch.setattr(kernels.systems, "measure", measure)
    kernels.measure_card(bench, quick=False, seconds=60.0)
    named = {one["name"] for one in bench.record.series}
    assert {"one_bit_sgd_encode", "one_bit_adam_encode"} <= named
    assert "qsgd_encode" not in named
    assert [(one["name"], one["passed"], one["detail"]) for one in bench.record.checks] == [
        ("qsgd runs", False, "RuntimeError: an illegal memory access")
    ]


def test_a_cpu_runs_the_reference_and_its_own_loops_alone():
    assert kernels.available(torch.device("cpu")) == ("reference", "cpu")
