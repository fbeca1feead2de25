"""What systems that compress gradients share: encode a bucket, exchange, decode, as `binsgdm.compressors` does.

Kernels are named after the system: NAME_encode before its first message, NAME_merge between messages, NAME_decode after
the last. Decoding of gathered payloads counts the elements of all of them. Bytes of kernels, per element: encode reads
g, and the residual where there is one, once for what elements share (norm, mean, threshold) and once for the codes, and
writes the residual; decode, per element of each payload, reads the code, and reads and writes the sum.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.schedule import Group, GroupKind
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.collectives import direct
from simnet.core.bounded_types import BYTES_PER_ELEMENT
from simnet.core.errors import SimnetError
from simnet.core.system_options import SystemOptions
from simnet.strategies.base import BITS_PER_BYTE, Choices, Exchange, Options, Strategy, all_gather, choose_all_reduce
from simnet.strategies.program import Communicate, IterationPart, Kernel, Operation
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket, Cut, longest_piece
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost, StandIn
from simnet.workload.training_step import Step

SEVERAL = 2
"""Ranks of a node, or more."""
COPIES_IN_EXCHANGE = 3
"""Of a bucket, in fp32: what is compressed, what is delivered of it, and the mean."""
# The length of a payload, sent as one int64 where it depends on the values.
LENGTH_BYTES = 8
SCALE_BYTES = INDEX_BYTES = VALUE_BYTES = 4
# Cut a bucket into pieces, or put pieces together: read and write each element.
COPY = KernelCost(name="gather_gradients", bytes_per_element=8.0)
MOMENTUM = KernelCost(name="momentum", bytes_per_element=12.0)  # read g, m; write m
Momentum = Annotated[float, Meta(ge=0.0, lt=1.0)]
Topology = Literal["all_reduce", "gather", "scatter_reduce", "ring", "hierarchical", "hierarchical_scatter_reduce"]
# Topologies that average in the node first, with what they do between nodes; None: the system's own.
BETWEEN_NODES: Mapping[str, str | None] = {"hierarchical": None, "hierarchical_scatter_reduce": "scatter_reduce"}


class GatheredPayload(NamedTuple):
    """The message of one rank for a bucket.

    Attributes:
        num_bytes: its size.
        decoded_elements: elements of one payload that decoding touches.
        is_variable_length: whether the size depends on the values, so that a gather of the lengths comes first.
    """

    num_bytes: float
    decoded_elements: float
    is_variable_length: bool = False


def _topologies_to_try(setting: "CompressingStrategy") -> Iterable[Options]:
    """Return each topology, the system's own first, those that average in the node in fp32 and in bf16."""
    yield {"topology": setting.topologies[0] if setting.averages_in_node else None, "intra_node_dtype": None}
    for topology in setting.topologies[1:]:
        for dtype in (None, "bf16") if topology in BETWEEN_NODES else (None,):
            yield {"topology": topology, "intra_node_dtype": dtype}


class CompressingStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system that compresses gradients.

    Attributes:
        has_feedback: whether each rank keeps what its payloads lost, an fp32 value an element.
        topologies: those that it can have, its own first.
        averages_in_node: whether its authors average in the node first: then it has the hierarchical topology by
            default where nodes have several ranks. `binsgdm` has the same.
        cut: along what pieces of a matrix are cut.
        runs_kernels_of: the kind whose kernels it runs; empty for its own.
        topology: among whom payloads travel: "gather": every rank gathers and decodes all payloads; "scatter_reduce":
            every rank averages its piece of the bucket and encodes it once more; "hierarchical": the ranks of a node
            average first, each a piece, which then goes between nodes in the system's own exchange;
            "hierarchical_scatter_reduce": that, with a scatter_reduce between nodes; "all_reduce" and "ring" are own
            exchanges. By default what the authors run: its own, or, of some systems on nodes of several ranks,
            "hierarchical".
        intra_node_dtype: what travels inside a node with a hierarchical topology; by default "fp32".
    """

    has_feedback: ClassVar[bool] = False
    topologies: ClassVar[tuple[Topology, ...]] = ("gather",)
    averages_in_node: ClassVar[bool] = False
    cut: ClassVar[Cut] = "elements"
    runs_kernels_of: ClassVar[str] = ""
    choices: ClassVar[Choices] = Choices(
        topologies=_topologies_to_try,
        form=lambda self: self.used_topology.replace("_", "-") if len(self.topologies) > 1 else "",
        # A mean in the node before encoding, and a second encoding, change what is lost; a mean in bf16 does not.
        training=lambda self: (type(self), self.arithmetic),
    )

    topology: Topology | None = None
    intra_node_dtype: Literal["fp32", "bf16"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology is not None and self.topology not in self.topologies:
            known = ", ".join(map(repr, self.topologies)) or "none"
            raise ValueError(f"topology: {self.topology!r}: {self.kind} cannot have it; its topologies are {known}")
        if self.intra_node_dtype is not None and self.used_topology not in BETWEEN_NODES:
            raise ValueError(
                "intra_node_dtype: has no effect without a hierarchical topology; drop it, or set topology"
            )

    @property
    def has_momentum(self) -> bool:
        """Whether each rank sends its own momentum in place of its gradients, by the option of this name."""
        return bool(getattr(self, "momentum", 0.0))

    def topology_on(self, ranks_per_node: int) -> Topology:
        """Return the topology given, or the default on nodes of so many ranks."""
        if self.topology is not None:
            return self.topology
        return "hierarchical" if self.averages_in_node and ranks_per_node > 1 else self.topologies[0]

    @property
    def used_topology(self) -> Topology:
        """The topology given, or the default on nodes of several ranks."""
        return self.topology_on(SEVERAL)

    @property
    def system(self) -> str:
        """The system whose kernels it runs: itself, or another one that does the same."""
        return self.runs_kernels_of or self.kind

    @property
    def arithmetic(self) -> tuple[bool, str]:
        """Whether the ranks of a node average first, and what is done between those that exchange then."""
        return self.used_topology in BETWEEN_NODES, self._among_equals(self.topology)

    def _among_equals(self, topology: object) -> str:
        used = str(topology or self.topologies[0])
        return BETWEEN_NODES.get(used, used) or self.topologies[0]

    def kernel_options(self) -> dict[str, object]:
        """Return the options, the topology as that among equals: kernels are the same with a mean in the node first."""
        return super().kernel_options() | {"topology": self._among_equals(self.topology)}

    def timed_as(self, options: SystemOptions) -> SystemOptions:
        """Return timed options likewise; without a topology they are those of the system's own."""
        return SystemOptions(options | {"topology": self._among_equals(options.get("topology"))})

    def memory(self, model: ModelMemory, step: Step, topology: NetworkTopology) -> RankMemory:
        """Return what a rank holds: DDP's buckets, their means up to the next backward, and what the system keeps."""
        bucket = self.largest_bucket(step, topology)
        operations = self.exchange(bucket, step, topology).operations
        received = max(
            (operation.message_bytes for operation in operations if isinstance(operation, Communicate)), default=0.0
        )
        held, copies = gpu_memory.in_buckets(model), step.num_elements + COPIES_IN_EXCHANGE * bucket.num_elements
        shared = topology.ranks_per_node if self.arithmetic[0] else 1
        num_ranks = topology.world_size // shared
        return replace(
            held,
            residuals=self.residual_bytes(step.num_elements / shared, num_ranks),
            buckets=held.buckets + VALUE_BYTES * copies + received,
        )

    def residual_bytes(self, num_elements: float, num_ranks: int) -> float:
        """Return what a rank keeps from step to step of so many elements that as many ranks compress and exchange."""
        # Who averages a piece, and encodes the mean, keeps what that loses.
        lost = 1 + 1 / num_ranks if self.arithmetic[1] == "scatter_reduce" else 1
        keeps = self.has_feedback and not getattr(self, "unbiased", False)
        return VALUE_BYTES * num_elements * (lost * keeps + self.has_momentum)

    def exchange(self, bucket: Bucket, step: Step, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Return what one bucket goes through in the topology."""
        used = self.topology_on(topology.ranks_per_node)
        if used not in BETWEEN_NODES:
            return self.exchange_among("world", bucket, topology)
        piece = longest_piece(bucket, topology.ranks_per_node, self.cut)
        exchange = self.exchange_among("inter_node", piece, topology)
        if topology.ranks_per_node == 1:  # nothing is sent inside a node
            return exchange._replace(algorithm=used)
        operations = _with_mean_in_node(exchange.operations, bucket, piece, self.intra_node_dtype or "fp32", topology)
        return Exchange(operations, exchange.payload_bytes * topology.ranks_per_node, used)

    def exchange_among(self, group: GroupKind, bucket: Bucket, topology: NetworkTopology) -> Exchange:
        """Return what a bucket, or a piece of one, goes through among ranks of which none has averaged with others.

        Raises:
            SimnetError: the workload lacks what the exchange needs, or the strategy does not fit the cluster.
        """
        _, form = self.arithmetic
        if form == "scatter_reduce":
            return scatter_reduce_payloads(self, bucket, topology.group(group), topology)
        if form == "all_reduce":
            return all_reduce_payload(self, bucket, self.payload(bucket), group, topology)
        return gather_payloads(self, bucket, self.payload(bucket), topology.group(group), topology)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return the message of one rank for a bucket, or for a piece of one."""
        raise NotImplementedError  # as `Strategy.exchange`


class GatheringStrategy(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system whose payloads all ranks gather and decode, or whose payloads of pieces go to the pieces' owners."""

    topologies: ClassVar[tuple[Topology, ...]] = (
        "gather",
        "scatter_reduce",
        "hierarchical",
        "hierarchical_scatter_reduce",
    )


def _with_mean_in_node(
    between: tuple[Operation, ...], bucket: Bucket, piece: Bucket, dtype: str, topology: NetworkTopology
) -> tuple[Operation, ...]:
    """Return an exchange of pieces between nodes, with the mean of a node before it and the gather of pieces after."""
    in_node = topology.group("intra_node")
    # Every row has the length of the longest piece.
    message_bytes = piece.num_elements * in_node.size * BYTES_PER_ELEMENT[dtype]
    return _in_pieces(
        bucket,
        Communicate(schedule=direct.all_to_all(in_node), message_bytes=message_bytes),
        Kernel(name="mean", part="encode", num_elements=bucket.num_elements, num_vectors=in_node.size),
        *between,
        all_gather(in_node, topology, message_bytes),
    )


def _in_pieces(bucket: Bucket, *operations: Operation) -> tuple[Operation, ...]:
    """Return operations on pieces of a bucket, which is cut before and put together after."""
    copied = Kernel(name=COPY.name, part="encode", num_elements=bucket.num_elements)
    return (copied, *operations, replace(copied, part="decode"))


def kernel_costs(
    name: str, encode: float, merge: float, decode: float, *, measured_only: tuple[str, ...] = ()
) -> tuple[KernelCost, ...]:
    """Return the kernels of a system from the bytes that each moves per element; 0: there is none.

    Args:
        name: of the system.
        encode: before the first message.
        merge: between messages.
        decode: after the last.
        measured_only: those whose bytes tell too little of their times.
    """
    parts = {"encode": encode, "merge": merge, "decode": decode}
    return tuple(
        KernelCost(name=f"{name}_{part}", bytes_per_element=moved, is_estimable=part not in measured_only)
        for part, moved in parts.items()
        if moved
    )


def gathering_kernel_costs(
    name: str, encode: float, decode: float, *, decoded_fraction: float = 1.0, measured_only: tuple[str, ...] = ()
) -> tuple[KernelCost, ...]:
    """Return the kernels of a system whose payloads are gathered, or scattered and reduced.

    The merge of a scatter-reduce decodes the pieces of all ranks, and encodes their mean.

    Args:
        name: of the system.
        encode: bytes that it moves per element.
        decode: the same, per element that a payload has something to decode of.
        decoded_fraction: of the elements that a payload has something to decode of, as a rule.
        measured_only: those whose bytes tell too little of their times.
    """
    encoding, decoding = kernel_costs(name, encode, 0.0, decode, measured_only=measured_only)
    merge = KernelCost(
        name=f"{name}_merge",
        bytes_per_element=decode * decoded_fraction,
        bytes_per_result=encode,
        is_estimable=encoding.is_estimable and decoding.is_estimable,
        stand_in=StandIn(decoding, "byte", result=encoding),
    )
    return encoding, merge, decoding


def gather_payloads(
    strategy: CompressingStrategy, bucket: Bucket, payload: GatheredPayload, group: Group, topology: NetworkTopology
) -> Exchange:
    """Gather every rank's payload on every rank of a group, which decodes all."""
    # Ranks have to know how much each of them sends before they can gather it.
    lengths = all_gather(group, topology, float(LENGTH_BYTES * group.size))
    operations: tuple[Operation, ...] = (
        *encode_kernels(strategy, bucket),
        *((lengths,) if payload.is_variable_length else ()),
        all_gather(group, topology, payload.num_bytes * group.size),
        codec_kernel(strategy, "decode", payload.decoded_elements * group.size),
    )
    return Exchange(operations, payload.num_bytes, "all_gather")


def scatter_reduce_payloads(
    strategy: CompressingStrategy, bucket: Bucket, group: Group, topology: NetworkTopology
) -> Exchange:
    """Send the payload of each piece to its owner, which averages and encodes it once more; gather what owners send."""
    payload = strategy.payload(longest_piece(bucket, group.size, strategy.cut))
    if payload.is_variable_length:
        raise SimnetError(
            f"strategy.topology: {strategy.topology!r}: the length of {strategy.kind}'s payloads must not depend on "
            "the values; drop coding or topology"
        )
    # Every row has the length of the longest payload.
    message_bytes = payload.num_bytes * group.size
    operations = _in_pieces(
        bucket,
        *encode_kernels(strategy, bucket),
        Communicate(schedule=direct.all_to_all(group), message_bytes=message_bytes),
        replace(codec_kernel(strategy, "merge", bucket.num_elements), num_vectors=group.size),
        all_gather(group, topology, message_bytes),
        codec_kernel(strategy, "decode", payload.decoded_elements * group.size),
    )
    return Exchange(operations, message_bytes, "scatter_reduce")


def all_reduce_payload(
    strategy: CompressingStrategy, bucket: Bucket, payload: GatheredPayload, group: GroupKind, topology: NetworkTopology
) -> Exchange:
    """Add up payloads that stand for the same on all ranks of a group, by the algorithm that the strategy names."""
    algorithm = getattr(strategy, "algorithm", None)
    collective, chosen = choose_all_reduce(algorithm, topology, payload.num_bytes, group)
    decode = codec_kernel(strategy, "decode", payload.decoded_elements)
    return Exchange((*encode_kernels(strategy, bucket), collective, decode), payload.num_bytes, chosen)


def encode_kernels(strategy: CompressingStrategy, bucket: Bucket) -> tuple[Kernel, ...]:
    """Return the kernels before the first message: the momentum where there is one, and the encoding."""
    encode = codec_kernel(strategy, "encode", bucket.num_elements)
    return (replace(encode, name=MOMENTUM.name), encode) if strategy.has_momentum else (encode,)


def codec_kernel(
    strategy: CompressingStrategy, what: Literal["encode", "merge", "decode"], num_elements: float
) -> Kernel:
    """Return the kernel of a system before its first message, between messages or after the last."""
    part: IterationPart = "decode" if what == "decode" else "encode"
    return Kernel(name=f"{strategy.system}_{what}", part=part, num_elements=num_elements)


def bytes_of_bits(bits: float) -> float:
    """Return the least whole bytes that hold `bits` bits."""
    return math.ceil(bits / BITS_PER_BYTE)


def tensor_shapes(strategy: Strategy, bucket: Bucket) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a bucket's tensors."""
    if bucket.shapes is None:
        raise SimnetError(
            f"strategy.kind: {strategy.kind!r}: needs the shapes of the tensors; give "
            "workload.gradients, or a shape with each of workload.tensors"
        )
    return bucket.shapes


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix: its first dimension, and all others."""
    return shape[0] if shape else 1, math.prod(shape[1:])
