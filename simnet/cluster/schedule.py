"""A collective algorithm as data: rounds of sends of numbered chunks, on process groups of (first, size, stride).

Everything here is equal by value: two schedules made apart are one, so caches hold across topologies and processes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

CollectiveName = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send_recv"]
GroupKind = Literal["world", "intra_node", "inter_node"]
Protocol = Literal["LL", "LL128", "Simple"]
"""Of NCCL."""


class Send(NamedTuple):
    """`width` chunks from number `first` on, to rank `dst`, which adds them to its own if `reduce`, else keeps them."""

    dst: int
    first: int
    width: int
    reduce: bool


Sends = Callable[[int, int], tuple[Send, ...]]
"""(rank, repetition) -> what the rank sends in it."""


class Group(NamedTuple):
    """A process group of `size` ranks, `stride` apart from rank `first` on, and its equals side by side.

    One dimension of a device mesh: groups of this size and stride tile the world, and a collective runs in all of them
    at once. All ranks are (size world, stride 1), a node (ranks_per_node, 1), a rail, which is one local rank of each
    node, (num_nodes, ranks_per_node). `num_nodes` and `ranks_per_node` are those of the cluster.

    Example:
        >>> rail = Group(first=0, size=4, stride=8, num_nodes=4, ranks_per_node=8)
        >>> rail.position(17), rail.rank_at(17, 0), rail.members_per_node, rail.nodes
        (2, 1, 1, 4)
    """

    first: int
    size: int
    stride: int
    num_nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        """Ranks in all groups."""
        return self.num_nodes * self.ranks_per_node

    @property
    def members_per_node(self) -> int:
        """Ranks of one group in one node, at least 1."""
        # A stride beyond a node leaves one member in each.
        return max(1, min(self.size, self.ranks_per_node // self.stride))

    @property
    def nodes(self) -> int:
        """Nodes that one group reaches."""
        return self.size // self.members_per_node

    @property
    def is_mixed(self) -> bool:
        """Tell whether some neighbours of a group are in one node and others are not."""
        return self.nodes > 1 and self.members_per_node > 1

    def position(self, rank: int) -> int:
        """Return the position of `rank` in its own group, from 0."""
        return (rank - self.first) // self.stride % self.size

    def rank_at(self, rank: int, position: int) -> int:
        """Return the rank at `position` (taken modulo the size) of the group that `rank` is in."""
        return rank + (position % self.size - self.position(rank)) * self.stride

    def group_id(self, rank: int) -> int:
        """Return the first rank of the group that `rank` is in, which no other group has."""
        return self.rank_at(rank, 0)

    def levels(self) -> tuple["Group", "Group"]:
        """Return its part in a node, and the rails that join these parts."""
        inside = self.members_per_node
        # A rail takes one member of each node, as far apart as the members of a node reach.
        between = self._replace(size=self.nodes, stride=self.stride * inside)
        return self._replace(size=inside), between


@lru_cache(maxsize=16_384)
def group_of(kind: GroupKind, num_nodes: int, ranks_per_node: int) -> Group:
    """Return the groups that every cluster has: all ranks, the ranks of each node, or the rails between nodes."""
    size, stride = {
        "world": (num_nodes * ranks_per_node, 1),
        "intra_node": (ranks_per_node, 1),
        "inter_node": (num_nodes, ranks_per_node),
    }[kind]
    return Group(first=0, size=size, stride=stride, num_nodes=num_nodes, ranks_per_node=ranks_per_node)


class Round(Struct, frozen=True, kw_only=True):
    """Sends that may run at once, `repeat` times over.

    A rank enters the next repetition when what it sends and receives in this one is done; with `at_once` it posts all
    repetitions together instead.

    Attributes:
        repeat: number of repetitions.
        sends: (rank, repetition) to what the rank sends; a struct that can be called, so that equal rounds are equal.
        at_once: whether all repetitions are posted together.
        distinct_loads: repetitions that load the NICs and ports differently, each as (repetition, number of
            repetitions with the same load); None: all differ.
        crossing_fraction: fraction of the hops of a ring that leave a node, where only some do.
        inter_node: whether every send leaves the node (True) or none does (False); None: some do.
        same_pairs: whether every repetition has the same senders, receivers and sizes.
        passes_on: whether a rank passes on a chunk slice by slice before it has all of it, as NCCL's rings do: the
            wire's latencies but the first hide behind bytes. Every repetition loads the links alike.
        is_whole: whether every send is a message of its own, which no library cuts into segments: no window holds for
            it.
    """

    repeat: int
    sends: Sends
    at_once: bool = False
    distinct_loads: tuple[tuple[int, int], ...] | None = None
    crossing_fraction: float | None = None
    inter_node: bool | None = None
    same_pairs: bool = False
    passes_on: bool = False
    is_whole: bool = False


class Schedule(Struct, frozen=True, kw_only=True):
    """One collective on groups of ranks: a message of `num_chunks` equal chunks, moved by `rounds`.

    Attributes:
        collective: what the ranks end with.
        algorithm: name of the algorithm, such as "ring".
        group: the groups in which it runs.
        num_chunks: equal chunks of the message of one group.
        rounds: sends in order.
        nodes_are_symmetric: whether renaming the nodes cyclically (or by exclusive or) maps the sends onto themselves,
            so that the ranks of node 0 stand for all ranks.
        busiest_nodes: where nodes are not symmetric, positions of nodes that hold a busiest NIC of every round, and of
            the nodes that send to them; empty: any node may be one.
        rails_are_symmetric: whether local rank 0 stands for every local rank of its node.
        folded_is_upper_bound: whether the folded executor gives an upper bound of the time in place of the time.
        protocol: NCCL's protocol, whose costs the calibration holds. Such a collective is a pipeline: its rounds follow
            each other chunk by chunk, and on the links all of them are one stream.
        alternatives: where it stands for many links at once (lanes): what it is the fastest of, on each of them.
    """

    collective: CollectiveName
    algorithm: str
    group: Group
    num_chunks: int
    rounds: tuple[Round, ...]
    nodes_are_symmetric: bool = True
    busiest_nodes: tuple[int, ...] = ()
    rails_are_symmetric: bool = False
    folded_is_upper_bound: bool = False
    protocol: Protocol | Literal[""] = ""
    alternatives: tuple["Schedule", ...] = ()

    def __hash__(self) -> int:
        """Hash what tells schedules apart; rounds follow from it and would take long."""
        return hash((self.collective, self.algorithm, self.group, self.num_chunks, self.protocol))

    @property
    def name(self) -> str:
        """For people: "ring all_reduce"."""
        return f"{self.label} {self.collective}"

    @property
    def num_rounds(self) -> int:
        """Rounds that a rank goes through, those posted at once counted one by one; a pipeline is one."""
        return min(len(self.rounds), 1) if self.protocol else sum(round_.repeat for round_ in self.rounds)

    @property
    def label(self) -> str:
        """The algorithm, of NCCL's collectives with its protocol: "ring", "tree LL128"."""
        return f"{self.algorithm} {self.protocol}".rstrip()


def any_of(schedules: Sequence[Schedule]) -> Schedule:
    """Return what stands for the fastest of some schedules on each of many links."""
    return schedules[0] if len(schedules) == 1 else replace(schedules[0], alternatives=tuple(schedules))
