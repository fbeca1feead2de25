"""A rank, a node or several that compute more slowly: a step that is all compute takes as long as the slowest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simnet
from tests.helpers.fault_samples import BACKWARD_S, COMPUTE_S, FORWARD_S, OPTIMIZER_S, computing, fault


def slow(rank: int, factor: float, per_node: int = 2) -> dict[str, object]:
    return {"node": rank // per_node, "local_rank": rank % per_node, "compute_slowdown": factor}


@given(st.integers(0, 7), st.floats(1, 1000))
def test_a_step_takes_as_many_times_as_long_as_the_compute_of_the_slow_rank(rank: int, factor: float) -> None:
    result = computing(fault("slow_rank", **slow(rank, factor)), ranks_per_node=2)
    assert result.iteration_s == pytest.approx(factor * COMPUTE_S)
    assert result.breakdown.forward_s == pytest.approx(factor * FORWARD_S)


def test_other_ranks_wait_for_it_and_it_is_named() -> None:
    result = computing(fault("slow_rank", **slow(5, 1.5)), ranks_per_node=2, iterations=10)
    assert result.waits is not None
    (late,) = result.waits.late
    assert late.rank == 5
    assert late.share == 1
    # Ranks meet once a step, before the optimizer. In its own optimizer the slow one falls behind for the next step.
    in_first_s = 0.5 * (FORWARD_S + BACKWARD_S)
    assert late.held_s == pytest.approx(in_first_s + 0.9 * 0.5 * OPTIMIZER_S)
    assert result.waits.most_s == pytest.approx(late.held_s)
    assert result.waits.least_s == pytest.approx(0)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["all_reduce", "binsgdm", "one_bit_adam", "power_sgd"])
def test_the_slow_rank_alone_is_named_however_collectives_leave_the_others_and_a_slow_link_names_none(
    strategy: str,
) -> None:
    held_s = {}
    for fidelity in ("grouped", "exact"):
        asked = {"cluster.num_nodes": 2, "strategy": strategy, "run.fidelity": fidelity}
        faulty = {**asked, "cluster.faults": [{"kind": "slow_rank", **slow(11, 1.3, per_node=8)}]}
        result = simnet.simulate("bert_base_10gbit", faulty, draws=0).result
        assert result.waits is not None
        assert [late.rank for late in result.waits.late] == [11]
        held_s[fidelity] = result.waits.late[0].held_s
        linked = {**asked, "cluster.faults": [{"kind": "slow_link", "place": 1, "rate": 0.5}]}
        waits = simnet.simulate("bert_base_10gbit", linked, draws=0).result.waits
        assert waits is None or waits.late == ()
    # The grouped executor is exact but for BinSGDM's rails, which start apart.
    assert held_s["grouped"] == pytest.approx(held_s["exact"], rel=0.05 if strategy == "binsgdm" else 1e-9)


def test_of_several_slow_ranks_the_slowest_counts_and_factors_of_one_rank_multiply() -> None:
    several = [fault("slow_rank", **slow(rank, factor)) for rank, factor in ((1, 1.2), (6, 1.7), (3, 1.1))]
    assert computing(*several, ranks_per_node=2).iteration_s == pytest.approx(1.7 * COMPUTE_S)
    twice = [fault("slow_rank", **slow(1, factor)) for factor in (1.2, 1.5)]
    assert computing(*twice, ranks_per_node=2).iteration_s == pytest.approx(1.8 * COMPUTE_S)
    many = [fault("slow_rank", **slow(rank, 1 + rank / 100, per_node=4)) for rank in range(100)]
    assert computing(*many, num_nodes=25, ranks_per_node=4).iteration_s == pytest.approx(1.99 * COMPUTE_S)
    alone = computing(fault("slow_rank", **slow(0, 2.0)), num_nodes=1)
    assert alone.iteration_s == pytest.approx(2 * COMPUTE_S)
    assert alone.waits is None or alone.waits.late == (), "one rank alone waits for nobody"


def test_a_slow_node_is_all_its_ranks() -> None:
    node = computing(fault("slow_node", node=2, compute_slowdown=1.4), ranks_per_node=2, iterations=3)
    ranks = [fault("slow_rank", **slow(rank, 1.4)) for rank in (4, 5)]
    assert node.iterations_s == pytest.approx(computing(*ranks, ranks_per_node=2, iterations=3).iterations_s)
    assert node.iteration_s == pytest.approx(1.4 * COMPUTE_S)
