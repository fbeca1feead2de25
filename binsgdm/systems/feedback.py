"""Error feedback: what compression lost is kept for each parameter and added to its next gradient.

The residuals are kept by parameter, not by bucket, since DDP forms its buckets anew after the first iteration. They
differ from rank to rank, so each rank saves and loads its own.

Shape letters: N elements of a bucket.
"""

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Protocol, RankContext
from binsgdm.random import Key
from binsgdm.systems.aggregation import Aggregation, gather_payloads, key_of
from binsgdm.systems.base import (
    AggregationName,
    Averager,
    Compressor,
    GradientBucket,
    ParameterId,
    Payload,
    Shapes,
    System,
    check_payload,
    check_shapes,
    check_stateless,
    check_values,
    numel_of,
)

_STATE_KEYS = {"rank", "world_size", "residuals"}


class Residuals:
    """What compression lost of each parameter's gradients on this rank.

    Args:
        rank: this rank.
        world_size: all ranks; a residual is this rank's share of the mean over as many.

    Raises:
        BinsgdmError: the rank is not one of the world.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise BinsgdmError(f"residuals: rank {rank!r} of {world_size!r}: must be in [0, world size)")
        self.rank = rank
        self.world_size = world_size
        self._by_parameter: dict[ParameterId, torch.Tensor] = {}

    def __getitem__(self, parameter: ParameterId) -> torch.Tensor:
        """Return the residual of one parameter, flat fp32."""
        return self._by_parameter[parameter]

    def __len__(self) -> int:
        return len(self._by_parameter)

    def of(self, bucket: GradientBucket) -> torch.Tensor:
        """Return the residuals of a bucket, flat fp32; zero where there is none.

        Shape:
            returned: (N).

        Raises:
            BinsgdmError: a residual of another number of elements than its parameter.
        """
        device = bucket.values.device
        pairs = zip(bucket.parameters, bucket.numels, strict=True)
        return torch.cat([self._piece(parameter, numel, device) for parameter, numel in pairs])

    def corrected(self, bucket: GradientBucket, context: RankContext) -> torch.Tensor:
        """Return the gradients of a bucket plus what was lost of them before; neither is changed.

        Shape:
            returned: (N).

        Raises:
            BinsgdmError: values that cannot be compressed, a residual that does not fit its parameter, or another
                rank's context.
        """
        if (context.rank, context.world_size) != (self.rank, self.world_size):
            raise BinsgdmError(
                f"residuals: rank {context.rank} of {context.world_size}: must be rank {self.rank} of "
                f"{self.world_size}; make one system per rank"
            )
        check_values("error feedback", bucket.values, bucket.shapes)
        return bucket.values + self.of(bucket)

    def store(self, lost: torch.Tensor, bucket: GradientBucket, *, mean: torch.Tensor) -> None:
        """Keep what was lost, parameter by parameter.

        If any of it or of the mean is infinite or NaN (some rank's gradient was not finite), the residuals of the whole
        bucket stay what they were, on all ranks: such a step is usually skipped, and a NaN would never leave again.

        Args:
            lost: the corrected gradients less what was delivered of them. Where a value was delivered as it is or not
                at all, delivered + residual equals it to the bit; elsewhere up to the rounding of one subtraction.
            bucket: of the gradients.
            mean: the mean that all ranks go on with.

        Shape:
            lost, mean: (N).
        """
        # The mean is the same on all ranks, so all of them keep or drop alike.
        is_finite = lost.isfinite().all() & mean.isfinite().all()
        # `where` on the device in place of an `if`: no wait for the GPU in the middle of backward.
        kept = torch.where(is_finite, lost, self.of(bucket))
        self._by_parameter.update(zip(bucket.parameters, torch.split(kept, bucket.numels), strict=True))

    def reset(self) -> None:
        """Forget everything: the next gradient of every parameter is compressed as it is."""
        self._by_parameter.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since residuals differ."""
        residuals = {parameter: residual.clone() for parameter, residual in self._by_parameter.items()}
        return {"rank": self.rank, "world_size": self.world_size, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on the same rank of as many ranks.

        The state of another rank or world size is not taken: residuals start from zero, with a warning. Another rank's
        residual would be counted twice, and a mean over another number of ranks weighs it otherwise. One step's loss of
        gradient is forgotten by that, as at the start of training.

        Raises:
            BinsgdmError: it is no such state.
        """
        if set(state) != _STATE_KEYS:
            raise BinsgdmError(
                f"error feedback: a state of {sorted(map(str, state))}: must be {sorted(_STATE_KEYS)}; load what "
                "state_dict() returned"
            )
        _check_residuals(state["residuals"])
        self.reset()
        saved, own = (state["rank"], state["world_size"]), (self.rank, self.world_size)
        if saved != own:
            warnings.warn(
                f"error feedback: the state of rank {saved[0]} of {saved[1]} on rank {own[0]} of {own[1]}: residuals "
                "start from zero; to continue them, load each rank's own state with as many ranks",
                stacklevel=2,
            )
            return
        self._by_parameter.update((parameter, residual.clone()) for parameter, residual in state["residuals"].items())

    def _piece(self, parameter: ParameterId, numel: int, device: torch.device) -> torch.Tensor:
        residual = self._by_parameter.get(parameter)
        if residual is None:
            return torch.zeros(numel, device=device)
        if residual.numel() != numel:
            raise BinsgdmError(
                f"error feedback: parameter {parameter!r} of {numel} elements: its residual has {residual.numel()}, "
                "and must have as many; call reset() after changing a parameter's shape"
            )
        return residual.to(device)


class WithoutFeedback(Averager):
    """An end without state: every rank's payload is the compressed gradient.

    Args:
        compressor: unbiased, if the system shall converge.
        aggregate: how payloads travel.

    Attributes:
        aggregate: the same; a driver may put another in its place that gives the same mean.
    """

    def __init__(self, compressor: Compressor, aggregate: Aggregation = gather_payloads) -> None:
        self.compressor = compressor
        self.aggregate = aggregate

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Compress the gradients of a bucket and average over all ranks; see `binsgdm.systems.base.Averager`."""
        payload = self.compressor.compress(bucket.values, bucket.shapes, key_of(self.compressor, context))
        return (yield from self.aggregate(self.compressor, payload, bucket.shapes, context, None))

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

    Attributes:
        residuals: what was lost, by parameter.
        aggregate: as given; a driver may put another in its place that gives the same mean.

    Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
    schemes", ICML 2019, with any compressor. Differs: p = g + e instead of p = lr g + e, since a bucket knows no
    learning rate (equal while the learning rate is constant; as in Vogels et al. 2019); the residual is in fp32.
    """

    def __init__(
        self, compressor: Compressor, aggregate: Aggregation = gather_payloads, *, rank: int, world_size: int
    ) -> None:
        self.compressor = compressor
        self.residuals = Residuals(rank=rank, world_size=world_size)
        self.aggregate = aggregate

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Correct, compress, average, and keep what this rank's payload lost; see `binsgdm.systems.base.Averager`."""
        corrected = self.residuals.corrected(bucket, context)
        key = key_of(self.compressor, context)
        payload = self.compressor.compress(corrected, bucket.shapes, key)
        # This rank's own payload, as the other ranks will decode it: the difference is what was lost.
        delivered = self.compressor.decompress(payload, bucket.shapes, key)
        mean = yield from self.aggregate(self.compressor, payload, bucket.shapes, context, delivered)
        self.residuals.store(corrected - delivered, bucket, mean=mean)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return `Residuals.state_dict`."""
        return self.residuals.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do `Residuals.load_state_dict`."""
        self.residuals.load_state_dict(state)


class CompressorSystem(System):
    """A system that is a compressor: its payloads are carried to all ranks, under error feedback if it has it.

    Its constructor takes the options by keyword; a frozen dataclass does so by itself.

    Attributes:
        is_unbiased: as `binsgdm.systems.base.Compressor`.
        uses_common_key: as `binsgdm.systems.base.Compressor`.
        aggregate: how payloads travel.
    """

    aggregation: ClassVar[AggregationName] = "all_gather"
    uses_common_key: ClassVar[bool] = False
    aggregate: Aggregation = staticmethod(gather_payloads)

    @property
    @abstractmethod
    def is_unbiased(self) -> bool:
        """Tell whether the mean over all draws of what decompression gives is what was compressed."""

    @abstractmethod
    def compress(self, values: torch.Tensor, shapes: Shapes, key: Key) -> Payload:
        """Do as `binsgdm.systems.base.Compressor.compress`."""

    @abstractmethod
    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> torch.Tensor:
        """Do as `binsgdm.systems.base.Compressor.decompress`."""

    @abstractmethod
    def num_bytes(self, shapes: Shapes) -> int | None:
        """Do as `binsgdm.systems.base.Compressor.num_bytes`."""

    def num_sent(self, shapes: Shapes) -> int:
        """Return of how many elements a payload has something to decode: all, unless it leaves some out."""
        return numel_of(shapes)

    @classmethod
    def averager(cls, rank: int, world_size: int, options: Mapping[str, Any]) -> Averager:
        """Return one rank's end."""
        compressor = cls(**options)
        if not compressor.needs_feedback():
            return WithoutFeedback(compressor, cls.aggregate)
        return ErrorFeedback(compressor, cls.aggregate, rank=rank, world_size=world_size)

    def needs_feedback(self) -> bool:
        """Tell whether it has error feedback with these options."""
        return self.has_feedback


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
        """Encode flat fp32 values; see `binsgdm.systems.base.Compressor`.

        Raises:
            BinsgdmError: values that are not flat fp32, or of another number than the shapes say, or none.
        """
        check_values(self.name, values, shapes)
        return Payload(tensors=self.encode(values, shapes, key))

    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> torch.Tensor:
        """Decode a payload; see `binsgdm.systems.base.Compressor`.

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


def _check_residuals(residuals: object) -> None:
    """Refuse what no residuals are, before anything is taken of it."""
    tensors = residuals.values() if isinstance(residuals, Mapping) else [residuals]
    for one in tensors:
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float32 or one.dim() != 1:
            kind = f"{one.dtype} of shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else type(one).__name__
            raise BinsgdmError(
                f"error feedback: a residual that is {kind}: must be flat float32; load what state_dict() returned"
            )
