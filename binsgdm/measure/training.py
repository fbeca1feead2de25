"""Time whole steps of real training under a strategy, with their phases."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from binsgdm.ddp import attach
from binsgdm.errors import BinsgdmError
from binsgdm.measure.model import LR
from binsgdm.measure.models import Task, build
from binsgdm.measure.ranks import Ranks, guarded
from binsgdm.measure.record import Record
from binsgdm.measure.timing import WARM_UP, Effort, Progress, Stopwatch
from binsgdm.optimizer import BinSGDM

BLOCK_S = 2.0
MAX_BLOCK = 10
PHASES = ("forward", "backward", "optimizer")


def measure(  # noqa: PLR0913
    record: Record,
    ranks: Ranks,
    effort: Effort,
    *,
    model: str,
    batch: int,
    strategy: Literal["all_reduce", "binsgdm"],
    topology: Literal["hierarchical", "flat"] = "hierarchical",
    intra: Literal["fp32", "bf16", "one_bit"] = "fp32",
    average: Literal["updates", "gradients"] = "updates",
    overlap: bool = False,
    bucket_cap_mb: float = 25.0,
    progress: Progress = lambda _: None,
) -> None:
    """Add steps, forwards, backwards and optimizers of one model under one strategy.

    Ranks line up before a block of steps and then run as in training, with nothing in between. A step's time is that
    from the end of the step before it to its own end, each on the rank that ends last, so that the times of a block
    add up to its whole time; the phases are those of the rank that takes longest for each, and may add up to more.

    Args:
        record: where to.
        ranks: who takes part.
        effort: when to stop; the time of the step decides.
        model: as `models.build` takes it.
        batch: samples a rank.
        strategy: "all_reduce" is DistributedDataParallel in fp32 with a fused AdamW; "binsgdm" the bare model with
            BinSGDM attached.
        topology: of BinSGDM.
        intra: what travels inside a node, of BinSGDM.
        average: what is averaged inside a node, of BinSGDM.
        overlap: exchange beside backward; DDP always does.
        bucket_cap_mb: parameters of one message, MiB of fp32.
        progress: told which part is done.

    Raises:
        BinsgdmError: an unknown model, settings that do not go together, or a rank is gone.
    """
    options: dict[str, Any] = {"topology": topology, "intra": intra, "average": average, "overlap": overlap}
    if strategy == "all_reduce":
        _check_bare(options)
        options = dict.fromkeys(options, "") | {"overlap": True}
    task = build(model, batch, ranks.device)
    step = (_ddp if strategy == "all_reduce" else _binsgdm)(task, ranks, bucket_cap_mb, options)
    labels = options | {"overlap": int(options["overlap"])}
    labels |= {"model": model, "batch": batch, "strategy": strategy, "bucket_cap_mb": bucket_cap_mb}
    steps = _blocks(step, effort, ranks, progress)
    for place, name in enumerate(("step", *PHASES)):
        record.add("training", name, [row[place] for row in steps], **labels)


Step = Callable[[], Sequence[Any]]
"""Trains once and returns the moments at which it began and its phases ended."""


def _check_bare(options: dict[str, Any]) -> None:
    """Refuse BinSGDM's options for another strategy."""
    usual = {"topology": "hierarchical", "intra": "fp32", "average": "updates", "overlap": False}
    if given := [f"--{name}" for name, value in options.items() if value != usual[name]]:
        raise BinsgdmError(f"{', '.join(given)}: no effect with --strategy all_reduce; drop what belongs to binsgdm")


def _ddp(task: Task, ranks: Ranks, bucket_cap_mb: float, _options: dict[str, Any]) -> Step:
    """Return steps of DDP in fp32; one process alone needs none of it."""
    module: torch.nn.Module = task.module
    if ranks.groups is not None:
        module = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb)
    return _step_of(task, module, torch.optim.AdamW(module.parameters(), lr=LR, fused=True), ranks.device)


def _binsgdm(task: Task, ranks: Ranks, bucket_cap_mb: float, options: dict[str, Any]) -> Step:
    """Return steps of BinSGDM; the ranks' models are the same, since their seed is."""
    optimizer = BinSGDM(task.module.parameters(), lr=LR)
    attach(optimizer, task.module, bucket_cap_mb=bucket_cap_mb, ranks_per_node=ranks.ranks_per_node, **options)
    return _step_of(task, task.module, optimizer, ranks.device)


def _step_of(task: Task, module: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Step:
    watch = Stopwatch(device)

    def step() -> list[Any]:
        marks = [watch.stamp()]
        loss = task.loss(module(*task.inputs))
        marks.append(watch.stamp())
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        optimizer.step()
        optimizer.zero_grad()
        return [*marks, watch.stamp()]

    return step


def _blocks(step: Step, effort: Effort, ranks: Ranks, progress: Progress) -> list[list[float]]:
    """Return for each step its time and its phases, of the slowest rank [s]."""
    warm = _block(step, WARM_UP, ranks)
    count = max(1, min(MAX_BLOCK, int(BLOCK_S / warm[-1][0])))
    rows: list[list[float]] = []
    while True:
        rows += _block(step, count, ranks)
        values = [row[0] for row in rows]
        progress(effort.part_done(values, sum(values)))
        if effort.is_enough(values, sum(values)):
            return rows


def _block(step: Step, count: int, ranks: Ranks) -> list[list[float]]:
    """Train for so many steps in one go."""
    watch = Stopwatch(ranks.device)
    ranks.line_up()
    start = watch.stamp()
    marks = guarded(lambda: [step() for _ in range(count)])
    ends = ranks.slowest(watch.since(start, [mark[-1] for mark in marks]))
    phases = [_between(watch, mark) for mark in marks]
    slowest = iter(ranks.slowest([value for row in phases for value in row]))
    return [[end - before, *(next(slowest) for _ in PHASES)] for before, end in zip([0.0, *ends], ends, strict=False)]


def _between(watch: Stopwatch, marks: Sequence[Any]) -> list[float]:
    return [watch.since(start, [end])[0] for start, end in pairwise(marks)]
