"""Error feedback: what compression lost is kept for each parameter and added to its next gradient."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from binsgdm.comm import Protocol, RankContext
from binsgdm.compressors.aggregation import Aggregation, gather_payloads, key_of
from binsgdm.compressors.base import (
    AggregationName,
    Averager,
    Compressor,
    GradientBucket,
    Payload,
    Shapes,
    System,
    Topology,
    check_payload,
    check_shapes,
    check_stateless,
    check_values,
    numel_of,
)
from binsgdm.compressors.momentum import LocalMomentum, split_state
from binsgdm.compressors.residuals import Residuals, load_together
from binsgdm.kernels.profiler_stages import stage
from binsgdm.kernels.random import Key


class WithoutFeedback(Averager):
    """An end without state: every rank's payload is the compressed gradient.

    Attributes:
        aggregate: the same; a driver may put another in its place that gives the same mean.
    """

    def __init__(self, compressor: Compressor, aggregate: Aggregation = gather_payloads) -> None:
        self.compressor = compressor
        self.aggregate = aggregate

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Compress the gradients of a bucket and average over all ranks; see `binsgdm.compressors.base.Averager`."""
        compressor = at_step(self.compressor, context.step)
        with stage("encode"):
            payload = compressor.compress(bucket.values, bucket.shapes, key_of(compressor, context))
        return (yield from self.aggregate(compressor, payload, bucket.shapes, context, None))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""
        check_stateless(self.compressor.name, state)


