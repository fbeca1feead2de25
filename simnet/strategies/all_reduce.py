"""DDP's exchange: cast if asked to, all-reduce, cast back."""

from collections.abc import Sequence
from typing import Any, ClassVar

from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import Dtype
from simnet.strategies.base import Choices, Exchange, Options, Strategy, choose_all_reduce, width_of
from simnet.strategies.program import Kernel, Operation
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import ADAMW, KernelCost
from simnet.workload.training_step import Step

HIERARCHICAL = "hierarchical"
Algorithm = str
"""The name of an all-reduce algorithm, "auto" or "any"."""
CAST = KernelCost(name="cast", bytes_per_element=6.0, is_streaming=True)
"""Read 4, write 2, or the reverse."""


def all_reduces_to_try(setting: Any) -> Sequence[Options]:
    """Return a setting with the fastest all-reduce that NCCL has, and with the one that sums inside the node first."""
    return ({}, {"algorithm": HIERARCHICAL}) if setting.algorithm == algorithms.AUTO else ({},)


class DenseAllReduce(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="all_reduce"):
    """Average gradients without compression, as DDP does.

    Attributes:
        wire_dtype: number format in which gradients travel; by default their own.
        algorithm: all-reduce algorithm; by default that which the calibration was fitted with, else NCCL's where the
            calibration holds its costs, else a ring. "auto" takes the fastest for each message that NCCL has, as its
            tuner does, "any" the fastest of all.
    """

    title: ClassVar[str] = "DDP"
    kernels: ClassVar[tuple[KernelCost, ...]] = (CAST, ADAMW)
    compresses: ClassVar[bool] = False
    choices: ClassVar[Choices] = Choices(
        topologies=all_reduces_to_try, form=lambda self: self.algorithm if self.algorithm == HIERARCHICAL else ""
    )

    wire_dtype: Dtype | None = None
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return cast, all-reduce and cast back."""
        width = width_of(self.wire_dtype, step)
        collective, algorithm = choose_all_reduce(self.algorithm, topology, bucket.num_elements * width)
        operations: tuple[Operation, ...] = (collective,)
        if width != step.bytes_per_element:
            down = Kernel(name=CAST.name, part="encode", num_elements=bucket.num_elements)
            up = Kernel(name=CAST.name, part="decode", num_elements=bucket.num_elements)
            operations = (down, collective, up)
        return Exchange(operations, collective.message_bytes, algorithm)


def check_algorithm(key: str, name: str | None) -> None:
    """Refuse an algorithm that is not known.

    Raises:
        ValueError: "key: given: rule".
    """
    try:
        algorithms.check(name)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
