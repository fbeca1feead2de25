"""Check that a rank which refuses a step, or takes none, ends the others in time and tells them why."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.ranks import Ranks
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.parallel.ddp import attach

NUMEL = 2**16
TIMEOUT = timedelta(seconds=4)
MOST_S = 10.0  # for the others to end: far above the timeout, far below the minute more of PyTorch's watchdog


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:  # noqa: ARG001 - the timeout is what it is
    """Add a check for each way in which the last rank fails.

    Raises:
        NotMeasurableError: one card.
    """
    if bench.ranks.world_size < 2:
        raise NotMeasurableError("one card leaves no rank waiting: needs two")
    last = bench.ranks.world_size - 1
    wanted = {
        "a rank that refuses": (refuse, f"rank {last} refused: BinSGDM: a sparse gradient"),
        "a rank that takes no step": (stay_away, "a rank is gone or did not take this step"),
    }
    for number, (name, (fail, sentence)) in enumerate(wanted.items()):
        _check(bench, name, _of_all(bench.ranks, _ending(bench.ranks, fail))[:last], sentence)
        bench.progress((number + 1) / len(wanted))


def refuse(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    """Try a step that cannot be exchanged."""
    parameter.grad = torch.ones_like(parameter).to_sparse()
    optimizer.step()


def stay_away(_optimizer: torch.optim.Optimizer, _parameter: torch.Tensor) -> None:
    """Take no step until the others have given up."""
    time.sleep(TIMEOUT.total_seconds() + 1)


def _ending(ranks: Ranks, fail: Callable[[torch.optim.Optimizer, torch.Tensor], None]) -> tuple[str, float]:
    """Take two steps, in the second of which the last rank fails; return what was raised, and after how long [s]."""
    parameter = torch.nn.Parameter(torch.zeros(NUMEL, device=ranks.device))
    optimizer = BinSGDM([parameter])
    attach(optimizer, ranks_per_node=ranks.ranks_per_node, timeout=TIMEOUT)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    start = time.monotonic()
    try:
        if ranks.rank == ranks.world_size - 1:
            fail(optimizer, parameter)
        else:
            optimizer.step()
    except BinsgdmError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


def _of_all(ranks: Ranks, mine: Any) -> list[Any]:
    """Return what every rank has: in the group of all ranks, which nobody has aborted."""
    theirs: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(theirs, mine)
    return theirs


def _check(bench: Bench, name: str, endings: list[tuple[str, float]], sentence: str) -> None:
    """Record whether all of the others have raised the sentence, and soon."""
    wrong = [f"{text or 'went on'}, after {s:.1f} s" for text, s in endings if sentence not in text or s > MOST_S]
    bench.record.check(name, passed=not wrong, count=len(endings), detail=wrong[0] if wrong else "")
    slowest = max(endings, key=lambda ending: ending[1])
    bench.record.note(f"{name}: the others ended after up to {slowest[1]:.1f} s: {slowest[0]}")
