"""The parts of a model that sharding gathers and reduces as one: its blocks, and what is in none of them."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.workload.training_step import Tensor

# Of torchvision's "encoder_layer_11"; "conv1" is no block.
NUMBERED = re.compile(r".*_\d+")


class ModelPart(NamedTuple):
    """Tensors that one process group of ranks gathers in one message.

    Attributes:
        name: such as "layers.0"; empty for the rest of the model, in none of the blocks, which FSDP calls the root.
        tensors: in the order of backward.
    """

    name: str
    tensors: tuple[Tensor, ...]

    def padded_elements(self, num_shards: int) -> float:
        """Return the elements of all shards: each tensor is cut along its first dimension, in equal whole rows."""
        return _padded_elements(self.tensors, num_shards)


class BackwardSegment(NamedTuple):
    """Backward of one part, or of a piece of the root: `part` is its number, `fraction` its share of backward."""

    part: int
    fraction: float


class ModelParts(NamedTuple):
    """A model in parts.

    Attributes:
        parts: in the order in which backward first needs them.
        segments: of backward, in order.
        owners: for each tensor in the order of backward, the number of its part.
        root: the number of the root; None where every tensor is in a block.
    """

    parts: tuple[ModelPart, ...]
    segments: tuple[BackwardSegment, ...]
    owners: tuple[int, ...]
    root: int | None


@lru_cache(maxsize=64)
def parts_of(tensors: tuple[Tensor, ...], cap_bytes: Size | None, bytes_per_element: int) -> ModelParts:
    """Return the parts of a model, whose tensors are in the order of backward: its blocks by name, or parts of a size.

    A block is what has a number in its name: "layers.0", "encoder.layers.encoder_layer_0". With `cap_bytes` a part
    ends when its tensors reach this size, whatever their names.
    """
    if not tensors or any(tensor.shape is None for tensor in tensors):
        raise SimnetError(
            "workload: needs the shapes of the tensors, since sharding cuts each of them; give "
            "workload.gradients, or a shape with each of workload.tensors"
        )
    names = (
        _by_size(tensors, cap_bytes, bytes_per_element) if cap_bytes else [block_of(tensor.name) for tensor in tensors]
    )
    if not any(names):
        raise SimnetError(
            "workload.tensors: no name has the number of a block, such as 'layers.0.weight', so that sharding cannot "
            "find the blocks; name the tensors, or set strategy.unit_cap"
        )
    return _grouped(tensors, names)


def block_of(name: str) -> str:
    """Return the block that a tensor is in by its name; empty for one that is in none.

    Example:
        >>> block_of("layers.3.attention.wq.weight"), block_of("layer1.0.conv1.weight"), block_of("output.weight")
        ('layers.3', 'layer1.0', '')
    """
    words = name.split(".")
    for matches in (str.isdecimal, NUMBERED.fullmatch):
        for index, word in enumerate(words[:-1]):
            if matches(word):
                return ".".join(words[: index + 1])
    return ""


def _by_size(tensors: Sequence[Tensor], cap_bytes: float, width: int) -> list[str]:
    names, number, size = [], 0, 0.0
    for tensor in tensors:
        names.append(f"part {number}")
        size += tensor.num_elements * width
        if size >= cap_bytes:
            number, size = number + 1, 0.0
    return names


def _grouped(tensors: Sequence[Tensor], names: Sequence[str]) -> ModelParts:
    """Put tensors of one name together; only the root may be in several places of backward."""
    members: dict[str, list[Tensor]] = {}
    segments: list[tuple[str, float]] = []
    places: dict[str, int] = {}
    for tensor, name in zip(tensors, names, strict=True):
        members.setdefault(name, []).append(tensor)
        # A block is gathered once in backward; the root again in each of the places where it is used.
        if name in places and (name or segments[-1][0] == name):
            place = places[name]
            segments[place] = (name, segments[place][1] + tensor.backward_fraction)
        else:
            places[name] = len(segments)
            segments.append((name, tensor.backward_fraction))
    numbers = {name: number for number, name in enumerate(members)}
    return ModelParts(
        parts=tuple(ModelPart(name, tuple(members_of_part)) for name, members_of_part in members.items()),
        segments=tuple(BackwardSegment(numbers[name], fraction) for name, fraction in segments),
        owners=tuple(numbers[name] for name in names),
        root=numbers.get(""),
    )


# Every candidate of a search asks for the same parts on the same shards.
@lru_cache(maxsize=4096)
def _padded_elements(tensors: tuple[Tensor, ...], num_shards: int) -> float:
    return sum(map(float, (_padded(tensor, num_shards) for tensor in tensors)))


def _padded(tensor: Tensor, num_shards: int) -> int:
    shape = tensor.shape or (1,)
    return math.ceil(shape[0] / num_shards) * num_shards * math.prod(shape[1:])
