"""A neighbour on the NICs takes a share of them, or as much for each of its connections as TCP gives each of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.core.errors import SimnetError
from tests.helpers.fault_samples import NIC_BYTES_PER_S, cluster, fault, ring_s, sending


@given(st.floats(0.001, 0.999))
def test_what_the_others_leave_is_what_a_ring_has(share: float) -> None:
    found = sending(fault("background_traffic", at_nodes=[1], share=share))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=(1 - share) * NIC_BYTES_PER_S))


@given(st.integers(1, 100), st.integers(1, 16))
def test_every_connection_has_its_fair_share(flows: int, own: int) -> None:
    found = sending(fault("background_traffic", flows=flows, own_flows=own))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S * own / (own + flows)))


def test_one_flow_beside_one_of_ours_is_half() -> None:
    flow, half = (sending(fault("background_traffic", **keys)).iteration_s for keys in ({"flows": 1}, {"share": 0.5}))
    assert flow == half


def test_two_neighbours_each_take_a_share_of_what_is_left() -> None:
    both = [fault("background_traffic", share=share) for share in (0.5, 0.2)]
    assert sending(*both).iteration_s == pytest.approx(ring_s(bytes_per_s=0.4 * NIC_BYTES_PER_S))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "share: say how much the others take: give either share or flows"),
        ({"share": 0.5, "flows": 1}, "share: say how much the others take: give either share or flows"),
        ({"share": 0.5, "own_flows": 2}, "own_flows: 2: has no effect with share; drop one of them"),
        ({"share": 0}, "share: 0: must be a number above 0, at most 0.999"),
        ({"share": 1}, "share: 1: must be a number above 0, at most 0.999"),
        ({"share": True}, "share: True: write a number without quotes"),
        ({"flows": 1.5}, "flows: 1.5: write a whole number without quotes"),
        ({"flows": 0}, "flows: 0: must be a whole number of at least 1"),
        ({"flows": 10**6}, "flows: 1000000: leaves less than a millionth of the NICs to own_flows 1"),
    ],
)
def test_a_share_that_is_none_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(SimnetError) as caught:
        cluster(fault("background_traffic", **keys))
    assert message in str(caught.value)


def test_the_most_flows_that_are_taken_are_simulated() -> None:
    found = sending(fault("background_traffic", flows=999_999))
    assert found.iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S / 1e6))
