"""Buckets of an exchange that are not DDP's: a resumed run exchanges in those of the run that was saved.

DDP forms its buckets anew after its first backward, in the order in which gradients became ready. Draws, pieces and
blocks depend on buckets, so a resumed run, whose DDP begins with the first form again, would go on with other numbers.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from binsgdm.compressors.base import GradientBucket, check_whole
from binsgdm.errors import BinsgdmError, listed, shown
from binsgdm.kernels import streams
from binsgdm.kernels.streams import Stream

Layout = tuple[tuple[int, ...], ...]
"""The parameters of each bucket, by their numbers in the order of the model."""


class DdpBucket:
    """A bucket that DDP waits for, until all of its parameters have their means."""

    def __init__(
        self, parameters: Sequence[int], buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor]"
    ) -> None:
        self.buffer = buffer
        self._parameters, self._future = parameters, future
        self._means: dict[int, torch.Tensor] = {}

    def finish(self, mean: torch.Tensor) -> None:
        """Hand DDP the means of the whole bucket, flat."""
        self._future.set_result(mean.to(self.buffer.dtype))

    def take(self, parameter: int, mean: torch.Tensor) -> None:
        """Take the mean of one parameter; the last one ends DDP's wait."""
        self._means[parameter] = mean
        if len(self._means) == len(self._parameters):
            self.finish(torch.cat([self._means[number] for number in self._parameters]))

    def give_up(self) -> None:
        """End DDP's wait without means; nobody reads the values, as backward raises."""
        if not self._future.done():
            self._future.set_result(self.buffer)


class ArrivedGradient(NamedTuple):
    """The gradient of one parameter, flat fp32, the bucket of DDP that waits for its mean, and where it was written."""

    values: torch.Tensor
    shape: tuple[int, ...]
    waiting: DdpBucket
    source: Stream


class Regrouped(NamedTuple):
    """A bucket of the exchange whose gradients came in other buckets of DDP."""

    parameters: tuple[int, ...]
    gradients: tuple[ArrivedGradient, ...]

    def bucket(self) -> GradientBucket:
        """Return the gradients one after the other."""
        return GradientBucket(
            values=torch.cat([gradient.values for gradient in self.gradients]),
            parameters=self.parameters,
            shapes=tuple(gradient.shape for gradient in self.gradients),
        )

    def keep(self) -> None:
        """Keep the gradients' memory until the current stream has read them."""
        on_device = streams.of(self.gradients[0].values.device)
        on_device.keep(on_device.current(), *(gradient.values for gradient in self.gradients))

    def finish(self, mean: torch.Tensor) -> None:
        """Hand each parameter's mean to the bucket of DDP that waits for it."""
        parts = torch.split(mean, [gradient.values.numel() for gradient in self.gradients])
        for parameter, gradient, part in zip(self.parameters, self.gradients, parts, strict=True):
            gradient.waiting.take(parameter, part)

    def give_up(self) -> None:
        """End DDP's wait for all of these parameters."""
        for gradient in self.gradients:
            gradient.waiting.give_up()


class Regrouping:
    """The gradients of one backward on their way from DDP's buckets to those of a layout, which leave in order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._arrived: dict[int, ArrivedGradient] = {}
        self._next = 0

    def is_next(self, parameters: Sequence[int]) -> bool:
        """Tell whether a bucket of DDP is the next of the layout, as it is; it leaves then without a copy."""
        is_it = not self._arrived and self._next < len(self.layout) and self.layout[self._next] == tuple(parameters)
        self._next += is_it
        return is_it

    def add(self, bucket: GradientBucket, waiting: DdpBucket, source: Stream) -> list[tuple[int, Regrouped]]:
        """Take a bucket of DDP, and return the buckets of the layout that are complete, with their numbers."""
        left = {number for numbers in self.layout[self._next :] for number in numbers} - set(self._arrived)
        if strange := sorted(map(str, set(bucket.parameters) - left)):
            raise BinsgdmError(f"{_FOREIGN}, not {_in_words(strange)} of the model; {_REPAIR}")
        parts = torch.split(bucket.values, bucket.numels)
        for number, part, shape in zip(bucket.parameters, parts, bucket.shapes, strict=True):
            self._arrived[number] = ArrivedGradient(part, shape, waiting, source)  # type: ignore[index]
        complete = []
        while self._next < len(self.layout) and all(one in self._arrived for one in self.layout[self._next]):
            numbers = self.layout[self._next]
            complete.append((self._next, Regrouped(numbers, tuple(self._arrived.pop(one) for one in numbers))))
            self._next += 1
        return complete

    def check_done(self) -> None:
        """Refuse the end of a backward that has left gradients behind."""
        if self._next < len(self.layout):
            missing = sorted({one for numbers in self.layout[self._next :] for one in numbers} - set(self._arrived))
            raise BinsgdmError(f"{_FOREIGN}, also {_in_words(missing)}, without a gradient in the model; {_REPAIR}")


_FOREIGN = "compress_gradients: a state whose buckets have other parameters"
_REPAIR = (
    "load the state of the same model with the same parameters trained, or without its layout (None), where draws are "
    "others and residuals go on"
)


def _in_words(numbers: Iterable[object]) -> str:
    found = list(numbers)
    return f"parameter {found[0]}" if len(found) == 1 else f"parameters {listed(found)}"


def checked_layout(given: object, num_parameters: int) -> Layout:
    """Return the layout of a state.

    Raises:
        BinsgdmError: it is none: other types, a parameter twice, or one that the model does not have.
    """
    where = "compress_gradients: layout of the state"
    if not isinstance(given, list | tuple) or not all(isinstance(one, list | tuple) and one for one in given):
        raise BinsgdmError(f"{where}: {shown(given)}: must be lists of parameters; load what state_dict() returned")
    numbers = [number for one in given for number in one]
    for number in numbers:
        check_whole(where, number, low=0, high=num_parameters - 1)
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise BinsgdmError(f"{where}: parameter {twice} twice: each is in one bucket; load what state_dict() returned")
    return tuple(tuple(one) for one in given)
