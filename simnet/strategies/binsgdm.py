"""BinSGDM's exchange: average the update u = m / b, rounded to one bit where it leaves the node.

m = beta m + (1 - beta) g      b = beta b + (1 - beta) |g|      x -= lr * Q(mean of Q(mean of u in the node))

Q is shaped: it first adds what it lost in the step before, a residual of two bytes an element at each of its two
places. Or it draws at random, as in the paper. The messages are the same.

Source: "Birder: Communication-efficient 1-bit adaptive optimizer for practical distributed DNN training", NeurIPS 2023.
Differs: the paper states the intent of the hierarchical all-reduce; the four steps are this project's reading
(docs/explanation/how-it-works.md). Padding of a slice to whole bytes is not counted.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, get_args

from msgspec.structs import replace

from simnet.cluster.schedule import Group, GroupKind
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, direct
from simnet.core.bounded_types import BYTES_PER_ELEMENT
from simnet.strategies.base import BITS_PER_BYTE, Algorithm, Choices, Exchange, Strategy, all_gather, check_algorithm
from simnet.strategies.compressing import COPY
from simnet.strategies.program import Communicate, Kernel, Operation
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost, StandIn
from simnet.workload.training_step import Step

Average = Literal["updates", "gradients"]
Rounding = Literal["random", "shaped"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
DEFAULT_ROUNDING: Rounding = "shaped"

FP32_BYTES, ROUNDING_BYTES = 4, 2
UPDATE = KernelCost(name="binsgdm_update", bytes_per_element=24.0)  # read g, m, b; write m, b and u = m / b
MERGE = KernelCost(name="merge", bytes_per_element=0.25)  # per sign received: read one bit, write at most one bit
# Stand-ins are those that came nearest on a CPU: the update streams memory as these do, a merge unpacks as many bits.
SHAPED_KERNELS = (
    # read g, m, b and the residual; write m, b, the residual and one bit
    KernelCost(name="binsgdm_update_shape", bytes_per_element=24.125, stand_in=StandIn(UPDATE, "byte")),
    # read u and the residual; write the residual and one bit
    KernelCost(name="shape", bytes_per_element=8.125, stand_in=StandIn(UPDATE, "byte")),
    # per sign received: read one bit; per element of the piece: read and write the residual, write one bit
    KernelCost(
        name="merge_shaped", bytes_per_element=0.125, bytes_per_result=4.125, stand_in=StandIn(MERGE, "element")
    ),
)


class BinSGDM(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="binsgdm"):
    """Average 1-bit updates; hierarchical: reduce-scatter in the node, 1 bit between nodes, all-gather in the node.

    Attributes:
        topology: "hierarchical" averages in the node before 1 bit travels between nodes; "flat" sends 1 bit between all
            ranks.
        intra_node_dtype: what travels inside a node, with topology "hierarchical"; by default "fp32".
        average: what is averaged inside a node: the ranks' updates, or their gradients, so that each rank has a slice
            of the node's one pair of momenta.
        rounding: "shaped" adds what rounding to a bit lost in the step before, "random" draws.
        finite_check: algorithm of the all-reduce of a few bytes after the last bucket, which decides whether the step
            counts; by default NCCL's where the calibration holds its costs, else the fastest.
    """

    title: ClassVar[str] = "BinSGDM"
    uses_ddp_buckets: ClassVar[bool] = False
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        UPDATE,
        KernelCost(name="binsgdm_update_quantize", bytes_per_element=20.125),  # read g, m, b; write m, b and one bit
        COPY,  # read g, write it into the bucket
        # per element received: read 4, write 4 for each node's worth (here 8 ranks)
        KernelCost(name="mean", bytes_per_element=4.5),
        KernelCost(name="quantize", bytes_per_element=4.125),  # read u, write one bit
        MERGE,
        KernelCost(name="binsgdm_apply", bytes_per_element=8.125, updates=True),  # read one bit and x, write x
        *SHAPED_KERNELS,
    )
    choices: ClassVar[Choices] = Choices(
        presets={"{title}": ({},), "{title} random": ({"rounding": "random"},)},  # they train differently
        topologies=lambda _: (
            *(
                {"topology": "hierarchical", "intra_node_dtype": dtype, "average": average}
                for average in get_args(Average)
                for dtype in (None, "bf16")
            ),
            {"topology": "flat", "intra_node_dtype": None, "average": "updates"},
        ),
        form=lambda self: self.topology,
        # What is rounded depends on the topology, and on what is averaged in the node.
        training=lambda self: (
            (BinSGDM, self.rounding, self.topology, "signs" if self.intra_node_dtype == "one_bit" else self.average)
        ),
    )

    topology: Literal["hierarchical", "flat"] = "hierarchical"
    intra_node_dtype: Literal["fp32", "fp16", "bf16", "one_bit"] | None = None
    average: Average = "updates"
    rounding: Rounding = DEFAULT_ROUNDING
    finite_check: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("finite_check", self.finite_check)
        if self.topology == "flat" and self.intra_node_dtype is not None:
            raise ValueError("intra_node_dtype: has no effect with topology 'flat'; drop one of them")
        if self.average == "gradients" and (self.topology == "flat" or self.intra_node_dtype == "one_bit"):
            raise ValueError(
                "average: gradients are averaged with topology 'hierarchical' and 16 or 32 bits in the node only"
            )

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: m and b in the place of an optimizer's state, and what rounding lost.

        DDP keeps its buckets, in which nothing is exchanged.
        """
        sends_values = self.topology == "hierarchical" and self.intra_node_dtype != "one_bit"
        # One bucket of updates, and one that is received of them, in fp32 as they are added up.
        copies = 2 * FP32_BYTES * self.largest_bucket(step, topology).num_elements if sends_values else 0.0
        # The signs of all buckets stay until the ranks have agreed that the step counts.
        signs = step.num_elements / BITS_PER_BYTE
        residuals = self._kept(step.num_elements, self._lost(topology))
        if self.topology == "flat":
            residuals = self.residual_bytes(step.num_elements, topology.world_size)
        held = gpu_memory.in_buckets(model)
        return replace(
            held,
            optimizer=0.0,
            update=0.0,
            residuals=residuals,
            buckets=held.buckets + copies + signs,
        )

    def _lost(self, topology: Topology) -> float:
        """Return the roundings of each element whose losses a rank keeps."""
        in_node, num_nodes = topology.ranks_per_node, topology.num_nodes
        slices = 1 / in_node
        of_slices = 1 + (slices if in_node > 1 else 0.0) if self.intra_node_dtype == "one_bit" else slices
        return of_slices + (slices / num_nodes if num_nodes > 1 else 0.0)

    def residual_bytes(self, num_elements: float, num_ranks: int) -> float:
        """Return what a rank keeps from step to step of elements whose signs as many ranks exchange as equals."""
        return self._kept(num_elements, 1 + (1 / num_ranks if num_ranks > 1 else 0.0))

    def _kept(self, num_elements: float, rounded: float) -> float:
        """Return the bytes of m and b, and of what rounding lost of so much of each element."""
        lost = ROUNDING_BYTES * rounded if self.rounding == "shaped" else 0.0
        return (2 * FP32_BYTES + lost) * num_elements

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:  # noqa: ARG002
        """Return all up to the signs that all ranks agree on."""
        if self.topology == "flat":
            return self.exchange_among("world", bucket, topology)
        num_elements, kernels = bucket.num_elements, _KERNELS[self.rounding]
        # Each local rank holds one slice of the node: the rails exchange their slices at the same time.
        between = _agreed(kernels, num_elements / topology.ranks_per_node, topology.group("inter_node"), topology)
        gathered = all_gather(topology.group("intra_node"), topology, num_elements / BITS_PER_BYTE)
        operations = (*self._averaged_in_node(kernels, num_elements, topology), *between, gathered)
        return Exchange(operations, num_elements / BITS_PER_BYTE, self.topology)

    def exchange_among(self, group: GroupKind, bucket: Bucket, topology: Topology) -> Exchange:
        """Return all up to the signs that the ranks of a group agree on, each as one among equals."""
        kernels, num_elements = _KERNELS[self.rounding], bucket.num_elements
        rounded = Kernel(name=kernels.update_and_round, part="encode", num_elements=num_elements)
        operations = (rounded, *_agreed(kernels, num_elements, topology.group(group), topology))
        return Exchange(operations, num_elements / BITS_PER_BYTE, "flat")

    def _averaged_in_node(
        self, kernels: "_RoundingKernels", num_elements: float, topology: Topology
    ) -> tuple[Operation, ...]:
        """Return what leaves each local rank with the quantized mean of its slice, of updates or gradients.

        The slices are swapped and added up in the order of ranks, not passed round a ring, so that the sum does not
        depend on the transport; as many bytes leave each rank.
        """
        in_node, dtype = topology.group("intra_node"), self.intra_node_dtype or "fp32"
        if dtype == "one_bit":
            first, message_bytes = kernels.update_and_round, num_elements / BITS_PER_BYTE
            averaged: tuple[Operation, ...] = (kernels.merging(num_elements, in_node),)
        else:
            message_bytes = num_elements * BYTES_PER_ELEMENT[dtype]
            first, last = UPDATE.name, kernels.round
            if self.average == "gradients":
                first, last = COPY.name, kernels.update_and_round
            averaged = (
                Kernel(name="mean", part="encode", num_elements=num_elements, num_vectors=in_node.size),
                Kernel(name=last, part="encode", num_elements=num_elements / in_node.size),
            )
        return (
            Kernel(name=first, part="encode", num_elements=num_elements),
            Communicate(schedule=direct.all_to_all(in_node), message_bytes=message_bytes),
            *averaged,
        )

    def epilogue(self, buckets: Sequence[Bucket], topology: Topology) -> tuple[Operation, ...]:
        """Return what follows the last bucket: all ranks agree whether the step counts, then parameters move.

        The message is a byte for the step and one for each bucket (binsgdm sends one for each tensor): its time is that
        of its rounds.
        """
        flags_bytes = 1.0 + len(buckets)
        default = algorithms.default_name(topology.nccl, topology.num_nodes, otherwise=algorithms.ANY)
        schedule = algorithms.choose(self.finite_check or default, topology, flags_bytes)
        apply = (Kernel(name="binsgdm_apply", part="decode", num_elements=bucket.num_elements) for bucket in buckets)
        return (Communicate(schedule=schedule, message_bytes=flags_bytes), *apply)


