"""Marsit: one bit an element on every hop of a ring, merged so that the result is the sign of a rank drawn uniformly.

At hop h of the reduce-scatter a rank holds what came, which stands for h ranks, and its own sign. Where both are equal
the bit stays; where they differ its own replaces it with probability 1 / k, k = h + 1, so that it is kept with
probability (k - 1) / k. After S - 1 hops each of the S ranks has given the bit with probability 1 / S, and its mean is
that of the ranks' signs. What the merged sign is off from a rank's own value stays with that rank (the residual) until
the next synchronization in full precision.

Source: Wu, He, Guo, Qu, Wang, Zhuang and Zhang, "Sign bit is enough: a learning synchronization framework for multi-hop
all-reduce with ultimate compression", DAC 2022 (arXiv:2204.06787): synchronization and the bitwise merge.
Differs: the paper applies the signs times a global learning rate; here they are times `scale` (that rate over the local
one), or by default times the mean absolute value over all ranks. That mean travels in either case, 4 bytes a rank,
since signs cannot say that a value is not finite. The sign of 0 is +1. The draws are counter-based
(`binsgdm.kernels.random`) and taken for every element, also where the bits are equal.

A merged sign is that of another rank more often than a rank's own, so that a residual kept in full grows until the next
synchronization. `residual_decay` below 1 forgets the oldest losses.

Source of residual_decay: Wu, Huang, Huang and Zhang, "Error compensated quantized SGD and its applications to
large-scale distributed optimization", ICML 2018, its decay of the accumulated error.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from binsgdm.comm import AllGather, GroupName, Protocol, RankContext, SendRecv, group_members
from binsgdm.comm.flat_buckets import BITS_PER_BYTE
from binsgdm.compressors.base import (
    GradientBucket,
    ProtocolSystem,
    check_choice,
    check_values,
    check_whole,
    is_number,
    is_share,
)
from binsgdm.compressors.compressor import pad
from binsgdm.compressors.error_feedback import ErrorFeedback, Residuals, check_momentum, local_momentum
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import divided
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.random import draws

# What came, this rank's own (neither is changed), the group of the ring, for how many of its positions both stand, and
# the number of their first element.
Merge = Callable[[Tensor, Tensor, GroupName, int, int], Tensor]
NUM_DRAW_VALUES = 2**32  # a draw has 32 bits


class Marsit(ErrorFeedback, ProtocolSystem):
    """Average signs bit by bit round a ring, and keep what that misses until the next full-precision average.

    Args:
        sync_period: K >= 1: in every K-th step all ranks average in full precision and clear their residuals; None for
            never.
        scale: what a sign stands for, > 0, in the gradient's units; None for the mean absolute value over all ranks.
        residual_decay: part of the residual that is added to the next gradient, in [0, 1]; 1 is the paper's.
        momentum: as `binsgdm.compressors.compressor.CompressorWithMomentum`.
        torus: go round the ranks of a node, then round the nodes, instead of round all ranks in one ring: ranks per
            node + nodes - 2 hops each way instead of world size - 1.
    """

    name = "marsit"
    title = "Marsit"
    source = "Wu et al., DAC 2022"
    wire_format = "1 bit per element on every hop, and an fp32 magnitude per rank; every `sync_period` steps fp32"
    aggregation = "ring"
    has_feedback = True
    steady_options = MappingProxyType({"sync_period": None})
    residuals: Residuals

    def __init__(  # noqa: PLR0913 - options, all by keyword
        self,
        *,
        sync_period: int | None = 100,
        scale: float | None = None,
        residual_decay: float = 1.0,
        momentum: float = 0.0,
        torus: bool = False,
        rank: int,
        world_size: int,
    ) -> None:
        if sync_period is not None:
            check_whole("marsit: sync_period", sync_period, low=1)
        check_choice("marsit: torus", torus, (True, False))
        if scale is not None and not is_number(scale, above=0):
            raise BinsgdmError(
                f"marsit: scale: {shown(scale)}: must be above 0 and finite, or None for the mean |value|"
            )
        if not is_share(residual_decay):
            raise BinsgdmError(
                f"marsit: residual_decay: {shown(residual_decay)}: must be in [0, 1]; give 1 to keep all"
            )
        check_momentum(self.name, momentum)
        self.residuals = Residuals(rank=rank, world_size=world_size)
        self.momentum = local_momentum(momentum, rank=rank, world_size=world_size)
        self._sync_period, self._scale, self._residual_decay = sync_period, scale, residual_decay
        self._groups: tuple[GroupName, ...] = ("intra_node", "inter_node") if torus else ("world",)

    @classmethod
    def check_topology(cls, topology: object, options: Mapping[str, Any]) -> None:
        """Refuse what no system of rings has, and a torus whose rings in the node would have nothing to merge."""
        super().check_topology(topology, options)
        if topology == "hierarchical" and options.get("torus"):
            raise BinsgdmError(
                "marsit: topology: 'hierarchical' with torus=True: must not have both, since each averages in the "
                "node; drop one of them"
            )

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return signs times what they stand for, or the mean; all NaN on all ranks if a value is not finite."""
        check_values(self.name, bucket.values, bucket.shapes)
        outgoing = self.with_momentum(bucket)
        compensated = self.residuals.corrected(outgoing, context, decay=self._residual_decay)
        is_exact = self._sync_period is not None and context.step % self._sync_period == 0
        mean = yield from (self._mean_round_rings if is_exact else self._signs)(compensated, context)
        # The average in full precision delivered all of it, the residuals included.
        self.keep(compensated.zero_() if is_exact else compensated.sub_(mean), outgoing, mean)
        return mean

    def _mean_round_rings(self, values: Tensor, context: RankContext) -> Protocol:
        """Return the fp32 mean, summed in the order in which each chunk meets the ranks."""

        def add(came: Tensor, local: Tensor, *_: object) -> Tensor:
            return came + local

        total = yield from all_reduce_round_rings(_padded(values, context), self._groups, context, add)
        return divided(total[: values.numel()], context.world_size)

    def _signs(self, values: Tensor, context: RankContext) -> Protocol:
        """Return, per element, the sign of one rank that is drawn uniformly, times what it stands for."""

        def merge(came: Tensor, local: Tensor, group: GroupName, count: int, first: int) -> Tensor:
            # On a torus a rank merges the same elements in two rings; one stream for both would repeat the draws.
            key = context.key(RandomStream.INTRA_NODE if group == "intra_node" else RandomStream.MERGE)
            return merge_signs(came, local, count=count, key=key, start=first * BITS_PER_BYTE)

        stands_for = yield from self._what_a_sign_stands_for(values)
        own_signs = pack_signs(_padded(values, context) >= 0)
        packed = yield from all_reduce_round_rings(own_signs, self._groups, context, merge)
        return unpack_signs(packed, values.numel()).mul_(stands_for)

    def _what_a_sign_stands_for(self, values: Tensor) -> Protocol:
        """Return a scalar, NaN on all ranks if a value of any is not finite."""
        mean = torch.linalg.vector_norm(values, ord=1, dtype=torch.float64) / values.numel()
        # A gather of 4 bytes and not an all-reduce: all ranks average in the same order, to the same bits.
        means = yield AllGather(group="world", sent=mean.to(torch.float32).view(1))
        mean = means.to(torch.float64).mean().to(torch.float32)
        if self._scale is not None:
            mean = torch.full_like(mean, self._scale).masked_fill_(~mean.isfinite(), torch.nan)
        return mean.masked_fill(~mean.isfinite(), torch.nan)


