"""Among whom a system's payloads travel.

gather: every rank gathers every rank's payload, decodes all and averages. Bytes and decoding grow with the ranks.

scatter_reduce: every rank owns one piece of the bucket. It encodes all pieces and sends each to its owner; the owner
decodes what came, averages, encodes the mean, and all ranks gather and decode the owners' payloads. About two payloads
leave each rank, however many ranks there are, where a gather sends as many as there are other ranks. The price is a
second loss, which stays with the owner and is added to its next mean where the system has error feedback.
Source: Seide et al., Interspeech 2014, quantize each stripe twice in this way; Tang, Yu, Lian, Zhang and Liu,
"DoubleSqueeze: parallel stochastic gradient descent with double-pass error-compensated compression", ICML 2019, with
error feedback at both places. Differs: tensors are cut one by one (`Pieces`).

hierarchical: the ranks of a node first average in full precision, each local rank one piece of the bucket; that piece
goes between nodes in the system's own exchange, among the ranks with the same local rank; its mean is gathered in the
node. So nothing is lost inside a node, and 1 / ranks_per_node of the bucket is encoded on each rank.
Source: as BinSGDM's and BAGUA's (Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB
2022) hierarchical forms.

hierarchical_scatter_reduce: hierarchical, with scatter_reduce between nodes.

Shape letters: N elements of a bucket, K pieces, one a rank or a rank of a node, L elements of the longest.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from binsgdm import kernels
from binsgdm.comm import AllGather, AllToAll, Message, Protocol, RankContext
from binsgdm.compressors.base import (
    MAX_RANKS,
    Averager,
    Cut,
    GradientBucket,
    Payload,
    Shapes,
    Topology,
    check_state,
    check_values,
    check_whole,
    matrix_shape,
    numel_of,
    numels_of,
)
from binsgdm.compressors.compressor import (
    CompressorSystem,
    as_bytes,
    feedback_of,
    from_bytes,
    key_of,
    mean_in_order,
    pad,
)
from binsgdm.compressors.error_feedback import ErrorFeedback, Residuals
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.keys import RandomStream
from binsgdm.kernels.profiler_stages import staged

IntraNodeDtype = Literal["fp32", "bf16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Topologies that average in the node first, with what they do between nodes; None: the system's own.
BETWEEN_NODES: Mapping[str, Topology | None] = {"hierarchical": None, "hierarchical_scatter_reduce": "scatter_reduce"}
_KEPT_CUTS = 4096  # tensors of a model, which is cut alike in every step


class _TensorCut(NamedTuple):
    """How one tensor is cut: as a matrix, along one of its two dimensions."""

    matrix: tuple[int, int]
    dim: int
    lengths: list[int]
    shapes: Shapes

    def in_order(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return flat tensors that are the whole tensor one after the other, of its flat parts."""
        if self.dim == 0:
            return parts
        rows, _ = self.matrix
        sides = [part.view(rows, length) for part, length in zip(parts, self.lengths, strict=True)]
        return [torch.cat(sides, self.dim).view(-1)]


