"""Four gloo processes against one process that computes the same on stacked gradients, bit for bit."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.distributed import ranks
from tests.helpers.launch import launch

LAUNCHED = ranks


@pytest.mark.parametrize("case", ranks.CASES, ids=str)
def test_ranks_end_with_the_parameters_of_the_control_to_the_bit(case, results):
    expected = ranks.control(ranks.WORLD_SIZE, ranks.RANKS_PER_NODE, case)
    for name, got, wanted in zip(ranks.SHAPES, results[str(case)], expected, strict=True):
        assert torch.equal(got, wanted), name
    moved = [not torch.equal(a, b.detach()) for a, b in zip(expected, ranks.parameters(), strict=True)]
    assert moved == [bool(value.numel()) for value in expected], "a step must move what has elements"


@pytest.mark.parametrize("case", ranks.RESUMED, ids=str)
def test_ranks_that_go_on_from_their_own_states_end_where_they_would_have(case, results):
    for got, wanted in zip(results["resumed"][case], results[str(case)], strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("rounding", ranks.ROUNDINGS)
def test_an_infinite_gradient_on_one_rank_stops_all_ranks_and_leaves_its_averages_alone(rounding, results):
    values, step, averages = results["non_finite", rounding]["overflow"]
    assert step == 0
    assert not values.any()
    assert [average.any().item() for average in averages] == [rank != 1 for rank in range(ranks.WORLD_SIZE)]
    values, step = results["non_finite", rounding]["next"]
    assert step == 1
    assert torch.equal(values, torch.full((9,), -1.0)), "u = 1 everywhere: every sign is +1"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "hang", "overlap", "check"])
def test_a_rank_that_is_gone_or_hangs_is_told_in_a_sentence_and_never_waited_for_for_ever(how, tmp_path):
    launch(ranks.lose_a_rank, str(tmp_path), how, nprocs=2)
    told = (tmp_path / "told.txt").read_text()
    assert told.startswith("check_replicas: a rank is gone" if how == "check" else "BinSGDM: rank 1 is gone")
    assert "start all ranks again from their checkpoints" in told
