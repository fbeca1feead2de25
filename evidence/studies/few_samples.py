"""BinSGDM's defaults against AdamW where each of 16 ranks sees one to four samples a step, on two texts.

AdamW's lr is the best of a grid on validation text. BinSGDM has its defaults and 0.7 times that lr, without a search.
"""

import math
import pydoc_data.topics
import statistics
import sysconfig
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evidence import RESULTS
from evidence.studies.page import BINSGDM
from evidence.studies.study import Ledger
from examples import train_lm
from simnet.report.table import Column, Table
from tests.helpers.stacked import LockStep, binsgdm, loss, rank_gradients

RANKS, RANKS_PER_NODE, STEPS, WARMUP = 16, 4, 1000, 100
# The grid has a seed of its own: no final run has chosen the lr that it runs with.
GRID, GRID_SEED, SEEDS, OF_ADAM = (0.003, 0.006, 0.012, 0.024, 0.048), 100, (0, 1, 2), 0.7
BETAS = (0.9, 0.99)
"""Of AdamW: as BinSGDM's m and b decay; better here than PyTorch's."""
EVALUATED, MARGIN = 200, 0.05
PAGE = BINSGDM
LARGER = partial(train_lm.Transformer, width=96, num_layers=3)
TASKS: dict[str, tuple[Callable[[], str], Callable[[], nn.Module], str]] = {
    "english": (
        lambda: "".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)),
        train_lm.Transformer,
        "English of Python's help, 2 layers of width 64",
    ),
    "c": (
        lambda: "".join(
            header.read_text("utf-8", "ignore") for header in sorted(Path(sysconfig.get_path("include")).rglob("*.h"))
        ),
        LARGER,
        "C of Python's headers, 3 layers of width 96",
    ),
}
"""Text, network and title of each task: neither text was looked at before."""
CASES = (("english", 1), ("c", 1), ("english", 4), ("c", 4))
"""Task, and windows of a rank."""


@lru_cache
def windows(task: str, split: str) -> Tensor:
    """Return windows of characters and the next one: all of the first 80 %, else the first that do not overlap."""
    text = TASKS[task][0]().encode("ascii", "ignore")
    first, second = int(0.8 * len(text)), int(0.9 * len(text))
    part = {"train": text[:first], "validation": text[first:second], "test": text[second:]}[split]
    size = train_lm.CONTEXT + 1
    rows = torch.frombuffer(bytearray(part), dtype=torch.uint8).unfold(0, size, 1 if split == "train" else size)
    return rows if split == "train" else rows[:EVALUATED]


class Training(NamedTuple):
    """One training: windows of a rank in a step, and on which split it is judged."""

    task: str
    samples: int
    optimizer: str
    lr: float
    seed: int
    split: str


def final_loss(training: Training) -> float:
    """Train, and return the loss [nats per character]."""
    torch.manual_seed(training.seed)
    model = TASKS[training.task][1]()
    dense = torch.optim.AdamW(model.parameters(), lr=training.lr, betas=BETAS, weight_decay=0.0)
    make = binsgdm(lr=training.lr, seed=training.seed)
    ranks = LockStep(model.parameters(), make, num_ranks=RANKS, ranks_per_node=RANKS_PER_NODE)
    draws, known = torch.Generator().manual_seed(training.seed), windows(training.task, "train")
    for step in range(STEPS):
        for group in (*dense.param_groups, *ranks.param_groups):
            group["lr"] = training.lr * min(1.0, (step + 1) / WARMUP) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        batch = known[torch.randint(len(known), (RANKS * training.samples,), generator=draws)].long()
        if training.optimizer == "adamw":
            dense.zero_grad()
            loss(model(batch[:, :-1]), batch[:, 1:]).backward()  # type: ignore[no-untyped-call]
            dense.step()
        else:
            of_ranks = batch.view(RANKS, training.samples, -1)
            ranks.step(rank_gradients(model, of_ranks[..., :-1], of_ranks[..., 1:]))
    held_out = windows(training.task, training.split).long()
    with torch.no_grad():
        return float(loss(model(held_out[:, :-1]), held_out[:, 1:]))


def read() -> Ledger:
    return Ledger(RESULTS / "few_samples.json")


def run(_: object) -> None:
    ledger = read()

    def do(training: Training) -> None:
        if not ledger.having(training._asdict()):
            ledger.put(training._asdict(), {"loss": round(final_loss(training), 5)})
            print(ledger.having(training._asdict())[0], flush=True)

    for task, samples in CASES:
        for lr in GRID:
            do(Training(task, samples, "adamw", lr, GRID_SEED, "validation"))
        best = best_lr(ledger, task, samples)
        for seed in SEEDS:
            do(Training(task, samples, "adamw", best, seed, "test"))
            do(Training(task, samples, "binsgdm", OF_ADAM * best, seed, "test"))


def best_lr(ledger: Ledger, task: str, samples: int) -> float:
    """Return AdamW's best of the grid."""
    rows = ledger.having({"task": task, "samples": samples, "split": "validation"})
    return float(min(rows, key=lambda row: row["loss"])["lr"])


def regions(ledger: Ledger) -> dict[str, str]:
    rows = []
    for task, samples in CASES:
        case = {"task": task, "samples": samples, "split": "test"}
        losses = (
            [row["loss"] for row in ledger.having(case | {"optimizer": optimizer})]
            for optimizer in ("adamw", "binsgdm")
        )
        dense, ours = map(statistics.fmean, losses)
        verdict = f"{ours - dense:+.3f} {'within' if ours - dense <= MARGIN else 'beyond'}"
        lr = f"{best_lr(ledger, task, samples):g}"
        rows.append((TASKS[task][2], str(samples), lr, f"{dense:.3f}", f"{ours:.3f}", verdict))
    heads = ("samples of a rank", "AdamW's lr", "AdamW", "BinSGDM", "difference")
    return {"few samples": Table(["text and network", *(Column(head, "right") for head in heads)], rows).markdown()}


def data(ledger: Ledger) -> dict[str, Table]:
    names = (*Training._fields, "loss")
    return {"training-few-samples": Table(names, [[str(row[name]) for name in names] for row in ledger.rows])}
