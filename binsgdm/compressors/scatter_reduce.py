"""scatter_reduce: payloads of pieces go to the pieces' owners, and the owners' means come back encoded once more.

Every rank owns one piece of the bucket. It encodes all pieces and sends each to its owner; the owner decodes what came,
averages, encodes the mean, and all ranks gather and decode the owners' payloads. About two payloads leave each rank,
however many ranks there are, where a gather sends as many as there are other ranks. The price is a second loss, which
stays with the owner and is added to its next mean where the system has error feedback.

Source: Seide et al., Interspeech 2014, quantize each stripe twice in this way; Tang, Yu, Lian, Zhang and Liu,
"DoubleSqueeze: parallel stochastic gradient descent with double-pass error-compensated compression", ICML 2019, with
error feedback at both places. Differs: tensors are cut one by one (`binsgdm.compressors.pieces`).

Shape letters: N elements of a bucket, K pieces, one a rank, B bytes of the longest payload.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import torch

from binsgdm.comm import AllGather, AllToAll, Message, Protocol, RankContext
from binsgdm.compressors.aggregation import as_bytes, from_bytes, key_of
from binsgdm.compressors.base import (
    Averager,
    Compressor,
    Cut,
    GradientBucket,
    Payload,
    Shapes,
    check_stateless,
    check_values,
)
from binsgdm.compressors.error_feedback import CompressorSystem, at_step
from binsgdm.compressors.momentum import LocalMomentum, split_state
from binsgdm.compressors.pieces import Pieces, pad
from binsgdm.compressors.residuals import Residuals, load_together
from binsgdm.errors import BinsgdmError, listed
from binsgdm.kernels.functional import divided
from binsgdm.kernels.profiler_stages import staged
from binsgdm.kernels.random import Key, RandomStream

_OWNER = "owner"  # key of a state
Scattered = Generator[Message, torch.Tensor, tuple[torch.Tensor, torch.Tensor | None]]


class ScatterReduce(Averager):
    """An end of any compressor whose payloads have a length that the shapes tell.

    Attributes:
        residuals: what the first encoding lost, by parameter; None without error feedback.
        owner_residuals: what the second one lost of this rank's piece, by parameter.
        pieces: how buckets are cut; a driver may put another in its place that cuts alike.
    """

    pieces: Callable[[Shapes, int, Cut], Pieces] = Pieces

    def __init__(self, compressor: CompressorSystem, *, rank: int, world_size: int) -> None:
        if compressor.num_bytes(((1,),)) is None:
            raise BinsgdmError(
                f"{compressor.name}: topology: 'scatter_reduce': the length of its payloads must not depend on the "
                "values; give topology='gather', or coding='packed' where there is a coding"
            )
        self.compressor = compressor
        self.residuals: Residuals | None = None
        self.owner_residuals: Residuals | None = None
        self._momentum: LocalMomentum | None = None
        if compressor.needs_feedback():
            self.residuals = Residuals(rank=rank, world_size=world_size)
            self.owner_residuals = Residuals(rank=rank, world_size=world_size)
            self._momentum = compressor.local_momentum(rank, world_size)

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Encode pieces, average this rank's, encode it again; see `binsgdm.compressors.base.Averager`."""
        given = bucket if self._momentum is None else self._momentum.added(bucket)
        check_values(self.compressor.name, given.values, bucket.shapes)
        corrected = given.values if self.residuals is None else self.residuals.corrected(given, context)
        coder = _PieceCoder(at_step(self.compressor, context.step), bucket, context, self.pieces)
        received, delivered = yield from coder.scatter(corrected, keeps_delivered=self.residuals is not None)
        owned = coder.owned(received)
        if self.owner_residuals is not None and owned.values.numel():
            owned = replace(owned, values=self.owner_residuals.corrected(owned, context))
        payload = coder.encode_mean(owned.values)
        means = coder.decode_means((yield AllGather(group="world", sent=payload)))
        mean = coder.pieces.join(means)
        if delivered is not None and self.residuals is not None and self.owner_residuals is not None:
            lost = corrected.sub_(delivered)
            self.residuals.store(lost, bucket, mean=mean)
            # The mean of the whole bucket: all ranks keep or drop alike.
            self.owner_residuals.store(owned.values - means[context.rank], owned, mean=mean)
            if self._momentum is not None:
                self._momentum.store(given, lost, mean=mean)
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of both residuals, and of the momenta if there are any; every rank saves its own."""
        if self.residuals is None or self.owner_residuals is None:
            return {}
        momenta = {} if self._momentum is None else {"momenta": self._momentum.state_dict()}
        return self.residuals.state_dict() | {_OWNER: self.owner_residuals.state_dict()} | momenta

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do `Residuals.load_state_dict` for both, and for the momenta if there are any."""
        if self.residuals is None or self.owner_residuals is None:
            check_stateless(self.compressor.name, state)
            return
        if not isinstance(state, Mapping) or _OWNER not in state:
            found = f"of {listed(state)}" if isinstance(state, Mapping) else f"that is a {type(state).__name__}"
            raise BinsgdmError(
                f"{self.compressor.name}: a state {found}: must have {_OWNER!r}; load the state of topology "
                "'scatter_reduce'"
            )
        momenta, rest = split_state(self._momentum, state)
        rest = {name: value for name, value in rest.items() if name != _OWNER}
        load_together([*momenta, (self.residuals, rest), (self.owner_residuals, state[_OWNER])])


