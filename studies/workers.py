"""Workers that take steps alone and exchange now and then, all in one process, by the protocols that ranks run."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from binsgdm.comm import Protocol, run_in_lockstep
from binsgdm.optimizers.outer_settings import OuterSettings
from binsgdm.optimizers.outer_steps import OuterSteps, averaged
from studies.stacked import loss


class Workers:
    """All workers, each with a model and an Adam of its own.

    Args:
        first: the model of the first worker, from which all others start.
        num_workers: how many.
        seed: of draws.
        inner_steps: between two exchanges; 1 averages gradients.
        outer: settings of DiLoCo; None averages parameters.
        trial: lr of Adam, and settings of the outer step beside those of `outer`.
    """

    def __init__(  # noqa: PLR0913
        self,
        first: nn.Module,
        *,
        num_workers: int,
        seed: int,
        inner_steps: int,
        outer: Mapping[str, Any] | None,
        trial: Mapping[str, Any],
    ) -> None:
        self._inner_steps = inner_steps
        self._models = [first, *(copy.deepcopy(first) for _ in range(num_workers - 1))]
        self._parameters = [list(one.parameters()) for one in self._models]
        self._inner = [torch.optim.AdamW(one, weight_decay=0.0) for one in self._parameters]
        self._step = 0
        self._outer: list[OuterSteps] = []
        if outer is not None:
            searched = {name: value for name, value in trial.items() if name.startswith("outer_")}
            settings = OuterSettings(inner_steps=inner_steps, seed=seed, **{**searched, **outer})
            self._outer = [
                OuterSteps(one, settings, rank=rank, world_size=num_workers, ranks_per_worker=1)
                for rank, one in enumerate(self._parameters)
            ]

    @property
    def param_groups(self) -> Sequence[dict[str, Any]]:
        """Those of every worker."""
        return [group for optimizer in self._inner for group in optimizer.param_groups]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take a step on the workers' shares of a batch."""
        self._step += 1
        for rank, (model, optimizer) in enumerate(zip(self._models, self._inner, strict=True)):
            optimizer.zero_grad()
            loss(model(inputs[rank]), targets[rank]).backward()
        if self._inner_steps == 1:
            self._average_gradients()
        for optimizer in self._inner:
            optimizer.step()
        if self._inner_steps > 1 and self._step % self._inner_steps == 0:
            self._exchange()

    def _average_gradients(self) -> None:
        for alike in zip(*self._parameters, strict=True):
            mean = torch.stack([one.grad for one in alike if one.grad is not None]).mean(0)
            for one in alike:
                one.grad = mean

    @torch.no_grad()
    def _exchange(self) -> None:
        if not self._outer:
            run_in_lockstep([averaged(one, "fp32", len(self._models)) for one in self._parameters], 1)
            return
        pairs = [(one, one.fragments[0]) for one in self._outer]
        means = run_in_lockstep([one.mean(part, part.pseudo_gradient(), self._step) for one, part in pairs], 1)
        ends: list[Protocol] = [one.finish(part, mean) for (one, part), mean in zip(pairs, means, strict=True)]
        run_in_lockstep(ends, 1)
