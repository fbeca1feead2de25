"""A neighbour on the NICs takes a share of them, or as much for each of its connections as TCP gives each of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.fault_samples import NIC_BYTES_PER_S, fault, ring_s, sending


@given(st.floats(0.001, 0.999))
def test_what_the_others_leave_is_what_a_ring_has(share: float) -> None:
    result = sending(fault("background_traffic", at_nodes=[1], share=share))
    assert result.iteration_s == pytest.approx(ring_s(bytes_per_s=(1 - share) * NIC_BYTES_PER_S))


@given(st.integers(1, 100) | st.just(999_999), st.integers(1, 16))
def test_every_connection_has_its_fair_share(flows: int, connections: int) -> None:
    result = sending(fault("background_traffic", flows=flows, own_flows=connections))
    assert result.iteration_s == pytest.approx(
        ring_s(bytes_per_s=NIC_BYTES_PER_S * connections / (connections + flows))
    )


def test_two_neighbours_each_take_a_share_of_what_is_left() -> None:
    both = [fault("background_traffic", share=share) for share in (0.5, 0.2)]
    assert sending(*both).iteration_s == pytest.approx(ring_s(bytes_per_s=0.4 * NIC_BYTES_PER_S))
