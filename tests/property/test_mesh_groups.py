"""Every dimension of a device mesh is a group: schedules deliver in it, and both executors time it alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster.hardware import Calibration
from simnet.cluster.schedule import Group, group_of
from simnet.collectives import algorithms, broadcast, direct, ring, tree
from tests.helpers.proof import complete, own_contributions, walk
from tests.helpers.topologies import NCCL_COSTS, leaves, run_exact, run_folded, topology

FITTED = Calibration(nccl=NCCL_COSTS)
MAKERS = [ring.all_reduce, ring.hierarchical_all_reduce, lambda group: tree.all_reduce(group, 2)]


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


@st.composite
def dimensions(draw) -> Group:
    """A dimension of a mesh of a x b x c ranks, or two of them together, on nodes that it fills evenly."""
    a, b, c = (draw(st.integers(1, 4)) for _ in range(3))
    size, stride = draw(st.sampled_from([(c, 1), (b, c), (a, b * c), (b * c, 1), (a * b, c), (a * b * c, 1)]))
    ranks_per_node = draw(st.sampled_from([1, c, b * c, a * b * c]))
    return Group(
        first=0, size=size, stride=stride, num_nodes=a * b * c // ranks_per_node, ranks_per_node=ranks_per_node
    )


SIDE_BY_SIDE = {
    "ring": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
    "all_to_all": direct.all_to_all,
    "pipeline": lambda group: broadcast.pipeline(group, 3),
    "reduce": lambda group: broadcast.pipeline(group, 3, "reduce"),
    "tree": broadcast.tree,
    "tree_reduce": lambda group: broadcast.tree(group, "reduce"),
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
@given(group=dimensions())
def test_groups_side_by_side_share_nics_and_ports(group, name):
    network, schedule = topology(group.num_nodes, group.ranks_per_node), SIDE_BY_SIDE[name](group)
    if not schedule.folded_is_upper_bound:
        exact_s, _ = run_exact(network, schedule, 6e6)
        assert run_folded(network, schedule, 6e6) == pytest.approx(exact_s, rel=1e-9)


@pytest.mark.parametrize("name", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize(("nodes_per_leaf", "size", "stride"), [(3, 2, 4), (2, 3, 2), (2, 3, 4), (3, 4, 2)])
def test_groups_side_by_side_share_uplinks_where_they_cross_leaves(name, nodes_per_leaf, size, stride):
    group = Group(first=0, size=size, stride=stride, num_nodes=12, ranks_per_node=2)
    network = topology(group.num_nodes, group.ranks_per_node, fabric=leaves(nodes_per_leaf, 3.0))
    exact_s, _ = run_exact(network, SIDE_BY_SIDE[name](group), 6e6)
    assert run_folded(network, SIDE_BY_SIDE[name](group), 6e6) == pytest.approx(exact_s, rel=1e-9)


@given(group=dimensions(), name=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]))
def test_nccls_collectives_take_the_same_in_both_executors_wherever_its_costs_hold(group, name):
    network = topology(group.num_nodes, group.ranks_per_node, FITTED)
    choose = {
        "all_reduce": lambda: algorithms.choose_on(None, network, 6e6, group),
        "reduce_scatter": lambda: algorithms.choose_reduce_scatter(network, group, 6e6),
        "all_gather": lambda: algorithms.choose_all_gather(network, group, 6e6),
        "broadcast": lambda: algorithms.choose_broadcast(None, network, 6e6, group),
        "reduce": lambda: algorithms.choose_broadcast(None, network, 6e6, group, "reduce"),
    }
    schedule = choose[name]()
    if group.size == 1 or schedule.folded_is_upper_bound:
        return
    is_side_by_side = group.nodes > 1 and group.members_per_node < group.ranks_per_node
    assert bool(schedule.protocol) is not (name == "all_reduce" and is_side_by_side)
    exact_s, _ = run_exact(network, schedule, 6e6)
    assert run_folded(network, schedule, 6e6) == pytest.approx(exact_s, rel=1e-9)


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
