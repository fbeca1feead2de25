"""Collectives round rings of ranks, hop by hop: send to the next rank, merge what comes from the previous one.

Shape letters: S positions of the ring, N elements of one chunk.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009: an
all-reduce as a ring reduce-scatter and a ring all-gather, 2 (S - 1) / S of the data out of every rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from binsgdm.comm import GroupName, Protocol, RankContext, SendRecv, group_members
from binsgdm.errors import BinsgdmError


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A group as a ring, seen from one of its positions."""

    group: GroupName
    position: int
    size: int

    @classmethod
    def of(cls, group: GroupName, context: RankContext) -> "Ring":
        """Return the ring of a group that a rank is in."""
        members = group_members(group, context.rank, context.world_size, context.ranks_per_node)
        return cls(group=group, position=members.index(context.rank), size=len(members))


@dataclass(frozen=True, kw_only=True)
class Hop:
    """What is merged: the chunk from element `first` on; what came stands for `number` positions of the ring."""

    ring: Ring
    number: int
    first: int


# Called with the received chunk, this rank's chunk and the hop; changes neither.
Merge = Callable[[torch.Tensor, torch.Tensor, Hop], torch.Tensor]


def ring_reduce_scatter(rows: torch.Tensor, ring: Ring, merge: Merge, first: int = 0) -> Protocol:
    """Merge one chunk a hop, so that after S - 1 hops each position holds its own chunk, merged over all of them.

    Chunk k starts at position k + 1 and ends at position k.

    Args:
        rows: this rank's chunks, one a position of the ring; not changed.
        ring: whose size is S.
        merge: of what came with one's own.
        first: number of the first element of the first row, from which `Hop.first` counts.

    Shape:
        rows: (S, N) of any dtype; returned: (N,).
    """
    if rows.dim() != 2 or rows.shape[0] != ring.size:
        raise BinsgdmError(
            f"ring_reduce_scatter: rows of shape {tuple(rows.shape)}: must be {ring.size} rows, one a position"
        )
    # The first hop sends the chunk of the previous position: it needs all other hops to reach its owner, merged at
    # each.
    running = rows[(ring.position - 1) % ring.size]
    for hop in range(1, ring.size):
        index = (ring.position - 1 - hop) % ring.size
        came = yield SendRecv(group=ring.group, sent=running)
        running = merge(came, rows[index], Hop(ring=ring, number=hop, first=first + index * rows.shape[1]))
    return running


def ring_all_gather(chunk: torch.Tensor, ring: Ring) -> Protocol:
    """Pass every chunk round the ring; row k of what is returned is that of position k.

    Shape:
        chunk: (N,) of any dtype; returned: (S, N).
    """
    rows = torch.empty((ring.size, *chunk.shape), dtype=chunk.dtype, device=chunk.device)
    rows[ring.position] = chunk
    for hop in range(1, ring.size):
        index = (ring.position - hop) % ring.size
        rows[index] = yield SendRecv(group=ring.group, sent=rows[(index + 1) % ring.size])
    return rows


def all_reduce_round_rings(values: torch.Tensor, rings: Sequence[Ring], merge: Merge) -> Protocol:
    """Reduce-scatter round each ring in turn, each on the last one's chunk; then all-gather back.

    One ring of all ranks is the ring all-reduce; the ring of a node and then that between nodes is a 2D torus.

    Args:
        values: this rank's, a multiple of the product of the rings' sizes; not changed.
        rings: from the first to the last; every rank gives the same groups.
        merge: as in `ring_reduce_scatter`; a hop's `first` counts from the start of `values`.

    Shape:
        values: (numel,) of any dtype; returned: (numel,).
    """
    return (yield from _reduced(values, 0, rings, merge))


def _reduced(values: torch.Tensor, first: int, rings: Sequence[Ring], merge: Merge) -> Protocol:
    if not rings:
        return values
    ring, rest = rings[0], rings[1:]
    length = values.numel() // ring.size
    # The next ring works on this position's chunk only: between nodes travels 1 / ranks_per_node of the data.
    chunk = yield from ring_reduce_scatter(values.view(ring.size, length), ring, merge, first)
    whole = yield from _reduced(chunk, first + ring.position * length, rest, merge)
    return (yield from ring_all_gather(whole, ring)).reshape(-1)
