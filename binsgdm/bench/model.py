"""Time forward, backward with the moment at which each gradient is ready, and optimizers, without any message."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import Stopwatch, Trial, phases, trial_of
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.recording.model_sources import build
from binsgdm.recording.model_zoo import Task

LR = 1e-6  # so small that repeated steps do not change the model


def measure(
    bench: Bench,
    *,
    models: Sequence[str],
    batch: int,
    dtype: str = "float32",
) -> None:
    """Add forward, backward, every gradient and both optimizers of each model.

    All ranks measure at the same time, each with a model of its own.

    Args:
        bench: where to, who takes part, and when to stop, for forward and backward together and for each optimizer.
        models: as `model_sources.build` takes them.
        batch: samples a rank.
        dtype: of the parameters.
    """
    for part, model in bench.each(models):
        task = build(model, batch, bench.ranks.device, getattr(torch, dtype))
        labels: dict[str, Any] = {"model": model, "batch": batch, "dtype": dtype}
        _one(part, task, labels)


def _one(bench: Bench, task: Task, labels: dict[str, Any]) -> None:
    """Add one model."""
    record, ranks = bench.record, bench.ranks
    gradients = Gradients(task.module, ranks.device)
    optimizers = optimizers_of(task.module)
    trials = {"": pass_trial(task.module, partial(task.loss_of, task.module), gradients, ranks.device)}
    trials |= {name: trial_of(step, ranks.device) for name, step in optimizers.items()}
    found = bench.interleave(trials)
    add_passes(record, gradients, found[""], labels)
    for name in optimizers:
        record.add("model", "optimizer", [row[0] for row in found[name]], optimizer=name, **labels)


def add_passes(record: Record, gradients: "Gradients", rows: Sequence[Sequence[float]], labels: dict[str, Any]) -> None:
    """Add forward, backward and every gradient, from the repetitions of a trial of `pass_trial`."""
    forward, backward, *ready_s = zip(*map(_to_scale, rows), strict=True)
    record.add("model", "forward", forward, **labels)
    record.add("model", "backward", backward, **labels)
    ready = list(zip(gradients.names, gradients.shapes, ready_s, strict=True))
    for order, (name, shape, values) in enumerate(sorted(ready, key=lambda one: median(one[2]))):
        sizes: dict[str, Any] = {"num_elements": math.prod(shape), "shape": "x".join(map(str, shape))}
        record.add("model", "gradient_ready", values, tensor=name, order=order, **sizes, **labels)


def _to_scale(row: Sequence[float]) -> list[float]:
    """Return the phases of one repetition, scaled so that forward and backward are as long as the slowest rank's both.

    Of each phase the slowest rank counts, and that may be another one each time.
    """
    whole, forward, backward, *ready = row
    scale = whole / (forward + backward)
    return [scale * value for value in (forward, backward, *ready)]


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
        self.shapes = tuple(tuple(parameter.shape) for parameter in found.values())
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


def pass_trial(
    module: torch.nn.Module, forward: Callable[[], torch.Tensor], gradients: Gradients, device: torch.device
) -> Trial:
    """Return a trial: forward and backward together, each of them, and each gradient since backward began."""
    watch = Stopwatch(device)

    def trial() -> list[float]:
        module.zero_grad(set_to_none=True)
        gradients.stamps.clear()
        marks = [watch.stamp()]
        loss = forward()
        marks.append(watch.stamp())
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        passes = phases(watch, marks)
        return [sum(passes), *passes, *watch.since(marks[1], gradients.in_order())]

    return trial
