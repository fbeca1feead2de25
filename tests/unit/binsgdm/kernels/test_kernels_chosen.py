"""Which kernels are chosen for a device, by an argument or by the environment."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import kernels as package
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import select


def test_the_fastest_kernels_are_chosen_unless_an_argument_or_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    needs("numba")
    assert select().name == "cpu"
    assert select(device="meta").name == "reference"
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert select().name == "reference"
    assert select("cpu").name == "cpu"


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library impossible to import."""
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, library, None)


def test_without_numba_the_reference_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "numba")
    assert select().name == "reference"


@pytest.fixture
def warned_anew() -> Iterator[None]:
    """Let the warning that is given once be given once more, before and after."""
    package._warn.cache_clear()
    yield
    package._warn.cache_clear()


@pytest.mark.usefixtures("warned_anew")
def test_without_triton_a_gpu_gets_the_reference_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    with pytest.warns(UserWarning, match="'reference' is used on cuda.*needs triton, .*pip install triton") as told:
        names = [select(device="cuda").name for _ in range(2)]
    assert names == ["reference"] * 2
    assert len(told) == 1


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("version", ["3.5.1", "3.2.0", "2.1.0"])
def test_a_triton_that_flushes_subnormals_is_not_used(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    said = f"needs Triton 3.6 or newer, as torch 2.9 and newer bring it, and finds {version}"
    with pytest.raises(BinsgdmError, match=f"kernels: 'triton': {said}; drop it to let binsgdm choose"):
        select("triton", "cuda")
    with pytest.warns(UserWarning, match=said):
        assert select(device="cuda").name == "reference"


@pytest.mark.usefixtures("warned_anew")
def test_a_gpu_older_than_volta_gets_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.6.0+git1"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    said = "needs compute capability 7.0, and cuda:1 has 6.1"
    with pytest.raises(BinsgdmError, match=f"kernels: 'triton': {said}; drop it"):
        select("triton", "cuda:1")
    with pytest.warns(UserWarning, match=said):
        assert select(device="cuda:1").name == "reference"


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
