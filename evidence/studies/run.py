"""One training of one system on one task, with all ranks in this process or with a process for each rank."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from evidence.studies.tasks import TASKS, Task, Trial
from tests.helpers import stacked
from tests.helpers.stacked import AveragedGradients, LockStep, Workers, loss

DIVERGED = 10.0
"""A run has diverged when its held-out loss is not finite, or this many times that of a guess; it ends there."""
OF_ATTACH = {*stacked.SCHEME, "overlap", "bucket_cap_mb"}

Columns = dict[str, list[Any]]
"""Steps, held-out loss ("values") and perhaps accuracy at each evaluation; None from where a run has diverged on."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Attributes:
        system: "binsgdm", "one_bit_adam", "local_steps" with the options of `stacked.Workers`, or what averages the
            gradients: a name in `binsgdm.compressors.registry.SYSTEMS`.
        options: of the system; those of BinSGDM are settings of the optimizer or of `attach`, which may stand in the
            trial as well.
        trial: the optimizer and its settings.
        in_processes: a process for each rank, under DDP with gloo; only dense and BinSGDM. Else all in one.
        seed: of weights, batches and draws.
        split: what is evaluated, "validation" or "test".
        steps: None for those of the task.
    """

    study: str
    task: str
    system: str
    options: dict[str, Any] = field(default_factory=dict)
    trial: Trial = field(default_factory=dict)
    ranks: int
    ranks_per_node: int = 1
    in_processes: bool = False
    seed: int = 0
    split: str = "test"
    steps: int | None = None

    def sized_task(self) -> Task:
        task = TASKS[self.study][self.task]
        return replace(task, steps=self.steps or task.steps)

    @property
    def settings(self) -> dict[str, Any]:
        """What the trial and the options say of a 1-bit optimizer, without what is done around it."""
        around = ("optimizer", "warmup", "dense_share")
        return {name: value for name, value in self.trial.items() if name not in around} | self.options


class RankOfGroup:
    """This process as a rank of the group that it has joined, under DDP."""

    def __init__(self, run: Run, network: nn.Module) -> None:
        self.model = DistributedDataParallel(network)
        if run.system == "binsgdm":
            settings = run.settings
            how = {name: settings.pop(name) for name in OF_ATTACH & settings.keys()}
            self._optimizer: torch.optim.Optimizer = binsgdm.BinSGDM(self.model.parameters(), seed=run.seed, **settings)
            binsgdm.attach(self._optimizer, self.model, ranks_per_node=run.ranks_per_node, **how)
        elif run.system == "dense":
            self._optimizer = optimizer_of(run.trial, self.model)
        else:
            raise ValueError(f"run: system {run.system!r}: runs with all ranks in one process only")
        self.param_groups = self._optimizer.param_groups

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        rank = dist.get_rank()  # every process has drawn the whole batch, and takes its own share
        loss(self.model(inputs[rank]), targets[rank]).backward()
        self._optimizer.step()


Ranks = RankOfGroup | Workers | LockStep | AveragedGradients
"""All ranks of a run, or the one of this process; `param_groups` hold the lr, as those of an optimizer do."""


def perform(run: Run) -> Columns:
    """Train once, on one core a process."""
    torch.set_num_threads(1)
    if not run.in_processes:
        return train(run)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.get_context("forkserver").set_forkserver_preload(["evidence.studies.run"])
        multiprocessing.start_processes(_train_as_rank, (run, Path(folder)), run.ranks, start_method="forkserver")
        columns: Columns = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
        return columns


def _train_as_rank(rank: int, run: Run, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=run.ranks)
    columns = train(run)
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(columns), encoding="utf-8")
    dist.destroy_process_group()


def train(run: Run) -> Columns:
    """Train once; return the evaluations."""
    task = run.sized_task()
    curve: list[dict[str, float | None]] = []
    for step, model, _ in training_steps(run):
        if task.is_evaluated(step):
            curve.append(evaluate(task, model, run.split))
            if curve[-1]["values"] is None:
                break
    if run.in_processes:
        binsgdm.check_replicas(model)
    steps = [step for step in range(1, task.steps + 1) if task.is_evaluated(step)]
    missing = [None] * (len(steps) - len(curve))
    return {"steps": steps, **{name: [point[name] for point in curve] + missing for name in curve[0]}}


def cosine(step: int, steps: int, warmup: int) -> float:
    """Return lr as a part of its peak after `step` steps: linear warm-up, then a cosine to 0.

    Example:
        >>> [round(cosine(step, steps=12, warmup=2), 2) for step in (0, 1, 2, 7, 12)]
        [0.33, 0.67, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))


