"""The comparison of kernels with the reference: it passes where they are equal, and says where they are not."""

import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import checks, large_cases
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule
from binsgdm.kernels import reference
from tests.helpers.pretend_card import pretended_card

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


def checked(monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0, **changed: Any) -> Record:
    """Return the record of kernels that are the reference but for some."""
    changed = {name: getattr(reference, name) for name in dir(reference) if not name.startswith("__")} | changed
    made = SimpleNamespace(**{**changed, "name": "made"})
    monkeypatch.setattr(checks, "NAMES", ("made",))
    monkeypatch.setattr(checks, "select", lambda *_: made)
    bench = Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule())
    checks.measure(bench, quick=True, seconds=seconds)
    return bench.record


def failed(record: Record) -> dict[str, str]:
    return {check["name"]: check["detail"] for check in record.checks if not check["passed"]}


def test_equal_kernels_pass_every_check(monkeypatch):
    record = checked(monkeypatch)
    kernels = (
        "update_",
        "update_quantize_pack_",
        "quantize_pack",
        "merge",
        "update_shape_pack_",
        "shape_pack_",
        "merge_shaped_",
        "mean_",
        "unpack_apply_",
        "foreach_update_",
        "foreach_update_shape_pack_",
    )
    assert {f"made on cpu: {name}" for name in (*kernels, "guards")} <= {check["name"] for check in record.checks}
    assert failed(record) == {}
    assert all(check["count"] > 0 for check in record.checks)


def test_one_wrong_bit_is_found_and_named(monkeypatch):
    def wrong(u: Any, *, out: Any, **given: Any) -> None:
        reference.quantize_pack(u, out=out, **given)
        out[-1] ^= 0x80

    found = failed(checked(monkeypatch, quantize_pack=wrong))
    assert list(found) == ["made on cpu: quantize_pack"]
    detail = found["made on cpu: quantize_pack"]
    assert detail.startswith("signs, 33 elements, bfloat16, start 0, 3 vectors: 1 of 5 differ, the first at 4: 0x")


@pytest.mark.parametrize("left_out", ["gain", "nesterov"])
@pytest.mark.parametrize("name", ["update_quantize_pack_", "foreach_update_quantize_pack_"])
def test_a_gain_or_a_look_ahead_that_is_forgotten_is_found(name, left_out, monkeypatch):
    def forgets(*given: Any, **options: Any) -> Any:
        options.pop(left_out, None)
        return getattr(reference, name)(*given, **options)

    monkeypatch.setattr(checks, "QUICK_SIZES", (1025,))
    monkeypatch.setattr(checks, "QUICK_MANY", (5, 1025))
    found = failed(checked(monkeypatch, **{name: forgets}))
    assert list(found) == [f"made on cpu: {name}"]
    assert found[f"made on cpu: {name}"].startswith("ahead signs, ")


def test_a_residual_that_is_off_by_one_is_found(monkeypatch):
    def wrong(rows: Any, residual: Any, **given: Any) -> None:
        reference.merge_shaped_(rows, residual, **given)
        residual[-1] += 1

    found = failed(checked(monkeypatch, merge_shaped_=wrong))
    assert list(found) == ["made on cpu: merge_shaped_"]
    assert found["made on cpu: merge_shaped_"].startswith("residual, ")


def test_a_write_behind_the_end_is_found(monkeypatch):
    def wrong(parts: Any, out: Any) -> None:
        reference.mean_(parts, out)
        out.as_strided((out.numel() + 1,), (1,))[-1] = 0.0

    assert list(failed(checked(monkeypatch, mean_=wrong))) == ["made on cpu: guards"]


def test_a_subnormal_that_is_flushed_is_found(monkeypatch):
    monkeypatch.setattr(checks, "QUICK_SIZES", (1025,))

    def flushed(grad: Any, m: Any, b: Any, *, out_u: Any, **options: Any) -> Any:
        finite = reference.update_(grad, m, b, out_u=out_u, **options)
        m[m.abs() < 1.2e-38] = 0.0
        return finite

    assert list(failed(checked(monkeypatch, update_=flushed))) == ["made on cpu: update_"]


def test_what_there_is_no_time_for_is_noted(monkeypatch):
    record = checked(monkeypatch, seconds=-1.0)
    assert record.checks == []
    assert "made on cpu: sizes: no time was left: give more with --budget" in record.notes


def test_a_family_that_takes_too_long_keeps_what_it_has_compared(monkeypatch):
    passed_s = [0.0]

    def slow(*given: Any, **options: Any) -> Any:
        passed_s[0] += 0.3
        return reference.mean_(*given, **options)

    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: passed_s[0]))
    monkeypatch.setattr(checks, "QUICK_SIZES", (33, 34, 35, 36))
    record = checked(monkeypatch, seconds=0.2, mean_=slow)
    counts = {check["name"]: check["count"] for check in record.checks}
    assert counts["made on cpu: mean_"] == 1
    assert record.notes[0] == "made on cpu: sizes: no time was left for all of it: give more with --budget"