class _PieceCoder:
    """Encodes and decodes the pieces of one bucket on one rank."""

    def __init__(
        self,
        compressor: Compressor,
        bucket: GradientBucket,
        context: RankContext,
        pieces: Callable[[Shapes, int, Cut], Pieces],
    ) -> None:
        self.pieces = pieces(bucket.shapes, context.world_size, compressor.cut)
        self._compressor = compressor
        self._bucket = bucket
        self._context = context
        longest = compressor.num_bytes(self.pieces.shapes(0))
        if longest is None:
            raise AssertionError("refused when the system was made")
        self._row_bytes = longest
        # One payload of each piece, from whose tensors those of other ranks are cut.
        self._encoded: list[Payload] = []

    def scatter(self, values: torch.Tensor, *, keeps_delivered: bool) -> Scattered:
        """Send each piece to its owner; return what came, and what was sent as its receivers decode it.

        Shape:
            values: (N,); returned: (K, B) uint8 and (N,).
        """
        keys = [key_of(self._compressor, self._piece_context(position)) for position in range(len(self.pieces.numels))]
        parts = self.pieces.split(values)
        self._encoded = [self._encode(part, position, keys[position]) for position, part in enumerate(parts)]
        delivered = None
        if keeps_delivered:
            decoded = [self._decode(one, position, keys[position]) for position, one in enumerate(self._encoded)]
            delivered = self.pieces.join(decoded)
        rows = torch.stack([self._row(payload) for payload in self._encoded])
        received = yield AllToAll(group="world", sent=rows)
        return received, delivered

    def owned(self, received: torch.Tensor) -> GradientBucket:
        """Return the mean of this rank's piece over all ranks, added up in their order."""
        position = self._context.rank
        context = self._piece_context(position)
        total: torch.Tensor | None = None
        for rank, row in enumerate(received):
            common = self._compressor.uses_common_key
            key = context.common_key if common else context.key_of(rank, RandomStream.LOCAL)
            values = self._decode(self._payload(row, position), position, key)
            total = values if total is None else total.add_(values)
        if total is None:
            raise AssertionError("no rank sent a payload")
        return GradientBucket(
            values=divided(total, self._context.world_size, out=total),
            parameters=self._bucket.parameters,
            shapes=self.pieces.shapes(position),
        )

    def encode_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the payload of this rank's piece as a row of bytes."""
        position = self._context.rank
        return self._row(self._encode(values, position, self._owner_key(position)))

    def decode_means(self, gathered: torch.Tensor) -> list[torch.Tensor]:
        """Return all pieces of the mean."""
        return [
            self._decode(self._payload(row, position), position, self._owner_key(position))
            for position, row in enumerate(gathered)
        ]

    def _piece_context(self, position: int) -> RankContext:
        # Elements are numbered from 0 in each piece: as buckets of their own, pieces share no draws.
        return replace(self._context, bucket=self._context.bucket * self._context.world_size + position)

    def _owner_key(self, position: int) -> Key:
        context = self._piece_context(position)
        return context.common_key if self._compressor.uses_common_key else context.key_of(position, RandomStream.MERGE)

    @staged("encode")
    def _encode(self, values: torch.Tensor, position: int, key: Key) -> Payload:
        if not values.numel():  # more ranks than elements
            return Payload(tensors=(values.new_empty(0, dtype=torch.uint8),))
        return self._compressor.compress(values, self.pieces.shapes(position), key)

    @staged("decode")
    def _decode(self, payload: Payload, position: int, key: Key) -> torch.Tensor:
        if not self.pieces.numels[position]:
            return self._bucket.values.new_empty(0)
        return self._compressor.decompress(payload, self.pieces.shapes(position), key)

    def _row(self, payload: Payload) -> torch.Tensor:
        return pad(as_bytes(payload), self._row_bytes)

    def _payload(self, row: torch.Tensor, position: int) -> Payload:
        like = self._encoded[position]
        return from_bytes(row[: like.num_bytes], like)
