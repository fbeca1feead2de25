"""Latency of some nodes is paid by every send, at each of its ends that is one of them."""

import pytest

from tests.helpers.fault_samples import ALPHA_S, fault, ring_s, sending

ADDED_S = 0.002


def test_where_all_nodes_are_far_each_round_of_a_ring_waits_twice() -> None:
    found = sending(fault("added_latency", added="2 ms"))
    assert found.iteration_s == pytest.approx(ring_s(alpha_s=ALPHA_S + 2 * ADDED_S))


def test_between_two_nodes_of_which_one_is_far_each_round_waits_once() -> None:
    found = sending(fault("added_latency", at_nodes=[1], added="2 ms"), num_nodes=2)
    assert found.iteration_s == pytest.approx(ring_s(2, alpha_s=ALPHA_S + ADDED_S))


def test_that_of_several_faults_adds_up() -> None:
    both = [fault("added_latency", at_nodes=[node], added="2 ms") for node in (0, 1)]
    assert sending(*both, num_nodes=2).iteration_s == pytest.approx(ring_s(2, alpha_s=ALPHA_S + 2 * ADDED_S))


def test_one_node_alone_sends_over_no_nic() -> None:
    alone = {"num_nodes": 1, "ranks_per_node": 4}
    assert sending(fault("added_latency", added="1 s"), **alone).iteration_s == pytest.approx(
        sending(**alone).iteration_s
    )


def test_it_lasts_as_long_as_it_says() -> None:
    usual_s = ring_s()
    brief = fault("added_latency", added="10 ms", to=f"{10.5 * usual_s} s")
    found = sending(brief, iterations=30)
    assert found.iterations_s[0] == pytest.approx(ring_s(alpha_s=ALPHA_S + 0.02))
    assert found.iterations_s[-1] == pytest.approx(usual_s)
