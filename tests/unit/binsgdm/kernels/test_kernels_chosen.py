"""Which kernels are chosen for a device, by an argument or by the environment."""

import sys

import pytest

torch = pytest.importorskip("torch")


from binsgdm.errors import BinsgdmError
from binsgdm.kernels import select


def test_the_fastest_kernels_are_chosen_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    pytest.importorskip("numba")
    assert select().name == "cpu"
    assert select(device="meta").name == "reference"


def test_kernels_can_be_forced_by_argument_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert select().name == "reference"
    pytest.importorskip("numba")
    assert select("cpu").name == "cpu"


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library impossible to import."""
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, library, None)


def test_without_numba_the_reference_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "numba")
    assert select().name == "reference"


def test_without_triton_a_gpu_gets_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    assert select(device="cuda").name == "reference"


def test_forced_kernels_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    without(monkeypatch, "numba")
    without(monkeypatch, "triton")
    for name, place in (("cpu", "cpu"), ("triton", "cuda")):
        library = "numba" if name == "cpu" else "triton"
        with pytest.raises(BinsgdmError, match=rf"kernels: '{name}': needs {library}, .*pip install {library}"):
            select(name, place)
    with pytest.raises(BinsgdmError, match="kernels: 'cpu': works on cpu tensors, but the parameters are on cuda"):
        select("cpu", "cuda")
    with pytest.raises(BinsgdmError, match="kernels: 'triton': works on cuda tensors, but the parameters are on cpu"):
        select("triton", "cpu")


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BinsgdmError, match="kernels: 'numba': must be one of 'reference', 'cpu', 'triton'"):
        select("numba")
    monkeypatch.setenv("BINSGDM_KERNELS", "fast")
    with pytest.raises(BinsgdmError, match="BINSGDM_KERNELS: 'fast': must be one of"):
        select()
