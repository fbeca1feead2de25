"""Systems that are a compressor: what one is, how its payloads travel, and one rank's end of such a system.

A compressor takes one bucket, the flat gradients of some tensors (whose shapes it may use: low rank, columns), to a
payload and back.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from binsgdm.comm import AllGather, AllReduceSum, Protocol, RankContext
from binsgdm.compressors.base import (
    AggregationName,
    Averager,
    GradientBucket,
    OfClass,
    Payload,
    Shapes,
    System,
    Topology,
    check_payload,
    check_shapes,
    check_values,
    numel_of,
)
from binsgdm.compressors.error_feedback import ErrorFeedback, LocalMomentum, Residuals, check_momentum, local_momentum
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.functional import divided
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.profiler_stages import stage

# From this rank's payload (and its decompressed values, if they are known) to the mean of all ranks' decompressed
# values.
Aggregation = Callable[["CompressorSystem", Payload, Shapes, RankContext, Tensor | None], Protocol]
# Dtype and number of elements of every tensor of a payload; None where the number depends on the values.
PayloadSpec = tuple[tuple[torch.dtype, int | None], ...]
_OTHERS: tuple[Topology, ...] = ("scatter_reduce", "gather", "hierarchical")
_TOPOLOGIES: Mapping[str, tuple[Topology, ...]] = {
    "all_reduce": ("all_reduce", "hierarchical"),
    "all_gather": ("gather", "scatter_reduce", "hierarchical", "hierarchical_scatter_reduce"),
}


def gather_payloads(
    compressor: "CompressorSystem",
    payload: Payload,
    shapes: Shapes,
    context: RankContext,
    own_values: Tensor | None = None,
) -> Protocol:
    """Gather every rank's payload, decompress all, and average them in the order of ranks.

    Payloads whose length depends on the values are preceded by a gather of lengths, and padded to the longest. This
    rank's own payload is not decompressed again if its values are known already (`own_values`, which is not changed).
    """
    # Compressed values of different ranks cannot be added before decoding, so every rank receives and decodes all
    # payloads: bytes and decoding grow with the number of ranks, unlike those of an all-reduce.
    sent = as_bytes(payload)
    lengths = [sent.numel()] * context.world_size
    depends_on_values = compressor.num_bytes(shapes) is None
    if depends_on_values:
        length = torch.full((1,), sent.numel(), dtype=torch.int64, device=sent.device)
        lengths = (yield AllGather(group="world", sent=length, is_read_by_host=True)).reshape(-1).tolist()
        sent = pad(sent, max(lengths))
    # The host reads what it needs to decode a payload of unknown length.
    received = list((yield AllGather(group="world", sent=sent, is_read_by_host=depends_on_values)))

    def values_of(rank: int) -> Tensor:
        if rank == context.rank and own_values is not None:
            # A copy where the sum starts: error feedback still needs the values.
            return own_values if rank else own_values.clone()
        with stage("decode"):
            theirs = from_bytes(received[rank][: lengths[rank]], payload)
            return compressor.decompress(theirs, shapes, key_of(compressor, context, rank))

    return mean_in_order(values_of, context.world_size)


def mean_in_order(values_of: Callable[[int], Tensor], count: int) -> Tensor:
    """Return the mean of what is made for each rank, added to that of the first, which is overwritten.

    All ranks add up in the same order, so all get the same bits, which an fp32 sum in another order would not give.
    """
    total = values_of(0)
    for rank in range(1, count):
        total.add_(values_of(rank))
    return divided(total, count, out=total)


def all_reduce_payloads(
    compressor: "CompressorSystem", payload: Payload, shapes: Shapes, context: RankContext, _: Tensor | None = None
) -> Protocol:
    """Average payloads of fp32 values that stand for the same indices on all ranks, and decompress the mean.

    As many bytes leave a rank as in a ring all-reduce of one payload, however many ranks there are.
    """
    if [tensor.dtype for tensor in payload.tensors] != [torch.float32] or not compressor.uses_common_key:
        raise BinsgdmError(
            f"{compressor.name}: its payloads cannot be added up: must be one fp32 tensor of values at indices common "
            "to all ranks; use gather_payloads"
        )
    mean = yield from all_reduce_mean(payload.tensors[0], context)
    with stage("decode"):
        return compressor.decompress(Payload(tensors=(mean,)), shapes, context.common_key)


def all_reduce_mean(values: Tensor, context: RankContext) -> Protocol:
    """Average flat fp32 values of all ranks by the backend's own all-reduce, which gives all ranks the same bits.

    The order of the sum is the backend's: another backend, or all ranks in one process, may round otherwise.
    """
    total = yield AllReduceSum(group="world", sent=values)
    return divided(total, context.world_size)


def key_of(
    compressor: "CompressorSystem", context: RankContext, rank: int, stream: RandomStream = RandomStream.LOCAL
) -> Key:
    """Return the key that a rank compresses with."""
    return context.common_key if compressor.uses_common_key else context.key_of(rank, stream)


def pad(values: Tensor, numel: int) -> Tensor:
    """Return flat values with zeros behind them, (numel,)."""
    return torch.nn.functional.pad(values, (0, numel - values.numel()))


def as_bytes(payload: Payload) -> Tensor:
    """Return all tensors of a payload as one flat uint8 tensor."""
    return torch.cat([tensor.contiguous().view(torch.uint8).reshape(-1) for tensor in payload.tensors])


def from_bytes(data: Tensor, like: Payload) -> Payload:
    """Return a payload from the bytes of another rank's, with the same tensors; the last one takes what is left."""
    tensors, offset = [], 0
    for number, tensor in enumerate(like.tensors):
        # The lengths of all tensors but the last follow from the shapes; only the last one may depend on the values.
        is_last = number == len(like.tensors) - 1
        length = data.numel() - offset if is_last else tensor.numel() * tensor.element_size()
        tensors.append(data[offset : offset + length].clone().view(tensor.dtype))
        offset += length
    return Payload(tensors=tuple(tensors))


