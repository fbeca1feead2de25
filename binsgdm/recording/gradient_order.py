"""In which order backward makes gradients ready, and how much of it is done by then."""

from collections.abc import Callable
from typing import Any

import torch


class GradientOrder:
    """Watches the parameters of optimizers.

    Args:
        backward_work: gives the work of backward so far, in any unit.
    """

    def __init__(self, backward_work: Callable[[], float]) -> None:
        self._backward_work = backward_work
        self._watched: dict[int, torch.Tensor] = {}
        self._ready: dict[int, float] = {}  # work at which the gradient of a parameter was ready, in this order
        self._begin = 0.0

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Watch what an optimizer updates."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._watched and parameter.requires_grad:
                    self._watched[id(parameter)] = parameter
                    parameter.register_post_accumulate_grad_hook(self._note)

    def begin(self) -> None:
        """Note that a backward pass begins; the last one of a step counts."""
        self._ready.clear()
        self._begin = self._backward_work()

    def gradients(self) -> list[dict[str, Any]]:
        """Return the shape of each gradient and its share of backward, in ready order.

        None are returned where some were never ready, as with FSDP2, which sets gradients by itself.
        """
        if self._watched.keys() != self._ready.keys():
            return []
        found, before = [], self._begin
        whole = max(self._ready.values(), default=0.0) - self._begin
        for number, work in self._ready.items():
            share = (work - before) / whole if whole > 0 else 1.0
            found.append({"shape": list(self._watched[number].shape), "backward_share": float(f"{share:.9f}")})
            before = work
        return found

    def _note(self, parameter: torch.Tensor) -> None:
        self._ready.pop(id(parameter), None)  # of a parameter that is used twice the last time counts
        self._ready[id(parameter)] = self._backward_work()
