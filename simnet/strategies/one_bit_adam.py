"""1-bit Adam's compression stage: error-compensated signs of the momentum, exchanged over all ranks after backward.

Source: Tang et al., "1-bit Adam: Communication efficient large-scale training with Adam's convergence speed",
ICML 2021, algorithm 1, with the exchange of DeepSpeed's compressed all-reduce: all-to-all of each rank's signs, mean at
the owner of a chunk, all-gather. One fp32 scale travels with every chunk. The hierarchical variant is
this project's own. Padding is not counted.
"""

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.schedule import Group
from simnet.cluster.topology import Topology
from simnet.collectives import direct
from simnet.strategies.base import (
    BITS_PER_BYTE,
    HIERARCHICAL,
    Choices,
    DenseAllReduce,
    DenseStage,
    Exchange,
    Strategy,
    all_gather,
    capped_or_fused,
)
from simnet.strategies.binsgdm import MERGE
from simnet.strategies.compressing import MOMENTUM
from simnet.strategies.program import Communicate, Kernel, Operation
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost, StandIn
from simnet.workload.training_step import Step

SCALE_BYTES = VALUE_BYTES = 4
CHECKSUM_BYTES = 32  # of the settings and, after loading, of the state, each with its complement
Topologies = Literal["flat", "hierarchical"]
DENSE_FRACTION = 23_000 / 152_000
"""Fraction of the steps without compression: BERT-Large in its authors' tutorial (one_bit_adam_end_to_end)."""


class OneBitAdam(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_adam"):
    """Exchange error-compensated 1-bit momentum over all ranks after backward (Tang et al. 2021), after a dense stage.

    `iteration_s` is that of the compression stage; with `run.steps` the end-to-end time counts `dense_steps` at the
    time of an iteration with `dense`.

    Attributes:
        topology: "flat" is the paper's exchange between all ranks; "hierarchical", of this project, averages momenta
            inside a node in fp32 first.
        finite_check: gather a byte for the step and one for each tensor before the exchange, by which ranks agree
            whether the step counts; DeepSpeed does not.
        dense_steps: steps without compression at the start; needs `run.steps`.
        dense: what a dense step does; by default one all-reduce of all gradients after backward.
        bucketing: always "fused": the momentum is exchanged as a whole.
        overlap: always false: the exchange follows backward.
    """

    title: ClassVar[str] = "1-bit Adam"
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        MOMENTUM,
        # read m and the residual twice (scale, then sign); write the residual and one bit
        KernelCost(name="compress", bytes_per_element=20.125),
        # the mean of all ranks' signs, for which fused code needs what BinSGDM's `merge` does
        KernelCost(name="server_mean", bytes_per_element=0.25, stand_in=StandIn(MERGE, "element")),
        # read the mean and the residual; write the residual and one bit
        KernelCost(name="server_residual", bytes_per_element=12.125),
        KernelCost(name="decompress", bytes_per_element=4.125),  # read one bit, write the momentum
        KernelCost(name="adam_update", bytes_per_element=16.0, updates=True),  # read m, v, x; write x
    )
    stage_key: ClassVar[str] = "dense_steps"
    choices: ClassVar[Choices] = Choices(
        presets={"{title}": ({"dense": DenseAllReduce(algorithm="auto")},)},
        # the paper's topology first, with the dense stage in each form that the baseline has
        topologies=lambda _: [
            {"topology": topology, "dense": DenseAllReduce(algorithm=algorithm, wire_dtype=dtype)}
            for topology in get_args(Topologies)
            for dtype in (None, "bf16")
            for algorithm in ("auto", HIERARCHICAL)
        ],
        # of its dense stage; the momentum travels as a whole
        bucketings=lambda self, caps: [{"dense": replace(self.dense, **cut)} for cut in capped_or_fused(self, caps)],
        form=lambda self: self.topology,
        training=lambda self: (OneBitAdam, self.topology),
    )

    topology: Topologies = "flat"
    finite_check: bool = True
    dense_steps: Annotated[int, Meta(ge=0)] = 0
    dense: DenseAllReduce = DenseAllReduce(bucketing="fused", overlap=False)
    bucketing: Literal["ddp", "per_tensor", "fused", "mg_wfbp"] = "fused"
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap or self.bucketing != "fused":
            raise ValueError("overlap: 1-bit Adam exchanges one fused momentum after backward; drop overlap")

    def dense_stage(self, steps: int | None) -> DenseStage:  # noqa: ARG002
        """Return the `dense_steps` at the start of the training."""
        return DenseStage(self.dense, self.dense_steps)

    @property
    def dense_fraction(self) -> float:
        """Part of the steps before compression begins."""
        return DENSE_FRACTION

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: momentum and variance in fp32, residuals, and one flat copy of all gradients."""
        num_elements, held = step.num_elements, gpu_memory.in_buckets(model)
        # With averages in the node a rank compresses its slice alone, and keeps what that loses.
        sent = num_elements / (topology.ranks_per_node if self.topology == "hierarchical" else 1)
        return replace(
            held,
            optimizer=2.0 * VALUE_BYTES * num_elements,
            residuals=VALUE_BYTES * (sent + num_elements / topology.world_size),
            update=VALUE_BYTES * num_elements,
        )

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:  # noqa: ARG002
        """Return what the fused momentum goes through, which has the `bucket`'s elements on every rank."""
        world, num_elements = topology.group("world"), bucket.num_elements
        operations: tuple[Operation, ...] = (
            *((_gathered_flags(bucket, world, topology),) if self.finite_check else ()),
            Kernel(name="momentum", part="encode", num_elements=num_elements),
            *(
                _averaged(num_elements, world, topology)
                if self.topology == "flat"
                else _hierarchical(num_elements, topology)
            ),
            Kernel(name="decompress", part="decode", num_elements=num_elements),
            Kernel(name="adam_update", part="optimizer", num_elements=num_elements),
        )
        return Exchange(operations, num_elements / BITS_PER_BYTE + SCALE_BYTES * world.size, self.topology)


def _gathered_flags(bucket: Bucket, world: Group, topology: Topology) -> Communicate:
    """Gather a byte for the step, one for each tensor (one in all where they are not known), and the checksums."""
    flags_bytes = 1.0 + len(bucket.shapes or ((),)) + CHECKSUM_BYTES
    return all_gather(world, topology, flags_bytes * world.size)


def _averaged(num_elements: float, group: Group, topology: Topology) -> tuple[Operation, ...]:
    """Leave every rank of a group with the encoded average of a momentum that each has."""
    message_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * group.size
    return (
        Kernel(name="compress", part="encode", num_elements=num_elements),
        Communicate(schedule=direct.all_to_all(group), message_bytes=message_bytes),
        Kernel(name="server_mean", part="encode", num_elements=num_elements),
        Kernel(name="server_residual", part="encode", num_elements=num_elements / group.size),
        all_gather(group, topology, message_bytes),
    )


def _hierarchical(num_elements: float, topology: Topology) -> tuple[Operation, ...]:
    """Average in the node in fp32, each local rank a slice; average the slices between nodes; gather in the node."""
    in_node, between = topology.group("intra_node"), topology.group("inter_node")
    # Gathered in the node as it came: signs, and the scale of every owner.
    gathered_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * topology.world_size
    return (
        Communicate(schedule=direct.all_to_all(in_node), message_bytes=VALUE_BYTES * num_elements),
        Kernel(name="mean", part="encode", num_elements=num_elements),
        *_averaged(num_elements / in_node.size, between, topology),
        all_gather(in_node, topology, gathered_bytes),
    )
