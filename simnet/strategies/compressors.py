"""The systems that compress gradients, by what travels: bits, levels, bytes, thin factors, some of the elements.

Each is its options with a row beside them: what its kernels move, the topologies that it can have, and the bytes of a
payload. Those that exchange neither by a gather, a scatter-reduce nor one all-reduce say what they do instead.
"""

import math
from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.hardware import GpuModel
from simnet.cluster.schedule import Group, GroupKind, Schedule
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.collectives import direct, ring
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.strategies.base import (
    Algorithm,
    Choices,
    DenseAllReduce,
    DenseStage,
    Exchange,
    Mathematics,
    Options,
    Strategy,
    all_gather,
    check_algorithm,
    choose_all_reduce,
    padded_sign_bytes,
)
from simnet.strategies.compressing import (
    INDEX_BYTES,
    MOMENTUM,
    SCALE_BYTES,
    VALUE_BYTES,
    CompressingStrategy,
    GatheredPayload,
    GatheringStrategy,
    Momentum,
    Topology,
    bytes_of_bits,
    codec_kernel,
    encode_kernels,
    gathering_kernel_costs,
    kernel_costs,
    matrix_shape,
    tensor_shapes,
)
from simnet.strategies.program import Communicate, Operation
from simnet.workload.buckets import Bucket, Cut
from simnet.workload.kernel_cost import KernelCost

BlockSize = Annotated[int, Meta(ge=1, le=1_048_576)]
BLOCK_LENGTH_BYTES = 4
TRITS_PER_BYTE = 5
USUAL_RATIO = 0.01


