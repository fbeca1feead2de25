"""How an amount of a recorded step depends on the numbers of nodes and ranks: the laws that its recordings allow."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

# A law holds exactly but for rounding; messages may be padded by some elements a rank, compute by a little of its own.
ROUNDING = 1e-9
PADDING_ELEMENTS = 32
COMPUTE_TOLERANCE = 0.02
BYTES_OF: dict[str, int] = {
    "int64": 8, "fp64": 8, "int32": 4, "fp32": 4, "int16": 2, "fp16": 2, "bf16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element; of other formats as many as of the widest."""


class LayoutSizes(NamedTuple):
    """Numbers of ranks that an amount may depend on.

    Attributes:
        num_nodes: nodes.
        ranks_per_node: ranks of a node.
        groups: ranks of each process group.
    """

    num_nodes: int
    ranks_per_node: int
    groups: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node

    def dimensions(self) -> tuple[int, ...]:
        """Return every number that an amount may be shared out by: world, nodes, ranks of a node, groups."""
        return (self.world_size, self.num_nodes, self.ranks_per_node, *self.groups)


Factor = Callable[[LayoutSizes], float]


def constant(_: LayoutSizes) -> float:
    """Return the factor of what stays as it is."""
    return 1.0


def of_group(number: int) -> Factor:
    """Return the factor of what every rank of a group adds to."""
    return lambda sizes: float(sizes.groups[number])


def shares(recorded: Sequence[LayoutSizes]) -> Iterator[Factor]:
    """Yield the factors of what is shared out by a dimension that differs between the recordings."""
    every = [sizes.dimensions() for sizes in recorded]
    for index, sizes in enumerate(zip(*every, strict=True)):
        if len(set(sizes)) > 1:
            yield partial(_share, index)


def _share(index: int, sizes: LayoutSizes) -> float:
    return 1.0 / sizes.dimensions()[index]


def _whole(share: Factor, sizes: LayoutSizes) -> float:
    return 1.0 / share(sizes)


class Message(NamedTuple):
    """The bytes of a message on each layout, and what its padding may be there.

    Attributes:
        amounts: bytes on each layout.
        group: number of its process group.
        dtype: number format.
    """

    amounts: tuple[float, ...]
    group: int
    dtype: str

    def padding_bytes(self, sizes: LayoutSizes) -> float:
        """Return the most bytes by which ranks may round up: slices of a node are padded for all nodes."""
        return float(PADDING_ELEMENTS * BYTES_OF.get(self.dtype, 8) * sizes.world_size)

    def laws(self, recorded: Sequence[LayoutSizes]) -> list[Factor]:
        """Return the factors of laws that the message follows: those that hold to the byte, else the nearest one."""
        candidates = [constant, of_group(self.group), *shares(recorded)]
        misses = [(self._miss_bytes(factor, recorded), factor) for factor in candidates]
        exact = [factor for miss, factor in misses if miss <= ROUNDING * max(self.amounts)]
        padded = [(miss, number) for number, (miss, _) in enumerate(misses) if miss < math.inf]
        return exact or ([candidates[min(padded)[1]]] if padded else [])

    def at(self, factor: Factor, recorded: Sequence[LayoutSizes], sizes: LayoutSizes) -> float:
        """Return the bytes on a layout by a law."""
        return self._unit(factor, recorded) * factor(sizes)

    def _unit(self, factor: Factor, recorded: Sequence[LayoutSizes]) -> float:
        return min(amount / factor(sizes) for amount, sizes in zip(self.amounts, recorded, strict=True))

    def _miss_bytes(self, factor: Factor, recorded: Sequence[LayoutSizes]) -> float:
        """Return the most bytes by which the message is larger than by a law; infinite beyond its padding."""
        unit, most = self._unit(factor, recorded), 0.0
        for amount, sizes in zip(self.amounts, recorded, strict=True):
            miss = amount - unit * factor(sizes)
            if miss > self.padding_bytes(sizes):
                return math.inf
            most = max(most, miss)
        return most


def compute_at(amounts: Sequence[float], recorded: Sequence[LayoutSizes], sizes: LayoutSizes) -> float:
    """Return an amount of compute on a layout: by a law, else along a line over the ranks, else as recorded nearest.

    Args:
        amounts: on each layout.
        recorded: the layouts.
        sizes: the wanted layout.
    """
    low, high = min(amounts), max(amounts)
    if high <= low * (1 + ROUNDING):
        return low
    known = tuple(shares(recorded))
    factors: list[Factor] = [*(partial(_whole, share) for share in known), *known]
    for factor in factors:
        units = [amount / factor(one) for amount, one in zip(amounts, recorded, strict=True)]
        if max(units) <= min(units) * (1 + COMPUTE_TOLERANCE):
            return sum(units) / len(units) * factor(sizes)
    return _on_line(sorted(zip((one.world_size for one in recorded), amounts, strict=True)), sizes.world_size)


def _on_line(points: Sequence[tuple[int, float]], ranks: int) -> float:
    (first, at_first), (second, at_second) = sorted(points, key=lambda point: abs(math.log(point[0] / ranks)))[:2]
    slope = (at_second - at_first) / (second - first) if second != first else 0.0
    return at_first + slope * (ranks - first) if slope > 0 else at_first
