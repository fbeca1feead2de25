"""The 1-bit all-reduce of one bucket, as a protocol.

Source: the hierarchical 1-bit all-reduce of "Birder: Communication-efficient 1-bit adaptive optimizer for practical
distributed DNN training", NeurIPS 2023. Differs: the paper states the intent (local part over the fast links, efficient
primitives between nodes); the steps here are this project's reading (docs/explanation/algorithm.md).
"""

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType

import torch

from binsgdm.comm.flat_buckets import BITS_PER_BYTE, FlatBucket
from binsgdm.comm.messages import AllGather, AllToAll, Message, Protocol, RankContext
from binsgdm.kernels import Kernels
from binsgdm.kernels.keys import RandomStream
from binsgdm.kernels.profiler_stages import staged

Residuals = Mapping[RandomStream, torch.Tensor]
"""What shaped rounding lost so far, int16: of the elements of a bucket that this rank rounds, by what the key of their
draws would be. Where there is none, rounding draws."""
NONE: Residuals = MappingProxyType({})


def hierarchical(  # noqa: PLR0913
    values: torch.Tensor,
    bucket: FlatBucket,
    context: RankContext,
    kernels: Kernels,
    *,
    quantize: Callable[[torch.Tensor], torch.Tensor] | None = None,
    residuals: Residuals = NONE,
    bf16: bool = False,
) -> Protocol:
    """Average u in the node, exchange one bit an element between nodes, gather in the node.

    Args:
        values: this rank's updates in [-1, 1], fp32, one bucket with padding; overwritten. Or its gradients: a node
            then has one pair of averages, of its mean gradient.
        bucket: where it lies in the flat order.
        context: this rank.
        kernels: that round and merge.
        quantize: returns the packed signs of this rank's slice of the mean; by default those of Q of the mean. With
            gradients it updates the averages of the slice first.
        residuals: of both quantizations, or of the second where `quantize` is given; changed in place.
        bf16: send values inside the node as bf16 instead of fp32.

    Returns:
        The packed signs of the whole bucket, the same on every rank.

    Shape:
        values: (numel,); quantize: (numel / ranks per node,) to as many / 8 uint8; returned: (numel / 8,) uint8.
    """
    mean = yield from _mean_in_node(values, context, kernels, bf16=bf16)
    signs = quantize(mean) if quantize else _quantized(mean, bucket, context, kernels, residuals)
    return (yield from _between_nodes(signs, bucket, context, kernels, residuals))


def hierarchical_one_bit(
    signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels, residuals: Residuals = NONE
) -> Protocol:
    """Do as `hierarchical`, with one bit an element inside the node as well: `signs` of u of the stream INTRA_NODE."""
    received = yield AllToAll(group="intra_node", sent=signs.view(context.ranks_per_node, -1))
    merged = _merged(received, slice_start(bucket, context), RandomStream.LOCAL, context, kernels, residuals)
    return (yield from _between_nodes(merged, bucket, context, kernels, residuals))


def flat(
    signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels, residuals: Residuals = NONE
) -> Protocol:
    """Exchange one bit an element among all ranks: `signs` of u, drawn in the stream LOCAL."""
    # Reduce-scatter and all-gather, but of bits: no all-reduce can add packed signs.
    received = yield AllToAll(group="world", sent=signs.view(context.world_size, -1))
    # Draws are numbered by the element's position in the flat order, so the result does not depend on the cut into
    # buckets.
    start = piece_start(bucket, context, is_flat=True)
    piece = _merged(received, start, RandomStream.MERGE, context, kernels, residuals)
    return (yield AllGather(group="world", sent=piece)).reshape(-1)


def _mean_in_node(
    values: torch.Tensor, context: RankContext, kernels: Kernels, *, bf16: bool
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the mean over the node of this local rank's slice, summed in the order of ranks.

    The mean overwrites `values`: fresh memory is slow (decision 5), most of all in a thread of its own.
    """
    # An all-to-all and a local mean in place of a reduce-scatter: the order of the sum is then that of the ranks on
    # every backend, and a one-process control gives the same bits.
    rows = values.view(context.ranks_per_node, -1)
    received = yield AllToAll(group="intra_node", sent=rows.to(torch.bfloat16) if bf16 else rows)
    kernels.mean_(rows.copy_(received) if bf16 else received, rows[0])
    return rows[0]


def slice_start(bucket: FlatBucket, context: RankContext) -> int:
    """Return the first element of this local rank's slice in the flat order."""
    return bucket.start + context.local_rank * (bucket.numel // context.ranks_per_node)


def piece_start(bucket: FlatBucket, context: RankContext, *, is_flat: bool = False) -> int:
    """Return the first element of the piece whose signs this rank merges for all, in the flat order."""
    numel = bucket.numel // context.world_size
    if is_flat:
        return bucket.start + context.rank * numel
    return slice_start(bucket, context) + context.node * numel


@staged("round")
def _quantized(
    mean: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels, residuals: Residuals
) -> torch.Tensor:
    """Return the packed signs of Q of the node's mean."""
    signs = torch.empty(mean.numel() // BITS_PER_BYTE, dtype=torch.uint8, device=mean.device)
    if (residual := residuals.get(RandomStream.LOCAL)) is not None:
        kernels.shape_pack_(mean, residual, gain=1.0, out=signs)
    else:
        # Unbiased rounding: the expected sign is the mean itself. The rank is part of the key, so ranks round
        # independently and their errors average out instead of adding up.
        kernels.quantize_pack(mean, key=context.key(RandomStream.LOCAL), start=slice_start(bucket, context), out=signs)
    return signs


def _between_nodes(
    signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels, residuals: Residuals
) -> Protocol:
    """Average the signs of this slice between nodes, one bit an element; then gather all slices in the node."""
    # The expensive links: one bit an element out of each node and one bit back, whatever the number of ranks in a node.
    received = yield AllToAll(group="inter_node", sent=signs.view(context.num_nodes, -1))
    start = piece_start(bucket, context)
    piece = _merged(received, start, RandomStream.MERGE, context, kernels, residuals)
    whole_slice = yield AllGather(group="inter_node", sent=piece)
    whole_bucket = yield AllGather(group="intra_node", sent=whole_slice.reshape(-1))
    return whole_bucket.reshape(-1)


@staged("merge")
def _merged(  # noqa: PLR0913, PLR0917
    packed: torch.Tensor,
    start: int,
    stream: RandomStream,
    context: RankContext,
    kernels: Kernels,
    residuals: Residuals,
) -> torch.Tensor:
    """Return the packed signs of the mean of the rows of `packed`, rounded once more."""
    # The mean of K signs has K + 1 values; a second rounding makes it one bit again for the way back.
    out = torch.empty(packed.shape[1], dtype=torch.uint8, device=packed.device)
    numel = packed.shape[1] * BITS_PER_BYTE
    if packed.shape[0] == 1:  # a sign is its own mean, however it is rounded
        return out.copy_(packed[0])
    if (residual := residuals.get(stream)) is not None:
        kernels.merge_shaped_(packed, residual, numel=numel, out=out)
    else:
        # Unbiased again.
        kernels.merge(packed, numel=numel, key=context.key(stream), start=start, out=out)
    return out