class OneBitSGD(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_sgd"):
    """1-bit SGD (Seide et al., Interspeech 2014): signs and two means a column of each matrix, gathered by all.

    Attributes:
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    title: ClassVar[str] = "1-bit SGD"
    has_feedback: ClassVar[bool] = True
    cut: ClassVar[Cut] = "columns"
    kernels: ClassVar[tuple[KernelCost, ...]] = (*gathering_kernel_costs("one_bit_sgd", 20.125, 8.125), MOMENTUM)

    momentum: Momentum = 0.0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return signs and means."""
        columns = sum(matrix_shape(shape)[1] for shape in tensor_shapes(self, bucket) if math.prod(shape))
        num_bytes = bytes_of_bits(bucket.num_elements) + 2 * SCALE_BYTES * columns
        return GatheredPayload(num_bytes, bucket.num_elements)


class SignSGD(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sign_sgd"):
    """SignSGD with majority vote (Bernstein et al., ICML 2018): one bit an element each way, each rank counts some.

    Attributes:
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    title: ClassVar[str] = "SignSGD"
    topologies: ClassVar[tuple[Topology, ...]] = ("scatter_reduce", "hierarchical")
    kernels: ClassVar[tuple[KernelCost, ...]] = (*kernel_costs("sign_sgd", 4.125, 0.25, 4.125), MOMENTUM)

    momentum: Momentum = 0.0

    def exchange_among(self, group: GroupKind, bucket: Bucket, topology: NetworkTopology) -> Exchange:
        """Swap signs among all ranks, count, and gather the winners; a byte with each chunk tells if it is finite."""
        ranks = topology.group(group)
        message_bytes = float(padded_sign_bytes(bucket.num_elements, ranks.size) + ranks.size)
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            Communicate(schedule=direct.all_to_all(ranks), message_bytes=message_bytes),
            codec_kernel(self, "merge", bucket.num_elements),
            all_gather(ranks, topology, message_bytes),
            codec_kernel(self, "decode", bucket.num_elements),
        )
        return Exchange(operations, message_bytes, "all_to_all")


class EFSignSGD(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ef_sign_sgd"):
    """EF-SignSGD (Karimireddy et al., ICML 2019): signs and the mean magnitude of what shares it, gathered by all.

    Attributes:
        scale_per: which elements share one fp32 scale.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    title: ClassVar[str] = "EF-SignSGD"
    has_feedback: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (*gathering_kernel_costs("ef_sign_sgd", 20.125, 8.125), MOMENTUM)

    scale_per: Literal["tensor", "bucket"] = "tensor"
    momentum: Momentum = 0.0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return signs and scales."""
        num_scales = len(tensor_shapes(self, bucket)) if self.scale_per == "tensor" else 1
        num_bytes = bytes_of_bits(bucket.num_elements) + SCALE_BYTES * num_scales
        return GatheredPayload(num_bytes, bucket.num_elements)


class TernGrad(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="terngrad"):
    """TernGrad (Wen et al., NeurIPS 2017): five elements a byte and a scale a tensor, gathered by all."""

    title: ClassVar[str] = "TernGrad"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("terngrad", 8.2, 8.2)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return trits and scales."""
        num_bytes = math.ceil(bucket.num_elements / TRITS_PER_BYTE) + SCALE_BYTES * len(tensor_shapes(self, bucket))
        return GatheredPayload(num_bytes, bucket.num_elements)


class Marsit(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="marsit"):
    """Marsit (Wu et al., DAC 2022): one bit an element on every hop of a ring, or of the rings of a torus.

    `iteration_s` is that of a 1-bit step; with `run.steps` the end-to-end time counts those in full precision.

    Attributes:
        sync_period: steps from one average in full precision to the next; none: never.
        torus: signs go round the ring of each node, then round rings between nodes.
        scale: what a sign stands for; by default the mean magnitude, which ranks gather in either case.
        residual_decay: part of what signs missed that is added to the next gradient.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    title: ClassVar[str] = "Marsit"
    has_feedback: ClassVar[bool] = True
    topologies: ClassVar[tuple[Topology, ...]] = ("ring", "hierarchical")
    kernels: ClassVar[tuple[KernelCost, ...]] = (*kernel_costs("marsit", 20.125, 0.375, 4.125), MOMENTUM)
    choices: ClassVar[Choices] = CompressingStrategy.choices._replace(
        presets={"{title}": ({}, {"torus": True})},
        topologies=lambda self: ({},) if self.torus else CompressingStrategy.choices.topologies(self),
        form=lambda self: "torus" if self.torus else CompressingStrategy.choices.form(self),
    )

    sync_period: Count | None = 100
    torus: bool = False
    scale: Annotated[float, Meta(gt=0.0)] | None = None
    residual_decay: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    momentum: Momentum = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.torus and self.topology == "hierarchical":
            raise ValueError("torus: has no effect with topology 'hierarchical', which averages in the node; drop one")

    def dense_stage(self, steps: int | None) -> DenseStage | None:
        """Return the steps in full precision: every `sync_period`-th one."""
        if self.sync_period is None:
            return None
        # The full-precision average goes the way of the signs, so that the same links are asked.
        dense = DenseAllReduce(
            algorithm="hierarchical" if self.torus else "ring",
            bucketing=self.bucketing,
            bucket_cap=self.bucket_cap,
            overlap=self.overlap,
            planner=self.planner,
        )
        return DenseStage(dense, (steps or 0) // self.sync_period)

    @property
    def dense_fraction(self) -> float:
        """Part of the steps in full precision."""
        return 1 / self.sync_period if self.sync_period else 0.0

    def exchange_among(self, group: GroupKind, bucket: Bucket, topology: NetworkTopology) -> Exchange:
        """Merge signs hop by hop round one ring or two, and hand them back."""
        world = topology.group(group)
        message_bytes = float(padded_sign_bytes(bucket.num_elements, world.size))
        scales = Communicate(schedule=ring.all_gather(world), message_bytes=float(SCALE_BYTES * world.size))
        kinds: tuple[GroupKind, ...] = ("intra_node", "inter_node") if self.torus else (group,)
        groups = [topology.group(kind) for kind in kinds]
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            scales,
            *_round_rings(groups, message_bytes, ring.reduce_scatter),
            codec_kernel(self, "merge", bucket.num_elements),
            *_round_rings(groups, message_bytes, ring.all_gather)[::-1],
            codec_kernel(self, "decode", bucket.num_elements),
        )
        return Exchange(operations, message_bytes, "torus" if self.torus else "ring")


def _round_rings(groups: list[Group], message_bytes: float, way: Callable[[Group], Schedule]) -> list[Communicate]:
    """Return one collective a ring, each on a chunk of the last one's."""
    # After the reduce-scatter of the first ring a rank owns 1/size of the message, which the next ring goes on with.
    messages = []
    for group in groups:
        messages.append(Communicate(schedule=way(group), message_bytes=message_bytes))
        message_bytes /= group.size
    return messages


class Quantizing(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels of the norm of a block, drawn at random so that the mean is right; packed codes and an fp32 norm a block.

    Attributes:
        bits: bits of a code, its sign included.
        block_size: elements that share a norm.
        coding: "packed" codes of `bits` bits, or Elias codes, whose length depends on the values, so that their lengths
            are gathered first.
        coded_bits: measured bits of an element, which "elias" needs.
    """

    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(presets={"{title} 4 bit": ({},)})

    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    block_size: BlockSize = 8192
    coding: Literal["packed", "elias"] = "packed"
    coded_bits: Annotated[float, Meta(gt=0.0, le=64.0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.coding == "elias") != (self.coded_bits is not None):
            if self.coded_bits is None:
                raise ValueError("coded_bits: missing; coding 'elias' needs what was measured, in bits per element")
            raise ValueError(f"coded_bits: {self.coded_bits}: has no effect with coding {self.coding!r}; drop it")

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return codes and norms, and with "elias" the lengths of blocks."""
        num_blocks = math.ceil(bucket.num_elements / self.block_size)
        block_bytes = SCALE_BYTES + (BLOCK_LENGTH_BYTES if self.coding == "elias" else 0)
        num_bytes = block_bytes * num_blocks + bytes_of_bits(bucket.num_elements * (self.coded_bits or self.bits))
        return GatheredPayload(num_bytes, bucket.num_elements, self.coding == "elias")


class QSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd"):
    """QSGD with the L2 norm (Alistarh et al., NeurIPS 2017): unbiased, gathered by all."""

    title: ClassVar[str] = "QSGD"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("qsgd", 8.5, 8.5)


class QSGDInf(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd_inf"):
    """QSGD with the maximum norm."""

    title: ClassVar[str] = "QSGDinf"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("qsgd_inf", 8.5, 8.5)


class NUQSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="nuqsgd"):
    """QSGD with levels 1, 1/2, 1/4 and so on of the norm (Ramezani-Kebrya et al., JMLR 2021).

    Attributes:
        bits: bits of a code, its sign included.
        with_zero: whether 0 is a level.
    """

    title: ClassVar[str] = "NUQSGD"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("nuqsgd", 8.5, 8.5)

    bits: Annotated[int, Meta(ge=2, le=7)] = 4
    with_zero: bool = True


class EightBitStrategy(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sends a byte an element and an fp32 scale a block, by the kernels of ByteGrad.

    Attributes:
        block_size: elements that share a scale.
    """

    topologies: ClassVar[tuple[Topology, ...]] = ("scatter_reduce",)
    runs_kernels_of: ClassVar[str] = "byte_grad"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("byte_grad", 9.0, 9.0)
    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(
        training=lambda self: (EightBitStrategy, self.byte_dtype, self.arithmetic)  # rounded alike, as often
    )

    block_size: BlockSize = 256

    @property
    def mathematics(self) -> Mathematics:
        """Rounding to a byte."""
        return "rounding"

    @property
    def byte_dtype(self) -> str:
        """What a byte is, by the option of what has several."""
        return str(getattr(self, "dtype", "int8"))

    def kernel_options(self) -> dict[str, object]:
        """Return the options as ByteGrad has them."""
        return super().kernel_options() | {"dtype": self.byte_dtype}

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return bytes and scales."""
        num_bytes = math.ceil(bucket.num_elements) + SCALE_BYTES * math.ceil(bucket.num_elements / self.block_size)
        return GatheredPayload(num_bytes, bucket.num_elements)


def _other_than_int8(setting: EightBitStrategy) -> Iterable[Options]:
    """Return each topology; of a setting in another than its own, all but the scatter-reduce, which is `int8`."""
    first, *others = EightBitStrategy.choices.topologies(setting)
    return (first, *others) if setting.used_topology == setting.topologies[0] else others


class ByteGrad(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="byte_grad"):
    """ByteGrad of BAGUA (Gan et al., VLDB 2022): a byte an element and a scale a block, averaged by pieces.

    On nodes of several ranks it averages in the node first, as its authors' code does (`ByteGradAlgorithm`, in
    bagua/torch_api/algorithms/bytegrad.py).

    Attributes:
        dtype: of a byte; messages are the same.
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "ByteGrad"
    topologies: ClassVar[tuple[Topology, ...]] = ("scatter_reduce", "gather", "hierarchical")
    averages_in_node: ClassVar[bool] = True
    choices: ClassVar[Choices] = EightBitStrategy.choices._replace(topologies=_other_than_int8)

    dtype: Literal["int8", "fp8_e4m3", "fp8_e5m2"] = "int8"


class Int8AllReduce(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="int8"):
    """All-reduce in int8, as torchft's `allreduce_quantized` on GPUs without fp8: ByteGrad's scatter-reduce.

    Every rank sends each other one its piece as codes and scales, adds up in fp32 what arrives, rounds the mean again
    and gathers. Source: meta-pytorch/torchft, torchft/collectives.py and quantization.py. Differs: there a row of a
    matrix shares a scale, here a block.

    Attributes:
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "int8 all-reduce"


class Fp8AllReduce(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fp8"):
    """All-reduce in 8-bit floats, as torchft's `allreduce_quantized` on GPUs with fp8: `int8` with other bytes.

    Attributes:
        dtype: of a byte; messages are the same.
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "fp8 all-reduce"

    dtype: Literal["fp8_e4m3", "fp8_e5m2"] = "fp8_e4m3"

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU without 8-bit floats, on which torchft takes int8 itself."""
        if "fp8" not in gpu.peak_flops:
            known = ", ".join(gpu.peak_flops)
            raise SimnetError(
                f"cluster.gpu: {gpu.name!r}: has no 8-bit floats for an all-reduce in fp8: it has {known}; use 'int8', "
                "or a GPU with fp8"
            )


class LowRank(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thin factors of each matrix, and the other tensors as they are, averaged by all-reduces.

    Attributes:
        matrix_rank: columns of each factor.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
    """

    has_feedback: ClassVar[bool] = True
    topologies: ClassVar[tuple[Topology, ...]] = ("all_reduce", "hierarchical")
    cut: ClassVar[Cut] = "rows"
    choices: ClassVar[Choices] = CompressingStrategy.choices._replace(
        presets={"{title} rank 4": ({"algorithm": "auto"},)}
    )

    matrix_rank: Annotated[int, Meta(ge=1, le=65_536)] = 4
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    def factor_bytes(self, bucket: Bucket) -> tuple[float, float, float]:
        """Return the bytes of the left factors (n, r), of the right ones (m, r), and of what is not factored."""
        factored, whole = _parted(self, bucket, self.matrix_rank)
        left = sum(rows for rows, _ in factored) * self.matrix_rank
        right = sum(columns for _, columns in factored) * self.matrix_rank
        return VALUE_BYTES * left, VALUE_BYTES * right, VALUE_BYTES * whole


class PowerSGD(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="power_sgd"):
    """PowerSGD (Vogels et al., NeurIPS 2019): two all-reduces a bucket, the second waits for the first."""

    title: ClassVar[str] = "PowerSGD"
    # M Q reads g and residual, writes M; M^T P reads M; P Q^T twice, residual written. The merge makes columns
    # orthogonal, one after the other, on which PowerSGD spends most (pytorch/pytorch#65813): bytes tell little of it.
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("power_sgd", 12.0, 4.0, 12.0, measured_only=("merge",))

    def exchange_among(self, group: GroupKind, bucket: Bucket, topology: NetworkTopology) -> Exchange:
        """Average the left factors with what is not factored, then the right ones."""
        left, right, whole = self.factor_bytes(bucket)
        # A bucket without matrices has one message, of what is not factored.
        sizes = [size for size in (left + whole, right) if size]
        reductions = [choose_all_reduce(self.algorithm, topology, size, group) for size in sizes]
        first, *second = (collective for collective, _ in reductions)
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            first,
            codec_kernel(self, "merge", bucket.num_elements),
            *second,
            codec_kernel(self, "decode", bucket.num_elements),
        )
        return Exchange(operations, sum(sizes), reductions[0][1])


class GradZip(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="grad_zip"):
    """GradZip (Cho et al., NeurIPS 2019 workshop): one factor a step; the mean of the two turns is simulated."""

    title: ClassVar[str] = "GradZip"
    # encode makes columns orthogonal: bytes say little of its time
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("grad_zip", 12.0, 0.0, 12.0, measured_only=("encode",))

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return one factor, whose bytes are the mean of the two turns, and what is not factored."""
        left, right, whole = self.factor_bytes(bucket)
        return GatheredPayload((left + right) / 2 + whole, bucket.num_elements)


class Atomo(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="atomo"):
    """ATOMO on singular vectors (Wang et al., NeurIPS 2018): drawn triplets of each matrix, gathered by all.

    Attributes:
        budget: singular triplets of each matrix that travel, on average.
    """

    title: ClassVar[str] = "ATOMO"
    # encode is counted as if the decomposition were one read: far from what it takes
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("atomo", 4.0, 0.0, 8.0, measured_only=("encode",))
    topologies: ClassVar[tuple[Topology, ...]] = ("gather", "hierarchical")
    cut: ClassVar[Cut] = "rows"
    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(presets={"{title} budget 3": ({},)})

    budget: Annotated[float, Meta(gt=0.0, le=65_536.0)] = 3.0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return triplets, with how many there are of each matrix, and what is not factored."""
        factored, whole = _parted(self, bucket, self.budget)
        # A matrix has no more triplets than its shorter side.
        triplets = sum(min(self.budget, *sides) * sum(sides) for sides in factored)
        num_bytes = VALUE_BYTES * (triplets + whole + len(factored))
        return GatheredPayload(num_bytes, bucket.num_elements, is_variable_length=True)


def _parted(strategy: Strategy, bucket: Bucket, matrix_rank: float) -> tuple[list[tuple[int, int]], int]:
    """Return rows and columns of the matrices that factors make smaller, and the elements of all other tensors."""
    shapes = tensor_shapes(strategy, bucket)
    sides = [matrix_shape(shape) for shape in shapes]
    # A matrix whose factors would be larger travels as it is.
    factored = [(rows, columns) for rows, columns in sides if matrix_rank * (rows + columns) < rows * columns]
    whole = sum(math.prod(shape) for shape in shapes) - sum(rows * columns for rows, columns in factored)
    return factored, whole


class Sparsifying(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep some elements of each bucket; `ratio` or `k` says how many.

    Attributes:
        ratio: fraction of a bucket's elements that travels.
        k: elements of a bucket that travel.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
        warmup_steps: steps at the start over which the ratio falls to `ratio` by equal factors, each counted with their
            mean ratio; needs `run.steps`.
    """

    has_feedback: ClassVar[bool] = True
    stage_key: ClassVar[str] = "warmup_steps"
    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(presets={"{title} 1 %": ({"ratio": USUAL_RATIO},)})

    ratio: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    k: Count | None = None
    momentum: Momentum = 0.0
    warmup_steps: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ratio is None) == (self.k is None):
            raise ValueError("ratio: must be given once; give ratio or k")
        if self.warmup_steps and self.ratio is None:
            raise ValueError(f"warmup_steps: {self.warmup_steps}: needs ratio; give it instead of k")

    def dense_stage(self, steps: int | None) -> DenseStage | None:  # noqa: ARG002
        """Return the steps of the warm-up, with their mean ratio."""
        if not self.warmup_steps or self.ratio is None:
            return None
        steps_to_ratio = self.warmup_steps + 1
        # Bytes are in proportion to the ratio, so that its mean stands for the steps in which it falls.
        total = sum(self.ratio ** (step / steps_to_ratio) for step in range(1, steps_to_ratio))
        return DenseStage(replace(self, ratio=total / self.warmup_steps, warmup_steps=0), self.warmup_steps)

    def num_kept(self, num_elements: float) -> float:
        """Return how many of a bucket's elements travel."""
        # The smallest bucket still sends an element, and none sends more than it has.
        wanted = float(self.k) if self.k is not None else max(1.0, round((self.ratio or 0.0) * num_elements))
        return min(wanted, num_elements)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return values with their indices, which decoding adds at their places."""
        kept = self.num_kept(bucket.num_elements)
        return GatheredPayload((VALUE_BYTES + INDEX_BYTES) * kept, kept)


class TopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="top_k"):
    """Values of largest magnitude with their indices, gathered by all."""

    title: ClassVar[str] = "Top-k"
    # decode counts kept elements; encode selects the k largest: bytes say little of its time
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("top_k", 20.0, 16.0, decoded_fraction=USUAL_RATIO, measured_only=("encode",)),
        MOMENTUM,
    )


class MSTopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ms_top_k"):
    """Values of largest magnitude with their indices, found by counting instead of sorting (Shi et al., MLSys 2021).

    On nodes of several ranks it averages in the node first, as the paper's HiTopKComm does.
    """

    title: ClassVar[str] = "MSTop-k"
    averages_in_node: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("ms_top_k", 136.0, 16.0, decoded_fraction=USUAL_RATIO),  # 31 counts read all
        MOMENTUM,
    )


class RandomK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="random_k"):
    """Values that all ranks draw alike, added up by an all-reduce; unbiased, or with error feedback.

    Attributes:
        unbiased: scale values up so that the mean is right, instead of error feedback.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
    """

    title: ClassVar[str] = "Random-k"
    topologies: ClassVar[tuple[Topology, ...]] = ("all_reduce", "hierarchical")
    # encode draws numbers for all elements and selects the k largest
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *kernel_costs("random_k", 12.0, 0.0, 4.0, measured_only=("encode",)),
        MOMENTUM,
    )
    choices: ClassVar[Choices] = GatheringStrategy.choices._replace(
        presets={"{title} 1 %": ({"ratio": USUAL_RATIO, "algorithm": "auto"},)}
    )

    unbiased: bool = False
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return values, whose indices all ranks know."""
        return GatheredPayload(VALUE_BYTES * self.num_kept(bucket.num_elements), bucket.num_elements)
