"""Four ranks with local SGD and DiLoCo have what one process computes for all of them."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.distributed import stepping_apart

LAUNCHED = stepping_apart

# The backend sums what travels uncompressed, in its own order; with DDP inside a node it sums gradients of two ranks,
# of which the order does not matter.
SUMMED = ("fp32", "power_sgd")


@pytest.mark.parametrize("case", stepping_apart.CASES)
def test_four_ranks_get_what_one_process_gets_for_them(results, case):
    for rank, (found, wanted) in enumerate(zip(results[case], results["controls"][case], strict=True)):
        for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if case in SUMMED:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
            else:
                assert torch.equal(one, other), (rank, step)


@pytest.mark.parametrize("case", ["fp32", "node", "one_bit_node"])
def test_workers_are_alike_after_an_exchange_and_apart_before(results, case):
    by_rank = results[case]
    assert all(torch.equal(one[2], by_rank[0][2]) for one in by_rank)
    assert not torch.equal(by_rank[0][1], by_rank[2][1])


def test_workers_keep_a_share_of_their_own_parameters_after_an_overlapped_exchange(results):
    """Of the first tensor, whose exchange ends after step 5."""
    first, third = (results["overlapped"][rank][4][:100] for rank in (0, 2))
    own = results["overlapped"][0][3][:100]
    assert not torch.equal(first, third)
    assert (first - third).abs().mean() < 0.5 * (own - results["overlapped"][2][3][:100]).abs().mean()


@pytest.mark.parametrize("case", stepping_apart.RESUMED)
def test_a_run_goes_on_from_the_middle_of_a_period_bit_for_bit(results, case):
    for found, wanted in zip(results["resumed"][case], results[case], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_local_sgd_after_every_step_is_the_average_of_gradients(results):
    for found in results["local_sgd"][1]:
        torch.testing.assert_close(torch.stack(found), torch.stack(results["averaged_gradients"]), rtol=0, atol=1e-6)
    apart = results["local_sgd"][3]
    assert not torch.equal(apart[0][0], apart[1][0])
    assert torch.equal(apart[0][2], apart[1][2])


def test_what_differs_is_told_on_all_ranks(results):
    for heard in results["refused"]:
        assert "outer_lr of rank 1: 0.7: must equal rank 0's 0.5" in heard["outer_lr"]
        assert "inner_steps of rank 3: 5: must equal rank 0's 4" in heard["inner_steps"]
        assert "fragments: 3: must divide inner_steps (4)" in heard["one"]
        assert "parameter 0: ranks [2] differ from rank 0" in heard["parameters"]
        assert "optimizer: a Sequential: must be an optimizer of torch" in heard["optimizer"]


def test_an_exchange_that_is_not_finite_is_refused_on_all_ranks_before_anything_changes(results):
    for heard, is_unchanged in results["not_finite"]:
        assert "not finite" in heard
        assert is_unchanged


def test_a_step_that_one_workers_grad_scaler_skips_counts(results):
    parameters = [one for one, _ in results["scaled"]]
    assert [steps for _, steps in results["scaled"]] == [4] * 4
    assert all(torch.equal(one, parameters[0]) for one in parameters)
    assert parameters[0].isfinite().all()


def test_schedulers_and_closures_reach_the_inner_optimizer(results):
    for lr, given in results["scheduled"]:
        assert lr == 0.5
        assert given > 0
