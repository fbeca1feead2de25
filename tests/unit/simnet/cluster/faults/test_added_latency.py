"""Latency of some nodes is paid by every send, at each of its ends that is one of them."""

import pytest

from tests.helpers.fault_samples import ALPHA_S, fault, ring_s, sending


@pytest.mark.parametrize(
    ("at_nodes", "num_nodes", "waits"),
    [
        ([None], 4, 2),  # all
        ([[1]], 2, 1),
        ([[0], [1]], 2, 2),
    ],
)
def test_each_round_of_a_ring_waits_once_for_every_end_that_is_far(
    at_nodes: list[list[int] | None], num_nodes: int, waits: int
) -> None:
    faults = [fault("added_latency", added="2 ms", **({"at_nodes": nodes} if nodes else {})) for nodes in at_nodes]
    result = sending(*faults, num_nodes=num_nodes)
    assert result.iteration_s == pytest.approx(ring_s(num_nodes, alpha_s=ALPHA_S + waits * 0.002))


def test_one_node_alone_sends_over_no_nic() -> None:
    alone = {"num_nodes": 1, "ranks_per_node": 4}
    assert sending(fault("added_latency", added="1 s"), **alone).iteration_s == pytest.approx(
        sending(**alone).iteration_s
    )


def test_it_lasts_as_long_as_it_says() -> None:
    usual_s = ring_s()
    brief = fault("added_latency", added="10 ms", to=f"{10.5 * usual_s} s")
    result = sending(brief, iterations=30)
    assert result.iterations_s[0] == pytest.approx(ring_s(alpha_s=ALPHA_S + 0.02))
    assert result.iterations_s[-1] == pytest.approx(usual_s)