def test_the_sanitizer_gets_no_more_time_than_is_left(monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(checks, "available", lambda _: ("triton",))
    monkeypatch.setattr(checks.memcheck, "tool", lambda: "compute-sanitizer")
    monkeypatch.setattr(checks.memcheck, "watched", lambda _, seconds: asked.append(seconds) or (True, ""))
    record = Record(ALONE)
    for left_s in (25.0, 5.0, -1.0):
        checks._memcheck(torch.device("cuda", 0), checks.Comparisons(), record, time.monotonic() + left_s)
    assert [round(seconds) for seconds in asked] == [25]
    assert record.notes == ["memcheck: no time was left: give more with --budget"] * 2


@pytest.mark.parametrize("is_broken", [True, False])
def test_an_interpreter_that_cannot_run_is_noted_and_no_check_fails(is_broken, monkeypatch):
    needs("triton")
    from binsgdm.kernels import triton_signs

    def pack(*_: Any) -> None:
        if is_broken:
            raise TypeError("only 0-dimensional arrays can be\nconverted to Python scalars")

    monkeypatch.setattr(triton_signs, "pack", pack)
    monkeypatch.setattr(checks, "NAMES", ("triton",))
    monkeypatch.setattr(checks, "select", lambda *_: reference)  # as if it were Triton's
    bench = Bench(record=Record(ALONE), ranks=ALONE, stop_rule=StopRule())
    checks.measure(bench, quick=True, seconds=60.0)
    why = "its interpreter cannot run here (TypeError: only 0-dimensional arrays can be converted to Python scalars)"
    assert bench.record.notes == [f"triton on cpu: {why}: its kernels are not compared"] * is_broken
    assert (bench.record.checks == []) == is_broken
    assert failed(bench.record) == {}


def test_on_a_card_the_cases_vary_all_that_could_matter():
    checker = checks._Checker(kernels=reference, device=CPU, comparisons=checks.Comparisons(), end_s=0.0)
    names = set(checks._families(checker, quick=False))
    assert {"sizes", "starts and addresses", "vectors", "not finite", "many tensors", "another stream"} <= names
    cases = checks._many(checks.MANY)
    assert {case.dtype for case in cases} == set(checks.DTYPES)
    assert all(case.start % 8 == 0 for case in cases)
    assert all(one.start + one.numel <= two.start for one, two in pairwise(cases))


def test_draws_and_signs_are_compared_at_any_start(monkeypatch):
    comparisons = checks.Comparisons()
    checker = checks._Checker(kernels=reference, device=torch.device("cpu", 0), comparisons=comparisons, end_s=0.0)
    thresholds = checks.thresholds

    def wrong(key: Any, *, start: int, numel: int, device: Any) -> Any:
        return thresholds(key, start=start + (start == 31 and device != CPU), numel=numel)

    monkeypatch.setattr(checks, "thresholds", wrong)
    checks._draws_and_signs(checker)
    record = Record(ALONE)
    comparisons.write(record)
    assert [check["name"].partition(" ")[0] for check in record.checks] == [
        "draws",
        "wrong",
        "pack_signs",
        "unpack_signs",
    ]
    assert failed(record)["wrong on cpu:0"].startswith("1 elements, start 31: 1 of 1 differ, the first at 0: 0x")


def test_on_a_card_the_reference_is_compared_with_itself_on_the_cpu(monkeypatch):
    device = torch.device("cuda", 0)
    bench = Bench(record=Record(ALONE), ranks=replace(ALONE, device=device), stop_rule=StopRule())
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pretended_card(monkeypatch):
        monkeypatch.setattr(checks, "NAMES", ("reference",))
        monkeypatch.setattr(large_cases, "available", lambda _: ("reference",))
        monkeypatch.setattr(large_cases, "_source", lambda _, seed: torch.Generator().manual_seed(seed))
        checks.measure(bench, quick=True, seconds=60.0)
        comparisons = checks.Comparisons()
        checks.check_large(device, comparisons, bench.record, time.monotonic() + 60, sizes=(2**10 + 5,))
        checker = checks._Checker(kernels=reference, device=device, comparisons=comparisons, end_s=0.0)
        checks._draws_and_signs(checker, sizes=(33,))
        comparisons.write(bench.record)
    assert failed(bench.record) == {}
    named = {check["name"] for check in bench.record.checks}
    assert {"reference on cuda:0: update_", "draws on cuda:0", "pack_signs on cuda:0"} <= named
    assert "reference on cuda:0, beyond 2^27: merge" in named
    assert bench.record.notes == ["compute capability 9.0"]
