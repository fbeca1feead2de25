"""Every dimension of a device mesh is a group: schedules deliver in it, and both executors time it alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.collectives import direct, hierarchical, ring, tree
from simnet.collectives.schedule import Group, group_of
from tests.helpers.proof import complete, own_contributions, walk
from tests.helpers.topologies import run_exact, run_folded, topology

MAKERS = [ring.all_reduce, hierarchical.all_reduce, lambda group: tree.all_reduce(group, 2)]


@st.composite
def meshes(draw) -> Group:
    """A dimension of a mesh over 2^n nodes of 2^m ranks: its size and stride are powers of two."""
    nodes, local = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    stride = draw(st.integers(0, nodes + local))
    size = draw(st.integers(0, nodes + local - stride))
    return Group(first=0, size=2**size, stride=2**stride, num_nodes=2**nodes, ranks_per_node=2**local)


@given(group=meshes(), make=st.sampled_from(MAKERS))
def test_every_member_ends_with_every_contribution_once(group, make):
    schedule = make(group)
    for rank, held in enumerate(walk(schedule, own_contributions(schedule))):
        assert all(held[chunk] == complete(schedule, rank) for chunk in range(schedule.num_chunks))


@given(group=meshes())
def test_both_executors_time_a_ring_and_a_direct_exchange_alike(group):
    network = topology(group.num_nodes, group.ranks_per_node)
    for make in (ring.all_reduce, ring.all_gather, direct.all_to_all):
        exact_s, _ = run_exact(network, make(group), 6e6)
        assert run_folded(network, make(group), 6e6) == pytest.approx(exact_s, rel=1e-9)


@given(group=meshes())
def test_groups_tile_the_world(group):
    ranks = range(group.world_size)
    members = {group.group_id(rank): [group.rank_at(rank, p) for p in range(group.size)] for rank in ranks}
    assert sorted(rank for group_ranks in members.values() for rank in group_ranks) == list(ranks)
    assert all(group.rank_at(rank, group.position(rank)) == rank for rank in ranks)


def test_schedules_made_apart_are_equal_and_the_groups_of_a_cluster_are_dimensions_of_a_mesh():
    rail = Group(first=0, size=4, stride=8, num_nodes=4, ranks_per_node=8)
    assert rail == group_of("inter_node", 4, 8)
    ring.all_reduce.cache_clear()
    first = ring.all_reduce(rail)
    ring.all_reduce.cache_clear()
    second = ring.all_reduce(rail)
    assert first is not second
    assert first == second
    assert hash(first) == hash(second)
    assert first != ring.all_gather(rail)