class Pieces:
    """The cut of a bucket into pieces, one for each position of a group, tensor by tensor.

    A tensor's pieces depend on its own shape alone, so that what a rank keeps of its piece (a residual, a factor) stays
    right when DDP forms its buckets anew.

    Args:
        shapes: of the bucket's tensors.
        count: K.
        cut: along what; a tensor that is too short for it is cut along its elements.

    Attributes:
        shapes: of the tensors of each piece; some may have no elements.
        numels: elements of each piece; the first is the longest.

    Example:
        >>> Pieces(((5, 3), (4,)), 2, "rows").shapes[0]
        ((3, 3), (2,))
    """

    def __init__(self, shapes: Shapes, count: int, cut: Cut) -> None:
        self._count = count
        self._cuts = [_tensor_cut(shape, count, cut) for shape in shapes]
        self.shapes: list[Shapes] = [
            tuple(tensor_cut.shapes[position] for tensor_cut in self._cuts) for position in range(count)
        ]
        self.numels = [numel_of(piece) for piece in self.shapes]

    def split(self, values: Tensor) -> list[Tensor]:
        """Return the pieces of flat values (N,)."""
        return [values] if self._count == 1 else [torch.cat(parts) for parts in self._parts(values)]

    def padded(self, values: Tensor) -> Tensor:
        """Return the pieces of flat values (N,) as rows (K, L), zeros behind the shorter ones."""
        rows = values.new_empty(self._count, self.numels[0])
        for row, numel, parts in zip(rows, self.numels, self._parts(values), strict=True):
            torch.cat(parts, out=row[:numel])
            row[numel:].zero_()
        return rows

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the flat values (N,) that these are the pieces of; what stands behind a piece is left out."""
        if self._count == 1:
            return pieces[0][: self.numels[0]]
        parts = [
            torch.split(piece[:numel], numels_of(shapes))
            for shapes, piece, numel in zip(self.shapes, pieces, self.numels, strict=True)
        ]
        return torch.cat(
            [
                flat
                for number, tensor_cut in enumerate(self._cuts)
                for flat in tensor_cut.in_order([part[number] for part in parts])
            ]
        )

    def _parts(self, values: Tensor) -> list[list[Tensor]]:
        """Return the flat parts of the tensors, piece by piece."""
        tensors = torch.split(values, [rows * columns for (rows, columns), *_ in self._cuts])
        parts = [
            torch.split(tensor.view(tensor_cut.matrix), tensor_cut.lengths, tensor_cut.dim)
            for tensor, tensor_cut in zip(tensors, self._cuts, strict=True)
        ]
        return [[part[position].reshape(-1) for part in parts] for position in range(self._count)]


@lru_cache(maxsize=_KEPT_CUTS)
def _tensor_cut(shape: tuple[int, ...], count: int, cut: Cut) -> _TensorCut:
    numel, (rows, columns) = math.prod(shape), matrix_shape(shape)
    is_matrix = len(shape) > 1 and numel > 0
    others: tuple[int, ...] = ()
    matrix, dim = (numel, 1), 0
    if cut == "rows" and is_matrix and rows >= count:
        matrix, others = (rows, columns), shape[1:]
    if cut == "columns" and is_matrix and columns >= count:
        matrix, dim = (rows, columns), 1
    # Lengths differ by at most one, the longer ones first.
    lengths = [matrix[dim] // count + (position < matrix[dim] % count) for position in range(count)]
    shapes = tuple((rows, length) if dim else (length, *others) for length in lengths)
    return _TensorCut(matrix, dim, lengths, shapes)


class ScatterReduce(ErrorFeedback):
    """An end of any compressor whose payloads have a length that the shapes tell.

    Attributes:
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
        self.residuals, self.momentum = feedback_of(compressor, rank, world_size)
        if self.residuals is not None:
            self.owner_residuals = Residuals(rank=rank, world_size=world_size)

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Encode pieces, average this rank's, encode it again; see `binsgdm.compressors.base.Averager`."""
        outgoing, rank = self.with_momentum(bucket), context.rank
        check_values(self.name, outgoing.values, bucket.shapes)
        corrected = outgoing.values if self.residuals is None else self.residuals.corrected(outgoing, context)
        compressor, local = self.compressor.at_step(context.step), RandomStream.LOCAL
        cut = self.pieces(bucket.shapes, context.world_size, compressor.cut)
        coders = [_PieceCoder(compressor, shapes, context, position) for position, shapes in enumerate(cut.shapes)]
        encoded = [
            coder.encode(values, rank, local) for coder, values in zip(coders, cut.split(corrected), strict=True)
        ]
        delivered = None
        if self.residuals is not None:
            delivered = cut.join(
                [coder.decode(payload, rank, local) for coder, payload in zip(coders, encoded, strict=True)]
            )
        row_bytes = encoded[0].num_bytes  # of the longest piece
        received = yield AllToAll(
            group="world", sent=torch.stack([pad(as_bytes(payload), row_bytes) for payload in encoded])
        )
        own_coder, like, came = coders[rank], encoded[rank], list(received)

        def values_of(number: int) -> Tensor:
            return own_coder.decode(from_bytes(came[number][: like.num_bytes], like), number, local)

        values = mean_in_order(values_of, len(coders))
        owned = GradientBucket(values=values, parameters=bucket.parameters, shapes=own_coder.shapes)
        if self.owner_residuals is not None and values.numel():
            owned = replace(owned, values=self.owner_residuals.corrected(owned, context))
        row = pad(as_bytes(own_coder.encode(owned.values, rank, RandomStream.MERGE)), row_bytes)
        gathered = yield AllGather(group="world", sent=row)
        means = [
            coder.decode(from_bytes(row[: like.num_bytes], like), number, RandomStream.MERGE)
            for number, (coder, row, like) in enumerate(zip(coders, gathered, encoded, strict=True))
        ]
        mean = cut.join(means)
        if delivered is not None and self.owner_residuals is not None:
            self.keep(corrected.sub_(delivered), outgoing, mean)
            # The mean of the whole bucket: all ranks keep or drop alike.
            self.owner_residuals.store(owned.values - means[rank], owned, mean=mean)
        return mean


class _PieceCoder:
    """Encodes and decodes one piece as a bucket of its own, so that pieces share no draws."""

    def __init__(self, compressor: CompressorSystem, shapes: Shapes, context: RankContext, position: int) -> None:
        self.shapes = shapes
        self._compressor = compressor
        self._context = replace(context, bucket=context.bucket * context.world_size + position)

    @staged("encode")
    def encode(self, values: Tensor, rank: int, stream: RandomStream) -> Payload:
        """Return a rank's payload; nothing of no elements, of which compressors know nothing."""
        if not values.numel():  # more ranks than elements
            return Payload(tensors=(values.new_empty(0, dtype=torch.uint8),))
        return self._compressor.compress(values, self.shapes, key_of(self._compressor, self._context, rank, stream))

    @staged("decode")
    def decode(self, payload: Payload, rank: int, stream: RandomStream) -> Tensor:
        """Return what a rank encoded."""
        if not numel_of(self.shapes):
            return payload.tensors[0].new_empty(0, dtype=torch.float32)
        return self._compressor.decompress(payload, self.shapes, key_of(self._compressor, self._context, rank, stream))


