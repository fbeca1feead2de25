"""The 1-bit all-reduce of one bucket, as a protocol.

Source: the hierarchical 1-bit all-reduce of "Birder: Communication-efficient 1-bit adaptive optimizer for practical
distributed DNN training", NeurIPS 2023. Differs: the paper states the intent (local part over the fast links, efficient
primitives between nodes); the steps here are this project's reading (docs/explanation/algorithm.md).
"""

from collections.abc import Callable, Generator

import torch

from binsgdm.exchange.messages import AllGather, AllToAll, Message, Protocol, RankContext
from binsgdm.flat_buckets import BITS_PER_BYTE, FlatBucket
from binsgdm.kernels import Kernels
from binsgdm.random import Key, RandomStream


def hierarchical(
    u: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels, *, bf16: bool = False
) -> Protocol:
    """Average u in the node, exchange one bit an element between nodes, gather in the node.

    Args:
        u: this rank's updates in [-1, 1], fp32, one bucket with padding; overwritten.
        bucket: where it lies in the flat order.
        context: this rank.
        kernels: which implementation.
        bf16: send u inside the node as bf16 instead of fp32.

    Returns:
        The packed signs of the whole bucket, the same on every rank.

    Shape:
        u: (numel,); returned: (numel / 8,) uint8.
    """
    mean = yield from _mean_in_node(u, context, kernels, bf16=bf16)
    signs = torch.empty(mean.numel() // BITS_PER_BYTE, dtype=torch.uint8, device=u.device)
    # Unbiased rounding: the expected sign is the mean itself. The rank is part of the key, so ranks round independently
    # and their errors average out instead of adding up.
    kernels.quantize_pack(mean, key=context.key(RandomStream.LOCAL), start=slice_start(bucket, context), out=signs)
    return (yield from _between_nodes(signs, bucket, context, kernels))


def hierarchical_gradients(  # noqa: PLR0913
    gradients: torch.Tensor,
    bucket: FlatBucket,
    context: RankContext,
    kernels: Kernels,
    *,
    quantize: Callable[[torch.Tensor], torch.Tensor],
    bf16: bool = False,
) -> Protocol:
    """Do as `hierarchical`, with gradients instead of updates: a node has one pair of averages, of its mean gradient.

    Args:
        gradients: this rank's, fp32, one bucket with padding; overwritten.
        bucket: as in `hierarchical`.
        context: as in `hierarchical`.
        kernels: as in `hierarchical`.
        quantize: updates the averages of this rank's slice with its mean gradient, and returns the packed signs.
        bf16: as in `hierarchical`.

    Shape:
        gradients: (numel,); quantize: (numel / ranks per node,) to as many / 8 uint8; returned: (numel / 8,) uint8.
    """
    mean = yield from _mean_in_node(gradients, context, kernels, bf16=bf16)
    return (yield from _between_nodes(quantize(mean), bucket, context, kernels))


def hierarchical_one_bit(signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels) -> Protocol:
    """Do as `hierarchical`, with one bit an element inside the node as well.

    Args:
        signs: this rank's packed signs of u, drawn in the stream `RandomStream.INTRA_NODE`.
        bucket: as in `hierarchical`.
        context: as in `hierarchical`.
        kernels: as in `hierarchical`.
    """
    received = yield AllToAll(group="intra_node", sent=signs.view(context.ranks_per_node, -1))
    merged = _merge(received, slice_start(bucket, context), context.key(RandomStream.LOCAL), kernels)
    return (yield from _between_nodes(merged, bucket, context, kernels))


def flat(signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels) -> Protocol:
    """Exchange one bit an element among all ranks.

    Args:
        signs: this rank's packed signs of u, drawn in the stream `RandomStream.LOCAL`.
        bucket: as in `hierarchical`.
        context: as in `hierarchical`.
        kernels: as in `hierarchical`.
    """
    # Reduce-scatter and all-gather, but of bits: no all-reduce can add packed signs.
    received = yield AllToAll(group="world", sent=signs.view(context.world_size, -1))
    # Draws are numbered by the element's position in the flat order, so the result does not depend on the cut into
    # buckets.
    piece_start = bucket.start + context.rank * (bucket.numel // context.world_size)
    piece = _merge(received, piece_start, context.key(RandomStream.MERGE), kernels)
    return (yield AllGather(group="world", sent=piece)).reshape(-1)


def _mean_in_node(
    values: torch.Tensor, context: RankContext, kernels: Kernels, *, bf16: bool
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the mean over the node of this local rank's slice, summed in the order of ranks.

    The mean overwrites `values`: fresh memory is slow (ADR 5), most of all in a thread of its own.
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


def _between_nodes(signs: torch.Tensor, bucket: FlatBucket, context: RankContext, kernels: Kernels) -> Protocol:
    """Average the signs of this slice between nodes, one bit an element; then gather all slices in the node."""
    # The expensive links: one bit an element out of each node and one bit back, whatever the number of ranks in a node.
    received = yield AllToAll(group="inter_node", sent=signs.view(context.num_nodes, -1))
    piece_numel = bucket.numel // context.world_size
    piece_start = slice_start(bucket, context) + context.node * piece_numel
    piece = _merge(received, piece_start, context.key(RandomStream.MERGE), kernels)
    whole_slice = yield AllGather(group="inter_node", sent=piece)
    whole_bucket = yield AllGather(group="intra_node", sent=whole_slice.reshape(-1))
    return whole_bucket.reshape(-1)


def _merge(packed: torch.Tensor, start: int, key: Key, kernels: Kernels) -> torch.Tensor:
    """Return the packed signs, drawn anew, of the mean of the rows of `packed`."""
    # The mean of K signs has K + 1 values; a second unbiased rounding makes it one bit again for the way back.
    out = torch.empty(packed.shape[1], dtype=torch.uint8, device=packed.device)
    kernels.merge(packed, numel=packed.shape[1] * BITS_PER_BYTE, key=key, start=start, out=out)
    return out
