"""Exchanges beside backward leave the bits of those in the step, however late the GPU is with either of them.

One rank alone on the first card; several are compared in `test_replicas`, and races are found by fake streams in
`tests/unit/binsgdm/kernels/test_streams.py`.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest

from tests.helpers.needs import ROOT, needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import groups
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.kernels import streams
from binsgdm.optimizers.settings import SCHEMES
from tests.gpu.late_training import Late, LateTraining
from tests.helpers.kernel_samples import device as device_name
from tests.helpers.kernel_samples import same_bits

IS_CARD = device_name() == "cuda"
SIDE = 256 if IS_CARD else 16
LATE: tuple[Late, ...] = ("backward", "exchange", "update") if IS_CARD else ("nothing",)
EXCHANGES = ("fp32", "bf16", "int8", "one_bit")  # of DiLoCo
RESUMED = ("ef_sign_sgd", "power_sgd")  # systems that keep what they lost, and factors

Train = Callable[..., list[torch.Tensor]]
CASES: dict[str, tuple[Train, Train]] = {}
"""By name how the expected parameters come about, and those of a training in which something is late."""


def _add(name: str, train: Train, *args: Any, **given: Any) -> None:
    in_step = {"overlap": False} if train in (LateTraining.with_binsgdm, LateTraining.with_diloco) else {}
    beside = {"overlap": True} if in_step else {}
    CASES[name] = tuple(lambda one, more=more: train(one, *args, **more, **given) for more in (in_step, beside))


for scheme in SCHEMES:
    _add(f"BinSGDM {scheme.topology} {scheme.intra_node_dtype} {scheme.average}", LateTraining.with_binsgdm, scheme)
# Residuals are written where the exchange runs, whatever the scheme is.
_add("BinSGDM shaped", LateTraining.with_binsgdm, SCHEMES[0], rounding="shaped")
for exchange in EXCHANGES:
    _add(f"DiLoCo {exchange}", LateTraining.with_diloco, exchange)
for system in RESUMED:
    _add(f"{system} resumed", LateTraining.with_resumed_system, system)
for system in SYSTEMS:
    _add(system, LateTraining.with_system, system)


@pytest.fixture(scope="module")
def training(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LateTraining]]:
    """Join a group of this process alone; yield what makes a training in which something is late."""
    store = tmp_path_factory.mktemp("store") / "store"
    place = device if IS_CARD else torch.device("cpu")
    if IS_CARD:
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if IS_CARD else "gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield partial(LateTraining, groups=groups.make(1), device=place, side=SIDE)
    dist.destroy_process_group()


def are_equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(ones, others, strict=True))


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("name", CASES)
def test_an_exchange_beside_backward_leaves_the_bits_of_one_in_the_step(
    training: Callable[..., LateTraining], name: str, late: Late
) -> None:
    in_step, beside = CASES[name]
    wanted = in_step(training())
    assert are_equal(wanted, in_step(training())), "two trainings alike end with other bits"
    assert are_equal(wanted, beside(training(late=late)))


def test_waits_that_are_taken_away_show(training: Callable[..., LateTraining]) -> None:
    needs("GPU")
    wanted = training().with_binsgdm(SCHEMES[0], overlap=False)
    with mock.patch.object(streams.CudaStreams, "wait", return_value=None):
        found = training(late="backward").with_binsgdm(SCHEMES[0], overlap=True)
        torch.cuda.synchronize()
    assert not are_equal(wanted, found)


def test_pytorchs_sanitizer_finds_no_race() -> None:
    needs("GPU")
    command = [sys.executable, "-m", "tests.gpu.sanitized", "cuda:0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]
