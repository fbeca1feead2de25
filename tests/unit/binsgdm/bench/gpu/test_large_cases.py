"""Large tensors in slices, on sizes that a test has time for."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import large_cases
from binsgdm.bench.gpu.comparisons import Comparisons
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.kernels import reference

CPU = torch.device("cpu")
ALONE = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="", groups=None)


def checked(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Record:
    made = {name: getattr(reference, name) for name in dir(reference) if not name.startswith("__")} | changed
    monkeypatch.setattr(large_cases, "select", lambda *_: SimpleNamespace(**made))
    monkeypatch.setattr(large_cases, "SLICE_NUMEL", 2**8)
    record, comparisons = Record(ALONE), Comparisons()
    large_cases.check_large(CPU, comparisons, record, time.monotonic() + 60, sizes=(2**10 + 5,))
    comparisons.write(record)
    return record


def test_slices_equal_the_reference_at_their_place(monkeypatch):
    record = checked(monkeypatch)
    assert len(record.checks) == len(large_cases.CASES)
    assert all(check["passed"] for check in record.checks), record.checks


def test_an_index_that_wraps_is_found(monkeypatch):
    def wraps(u: Any, *, out: Any, **given: Any) -> None:
        reference.quantize_pack(u, out=out, **given)
        out[64:] = out[: out.numel() - 64].clone()

    failed = [check["name"] for check in checked(monkeypatch, quantize_pack=wraps).checks if not check["passed"]]
    assert failed == ["reference on cpu, beyond 2^27: quantize_pack"]


def test_a_residual_that_stays_behind_is_found(monkeypatch):
    def stays(u: Any, residual: Any, **given: Any) -> None:
        reference.shape_pack_(u[512:], residual[512:], gain=given["gain"], out=given["out"][64:])
        reference.shape_pack_(u[:512], residual[:512].clone(), gain=given["gain"], out=given["out"][:64])

    failed = [check["name"] for check in checked(monkeypatch, shape_pack_=stays).checks if not check["passed"]]
    assert failed == ["reference on cpu, beyond 2^27: shape_pack_"]


def test_a_case_that_does_not_fit_is_noted(monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("full")

    record = checked(monkeypatch, merge=full)
    assert record.notes == ["1,029 elements: merge: do not fit into the memory: left out"]


def test_slices_hold_the_ends_and_the_places_where_an_index_needs_another_bit():
    numel = 2**31 + 4099
    parts = large_cases.slices(numel)
    assert parts[0].start == 0
    assert parts[-1].stop == numel
    for place in (2**29, 2**30, 2**31):
        assert any(part.start <= place - 1 and place < part.stop for part in parts)
    assert all(part.start % 32 == 0 for part in parts)
    assert large_cases.slices(100) == [slice(0, 100)]


@pytest.mark.parametrize("numel", [100, 2**16 + 1, *large_cases.SIZES])
def test_the_last_elements_are_compared_where_they_fill_no_group_of_draws(numel):
    parts = large_cases.slices(numel)
    assert max(part.stop for part in parts) == numel
    assert all(part.stop - part.start < large_cases.SLICE_NUMEL + 32 for part in parts)


def test_a_last_element_that_is_wrong_is_found(monkeypatch):
    def wrong(parts: Any, out: Any) -> None:
        reference.mean_(parts, out)
        out[-1] += 1

    failed = [check["name"] for check in checked(monkeypatch, mean_=wrong).checks if not check["passed"]]
    assert failed == ["reference on cpu, beyond 2^27: mean_"]


@pytest.mark.parametrize("name", ["pack_signs", "unpack_signs", "draws"])
def test_bits_and_draws_behind_a_place_that_wraps_are_found(name, monkeypatch):
    right = getattr(large_cases, name)

    def wraps(*given: Any, **options: Any) -> Any:
        found = right(*given, **options)
        if found.numel() > 100:
            found[found.numel() // 2 :] = found[: -(found.numel() // 2)].clone()
        return found

    monkeypatch.setattr(large_cases, name, wraps)
    monkeypatch.setattr(large_cases, "SLICE_NUMEL", 64)
    record, comparisons = Record(ALONE), Comparisons()
    monkeypatch.setattr(large_cases, "CASES", {name: large_cases.CASES[name]})
    large_cases.check_large(CPU, comparisons, record, time.monotonic() + 60, sizes=(2**10 + 5,))
    comparisons.write(record)
    assert [check["passed"] for check in record.checks] == [False]
