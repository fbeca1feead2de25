"""Properties that hold whatever the numbers: monotony, conservation, invariance under renaming ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.cluster.schedule import Round, Schedule, Send
from simnet.collectives import broadcast, direct, ring, tree
from tests.helpers.topologies import link, run_exact, run_folded, topology

MAKERS = {
    "ring": ring.all_reduce,
    "hierarchical": ring.hierarchical_all_reduce,
    "all_to_all": direct.all_to_all,
    "tree": tree.all_reduce,
    "all_gather": ring.all_gather,
    "broadcast": broadcast.tree,
    "pipeline": lambda group: broadcast.pipeline(group, 3),
    "reduce": lambda group: broadcast.pipeline(group, 3, "reduce"),
}
makers = st.sampled_from(sorted(MAKERS))
small = st.integers(1, 5)
rates = st.floats(1e6, 1e12)


@given(maker=makers, nodes=small, local=small, intra=rates, inter=rates, factor=st.floats(1.0, 100.0))
def test_more_bandwidth_is_never_slower(maker, nodes, local, intra, inter, factor):
    def seconds(intra_rate, inter_rate):
        network = topology(nodes, local, intra_node=link(intra_rate, 1e-6), inter_node=link(inter_rate, 5e-6))
        return run_folded(network, MAKERS[maker](network.group("world")), 1e7)

    before = seconds(intra, inter)
    assert seconds(intra * factor, inter) <= before * (1 + 1e-12)
    assert seconds(intra, inter * factor) <= before * (1 + 1e-12)


@given(maker=makers, nodes=small, local=small, size=st.floats(0.0, 1e10), more=st.floats(0.0, 1e10))
def test_more_bytes_are_never_faster(maker, nodes, local, size, more):
    network = topology(nodes, local)
    schedule = MAKERS[maker](network.group("world"))
    assert run_folded(network, schedule, size + more) >= run_folded(network, schedule, size) * (1 - 1e-12)


@given(maker=makers, nodes=small, local=st.integers(1, 3))
def test_every_byte_that_leaves_a_link_enters_one_and_is_a_byte_of_the_schedule(maker, nodes, local):
    network = topology(nodes, local)
    schedule = MAKERS[maker](network.group("world"))
    _, executor = run_exact(network, schedule, 6e6)
    sent = executor.network.bytes_sent
    chunk_bytes = 6e6 / schedule.num_chunks
    sends = [
        (rank, send)
        for round_ in schedule.rounds
        for index in range(round_.repeat)
        for rank in range(network.world_size)
        for send in round_.sends(rank, index)
    ]
    for kind, crosses in (("port", False), ("nic", True)):
        expected = sum(s.width * chunk_bytes for r, s in sends if (r // local != s.dst // local) is crosses)
        for way in ("tx", "rx"):
            total = sum(size for link_id, size in sent.items() if link_id.kind == f"{kind}_{way}")
            assert total == pytest.approx(expected, rel=1e-9, abs=1e-6)


def renamed(schedule: Schedule, shift: int) -> Schedule:
    """Let every rank play the part of the one `shift` before it."""
    size = schedule.group.world_size

    def turned(round_: Round) -> Round:
        def sends(rank: int, index: int) -> tuple[Send, ...]:
            sent = round_.sends((rank - shift) % size, index)
            return tuple(Send((send.dst + shift) % size, *send[1:]) for send in sent)

        return replace(round_, sends=sends)

    return replace(schedule, rounds=tuple(turned(round_) for round_ in schedule.rounds))


@given(maker=makers, nodes=st.integers(2, 5), local=st.integers(1, 3), turns=st.integers(0, 4))
def test_time_does_not_depend_on_the_names_of_the_nodes(maker, nodes, local, turns):
    network = topology(nodes, local)
    schedule = MAKERS[maker](network.group("world"))
    exact_s, _ = run_exact(network, schedule, 6e6)
    assert run_exact(network, renamed(schedule, turns * local), 6e6)[0] == pytest.approx(exact_s, rel=1e-9)


# Scheme, bytes out of one node for 8 nodes x 8 ranks, times the elements (docs/explanation/how-it-works.md).
BYTES_OUT = [
    (ring.all_reduce, "world", 4, 2 * 63 / 64 * 4),
    (ring.hierarchical_all_reduce, "world", 4, 2 * 7 / 8 * 4),
    (direct.halving_doubling_all_reduce, "world", 4, 2 * 7 / 8 * 4),
    (direct.all_to_all, "world", 1 / 8, 7 / 8 * 8 / 8),
    (ring.all_gather, "world", 1 / 8, 63 / 64 / 8),
]


@pytest.mark.parametrize(("make", "kind", "bytes_per_element", "expected"), BYTES_OUT)
def test_nic_bytes_out_of_one_node_are_those_of_the_table(make, kind, bytes_per_element, expected):
    network = topology(8, 8)
    num_elements = 64e3
    _, executor = run_exact(network, make(network.group(kind)), num_elements * bytes_per_element)
    out = [size for link_id, size in executor.network.bytes_sent.items() if link_id.kind == "nic_tx"]
    assert out == pytest.approx([expected * num_elements] * 8)
