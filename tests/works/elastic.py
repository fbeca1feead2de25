"""What a rank does that torchrun's agent starts again: it saves after each step, and goes on from there."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.helpers.launch import LONGEST_S, end_after
from tests.works.rows_of_states import resume, saved
from tests.works.table import WAYS, Way
from tests.works.training import STEPS, Training, check_equal, plain

LOST_STEP = STEPS - 1
"""In which one rank is killed."""


def work(folder: str) -> dict[str, str]:
    """Train in every way, a step of each at a time; return what is not as in a run that nothing interrupted."""
    end_after(LONGEST_S)
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    dist.init_process_group("gloo")
    attempt, path = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(folder) / f"rank{dist.get_rank()}"
    first, trainings = _last_common(path)
    assert first == (LOST_STEP if attempt else 0)
    for step in range(first, STEPS):
        for way, training in trainings.items():
            if not attempt and step == LOST_STEP and dist.get_rank() and way == WAYS[-1]:
                os.kill(os.getpid(), signal.SIGKILL)
            training.step(step)
        _save({str(way): saved(training) for way, training in trainings.items()}, path, step + 1)
    found = {str(way): _differs(way, training) for way, training in trainings.items()}
    dist.destroy_process_group()
    return found


def _differs(way: Way, training: Training) -> str:
    try:
        check_equal(training.parameters(), plain(way))
    except AssertionError as error:
        return str(error)
    return ""


def _save(state: dict[str, Any], path: Path, step: int) -> None:
    """Write a file of its own for each step, whole or not at all."""
    torch.save(state, path.with_suffix(".partial"))
    path.with_suffix(".partial").rename(path.with_suffix(f".{step}"))


def _last_common(path: Path) -> tuple[int, dict[Way, Training]]:
    """Return the last step that all ranks have saved, and the trainings after it."""
    steps = [int(one.suffix[1:]) for one in path.parent.glob(f"{path.name}.[0-9]*")]
    last = torch.tensor(max(steps, default=0))
    dist.all_reduce(last, op=dist.ReduceOp.MIN)  # a rank that is killed may be behind
    if not last:
        return 0, {way: Training(way) for way in WAYS}
    states = torch.load(path.with_suffix(f".{int(last)}"))
    return int(last), {way: resume(way, states[str(way)]) for way in WAYS}
