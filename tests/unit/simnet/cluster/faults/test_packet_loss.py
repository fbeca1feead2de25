"""Packets that are lost: a NIC carries what TCP's throughput equation leaves, and never more than its rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster.faults import PacketLoss
from tests.helpers.fault_samples import NIC_BYTES_PER_S, fault, ring_s, sending

SEGMENT, ROUND_TRIP_S = 1448, 1e-4


def loss(probability: float, **keys: object) -> PacketLoss:
    lossy = fault("packet_loss", probability=probability, **{"round_trip": "100 us", **keys})
    assert isinstance(lossy, PacketLoss)
    return lossy


def padhye_bytes_per_s(probability: float, round_trip_s: float, connections: int = 1) -> float:
    """Return RFC 5348, section 3.1, written as there: X_Bps = s / (R f(p)), with b = 1 and t_RTO = 4 R."""
    usual = math.sqrt(2 * probability / 3)
    timeouts = 12 * math.sqrt(3 * probability / 8) * probability * (1 + 32 * probability**2)
    return connections * SEGMENT / (round_trip_s * (usual + timeouts))


@pytest.mark.parametrize("probability", [1e-6, 1e-4, 1e-3])
def test_seldom_lost_packets_follow_the_square_root_law(probability: float) -> None:
    """Mathis et al., "The macroscopic behavior of the TCP congestion avoidance algorithm", CCR 27(3), 1997, eq. 3."""
    mathis = SEGMENT / ROUND_TRIP_S * math.sqrt(3 / 2) / math.sqrt(probability)
    # Timeouts add 9 p (1 + 32 p^2) of the square root's time.
    assert loss(probability).goodput_bytes_per_s == pytest.approx(mathis / (1 + 9 * probability), rel=1e-4)


@given(st.floats(1e-6, 0.5), st.integers(1, 64))
def test_often_lost_packets_follow_the_whole_equation(probability: float, connections: int) -> None:
    lossy = loss(probability, connections=connections)
    expected = padhye_bytes_per_s(probability, ROUND_TRIP_S, connections)
    assert lossy.goodput_bytes_per_s == pytest.approx(max(expected, 1.0))


def test_a_ring_runs_at_what_the_most_loss_of_a_nic_leaves() -> None:
    for lost, most in (([0.001], 0.001), ([0.001, 0.01], 0.01)):
        assert padhye_bytes_per_s(most, ROUND_TRIP_S) < NIC_BYTES_PER_S
        result = sending(*(loss(probability, at_nodes=[node]) for node, probability in enumerate(lost)))
        assert result.iteration_s == pytest.approx(ring_s(bytes_per_s=padhye_bytes_per_s(most, ROUND_TRIP_S)))


def test_loss_that_leaves_more_than_the_nic_costs_nothing() -> None:
    harmless = loss(1e-6, connections=16)
    assert harmless.goodput_bytes_per_s > NIC_BYTES_PER_S
    assert sending(harmless).iteration_s == pytest.approx(ring_s())