class _RoundingKernels(NamedTuple):
    """Names of the kernels that round."""

    update_and_round: str
    round: str
    merge: str

    def merging(self, num_elements: float, group: Group) -> Kernel:
        """Return the merge of one piece from each rank of a group, so many elements together."""
        # A sign is its own mean, however it is rounded: its bits are copied, which moves as much as `merge` counts.
        name = self.merge if group.size > 1 else MERGE.name
        return Kernel(name=name, part="encode", num_elements=num_elements, num_vectors=group.size)


_KERNELS: dict[Rounding, _RoundingKernels] = {
    "random": _RoundingKernels("binsgdm_update_quantize", "quantize", "merge"),
    "shaped": _RoundingKernels(*(cost.name for cost in SHAPED_KERNELS)),
}


def _agreed(kernels: _RoundingKernels, num_elements: float, group: Group, topology: Topology) -> tuple[Operation, ...]:
    """Swap signs in pieces among all ranks of a group, average and quantize again, gather."""
    # The all-to-all of signs is a reduce-scatter whose owner merges them; the merged signs are then gathered.
    signs_bytes = num_elements / BITS_PER_BYTE
    return (
        Communicate(schedule=direct.all_to_all(group), message_bytes=signs_bytes),
        kernels.merging(num_elements, group),
        all_gather(group, topology, signs_bytes),
    )