def training_steps(
    run: Run, schedule: Callable[[int, int, int], float] = cosine
) -> Iterator[tuple[int, nn.Module, Any]]:
    """Take one step after the other; yield its number, from 1, the model and the ranks.

    All numbers of ranks see the same batches: rank r of R has the samples r, r + R and so on of each.
    """
    task = run.sized_task()
    torch.manual_seed(run.seed)
    model = task.network()
    ranks = ranks_of(run, model)
    draws = torch.Generator().manual_seed(run.seed)
    inputs, targets = task.data("train")
    for step in range(1, task.steps + 1):
        # Drawn for the whole batch and then dealt out, so that the samples do not depend on the number of ranks.
        shares = torch.randint(len(inputs), (task.batch,), generator=draws).view(-1, run.ranks).T
        for group in ranks.param_groups:
            group["lr"] = run.trial["lr"] * schedule(step - 1, task.steps, run.trial.get("warmup", 0))
        if isinstance(ranks, RankOfGroup | Workers):
            ranks.step(inputs[shares], targets[shares])
        else:
            ranks.step(stacked.rank_gradients(model, inputs[shares], targets[shares]))
        yield step, model, ranks


def ranks_of(run: Run, model: nn.Module) -> Ranks:
    if run.in_processes:
        return RankOfGroup(run, model)
    if run.system == "local_steps":
        return Workers(model, num_workers=run.ranks, seed=run.seed, trial=run.trial, **run.options)
    layout = {"num_ranks": run.ranks, "ranks_per_node": run.ranks_per_node}
    task, parameters = run.sized_task(), list(model.parameters())
    if run.system == "binsgdm":
        return LockStep(parameters, stacked.binsgdm(seed=run.seed, **run.settings), **layout)
    if run.system == "one_bit_adam":
        make = stacked.one_bit_adam(dense_steps=task.dense_steps(run.trial), **run.settings)
        return LockStep(parameters, make, **layout)
    systems = stacked.systems_of(run.system, run.options, **layout)
    return AveragedGradients(optimizer_of(run.trial, model), systems, ranks_per_node=run.ranks_per_node, seed=run.seed)


def optimizer_of(trial: Trial, model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay, or SGD, with the settings of a trial."""
    if trial["optimizer"] == "adam":
        decay, betas = trial.get("weight_decay", 0.0), (trial.get("beta1", 0.9), trial.get("beta2", 0.999))
        return torch.optim.AdamW(model.parameters(), lr=trial["lr"], betas=betas, weight_decay=decay)
    return torch.optim.SGD(model.parameters(), lr=trial["lr"], momentum=trial["momentum"])


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, split: str) -> dict[str, float | None]:
    """Return loss and accuracy on held-out data, None where the run has diverged."""
    inputs, targets = task.data(split)
    # TransformerEncoder takes a faster path in eval(), and it is what a user evaluates with.
    model.eval()
    scores = model(inputs)
    model.train()
    held_out = loss(scores, targets).item()
    has_diverged = not held_out < DIVERGED * math.log(task.classes)
    values = {"values": None if has_diverged else held_out}
    if task.has_accuracy:
        is_right = (scores.argmax(-1) == targets).float().mean().item()
        values["accuracy"] = None if has_diverged else is_right
    return values
