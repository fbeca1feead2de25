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

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from binsgdm.comm import AllGather, GroupName, Protocol, RankContext
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
from binsgdm.compressors.momentum import check_momentum, local_momentum, split_state
from binsgdm.compressors.residuals import Residuals, load_together
from binsgdm.compressors.rings import Hop, Ring, all_reduce_round_rings
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import divided
from binsgdm.kernels.random import Key, RandomStream, draws

NUM_DRAW_VALUES = 2**32  # a draw has 32 bits


class Marsit(ProtocolSystem):
    """Average signs bit by bit round a ring, and keep what that misses until the next full-precision average.

    Args:
        sync_period: K >= 1: in every K-th step all ranks average in full precision and clear their residuals; None for
            never.
        scale: what a sign stands for, > 0, in the gradient's units; None for the mean absolute value over all ranks.
        residual_decay: part of the residual that is added to the next gradient, in [0, 1]; 1 is the paper's.
        momentum: decay of the momentum that each rank sends in place of its gradients, in [0, 1); 0 for none. Then the
            optimizer shall have none; see `binsgdm.compressors.momentum`.
        torus: go round the ranks of a node, then round the nodes, instead of round all ranks in one ring: ranks per
            node + nodes - 2 hops each way instead of world size - 1.
        rank: this rank.
        world_size: all ranks.

    Attributes:
        residuals: what is to be made up for, by parameter.
    """

    name = "marsit"
    title = "Marsit"
    source = "Wu et al., DAC 2022"
    wire_format = "1 bit per element on every hop, and an fp32 magnitude per rank; every `sync_period` steps fp32"
    aggregation = "ring"
    has_feedback = True
    steady_options = MappingProxyType({"sync_period": None})

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
        self._residual_decay = residual_decay
        self._momentum = local_momentum(momentum, rank=rank, world_size=world_size)
        self._sync_period, self._scale = sync_period, scale
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
        """Return signs times what they stand for, or the mean; see `binsgdm.compressors.base.Averager`.

        A value that is not finite makes the whole estimate NaN on all ranks.
        """
        check_values(self.name, bucket.values, bucket.shapes)
        given = bucket if self._momentum is None else self._momentum.added(bucket)
        compensated = self.residuals.corrected(given, context, decay=self._residual_decay)
        mean = yield from self._estimate(compensated, context)
        # The average in full precision delivered all of it, the residuals included.
        is_exact = self.is_full_precision(context.step)
        lost = compensated.zero_() if is_exact else compensated.sub_(mean)
        self.residuals.store(lost, bucket, mean=mean)
        if self._momentum is not None:
            self._momentum.store(given, lost, mean=mean)
        return mean

    def _estimate(self, compensated: torch.Tensor, context: RankContext) -> Protocol:
        """Return signs times what they stand for, or in a step of full precision the mean."""
        rings = [Ring.of(group, context) for group in self._groups]
        if self.is_full_precision(context.step):
            return (yield from _mean_round_rings(compensated, context, rings))
        stands_for = yield from self._what_a_sign_stands_for(compensated)
        packed = yield from merged_signs(_padded(compensated, context) >= 0, context, rings)
        return unpack_signs(packed, compensated.numel()).mul_(stands_for)

    def is_full_precision(self, step: int) -> bool:
        """Tell whether this step is one of those without compression: K, 2 K, ..."""
        return self._sync_period is not None and step % self._sync_period == 0

    def state_dict(self) -> dict[str, Any]:
        """Return `Residuals.state_dict`, and the momenta if there are any."""
        momenta = {} if self._momentum is None else {"momenta": self._momentum.state_dict()}
        return self.residuals.state_dict() | momenta

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do `Residuals.load_state_dict`, also for the momenta if there are any."""
        momenta, rest = split_state(self._momentum, state)
        load_together([*momenta, (self.residuals, rest)])

    def _what_a_sign_stands_for(self, values: torch.Tensor) -> Protocol:
        """Return a scalar, NaN on all ranks if a value of any is not finite."""
        mean = torch.linalg.vector_norm(values, ord=1, dtype=torch.float64) / values.numel()
        # A gather of 4 bytes and not an all-reduce: all ranks average in the same order, to the same bits.
        means = yield AllGather(group="world", sent=mean.to(torch.float32).view(1))
        mean = means.to(torch.float64).mean().to(torch.float32)
        if self._scale is not None:
            mean = torch.full_like(mean, self._scale).masked_fill_(~mean.isfinite(), torch.nan)
        return mean.masked_fill(~mean.isfinite(), torch.nan)


def merged_signs(positive: torch.Tensor, context: RankContext, rings: Sequence[Ring]) -> Protocol:
    """Return the packed sign, per element, of one rank that is drawn uniformly; the same on every rank.

    Args:
        positive: True for this rank's +1; a multiple of 8 x world size.
        context: this rank.
        rings: that values go round, in order.

    Shape:
        positive: (N,) bool; returned: (N / 8,) uint8.
    """

    def merge(came: torch.Tensor, own: torch.Tensor, hop: Hop) -> torch.Tensor:
        # On a torus a rank merges the same elements in two rings; one stream for both would repeat the draws.
        key = context.key(RandomStream.INTRA_NODE if hop.ring.group == "intra_node" else RandomStream.MERGE)
        return merge_signs(came, own, count=hop.number + 1, key=key, start=hop.first * BITS_PER_BYTE)

    return (yield from all_reduce_round_rings(pack_signs(positive), rings, merge))


def merge_signs(running: torch.Tensor, own: torch.Tensor, *, count: int, key: Key, start: int) -> torch.Tensor:
    """Return `running` with each bit replaced by that of `own` with probability 1 / count.

    Args:
        running: packed signs that stand for count - 1 ranks; not changed.
        own: packed signs of one rank more; not changed.
        count: k of the paper, >= 2.
        key: of the draws.
        start: the first element's number in the draws.

    Shape:
        running, own, returned: (P,) uint8.
    """
    drawn = draws(key, start=start, numel=own.numel() * BITS_PER_BYTE, device=own.device)
    # Flips a bit of `running` where the two differ and the draw replaces it: a select on packed bits.
    return running ^ ((running ^ own) & pack_signs(drawn < replacing_draws(count)))


def replacing_draws(count: int) -> int:
    """Return how many of the 2^32 draws replace the bit: a part 1 / count of them, less than 2^-32 too few."""
    return NUM_DRAW_VALUES // count


def _mean_round_rings(values: torch.Tensor, context: RankContext, rings: Sequence[Ring]) -> Protocol:
    """Return the fp32 mean, summed in the order in which each chunk meets the ranks."""

    def add(came: torch.Tensor, own: torch.Tensor, _hop: Hop) -> torch.Tensor:
        return came + own

    total = yield from all_reduce_round_rings(_padded(values, context), rings, add)
    return divided(total[: values.numel()], context.world_size)


def _padded(values: torch.Tensor, context: RankContext) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, -values.numel() % (BITS_PER_BYTE * context.world_size)))
