"""Real training on four gloo ranks of which one computes longer, measured by the command and by torch.profiler."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm import __main__ as alone
from binsgdm.bench import training
from binsgdm.recording.model_zoo import Task
from docs import shown
from tests.helpers.cli import ROOT
from tests.helpers.launch import exit_code, output_to

WORLD_SIZE, RANKS_PER_NODE, SLOW_RANK = 4, 2, 2
USUAL_S, LONGER_S = 0.03, 0.015
"""What a rank computes beside its model, and what the slow one does beyond that: asleep, since ranks share cores."""
STEPS, STEPS_OF_LOADER = 40, 50
"""Of the page: so many are traced."""
MODEL, BATCH = "mlp_200k", 2
MEASURE = [
    "training", "-o", "measured.json", "--model", MODEL, "--batch", str(BATCH), "--strategy", "all_reduce", "--threads",
    "1", "--ranks-per-node", str(RANKS_PER_NODE), "--max-repetitions", str(STEPS), "--relative-error", "0.0001",
]  # fmt: skip


def measured_and_traced(rank: int, where: dict[str, str], again: dict[str, str], folder: str) -> None:
    """Measure in a rank what it trains, then trace the same training; files are left in the folder."""
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank % RANKS_PER_NODE), "WORLD_SIZE": str(WORLD_SIZE),
        "LOCAL_WORLD_SIZE": str(RANKS_PER_NODE),
    }  # fmt: skip
    usual = training.build

    def slowed(*args: object) -> Task:
        task: Task = usual(*args)  # type: ignore[arg-type]
        seconds = USUAL_S + (LONGER_S if rank == SLOW_RANK else 0)
        task.module.register_forward_pre_hook(lambda *_: time.sleep(seconds))
        return task

    training.build = slowed  # this process ends with the test
    with output_to(Path(folder) / f"rank{rank}"):
        os.environ |= where
        assert exit_code(alone.main, ["binsgdm", "measure", *MEASURE]) == 0
        os.environ |= again
        _trace(Path(folder))


def _trace(folder: Path) -> None:
    """Train as the page on variation says, with its own lines around the loop."""
    page = (ROOT / "docs" / "how-to" / "stragglers.md").read_text(encoding="utf-8")
    (snippet,) = shown.blocks(page, "python")
    os.chdir(folder)
    dist.init_process_group("gloo")
    task = training.build(MODEL, BATCH, torch.device("cpu"))
    model = DistributedDataParallel(task.module)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(_batch: int) -> None:
        task.loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    exec(snippet, {"loader": range(STEPS_OF_LOADER), "train": train})
    dist.destroy_process_group()
