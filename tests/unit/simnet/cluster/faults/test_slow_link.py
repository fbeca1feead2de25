"""A link at a part of its rate: a ring runs at its slowest one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.fault_samples import ALPHA_S, MESSAGE_BYTES, NIC_BYTES_PER_S, fault, ring_s, sending
from tests.helpers.topologies import leaves

LATENCY_S = 6 * ALPHA_S
"""Of the six rounds of four nodes."""


def test_one_nic_at_half_its_rate_doubles_the_bandwidth_term_of_a_ring() -> None:
    found = sending(fault("slow_link", place=2, rate=0.5))
    assert found.iteration_s == pytest.approx(2 * (ring_s() - LATENCY_S) + LATENCY_S)


@given(st.integers(0, 3), st.floats(1e-6, 1))
def test_a_ring_runs_at_the_rate_of_its_slowest_nic(node: int, rate: float) -> None:
    found = sending(fault("slow_link", place=node, rate=rate))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=rate * NIC_BYTES_PER_S))


def test_a_slow_node_has_a_slow_nic() -> None:
    found = sending(fault("slow_node", node=1, nic_slowdown=4.0))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S / 4))


def test_two_slow_nics_cost_as_much_as_the_slower_one() -> None:
    found = sending(fault("slow_link", place=0, rate=0.5), fault("slow_link", place=3, rate=0.2))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=0.2 * NIC_BYTES_PER_S))


def test_an_uplink_holds_up_what_crosses_leaves() -> None:
    # Each direction of an uplink has the rate of both NICs below it, and carries one send of the ring.
    slow = fault("slow_link", link="uplink", place=1, rate=0.25)
    assert sending(slow, fabric=leaves(2, 1.0)).iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S / 2))
    barely = fault("slow_link", link="uplink", place=1, rate=0.5)
    assert sending(barely, fabric=leaves(2, 1.0)).iteration_s == pytest.approx(ring_s())


def test_a_port_inside_a_node_is_no_nic() -> None:
    # Links inside the nodes are 800,000 times as fast as NICs.
    port = fault("slow_link", link="port", place=0, rate=0.01)
    assert sending(port).iteration_s == pytest.approx(ring_s(), rel=1e-6)


def test_inside_one_node_a_slow_port_is_all_that_counts() -> None:
    rate = 1e-6
    port = fault("slow_link", link="port", place=3, rate=rate)
    found = sending(port, num_nodes=1, ranks_per_node=4)
    assert found.iteration_s == pytest.approx(6 * MESSAGE_BYTES / 4 / (1e15 * rate), rel=1e-5)


def test_latency_stays_what_it_was() -> None:
    found = sending(fault("slow_link", place=0, rate=1e-6), alpha_s=1.0)
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=1e-6 * NIC_BYTES_PER_S, alpha_s=1.0))
