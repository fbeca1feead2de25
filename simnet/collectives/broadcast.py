"""Broadcast of a message from the first rank of a group, and reduce to it: the same sends the other way, adding up.

`tree` is the binomial tree of gloo: ranks that hold the whole message pass it on, twice as many in each round. It does
not look at nodes, so that all ranks of a node send the message over its NICs. Source: gloo/broadcast.cc @e005531.
Differs: gloo posts the sends of all rounds at once; here a rank ends one before it begins the next.
`pipeline` is NCCL's ring in chunks. Differs: in a node the chunks go down a chain beside the chain between nodes, where
NCCL's ring goes through every rank of a node before it leaves; each NIC carries the message once in both.
gloo itself reduces otherwise (a ring reduce-scatter, then a gather); here it takes its tree.
"""

from functools import lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from simnet.cluster.schedule import CollectiveName, Group, Round, Schedule, Send

Way = Literal["broadcast", "reduce"]
Form = Literal["tree", "pipeline"]
CHUNKS = tuple(2**power for power in range(11))
"""Numbers of chunks of a pipeline: more chunks keep more nodes busy, but pay more latencies."""
STEADY, ACROSS, INSIDE = -1, -2, -3
"""What a pipeline's repetitions come to: every rank passes a chunk on; a hop between nodes; a hop inside one."""


class BinomialSends(Struct, frozen=True):
    """The whole message between the first `distance` positions and those as far behind them."""

    group: Group
    distance: int
    reduce: bool

    def __call__(self, rank: int, _index: int) -> tuple[Send, ...]:
        """Return the one send of a rank, if it has one."""
        group, position = self.group, self.group.position(rank)
        start, step = (self.distance, -self.distance) if self.reduce else (0, self.distance)
        if not start <= position < start + self.distance or position + step >= group.size:
            return ()
        return (Send(group.rank_at(rank, position + step), 0, 1, self.reduce),)


class PipelineSends(Struct, frozen=True):
    """One chunk a repetition along the chain of first members of nodes, and along the chain of each node.

    The member at local position j of node k gets chunk c in repetition c + k + j - 1, and passes it on in the next one.
    """

    intra_node: Group
    inter_node: Group
    num_chunks: int
    reduce: bool

    @property
    def repeat(self) -> int:
        """Repetitions until the last member has the last chunk."""
        return self.num_chunks + self.inter_node.size + self.intra_node.size - 3

    def __call__(self, rank: int, index: int) -> tuple[Send, ...]:
        """Return the sends of a rank in a repetition."""
        node, local = self.inter_node.position(rank), self.intra_node.position(rank)
        targets = (self._before if self.reduce else self._behind)(rank, node, local)
        if index < 0:
            per_node = self.intra_node.ranks_per_node
            is_inside = [target // per_node == rank // per_node for target in targets]
            # A head posts its send into the node, too, before it passes a chunk on, which delays but loads no link.
            widths = {STEADY: (1, 1), ACROSS: (1, 0), INSIDE: (0, 1)}[index]
            passes_on = not all(is_inside)
            return tuple(
                Send(target, 0, widths[inside], self.reduce)
                for target, inside in zip(targets, is_inside, strict=True)
                if widths[inside] or (index == ACROSS and passes_on)
            )
        # A reduce is a broadcast that runs backwards.
        chunk = (self.repeat - index if self.reduce else index) - node - local
        return tuple(Send(target, chunk, 1, self.reduce) for target in targets) if 0 <= chunk < self.num_chunks else ()

    def _before(self, rank: int, node: int, local: int) -> tuple[int, ...]:
        if local:
            return (self.intra_node.rank_at(rank, local - 1),)
        return (self.inter_node.rank_at(rank, node - 1),) if node else ()

    def _behind(self, rank: int, node: int, local: int) -> tuple[int, ...]:
        heads = () if local or node + 1 == self.inter_node.size else (self.inter_node.rank_at(rank, node + 1),)
        return heads if local + 1 == self.intra_node.size else (*heads, self.intra_node.rank_at(rank, local + 1))


@lru_cache(maxsize=16_384)
def tree(group: Group, way: Way = "broadcast") -> Schedule:
    """Return log2(n) rounds, each of the whole message."""
    distances = [1 << power for power in range((group.size - 1).bit_length())]
    rounds = tuple(_tree_round(group, distance, way == "reduce") for distance in distances)
    is_level = _is_power_of_two(group.members_per_node if way == "broadcast" and group.is_mixed else group.size)
    # The first node sends in every round of a broadcast, and receives in every round of a reduce.
    others = {1 << power for power in range(group.nodes.bit_length()) if 1 << power < group.nodes}
    busiest = tuple(sorted({0, *others})) if _is_aligned(group) else ()
    ordered = rounds if way == "broadcast" else rounds[::-1]
    schedule = _schedule(way, "tree", group, ordered, busiest, 1)
    return replace(schedule, folded_is_upper_bound=not (is_level or (way == "broadcast" and not group.is_mixed)))


def _tree_round(group: Group, distance: int, reduce: bool) -> Round:
    leaves_node = distance >= group.members_per_node if _is_aligned(group) else None
    return Round(
        repeat=1, sends=BinomialSends(group, distance, reduce), distinct_loads=((0, 1),), inter_node=leaves_node
    )


def _is_aligned(group: Group) -> bool:
    """Tell whether the sends of a round all stay in nodes, or all leave them."""
    return not group.is_mixed or _is_power_of_two(group.members_per_node)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@lru_cache(maxsize=16_384)
def pipeline(group: Group, num_chunks: int = 1, way: Way = "broadcast") -> Schedule:
    """Return the pipeline with the message in `num_chunks` chunks."""
    intra_node, inter_node = group.levels()
    sends = PipelineSends(intra_node, inter_node, num_chunks, way == "reduce")
    nodes = inter_node.size
    # A rank waits only for the one before it: the first chunk makes every hop, and then one chunk after the other
    # arrives at the pace of the slowest hop (Baccelli et al., "Synchronization and Linearity", 1992).
    loads = (ACROSS, nodes - 1), (INSIDE, intra_node.size - 1), (STEADY, num_chunks - 1)
    round_ = Round(
        repeat=sends.repeat,
        sends=sends,
        distinct_loads=tuple((index, times) for index, times in loads if times),
        inter_node=None if group.is_mixed else nodes > 1,
    )
    busiest = tuple(sorted({0, min(1, nodes - 1), nodes - 1}))
    return _schedule(way, "pipeline", group, (round_,) if group.size > 1 else (), busiest, num_chunks)


def _schedule(  # noqa: PLR0913, PLR0917 - the fields of a schedule
    way: CollectiveName,
    algorithm: str,
    group: Group,
    rounds: tuple[Round, ...],
    busiest_nodes: tuple[int, ...],
    num_chunks: int,
) -> Schedule:
    return Schedule(
        collective=way,
        algorithm=algorithm,
        group=group,
        num_chunks=num_chunks,
        rounds=rounds,
        nodes_are_symmetric=False,
        busiest_nodes=busiest_nodes,
    )
