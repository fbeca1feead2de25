"""What BinSGDM keeps beside parameters and gradients: m, b, residuals and signs, and little more on the way."""

import ctypes
import gc
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import Member, RankContext
from binsgdm.comm.messages import run_as_if_alike
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.session import Session

NUMEL, TENSORS = 1 << 24, 16
MAX_BYTES = 12  # of a parameter: m and b 8, the residual 2, the sign 1/8, and what one piece of draws takes
MAX_BYTES_AMONG_OTHERS = (
    15  # with what a bucket receives, the residual of the mean, and what one piece of a checksum takes
)


def steps_of_optimizer(
    numel: int, rounding: str, parameters: list[torch.nn.Parameter] | None = None, ranks: int = 1
) -> None:
    """Make an optimizer and take two steps, the first of which draws its residuals and compares states of all ranks."""
    given = parameters or [torch.nn.Parameter(torch.zeros(numel))]
    for parameter in given:
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer = BinSGDM(given, rounding=rounding)
    if ranks > 1:
        context = RankContext(rank=0, world_size=ranks, ranks_per_node=1, seed=0, step=1)
        member = Member(world_size=ranks, run=lambda protocol: run_as_if_alike(protocol, context))
        optimizer.join(Session(member, bucket_elements=NUMEL // TENSORS))
    for _ in range(2):
        optimizer.step()


def kib(name: str) -> int:
    """Return a number of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def give_back() -> None:
    """Let the system have what is free in this process, which would be taken without being seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.parametrize(("rounding", "least"), [("shaped", 10), ("random", 8)])
@pytest.mark.parametrize(("ranks", "most"), [(1, MAX_BYTES), (4, MAX_BYTES_AMONG_OTHERS)])
def test_an_optimizer_takes_few_bytes_a_parameter(rounding: str, least: int, ranks: int, most: int) -> None:
    needs("numba", "peak memory")
    peak = Path("/proc/self/clear_refs")
    steps_of_optimizer(1 << 17, rounding, ranks=ranks)  # compiles
    parameters = [torch.nn.Parameter(torch.zeros(NUMEL // TENSORS)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    give_back()
    before = kib("VmRSS")
    peak.write_text("5", encoding="ascii")  # forgets the peak so far
    steps_of_optimizer(NUMEL, rounding, parameters, ranks)
    taken = (kib("VmHWM") - before) * 1024 / NUMEL
    assert least <= taken <= most
