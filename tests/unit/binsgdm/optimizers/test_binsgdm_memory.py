"""What BinSGDM keeps beside parameters and gradients: m, b, residuals and signs, and little more on the way."""

import ctypes
import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from binsgdm.optimizers.binsgdm import BinSGDM

NUMEL, TENSORS = 1 << 24, 16
MAX_BYTES = 12  # of a parameter: m and b 8, the residual 2, the sign 1/8, and what one piece of draws takes


def steps_of_optimizer(numel: int, rounding: str, parameters: list[torch.nn.Parameter] | None = None) -> None:
    """Make an optimizer and take two steps, the first of which draws its residuals."""
    given = parameters or [torch.nn.Parameter(torch.zeros(numel))]
    for parameter in given:
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer = BinSGDM(given, rounding=rounding)
    for _ in range(2):
        optimizer.step()


def kib(name: str) -> int:
    """Return a number of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def give_back() -> None:
    """Let the system have what is free in this process, which would be taken without being seen."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        pytest.skip("this C library does not give free memory back")
    trim(0)


@pytest.mark.parametrize(("rounding", "least"), [("shaped", 10), ("random", 8)])
def test_an_optimizer_alone_takes_at_most_twelve_bytes_a_parameter(rounding: str, least: int) -> None:
    pytest.importorskip("numba")
    peak = Path("/proc/self/clear_refs")
    if not peak.exists():
        pytest.skip("this system does not tell the peak of a process's memory")
    steps_of_optimizer(1 << 17, rounding)  # compiles
    parameters = [torch.nn.Parameter(torch.zeros(NUMEL // TENSORS)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    give_back()
    before = kib("VmRSS")
    try:
        peak.write_text("5", encoding="ascii")  # forgets the peak so far
    except OSError:
        pytest.skip("this system does not let a process forget its peak")
    steps_of_optimizer(NUMEL, rounding, parameters)
    taken = (kib("VmHWM") - before) * 1024 / NUMEL
    assert least <= taken <= MAX_BYTES
