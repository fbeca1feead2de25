"""The double binary tree: repetitions that are not counted load links as those that are."""

import pytest
from msgspec.structs import replace

from simnet.cluster import topology as topologies
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads, tree
from simnet.engine.scenario import load


def topology(num_nodes: int, nodes_per_leaf: int | None) -> Topology:
    fabric = {"nodes_per_leaf": nodes_per_leaf, "oversubscription": 2.0} if nodes_per_leaf else None
    made = load("reference_ddp_step", {"cluster.num_nodes": num_nodes, "cluster.fabric": fabric})
    return topologies.build(made.cluster, made.calibration)


@pytest.mark.parametrize(
    ("num_nodes", "nodes_per_leaf"), [(2, None), (3, None), (8, None), (8, 4), (17, None), (24, 4)]
)
def test_repetitions_that_are_left_out_load_links_as_those_that_are_counted(
    num_nodes: int, nodes_per_leaf: int | None
) -> None:
    where = topology(num_nodes, nodes_per_leaf)
    for kind in ("world", "inter_node"):
        for num_chunks in tree.CHUNKS:
            schedule = tree.all_reduce(where.group(kind), num_chunks)
            in_full = replace(schedule, rounds=tuple(replace(one, distinct_loads=None) for one in schedule.rounds))
            assert link_loads.phases(where, schedule, 1e8) == link_loads.phases(where, in_full, 1e8)


def test_a_tree_whose_levels_are_all_at_work_is_counted_once_for_all_chunks() -> None:
    group = topology(8, None).group("inter_node")
    few, many = (tree.all_reduce(group, num_chunks).rounds[0] for num_chunks in (8, 64))
    assert few.distinct_loads is not None
    assert many.distinct_loads is not None
    assert len(few.distinct_loads) == len(many.distinct_loads) < few.repeat
    assert sum(times for _, times in many.distinct_loads) == many.repeat
