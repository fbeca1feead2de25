"""Every schedule delivers every contribution exactly once: proven on sets of ranks, apart from any time."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster.schedule import Group, Schedule, group_of
from simnet.collectives import algorithms, broadcast, direct, ring, tree
from tests.helpers.proof import complete, own_contributions, walk

KINDS = ("world", "intra_node", "inter_node")
sizes = st.integers(1, 6)  # primes, powers of two and a product of two primes; sets of ranks grow with the cube


def group(kind: str, num_nodes: int, ranks_per_node: int) -> Group:
    return group_of(kind, num_nodes, ranks_per_node)  # type: ignore[arg-type]


def assert_all_reduced(schedule: Schedule) -> None:
    for rank, held in enumerate(walk(schedule, own_contributions(schedule))):
        expected = complete(schedule, rank)
        for chunk in range(schedule.num_chunks):
            assert held[chunk] == expected, f"{schedule.name}: rank {rank}, chunk {chunk}"


@given(kind=st.sampled_from(KINDS), num_nodes=sizes, ranks_per_node=sizes)
def test_ring_all_reduce_gives_every_rank_every_contribution_once(kind, num_nodes, ranks_per_node):
    assert_all_reduced(ring.all_reduce(group(kind, num_nodes, ranks_per_node)))


@pytest.mark.slow
@given(num_nodes=sizes, ranks_per_node=sizes)
def test_every_algorithm_gives_every_rank_every_contribution_once(num_nodes, ranks_per_node):
    world = group("world", num_nodes, ranks_per_node)
    for algorithm in algorithms.every():
        if algorithm.fits(world):
            assert_all_reduced(algorithm.variants(world)[0])


@given(num_nodes=st.integers(1, 17), ranks_per_node=st.integers(1, 3), num_chunks=st.integers(1, 4))
def test_tree_all_reduce_gives_every_rank_every_contribution_once(num_nodes, ranks_per_node, num_chunks):
    assert_all_reduced(tree.all_reduce(group("world", num_nodes, ranks_per_node), num_chunks))


@given(kind=st.sampled_from(KINDS), num_nodes=sizes, ranks_per_node=sizes)
def test_reduce_scatter_and_all_to_all_give_each_owner_its_chunk_complete(kind, num_nodes, ranks_per_node):
    for make in (ring.reduce_scatter, direct.all_to_all):
        schedule = make(group(kind, num_nodes, ranks_per_node))
        for rank, held in enumerate(walk(schedule, own_contributions(schedule))):
            assert held[schedule.group.position(rank)] == complete(schedule, rank), f"{schedule.name}: rank {rank}"


@given(kind=st.sampled_from(KINDS), num_nodes=sizes, ranks_per_node=sizes)
def test_all_gather_hands_each_owners_chunk_to_all(kind, num_nodes, ranks_per_node):
    schedule = ring.all_gather(group(kind, num_nodes, ranks_per_node))
    ranks = range(schedule.group.world_size)
    start = [{schedule.group.position(rank): Counter({rank: 1})} for rank in ranks]
    for rank, held in enumerate(walk(schedule, start)):
        expected = {p: Counter({schedule.group.rank_at(rank, p): 1}) for p in range(schedule.group.size)}
        assert held == expected


@given(kind=st.sampled_from(KINDS), num_nodes=sizes, ranks_per_node=sizes, num_chunks=st.integers(1, 5))
def test_broadcast_hands_the_first_ranks_message_to_all_of_its_group(kind, num_nodes, ranks_per_node, num_chunks):
    among = group(kind, num_nodes, ranks_per_node)
    for schedule in (broadcast.tree(among), broadcast.pipeline(among, num_chunks)):
        contributions = own_contributions(schedule)
        start = [contribution if among.position(rank) == 0 else {} for rank, contribution in enumerate(contributions)]
        for rank, held in enumerate(walk(schedule, start)):
            first = Counter({among.group_id(rank): 1})
            assert held == dict.fromkeys(range(schedule.num_chunks), first), f"{schedule.name}: rank {rank}"


@given(kind=st.sampled_from(KINDS), num_nodes=sizes, ranks_per_node=sizes, num_chunks=st.integers(1, 5))
def test_reduce_gives_the_first_rank_every_contribution_once(kind, num_nodes, ranks_per_node, num_chunks):
    among = group(kind, num_nodes, ranks_per_node)
    for schedule in (broadcast.tree(among, "reduce"), broadcast.pipeline(among, num_chunks, "reduce")):
        held = walk(schedule, own_contributions(schedule))
        for rank in range(among.world_size):
            if among.position(rank) == 0:
                assert held[rank] == dict.fromkeys(range(schedule.num_chunks), complete(schedule, rank)), schedule.name


@pytest.mark.parametrize("nodes", range(1, 70))
def test_each_node_is_inside_one_tree_at_most_and_every_parent_leads_to_the_root(nodes):
    inside = Counter()
    for parents in tree.two_trees(nodes):
        assert sum(parent < 0 for parent in parents) == 1
        below = tree.children(parents)
        assert max(len(nodes_below) for nodes_below in below) <= 2
        assert max(tree.depths(parents)) <= nodes.bit_length()
        inside.update(node for node, nodes_below in enumerate(below) if len(nodes_below) == 2)
    assert not inside or max(inside.values()) == 1, "a node has two children in both trees"
