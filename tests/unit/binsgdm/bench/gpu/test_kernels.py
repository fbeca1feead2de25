"""What the times of kernels are held against: the copy of the same run."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import kernels
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule
from tests.helpers.pretend_card import pretended_card

LARGE = 2**24
ALONE = Ranks(
    rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=torch.device("cpu"), backend="", groups=None
)


def series(name: str, seconds: float, *, numel: int = LARGE, dtype: str = "float32", **labels: Any) -> dict[str, Any]:
    given = {"num_elements": numel, "dtype": dtype, "kernels": "triton", **labels}
    return {"kind": "kernel", "name": name, "unit": "s", "labels": given, "values": [seconds] * 3}


def at(bandwidth: float, moved: float, ratio: float, numel: int = LARGE) -> float:
    """Return the time of so many bytes per element."""
    return ratio * moved * numel / bandwidth


COPIES = [series("copy", at(2e12, 8, 2.0, 2**16), numel=2**16), series("copy", at(2e12, 8, 1.0))]


def test_what_takes_too_long_is_listed_worst_first_at_its_worst_size():
    measured = [
        *COPIES,
        series("update_", at(2e12, 24, 1.29)),
        series("quantize_pack", at(2e12, 4.125, 1.4)),
        series("quantize_pack", at(2e12, 4.125, 1.6, 2 * LARGE), numel=2 * LARGE),
        series("merge", at(2e12, 9 / 64, 9.0), numel=LARGE // 8, num_vectors=8, dtype="uint8"),
        series("merge", at(2e12, 3 / 16, 1.1), numel=LARGE // 2, num_vectors=2, dtype="uint8"),
        series("update_", at(2e12, 24, 5.0, 2**16), numel=2**16),  # small: its launch is most of it
        series("top_k_encode", 1.0),  # its bytes tell too little
        series("update_", 1.0, dtype="bfloat16"),
    ]
    first, *slow = kernels.slow_notes(measured)
    assert first == "copy: 2,000 GB/s read and written, the fastest size"
    assert [line.partition(" times")[0] for line in slow] == ["merge (triton): 9.00", "quantize_pack (triton): 1.60"]
    assert "33,554,432 elements" in slow[1]
    assert "in 8 vectors" in slow[0]


def test_kernels_of_the_project_come_before_what_plain_torch_does_in_systems():
    measured = [
        *COPIES,
        series("qsgd_encode", at(2e12, 8.5, 40.0), kernels="torch"),
        series("marsit_encode", at(2e12, 20.125, 50.0), kernels="torch"),
        series("compress", at(2e12, 20.125, 1.5), kernels="torch"),  # of 1-bit Adam
        series("update_", at(2e12, 24, 1.4)),
        series("unpack_apply_", at(2e12, 8.125, 1.6)),
    ]
    names = [line.partition(" ")[0] for line in list(kernels.slow_notes(measured))[1:]]
    assert names == ["unpack_apply_", "compress", "update_", "marsit_encode", "qsgd_encode"]


def test_what_is_slow_is_noted_first_also_where_the_time_was_up(monkeypatch):
    def measure(bench: Bench, **_: Any) -> None:
        bench.record.note("kernels: more than 8 elements do not fit")
        for one in (*COPIES, series("update_", at(2e12, 24, 1.4))):
            bench.record.add("kernel", one["name"], one["values"], **one["labels"])
        raise TimeoutError

    monkeypatch.setattr(kernels.kernel_times, "measure", measure)
    bench = Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule())
    with pytest.raises(TimeoutError):
        kernels.measure(bench, quick=True, seconds=20.0)
    assert [note.partition(" ")[0] for note in bench.record.notes] == ["copy:", "update_", "kernels:"]


def test_it_is_said_when_nothing_is_slow_and_nothing_without_a_copy():
    assert list(kernels.slow_notes([*COPIES, series("update_", at(2e12, 24, 1.2))]))[1].startswith("no kernel takes")
    assert list(kernels.slow_notes([series("update_", 1.0)])) == []


def test_on_a_card_every_series_says_what_its_times_hold(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    device = torch.device("cuda", 0)
    alone = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=device, backend="", groups=None)
    bench = Bench(record=Record(alone), ranks=alone, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))
    # What is pretended is pretended in this thread alone.
    monkeypatch.setattr(kernels.system_times, "in_thread", lambda work, _: work())
    monkeypatch.setattr(kernels.kernel_times, "available", lambda _: ("reference",))
    with pretended_card(monkeypatch):
        kernels.measure(bench, quick=True, seconds=20.0)
    found = {one["name"]: one["labels"]["timing"] for one in bench.record.series}
    assert {found[name] for name in ("copy", "adamw", "update_", "merge")} == {"kernel"}
    assert {found[name] for name in ("launch_copy", "launch_adamw", "launch_merge")} == {"launch"}
    assert found["one_bit_sgd_encode"] == "launch"
    assert {one["labels"]["dtype"] for one in bench.record.series if one["name"].endswith("merge")} == {"uint8"}


def test_sizes_that_do_not_fit_into_a_card_are_left_out_with_a_note(monkeypatch):
    device = torch.device("cuda", 0)
    alone = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=device, backend="", groups=None)
    bench = Bench(record=Record(alone), ranks=alone, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))
    with pretended_card(monkeypatch, free_bytes=200 * 2**10):
        kernels.kernel_times.measure(bench, kernels=("reference",), min_numel=2**10)
    assert {one["labels"]["num_elements"] for one in bench.record.series if one["name"] == "copy"} == {2**10}
    assert bench.record.notes == ["kernels: more than 1,024 elements do not fit into the memory: left out"]


def test_a_size_for_which_the_memory_runs_out_ends_the_sizes(monkeypatch):
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("full")

    bench = Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule(min_repetitions=1, max_repetitions=1))
    monkeypatch.setattr(kernels.kernel_times, "_kernel_calls", full)
    kernels.kernel_times.measure(bench, min_numel=2**10, max_numel=2**12)
    assert bench.record.notes == ["kernels: 1,024 elements and more do not fit into the memory: left out"]


def test_a_system_that_fails_costs_no_other_its_times(monkeypatch):
    def measure(bench: Bench, *, systems: Any, **_: Any) -> None:
        if systems[0].name == "qsgd":
            raise RuntimeError("an illegal\nmemory access")
        bench.record.add("kernel", f"{systems[0].name}_encode", [1.0], num_elements=8, dtype="float32", kernels="torch")

    monkeypatch.setattr(kernels.kernel_times, "measure", lambda *_, **__: None)
    monkeypatch.setattr(kernels.system_times, "measure", measure)
    bench = Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule())
    kernels.measure(bench, quick=False, seconds=60.0)
    named = {one["name"] for one in bench.record.series}
    assert {"one_bit_sgd_encode", "one_bit_adam_encode"} <= named
    assert "qsgd_encode" not in named
    assert [(one["name"], one["passed"], one["detail"]) for one in bench.record.checks] == [
        ("qsgd runs", False, "RuntimeError: an illegal memory access")
    ]