class ErrorFeedback(Averager):
    """An end whose payload is the gradient plus what earlier payloads lost of it.

    Args:
        compressor: any. A biased one needs this to converge; an unbiased one of large variance may diverge with it,
            since it loses more than it is given.
        aggregate: how payloads travel.
        rank: this rank.
        world_size: all ranks.
        momentum: what this rank compresses in place of its gradients; None for the gradients.

    Attributes:
        residuals: what was lost, by parameter.
        aggregate: as given; a driver may put another in its place that gives the same mean.

    Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
    schemes", ICML 2019, with any compressor. Differs: p = g + e instead of p = lr g + e, since a bucket knows no
    learning rate (equal while the learning rate is constant; as in Vogels et al. 2019); the residual is in fp32.
    """

    def __init__(
        self,
        compressor: Compressor,
        aggregate: Aggregation = gather_payloads,
        *,
        rank: int,
        world_size: int,
        momentum: LocalMomentum | None = None,
    ) -> None:
        self.compressor = compressor
        self.residuals = Residuals(rank=rank, world_size=world_size)
        self.aggregate = aggregate
        self._momentum = momentum

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Correct, compress, average, keep what the payload lost; see `binsgdm.compressors.base.Averager`."""
        given = bucket if self._momentum is None else self._momentum.added(bucket)
        corrected = self.residuals.corrected(given, context)
        compressor = at_step(self.compressor, context.step)
        key = key_of(compressor, context)
        with stage("encode"):
            payload = compressor.compress(corrected, bucket.shapes, key)
        # This rank's own payload, as the other ranks will decode it: the difference is what was lost.
        with stage("decode"):
            delivered = compressor.decompress(payload, bucket.shapes, key)
        mean = yield from self.aggregate(compressor, payload, bucket.shapes, context, delivered)
        lost = corrected.sub_(delivered)
        self.residuals.store(lost, bucket, mean=mean)
        if self._momentum is not None:
            self._momentum.store(given, lost, mean=mean)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return `Residuals.state_dict`, and the momenta if there are any."""
        momenta = {} if self._momentum is None else {"momenta": self._momentum.state_dict()}
        return self.residuals.state_dict() | momenta

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do `Residuals.load_state_dict`, also for the momenta if there are any."""
        momenta, rest = split_state(self._momentum, state)
        load_together([*momenta, (self.residuals, rest)])


def at_step(compressor: Compressor, step: int) -> Compressor:
    """Return what compresses in a step, from 1: a system may begin with larger payloads."""
    return compressor.at_step(step) if isinstance(compressor, CompressorSystem) else compressor


class _CompressorTopologies:
    """The topologies of a compressor, its own first: all, unless its payloads are added up by an all-reduce."""

    def __get__(self, _: object, kind: type[System]) -> tuple[Topology, ...]:
        if kind.aggregation == "all_reduce":
            return "all_reduce", "hierarchical"
        if kind.aggregation == "all_gather":
            return "gather", "scatter_reduce", "hierarchical", "hierarchical_scatter_reduce"
        return "scatter_reduce", "gather", "hierarchical"


class CompressorSystem(System):
    """A system that is a compressor: its payloads are carried to all ranks, under error feedback if it has it.

    Its constructor takes the options by keyword; a frozen dataclass does so by itself.

    Attributes:
        is_unbiased: as `binsgdm.compressors.base.Compressor`.
        uses_common_key: as `binsgdm.compressors.base.Compressor`.
        aggregate: how payloads travel.
    """

    aggregation: ClassVar[AggregationName] = "all_gather"
    topologies: ClassVar[Any] = _CompressorTopologies()
    uses_common_key: ClassVar[bool] = False
    aggregate: Aggregation = staticmethod(gather_payloads)

    @property
    @abstractmethod
    def is_unbiased(self) -> bool:
        """Tell whether the mean over all draws of what decompression gives is what was compressed."""

    @abstractmethod
    def compress(self, values: torch.Tensor, shapes: Shapes, key: Key) -> Payload:
        """Do as `binsgdm.compressors.base.Compressor.compress`."""

    @abstractmethod
    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> torch.Tensor:
        """Do as `binsgdm.compressors.base.Compressor.decompress`."""

    @abstractmethod
    def num_bytes(self, shapes: Shapes) -> int | None:
        """Do as `binsgdm.compressors.base.Compressor.num_bytes`."""

    def num_sent(self, shapes: Shapes) -> int:
        """Return of how many elements a payload has something to decode: all, unless it leaves some out."""
        return numel_of(shapes)

    @classmethod
    def averager(cls, rank: int, world_size: int, options: Mapping[str, Any]) -> Averager:
        """Return one rank's end."""
        compressor = cls(**options)
        if not compressor.needs_feedback():
            return WithoutFeedback(compressor, cls.aggregate)
        momentum = compressor.local_momentum(rank, world_size)
        return ErrorFeedback(compressor, cls.aggregate, rank=rank, world_size=world_size, momentum=momentum)

    def needs_feedback(self) -> bool:
        """Tell whether it has error feedback with these options."""
        return self.has_feedback

    def local_momentum(self, rank: int, world_size: int) -> LocalMomentum | None:  # noqa: ARG002
        """Return what a rank compresses in place of its gradients under error feedback; None for the gradients."""
        return None

    def at_step(self, step: int) -> "CompressorSystem":  # noqa: ARG002
        """Return what compresses in a step, from 1: itself, unless its options say otherwise."""
        return self


# Dtype and number of elements of every tensor of a payload; None where the number depends on the values.
PayloadSpec = tuple[tuple[torch.dtype, int | None], ...]


class CheckedCompressor(CompressorSystem):
    """A compressor that states which tensors a payload has, so that values and payloads are checked for it.

    `payload_spec`, `encode` and `decode` take the place of `compress`, `decompress` and `num_bytes`.
    """

    @abstractmethod
    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return dtype and elements of every tensor of a payload; None where they depend on the values."""

    @abstractmethod
    def encode(self, values: torch.Tensor, shapes: Shapes, key: Key) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a payload; draws come from `key` and nothing else."""

    @abstractmethod
    def decode(self, tensors: tuple[torch.Tensor, ...], shapes: Shapes, key: Key) -> torch.Tensor:
        """Return flat fp32 values."""

    def compress(self, values: torch.Tensor, shapes: Shapes, key: Key) -> Payload:
        """Encode flat fp32 values; see `binsgdm.compressors.base.Compressor`.

        Raises:
            BinsgdmError: values that are not flat fp32, or of another number than the shapes say, or none.
        """
        check_values(self.name, values, shapes)
        return Payload(tensors=self.encode(values, shapes, key))

    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> torch.Tensor:
        """Decode a payload; see `binsgdm.compressors.base.Compressor`.

        Raises:
            BinsgdmError: a payload of other settings or shapes.
        """
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