def all_reduce_round_rings(
    values: Tensor, groups: Sequence[GroupName], context: RankContext, merge: Merge, first: int = 0
) -> Protocol:
    """Reduce-scatter round the ring of each group in turn, each on the last one's chunk; then all-gather back.

    One ring of all ranks is the ring all-reduce; the ring of a node and then that between nodes is a 2D torus. In a
    ring of S positions chunk k starts at position k + 1 and ends, S - 1 hops later and merged over all, at position k.

    The values are flat, of any dtype, a multiple of the product of the rings' sizes, and not changed; the first of them
    has the number `first`. Every rank gives the same groups.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009: an
    all-reduce as a ring reduce-scatter and a ring all-gather, 2 (S - 1) / S of the data out of every rank.
    """
    if not groups:
        return values
    group, *rest = groups
    members = group_members(group, context.rank, context.world_size, context.ranks_per_node)
    position, size = members.index(context.rank), len(members)
    rows = values.view(size, values.numel() // size)
    # The first hop sends the chunk of the previous position: it needs all other hops to reach its owner, merged at
    # each.
    chunk = rows[(position - 1) % size]
    for hop in range(1, size):
        index = (position - 1 - hop) % size
        came = yield SendRecv(group=group, sent=chunk)
        chunk = merge(came, rows[index], group, hop + 1, first + index * rows.shape[1])
    whole = torch.empty_like(rows)
    # The next ring works on this position's chunk only: between nodes travels 1 / ranks_per_node of the data.
    whole[position] = yield from all_reduce_round_rings(chunk, rest, context, merge, first + position * rows.shape[1])
    for hop in range(1, size):
        index = (position - hop) % size
        whole[index] = yield SendRecv(group=group, sent=whole[(index + 1) % size])
    return whole.view(-1)


def merge_signs(running: Tensor, local: Tensor, *, count: int, key: Key, start: int) -> Tensor:
    """Return packed signs `running`, of count - 1 ranks, each bit replaced by that of `local` with chance 1 / count.

    Neither is changed. The first element takes draw number `start`; count, the paper's k, is at least 2.
    """
    drawn = draws(key, start=start, numel=local.numel() * BITS_PER_BYTE, device=local.device)
    # Flips a bit of `running` where the two differ and the draw replaces it: a select on packed bits.
    return running ^ ((running ^ local) & pack_signs(drawn < replacing_draws(count)))


def replacing_draws(count: int) -> int:
    """Return how many of the 2^32 draws replace the bit: a part 1 / count of them, less than 2^-32 too few."""
    return NUM_DRAW_VALUES // count


def _padded(values: Tensor, context: RankContext) -> Tensor:
    unit = BITS_PER_BYTE * context.world_size
    return pad(values, -(-values.numel() // unit) * unit)
