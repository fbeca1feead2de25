"""Places that are not there, or are named twice, are refused by every kind of fault that names some."""

import re
from typing import Any

import pytest

from tests.helpers.fault_samples import cluster, fault
from tests.helpers.topologies import leaves

NODES, PER_NODE = 4, 2
NAMED: list[tuple[str, dict[str, Any], str, str]] = [
    ("slow_node", {"compute_slowdown": 2.0}, "node", "node 4: the cluster has nodes 0 to 3"),
    ("slow_rank", {"compute_slowdown": 2.0}, "node", "node 4: the cluster has nodes 0 to 3"),
    ("slow_rank", {"node": 0, "compute_slowdown": 2.0}, "local_rank", "local_rank 4: nodes have ranks 0 to 1"),
    ("other_nodes", {"compute_slowdown": 2.0}, "at_nodes", "node 4: the cluster has nodes 0 to 3"),
    ("slow_link", {"rate": 0.5}, "place", "node 4: the cluster has nodes 0 to 3"),
    ("added_latency", {"added": "1 ms"}, "at_nodes", "node 4: the cluster has nodes 0 to 3"),
    ("background_traffic", {"share": 0.5}, "at_nodes", "node 4: the cluster has nodes 0 to 3"),
    ("packet_loss", {"probability": 0.1, "round_trip": "1 ms"}, "at_nodes", "node 4: the cluster has nodes 0 to 3"),
]
OF_RANKS: list[tuple[str, dict[str, Any]]] = [
    ("pause", {"pause": "1 s", "every": 2}),
    ("compute_jitter", {"cv": 0.1}),
]


def refusal(kind: str, keys: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r"^faults: ") as caught:
        cluster(fault(kind, **keys), num_nodes=NODES, ranks_per_node=PER_NODE, fabric=leaves(2, 1.0))
    return str(caught.value)


@pytest.mark.parametrize(("kind", "keys", "key", "message"), NAMED, ids=lambda value: str(value)[:20])
def test_the_place_after_the_last_is_refused_and_the_last_is_not(
    kind: str, keys: dict[str, Any], key: str, message: str
) -> None:
    def at(place: int) -> dict[str, Any]:
        return {**keys, key: [place] if key == "at_nodes" else place}

    assert refusal(kind, at(NODES)) == f"faults: {message}"
    last = PER_NODE - 1 if key == "local_rank" else NODES - 1
    cluster(fault(kind, **at(last)), num_nodes=NODES, ranks_per_node=PER_NODE)


@pytest.mark.parametrize(("kind", "keys"), OF_RANKS)
def test_a_rank_after_the_last_is_refused_and_the_last_is_not(kind: str, keys: dict[str, Any]) -> None:
    assert refusal(kind, {**keys, "ranks": [0, 8]}) == "faults: rank 8: the cluster has ranks 0 to 7"
    cluster(fault(kind, **keys, ranks=[7]), num_nodes=NODES, ranks_per_node=PER_NODE)


@pytest.mark.parametrize(("link", "number", "what"), [("port", 8, "rank"), ("uplink", 2, "leaf")])
def test_the_links_of_ranks_and_leaves_are_counted_by_those(link: str, number: int, what: str) -> None:
    assert refusal("slow_link", {"link": link, "place": number, "rate": 0.5}) == (
        f"faults: {what} {number}: the cluster has {'leaves' if what == 'leaf' else f'{what}s'} 0 to {number - 1}"
    )


def test_a_place_is_named_once_and_one_node_alone_has_place_zero_and_no_other() -> None:
    ranks = {"pause": "1 s", "every": 2, "ranks": [1, 1]}
    assert refusal("pause", ranks) == "faults: ranks [1, 1]: name each rank once"
    nodes = {"at_nodes": [2, 3, 2], "nic_slowdown": 2.0}
    assert refusal("other_nodes", nodes) == "faults: nodes [2, 3, 2]: name each node once"
    for link in ({}, {"link": "port"}):
        cluster(fault("slow_link", **link, rate=0.5, place=0), num_nodes=1)
        with pytest.raises(ValueError, match=r"1: the cluster has (node|rank) 0 alone"):
            cluster(fault("slow_link", **link, rate=0.5, place=1), num_nodes=1)
    with pytest.raises(ValueError, match=re.escape("link 'uplink': the cluster has no cluster.fabric; add it, or")):
        cluster(fault("slow_link", link="uplink", place=0, rate=0.5))
