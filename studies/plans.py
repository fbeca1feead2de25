"""One training of one system on one task, all ranks in one process."""

import math
from dataclasses import dataclass
from typing import Any

import together
import torch
from torch import nn

from studies.stacked import AveragedGradients, Stack, loss, rank_gradients, systems_of
from studies.tasks import TASKS, Task, Trial

DIVERGED = 10.0
"""A run has diverged when its held-out loss is not finite, or so many times that of a guess; it ends there."""
RANKS_PER_NODE = {4: 2, 16: 4}
"""What BinSGDM averages in before the first draw; no other system here looks at nodes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training.

    Attributes:
        task: in `TASKS`.
        strategy: kind and options, as a scenario of the simulator takes them.
        trial: the optimizer and its settings.
        ranks: how many, in one process.
        seed: of weights, batches and draws.
        split: what is evaluated, "validation" or "test".
        steps: None for those of the task.
    """

    task: str
    strategy: dict[str, Any]
    trial: Trial
    ranks: int
    seed: int
    split: str
    steps: int | None = None


def train(plan: Plan) -> dict[str, Any]:
    """Train once; return steps, held-out loss and, if the task has it, accuracy; None from where it diverged on."""
    task = TASKS[plan.task]
    steps = plan.steps or task.steps
    torch.manual_seed(plan.seed)
    model = task.network()
    stack = stack_of(plan, model)
    base_lr = plan.trial["lr"]
    draws = torch.Generator().manual_seed(plan.seed)
    inputs, targets = task.data("train")
    curve: list[dict[str, float | None]] = []
    for step in range(1, steps + 1):
        batch = torch.randint(len(inputs), (task.batch,), generator=draws)
        shares = batch.view(-1, plan.ranks).T  # rank r has samples r, r + R, and so on, as in `training.fit`
        for group in stack.param_groups:
            group["lr"] = base_lr * (0.5 + 0.5 * math.cos(math.pi * (step - 1) / steps))
        stack.step(rank_gradients(model, inputs[shares], targets[shares]))
        if step % task.every == 0 or step == steps:
            curve.append({"step": step, **evaluate(task, model, plan.split)})
            if curve[-1]["loss"] is None:
                break
    return _filled(task, curve, steps)


def stack_of(plan: Plan, model: nn.Module) -> Stack:
    """Return all ranks of a plan on one model."""
    options = {name: value for name, value in plan.strategy.items() if name != "kind"}
    kind, trial = plan.strategy["kind"], plan.trial
    layout = {"num_ranks": plan.ranks, "ranks_per_node": RANKS_PER_NODE[plan.ranks]}
    if kind == "binsgdm":
        make = together.binsgdm(lr=trial["lr"], beta=trial["beta"], seed=plan.seed)
        return together.LockStep(model.parameters(), make, **layout)
    if kind == "one_bit_adam":
        make = together.one_bit_adam(lr=trial["lr"], eps=trial["eps"], dense_steps=TASKS[plan.task].dense_steps(trial))
        return together.LockStep(model.parameters(), make, **layout)
    systems = systems_of("dense" if kind == "all_reduce" else kind, options, plan.ranks)
    optimizer = optimizer_of(trial, model)
    return AveragedGradients(optimizer, systems, ranks_per_node=RANKS_PER_NODE[plan.ranks], seed=plan.seed)


def optimizer_of(trial: Trial, model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with PyTorch's betas, or SGD with the trial's momentum."""
    if trial["optimizer"] == "adam":
        return torch.optim.Adam(model.parameters(), lr=trial["lr"])
    return torch.optim.SGD(model.parameters(), lr=trial["lr"], momentum=trial["momentum"])


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, split: str) -> dict[str, float | None]:
    """Return loss and accuracy on held-out data, None where the run has diverged."""
    inputs, targets = task.data(split)
    scores = model(inputs)
    found = loss(scores, targets).item()
    has_diverged = not found < DIVERGED * math.log(task.classes)
    values = {"loss": None if has_diverged else found}
    if task.has_accuracy:
        is_right = (scores.argmax(-1) == targets).float().mean().item()
        values["accuracy"] = None if has_diverged else is_right
    return values


def _filled(task: Task, curve: list[dict[str, float | None]], steps: int) -> dict[str, Any]:
    """Return the curve by columns, to the last step, rounded to 5 significant digits."""
    at = [step for step in range(1, steps + 1) if step % task.every == 0 or step == steps]
    missing = [None] * (len(at) - len(curve))
    names = {"values": "loss"} | ({"accuracy": "accuracy"} if task.has_accuracy else {})
    columns = {name: [rounded(point[key]) for point in curve] + missing for name, key in names.items()}
    return {"steps": at, **columns}


def rounded(value: float | None) -> float | None:
    """Return 5 significant digits.

    Example:
        >>> rounded(0.123456), rounded(None)
        (0.12346, None)
    """
    return None if value is None else float(f"{value:.5g}")
