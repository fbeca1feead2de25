"""A part of the parameters with its outer state: parameters and momentum that all workers have alike."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from binsgdm.compressors.base import REPAIR, GradientBucket, check_state
from binsgdm.errors import BinsgdmError, shown
from binsgdm.optimizers.outer_settings import OuterSettings


def cut(numels: Sequence[int], count: int) -> list[range]:
    """Return which consecutive tensors each of so many fragments has, of about as many elements.

    Example:
        >>> cut([10, 1, 1, 12], 2)
        [range(0, 3), range(3, 4)]
    """
    if count > len(numels):
        raise BinsgdmError(
            f"DiLoCo: fragments: {count}: the model has {len(numels)} tensors; give at most {len(numels)}"
        )
    ends, total, seen = [0], sum(numels), 0
    for number, numel in enumerate(numels):
        seen += numel
        left = count - len(ends)
        is_full = seen >= total * len(ends) / count or len(numels) - number - 1 == left
        if left and is_full:
            ends.append(number + 1)
    return [range(first, end) for first, end in zip(ends, [*ends[1:], len(numels)], strict=True)]


def flattened(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a flat fp32 copy of tensors."""
    return torch.cat([one.detach().reshape(-1).to(torch.float32) for one in tensors])


@torch.no_grad()
def write_into(parameters: Sequence[torch.Tensor], values: torch.Tensor, share: float = 0.0) -> None:
    """Set parameters to values, mixed with a share of what they are.

    Shape:
        values: (N,), N elements of all parameters, or longer.
    """
    first = 0
    for parameter in parameters:
        wanted = values[first : first + parameter.numel()].view(parameter.shape)
        first += parameter.numel()
        if share:
            wanted = torch.lerp(wanted, parameter.to(torch.float32), share)
        parameter.copy_(wanted)


class Fragment:
    """Some parameters of a rank, and the slice of their outer state that this rank keeps.

    Args:
        number: of the fragment.
        parameters: of one number format.
        position: of this rank in its worker, from 0.
        ranks: of the worker, which share the outer state.

    Attributes:
        outer: outer parameters of the slice, flat fp32.
        momentum: of the outer SGD, of the same form.

    Source: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm 1.
    Differs: the ranks of a worker share the outer state.

    Shape:
        outer, momentum: (L,), L elements of a slice, ceil(N / ranks) for N elements; the last slice ends with zeros.
    """

    def __init__(self, number: int, parameters: Sequence[torch.Tensor], position: int, ranks: int) -> None:
        self.number, self.parameters = number, tuple(parameters)
        self._numel = sum(one.numel() for one in parameters)
        self._length = math.ceil(self._numel / ranks)
        self._first = position * self._length
        self._is_whole = ranks == 1
        self.outer = self._own(flattened(parameters))
        self.momentum = torch.zeros_like(self.outer)

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        own = whole[self._first : self._first + self._length]
        return torch.nn.functional.pad(own, (0, self._length - own.numel()))

    def pseudo_gradient(self) -> GradientBucket:
        """Return how far this worker went from the outer parameters, with the sign of a gradient."""
        # Workers start from the outer parameters as their own number format holds them: what that rounds is no way
        # that a worker went.
        start = self.outer.to(self.parameters[0].dtype).to(torch.float32)
        values = start - self._own(flattened(self.parameters))
        if not self._is_whole:
            return GradientBucket(values=values, parameters=(self.number,), shapes=((self._length,),))
        numbers = tuple(f"{self.number}.{index}" for index in range(len(self.parameters)))
        return GradientBucket(
            values=values, parameters=numbers, shapes=tuple(tuple(one.shape) for one in self.parameters)
        )

    def stepped(self, mean: torch.Tensor, settings: OuterSettings) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outer parameters and momentum after a step of SGD along the mean, as torch.optim.SGD does it."""
        momentum = self.momentum * settings.outer_momentum + mean
        along = mean.add(momentum, alpha=settings.outer_momentum) if settings.nesterov else momentum
        return self.outer.add(along, alpha=-settings.outer_lr), momentum

    def write(self, whole: torch.Tensor, share: float = 0.0) -> None:
        """Do as `write_into` for the parameters of this fragment."""
        write_into(self.parameters, whole, share)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the outer state of this rank's slice."""
        return {"outer": self.outer.clone(), "momentum": self.momentum.clone()}

    def checked(self, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a copy of a state, on the device of the parameters."""
        check_state("DiLoCo: state of a fragment", state, ("outer", "momentum"))
        return {name: self.of_slice(f"{name} of the state", value) for name, value in state.items()}

    def of_slice(self, name: str, value: object) -> torch.Tensor:
        """Return a copy of saved values of the slice, on the device of the parameters."""
        if not isinstance(value, torch.Tensor) or value.shape != self.outer.shape or value.dtype != torch.float32:
            raise BinsgdmError(
                f"DiLoCo: {name}: {shown(value)}: must be {self._length} values of float32; {REPAIR} on this rank"
            )
        if not bool(value.isfinite().all()):
            raise BinsgdmError(f"DiLoCo: {name}: values that are not finite: no run has them; {REPAIR} on this rank")
        return value.to(self.outer.device, copy=True)
