"""A collective algorithm as data: rounds of sends of numbered chunks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

GroupKind = Literal["world", "intra_node", "inter_node"]


class Send(NamedTuple):
    """`width` chunks from number `first` on, to rank `dst`, which adds them to its own if `reduce`, else keeps them."""

    dst: int
    first: int
    width: int
    reduce: bool


@dataclass(frozen=True, kw_only=True)
class Round:
    """Sends that may run at once, `repeat` times over.

    `sends(rank, index)` gives what `rank` sends in repetition `index`. A rank enters the next repetition when what it
    sends and receives in this one is done; with `at_once` it posts all repetitions together instead.
    `alike` says which repetitions load the NICs and ports alike, as (index, how many it stands for); None: no two.
    `crossing` is the fraction of hops that leave a node in a ring of which only some do.
    """

    repeat: int
    sends: Callable[[int, int], tuple[Send, ...]]
    at_once: bool = False
    alike: tuple[tuple[int, int], ...] | None = None
    crossing: float | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Equal process groups side by side: all ranks, the ranks of each node, or the ranks of each lane.

    A lane is the ranks with one local rank, one of each node.
    """

    kind: GroupKind
    num_nodes: int
    ranks_per_node: int

    @property
    def size(self) -> int:
        """Ranks in one group."""
        return {
            "world": self.num_nodes * self.ranks_per_node,
            "intra_node": self.ranks_per_node,
            "inter_node": self.num_nodes,
        }[self.kind]

    @property
    def world_size(self) -> int:
        """Ranks in all groups."""
        return self.num_nodes * self.ranks_per_node

    def position(self, rank: int) -> int:
        """Return the place of `rank` in its own group."""
        if self.kind == "world":
            return rank
        return rank % self.ranks_per_node if self.kind == "intra_node" else rank // self.ranks_per_node

    def rank_at(self, rank: int, position: int) -> int:
        """Return the rank at `position` (taken modulo the size) of the group that `rank` is in."""
        place = position % self.size
        if self.kind == "world":
            return place
        if self.kind == "intra_node":
            return rank - rank % self.ranks_per_node + place
        return place * self.ranks_per_node + rank % self.ranks_per_node

    def group_id(self, rank: int) -> int:
        """Return which of the groups `rank` is in."""
        if self.kind == "world":
            return 0
        return rank // self.ranks_per_node if self.kind == "intra_node" else rank % self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One collective on groups of ranks: a message of `num_chunks` equal chunks, moved by `rounds`.

    `nodes_alike`: renaming nodes cyclically (or by exclusive or) maps the sends onto themselves, so the ranks of node 0
    stand for all; else `busiest_nodes` hold a busiest NIC of every round and all that send to it (empty: any node may).
    `lanes_alike`: local rank 0 stands for every local rank of its node. `bounded`: the folded executor gives an upper
    bound of its time, not the time.
    """

    name: str
    group: Group
    num_chunks: int
    rounds: tuple[Round, ...]
    nodes_alike: bool = True
    busiest_nodes: tuple[int, ...] = ()
    lanes_alike: bool = False
    bounded: bool = False