class CompressorAverager(ErrorFeedback):
    """An end whose payload is the compressed gradient, plus what earlier payloads lost of it where that is kept.

    Args:
        compressor: any. A biased one needs error feedback to converge; an unbiased one of large variance may diverge
            with it, since it loses more than it is given.
        aggregate: how payloads travel; a driver may put another in its place that gives the same mean.
        residuals: None without error feedback.
        momentum: as `ErrorFeedback`.
    """

    def __init__(
        self,
        compressor: "CompressorSystem",
        aggregate: Aggregation = gather_payloads,
        residuals: Residuals | None = None,
        momentum: LocalMomentum | None = None,
    ) -> None:
        self.compressor, self.aggregate = compressor, aggregate
        self.residuals, self.momentum = residuals, momentum

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Correct, compress, average, keep what the payload lost; see `binsgdm.compressors.base.Averager`."""
        outgoing = self.with_momentum(bucket)
        values = outgoing.values if self.residuals is None else self.residuals.corrected(outgoing, context)
        compressor, delivered = self.compressor.at_step(context.step), None
        key = key_of(compressor, context, context.rank)
        with stage("encode"):
            payload = compressor.compress(values, bucket.shapes, key)
        if self.residuals is not None:
            # This rank's own payload, as the other ranks will decode it: the difference is what was lost.
            with stage("decode"):
                delivered = compressor.decompress(payload, bucket.shapes, key)
        mean = yield from self.aggregate(compressor, payload, bucket.shapes, context, delivered)
        if delivered is not None:
            self.keep(values.sub_(delivered), outgoing, mean)
        return mean


class CompressorSystem(System):
    """A system that is a compressor: its payloads are carried to all ranks, under error feedback if it has it.

    Its constructor takes the options by keyword; a frozen dataclass does so by itself.

    Attributes:
        is_unbiased: the mean of what decompression gives over all draws is what was compressed.
        uses_common_key: all ranks compress with one key, so that payloads can be added up.
        aggregate: how payloads travel.
    """

    aggregation: ClassVar[AggregationName] = "all_gather"
    # All that there are, its own first, unless its payloads are added up by an all-reduce.
    topologies: ClassVar[Any] = OfClass(lambda kind: _TOPOLOGIES.get(kind.aggregation, _OTHERS))
    uses_common_key: ClassVar[bool] = False
    aggregate: Aggregation = staticmethod(gather_payloads)

    @property
    @abstractmethod
    def is_unbiased(self) -> bool:
        """Tell whether the mean over all draws of what decompression gives is what was compressed."""

    @abstractmethod
    def compress(self, values: Tensor, shapes: Shapes, key: Key) -> Payload:
        """Compress flat fp32 values of tensors of these shapes; draws come from `key` and nothing else."""

    @abstractmethod
    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> Tensor:
        """Return flat fp32 values; `key` as it was compressed with (what all ranks draw alike may be drawn again)."""

    @abstractmethod
    def num_bytes(self, shapes: Shapes) -> int | None:
        """Return the exact bytes of a payload; None where they depend on the values."""

    def num_sent(self, shapes: Shapes) -> int:
        """Return of how many elements a payload has something to decode: all, unless it leaves some out."""
        return numel_of(shapes)

    @classmethod
    def averager(cls, rank: int, world_size: int, options: Mapping[str, Any]) -> Averager:
        """Return one rank's end."""
        compressor = cls(**options)
        return CompressorAverager(compressor, cls.aggregate, *feedback_of(compressor, rank, world_size))

    def needs_feedback(self) -> bool:
        """Tell whether it has error feedback with these options."""
        return self.has_feedback

    def local_momentum(self, rank: int, world_size: int) -> LocalMomentum | None:  # noqa: ARG002
        """Return what a rank compresses in place of its gradients under error feedback; None for the gradients."""
        return None

    def at_step(self, step: int) -> "CompressorSystem":  # noqa: ARG002
        """Return what compresses in a step, from 1: itself, unless its options say otherwise."""
        return self


