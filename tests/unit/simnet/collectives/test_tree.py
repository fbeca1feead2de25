"""The double binary tree: repetitions that are not counted load links as those that are."""

import pytest
from msgspec.structs import replace

from simnet.cluster import topology as topologies
from simnet.cluster.schedule import Send, group_of
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads, ring, tree
from simnet.collectives.ring import RingSends
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
            in_full = replace(
                schedule, rounds=tuple(replace(round_, distinct_loads=None) for round_ in schedule.rounds)
            )
            assert link_loads.phases(where, schedule, 1e8) == link_loads.phases(where, in_full, 1e8)


def test_a_tree_whose_levels_are_all_at_work_is_counted_once_for_all_chunks() -> None:
    group = topology(8, None).group("inter_node")
    few, many = (tree.all_reduce(group, num_chunks).rounds[0] for num_chunks in (8, 64))
    assert few.distinct_loads is not None
    assert many.distinct_loads is not None
    assert len(few.distinct_loads) == len(many.distinct_loads) < few.repeat
    assert sum(times for _, times in many.distinct_loads) == many.repeat


@pytest.mark.parametrize("nodes", [1, 3, 16])
def test_the_work_of_a_rank_is_that_of_all_repetitions(nodes: int) -> None:
    schedule = ring.all_reduce(group_of("world", nodes, 8))
    one_by_one = replace(schedule, rounds=tuple(replace(round_, same_pairs=False) for round_ in schedule.rounds))
    assert link_loads._work_of_ranks(schedule, nodes) == link_loads._work_of_ranks(one_by_one, nodes)
    assert link_loads._work_of_ranks(schedule, nodes) == ((2 * (8 * nodes - 1),) * 3,)


def test_a_ring_of_many_ranks_is_counted_by_one_of_its_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, sends = [], RingSends.__call__

    def counted(self: RingSends, rank: int, index: int) -> tuple[Send, ...]:
        asked.append(rank)
        return sends(self, rank, index)

    monkeypatch.setattr(RingSends, "__call__", counted)
    schedule = ring.all_reduce(group_of("world", 1_001, 8))
    assert link_loads._work_of_ranks(schedule, 1_001)
    assert len(asked) == 2 * 8
