"""The two things that an exchange is made of: kernels on the GPU and collectives on the network."""

from dataclasses import dataclass
from typing import Literal

from simnet.collectives.schedule import Schedule

Part = Literal["encode", "decode", "optimizer"]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel over `num_elements` of one rank, counted as `part` of the iteration."""

    name: str
    part: Part
    num_elements: float


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective on a message of so many bytes in each group (whole array, as nccl-tests counts it)."""

    schedule: Schedule
    message_bytes: float


Stage = Kernel | Collective


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one bucket goes through, in this order, and the bytes of the gradients in the form in which they travel."""

    stages: tuple[Stage, ...]
    payload_bytes: float
    algorithm: str