def feedback_of(
    compressor: CompressorSystem, rank: int, world_size: int
) -> tuple[Residuals | None, LocalMomentum | None]:
    """Return what a rank's end begins with to keep: nothing without error feedback."""
    if not compressor.needs_feedback():
        return None, None
    return Residuals(rank=rank, world_size=world_size), compressor.local_momentum(rank, world_size)


class CheckedCompressor(CompressorSystem):
    """A compressor that states which tensors a payload has, so that values and payloads are checked for it.

    `payload_spec`, `encode` and `decode` take the place of `compress`, `decompress` and `num_bytes`.
    """

    @abstractmethod
    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return dtype and elements of every tensor of a payload; None where they depend on the values."""

    @abstractmethod
    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:
        """Return the tensors of a payload; draws come from `key` and nothing else."""

    @abstractmethod
    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:
        """Return flat fp32 values."""

    def compress(self, values: Tensor, shapes: Shapes, key: Key) -> Payload:
        """Check and encode flat fp32 values."""
        check_values(self.name, values, shapes)
        return Payload(tensors=self.encode(values, shapes, key))

    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> Tensor:
        """Check and decode a payload."""
        check_shapes(self.name, shapes)
        check_payload(self.name, payload, self.payload_spec(shapes))
        return self.decode(payload.tensors, shapes, key)

    def num_bytes(self, shapes: Shapes) -> int | None:
        """Return the bytes of a payload; None where they depend on the values."""
        total = 0
        for dtype, numel in self.payload_spec(shapes):
            if numel is None:
                return None
            total += dtype.itemsize * numel
        return total


class CompressorWithMomentum(CheckedCompressor):
    """A checked compressor with the option `momentum`.

    It is the decay, in [0, 1), of the momentum that each rank sends in place of its gradients; 0 for none. Then the
    optimizer shall have none; see `binsgdm.compressors.error_feedback`.
    """

    momentum: float
    masks_momentum: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum)

    def local_momentum(self, rank: int, world_size: int) -> LocalMomentum | None:
        """Return that of the options."""
        decay, is_masked, clip_norm = self.momentum, self.masks_momentum, self.clip_norm
        return local_momentum(decay, is_masked=is_masked, clip_norm=clip_norm, rank=rank, world_size=world_size)
