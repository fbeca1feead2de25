"""All that steps need is compiled before the first of them, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

needs("numba")
import numba

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.kernels import cpu, numba_kernels
from binsgdm.optimizers import session
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import SCHEMES, Scheme
from tests.helpers.launch import meeting_point

RANKS, RANKS_PER_NODE = 4, 2
Variants = list[tuple[str, str]]


@contextmanager
def noting_variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[Variants]:
    """Note each compiled loop that Python calls, with the types that it is compiled for."""
    called: Variants = []

    def noting(name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            called.append((name, str(tuple(map(numba.typeof, given)))))
            return loop(*given)

        return call

    # In a copy of the module: loops that are compiled here look up each other in the module itself.
    loops = {name: loop for name, loop in vars(numba_kernels).items() if hasattr(loop, "py_func")}
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "numba_kernels", SimpleNamespace(**{n: noting(n, loop) for n, loop in loops.items()}))
        yield called


def joined(rank: int, scheme: Scheme, rounding: Any, dtype: torch.dtype) -> BinSGDM:
    parameters = [torch.nn.Parameter(torch.ones(numel, dtype=dtype)) for numel in (70, 3)]
    optimizer = BinSGDM(parameters, rounding=rounding, weight_decay=0.1, kernels="cpu")
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, rank + 1.0)
    optimizer.join(Session(Member(rank=rank, world_size=RANKS, ranks_per_node=RANKS_PER_NODE), scheme, 64))
    return optimizer


@pytest.mark.parametrize("rounding", ["shaped", "random"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_rehearsal_calls_the_loops_of_a_step_and_no_others(
    scheme: Scheme, rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session._compile_for.cache_clear()
    dtype = torch.float32 if rounding == "random" else torch.bfloat16
    with noting_variants(monkeypatch) as rehearsed:
        optimizers = [joined(rank, scheme, rounding, dtype) for rank in range(RANKS)]
    with noting_variants(monkeypatch) as stepped:
        run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers], RANKS_PER_NODE)
    assert "unpack_apply" in {name for name, _ in stepped}
    assert set(rehearsed) == set(stepped)


SCRIPT = """
import torch, torch.distributed as dist
from numba.core import event
from torch.nn.parallel import DistributedDataParallel
import binsgdm

class Compiled(event.Listener):
    number = 0

    def on_start(self, event):
        # Which each process compiles for itself, and is nothing.
        self.number += event.data["dispatcher"].py_func.__name__ != "prepare"

    def on_end(self, event):
        pass

dist.init_process_group("gloo")
model = torch.nn.Linear(9, 7)
ddp = DistributedDataParallel(model)
optimizer = binsgdm.BinSGDM(model.parameters())
attached, stepped = Compiled(), Compiled()
with event.install_listener("numba:compile", attached):
    binsgdm.attach(optimizer, ddp)
with event.install_listener("numba:compile", stepped):
    ddp(torch.ones(2, 9)).sum().backward()
    optimizer.step()
print("COMPILED", attached.number, stepped.number, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_a_machine_compile_each_kernel_once_at_attach(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    settings = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "c"),
    }
    with meeting_point() as where, ExitStack() as started:
        ranks = [
            subprocess.Popen(
                [sys.executable, script],
                env={**os.environ, **where, **settings, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            started.callback(rank.kill)
        ended = [rank.communicate(timeout=120) for rank in ranks]
    found = [tuple(map(int, out.split()[1:])) for out, _ in ended]
    assert sorted(attached > 0 for attached, _ in found) == [False, True]
    assert [stepped for _, stepped in found] == [0, 0]
    assert [err.count("kernels are compiled") for _, err in ended] == [1, 0]
