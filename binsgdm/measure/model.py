"""Time forward, backward with the moment at which each gradient is ready, and optimizers, without any message."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from binsgdm.measure.models import Task, build
from binsgdm.measure.ranks import Ranks
from binsgdm.measure.record import Record
from binsgdm.measure.timing import Effort, Progress, Stopwatch, take_turns
from binsgdm.optimizer import BinSGDM

LR = 1e-6
"""So small that the model stays what it is, however often it is trained."""


def measure(  # noqa: PLR0913
    record: Record,
    ranks: Ranks,
    effort: Effort,
    *,
    model: str,
    batch: int,
    dtype: str = "float32",
    progress: Progress = lambda _: None,
) -> None:
    """Add forward, backward, every gradient and both optimizers of one model.

    All ranks are at it at one time, each with a model of its own.

    Args:
        record: where to.
        ranks: who takes part.
        effort: when to stop; the time of the whole step decides.
        model: as `models.build` takes it.
        batch: samples a rank.
        dtype: of the parameters.
        progress: told which part is done.

    Raises:
        BinsgdmError: an unknown model.
    """
    task = build(model, batch, ranks.device, getattr(torch, dtype))
    gradients = Gradients(task.module, ranks.device)
    optimizers = optimizers_of(task.module)
    rows = take_turns({"step": _step(task, optimizers, gradients, ranks.device)}, effort, ranks, progress=progress)[
        "step"
    ]
    labels: dict[str, Any] = {"model": model, "batch": batch, "dtype": dtype}
    _whole, forward, backward, *others = zip(*rows, strict=True)
    record.add("model", "forward", forward, **labels)
    record.add("model", "backward", backward, **labels)
    for name, values in zip(optimizers, others, strict=False):
        record.add("model", "optimizer", values, optimizer=name, **labels)
    ready = list(zip(gradients.names, gradients.numels, others[len(optimizers) :], strict=True))
    for order, (name, numel, values) in enumerate(sorted(ready, key=lambda one: median(one[2]))):
        record.add("model", "gradient_ready", values, tensor=name, num_elements=numel, order=order, **labels)


def optimizers_of(module: torch.nn.Module) -> dict[str, Callable[[], object]]:
    """Return a step of each optimizer, all on the same parameters."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return {
        "adamw": torch.optim.AdamW(parameters, lr=LR, fused=True).step,
        "binsgdm": BinSGDM(parameters, lr=LR).step,
    }


class Gradients:
    """Notes when backward has each gradient ready; the trained parameters, in the order of the model."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.names = tuple(found)
        self.numels = tuple(parameter.numel() for parameter in found.values())
        self.stamps: dict[str, Any] = {}
        self._watch = Stopwatch(device)
        for name, parameter in found.items():
            parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]

    def in_order(self) -> list[Any]:
        """Return the moments of the last backward; that of one without a gradient is the last of all."""
        last = list(self.stamps.values())[-1]
        return [self.stamps.get(name, last) for name in self.names]

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(_parameter: torch.Tensor) -> None:
            self.stamps[name] = self._watch.stamp()

        return hook


def _step(
    task: Task, optimizers: dict[str, Callable[[], object]], gradients: Gradients, device: torch.device
) -> Callable[[], Sequence[float]]:
    """Return a trial: whole, forward, backward, each optimizer, each gradient since backward began."""
    watch = Stopwatch(device)

    def trial() -> list[float]:
        task.module.zero_grad(set_to_none=True)
        gradients.stamps.clear()
        marks = [watch.stamp()]
        loss = task.loss(task.module(*task.inputs))
        marks.append(watch.stamp())
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        for step in optimizers.values():
            step()
            marks.append(watch.stamp())
        phases = [watch.since(start, [end])[0] for start, end in pairwise(marks)]
        return [sum(phases), *phases, *watch.since(marks[1], gradients.in_order())]

    return trial