class Hierarchical(Averager):
    """An end that averages in the node before another end exchanges between nodes.

    Args:
        between: of this node among the nodes, for this local rank's piece, with its state.
        cut: along what matrices are cut into pieces.
        dtype: of what travels inside the node: values and their mean.
    """

    common_group = "inter_node"

    def __init__(  # noqa: PLR0913
        self, between: Averager, cut: Cut, dtype: IntraNodeDtype, *, rank: int, world_size: int, ranks_per_node: int
    ) -> None:
        self.between = between
        self._cut = cut
        self._dtype = _DTYPES[dtype]
        self._identity = {"rank": rank, "world_size": world_size, "ranks_per_node": ranks_per_node}

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Average in the node, then between nodes; see `binsgdm.compressors.base.Averager`."""
        identity = {name: getattr(context, name) for name in self._identity}
        if identity != self._identity:
            raise BinsgdmError(f"hierarchical: {identity}: must be {self._identity}; make one system per rank")
        check_values("hierarchical", bucket.values, bucket.shapes)
        local, count = context.local_rank, context.ranks_per_node
        if count == 1:  # nothing is sent inside a node, nor rounded for it
            return (yield from among_nodes(self.between.mean(bucket, node_context(context))))
        pieces = Pieces(bucket.shapes, count, self._cut)
        rows = pieces.padded(bucket.values)
        # Every piece tells of a value that is not finite: residuals are kept or dropped for the bucket as a whole.
        rows[:, 0] = torch.where(bucket.values.isfinite().all(), rows[:, 0], torch.nan)
        mean = yield from self._mean_in_node(rows, pieces.numels[local])
        # A rank without elements: so are those of the other nodes that it would exchange with.
        if mean.numel():
            piece = GradientBucket(values=mean, parameters=bucket.parameters, shapes=pieces.shapes[local])
            mean = yield from among_nodes(self.between.mean(piece, node_context(context)))
        gathered = yield AllGather(group="intra_node", sent=pad(mean, pieces.numels[0]).to(self._dtype))
        return pieces.join(list(gathered.to(torch.float32)))

    def _mean_in_node(self, rows: Tensor, numel: int) -> Protocol:
        """Return the node's mean of this local rank's piece, (numel,), of the node's pieces (K, L), overwritten."""
        # An all-to-all and a local mean in place of a reduce-scatter: the order of the sum is then that of the ranks on
        # every backend, and a one-process control gives the same bits.
        received = yield AllToAll(group="intra_node", sent=rows.to(self._dtype))
        parts = received if received.dtype == torch.float32 else rows.copy_(received)
        kernels.select(device=rows.device).mean_(parts, rows[0])
        return rows[0, :numel].clone()

    def common_values(self) -> dict[str, Any]:
        """Return what the ranks with this local rank have alike."""
        return self.between.common_values()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since pieces differ. Empty if there is none."""
        state = self.between.state_dict()
        return self._identity | {"between_nodes": state} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on the same rank of the same layout.

        The state of another rank or layout is that of another piece, and not taken: it starts anew, with a warning.
        """
        if isinstance(state, Mapping) and not state:
            self.between.load_state_dict({})
            return
        check_state("hierarchical", state, {*self._identity, "between_nodes"})
        for name in self._identity:
            check_whole(f"hierarchical: {name} of the state", state[name], low=0, high=MAX_RANKS)
        saved = {name: state[name] for name in self._identity}
        if saved != self._identity:
            warnings.warn(
                f"hierarchical: the state of {saved} on {self._identity}: state starts anew; to continue it, load each "
                "rank's own state with as many ranks and nodes",
                stacklevel=2,
            )
            return
        self.between.load_state_dict(state["between_nodes"])


def node_context(context: RankContext) -> RankContext:
    """Return the context of a node among the nodes, for one local rank's piece."""
    return RankContext(
        rank=context.node,
        world_size=context.num_nodes,
        ranks_per_node=1,
        seed=context.seed,
        step=context.step,
        # Local ranks number their pieces' elements from 0 each: as buckets of their own, they share no draws.
        bucket=context.bucket * context.ranks_per_node + context.local_rank,
    )


def among_nodes(protocol: Protocol) -> Protocol:
    """Run a protocol of all ranks among the ranks with this local rank."""
    answer: Tensor | None = None
    while True:
        try:
            message: Message = protocol.send(answer)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: Tensor = stop.value
            return result
        answer = yield replace(message, group="inter_node")
