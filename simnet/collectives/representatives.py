"""Which ranks stand for all, and the busiest link of each kind among those that they load."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Group, Schedule

TX = ("port_tx", "nic_tx", "leaf_up")


def busiest(counted: Counter[LinkId], *, every_link: bool) -> tuple[tuple[LinkKind, float], ...]:
    """Return the most chunks on a link of each kind.

    Where nodes are symmetric, a few ranks stand for all and only what they send counts: what they receive comes from
    ranks that are not enumerated, and is as much by symmetry. Elsewhere all senders to a busiest NIC are enumerated,
    so that the receiving side counts, too.
    """
    most: dict[LinkKind, float] = {}
    for (kind, _), number in counted.items():
        if every_link or kind in TX:
            most[kind] = max(most.get(kind, 0), number)
    return tuple(most.items())


def representatives(schedule: Schedule, nodes_per_leaf: int) -> Iterator[int]:
    """Return the ranks whose sends load a busiest link of each kind."""
    group = schedule.group
    # A leaf's uplinks carry what all its nodes send: with several leaves a whole leaf is enumerated.
    one_leaf = nodes_per_leaf >= group.num_nodes
    nodes: Iterable[int] = range(group.num_nodes)
    if schedule.nodes_are_symmetric:
        nodes = range(1 if one_leaf else _nodes_of_a_period(group, nodes_per_leaf))
    elif one_leaf and schedule.busiest_nodes:
        _, first_rail = group.levels()
        nodes = (first_rail.rank_at(0, position) // group.ranks_per_node for position in schedule.busiest_nodes)
    rails = 1 if schedule.rails_are_symmetric else group.ranks_per_node
    return (node * group.ranks_per_node + rail for node in nodes for rail in range(rails))


def _nodes_of_a_period(group: Group, nodes_per_leaf: int) -> int:
    """Return after how many nodes leaves are loaded alike again: groups that end within a leaf do not turn with it."""
    reached = max(group.size * group.stride // group.ranks_per_node, 1)
    return nodes_per_leaf if reached == group.num_nodes else math.lcm(reached, nodes_per_leaf)
