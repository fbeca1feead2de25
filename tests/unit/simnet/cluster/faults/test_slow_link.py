"""A link at a part of its rate: a ring runs at its slowest one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.fault_samples import MESSAGE_BYTES, NIC_BYTES_PER_S, fault, ring_s, sending
from tests.helpers.topologies import leaves

"""Of the six rounds of four nodes."""


@given(st.integers(0, 3), st.floats(1e-6, 1))
def test_a_ring_runs_at_the_rate_of_its_slowest_nic(node: int, rate: float) -> None:
    slowest = fault("slow_link", place=node, rate=rate)
    other = fault("slow_node", node=(node + 1) % 4, nic_slowdown=1 / max(rate, 1e-3))
    assert sending(slowest, other).iteration_s == pytest.approx(ring_s(bytes_per_s=rate * NIC_BYTES_PER_S))


def test_latency_stays_what_it_was() -> None:
    result = sending(fault("slow_link", place=0, rate=1e-6), alpha_s=1.0)
    assert result.iteration_s == pytest.approx(ring_s(bytes_per_s=1e-6 * NIC_BYTES_PER_S, alpha_s=1.0))


def test_an_uplink_holds_up_what_crosses_leaves() -> None:
    # Each direction of an uplink has the rate of both NICs below it, and carries one send of the ring.
    slow = fault("slow_link", link="uplink", place=1, rate=0.25)
    assert sending(slow, fabric=leaves(2, 1.0)).iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S / 2))
    barely = fault("slow_link", link="uplink", place=1, rate=0.5)
    assert sending(barely, fabric=leaves(2, 1.0)).iteration_s == pytest.approx(ring_s())


def test_a_port_inside_a_node_is_no_nic_and_inside_one_node_is_all_that_counts() -> None:
    # Links inside the nodes are 800,000 times as fast as NICs.
    port = fault("slow_link", link="port", place=0, rate=0.01)
    assert sending(port).iteration_s == pytest.approx(ring_s(), rel=1e-6)
    slow = fault("slow_link", link="port", place=3, rate=1e-6)
    result = sending(slow, num_nodes=1, ranks_per_node=4)
    assert result.iteration_s == pytest.approx(6 * MESSAGE_BYTES / 4 / (1e15 * 1e-6), rel=1e-5)
