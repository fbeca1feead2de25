"""Four gloo processes against one process that computes the same on stacked gradients, bit for bit."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import ranks

from tests.helpers.launch import launch, once

WORLD_SIZE, RANKS_PER_NODE = 4, 2


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run four ranks once for all tests of this file."""

    def make(folder):
        launch(ranks.work, WORLD_SIZE, RANKS_PER_NODE, str(folder), nprocs=WORLD_SIZE)

    folder = once(tmp_path_factory, "ranks", make)
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.parametrize("case", ranks.CASES, ids=str)
def test_ranks_end_with_the_parameters_of_the_control_to_the_bit(case, results):
    expected = ranks.control(WORLD_SIZE, RANKS_PER_NODE, case)
    for name, got, wanted in zip(ranks.SHAPES, results[str(case)], expected, strict=True):
        assert torch.equal(got, wanted), name
    moved = [not torch.equal(a, b.detach()) for a, b in zip(expected, ranks.parameters(), strict=True)]
    assert moved == [bool(value.numel()) for value in expected], "a step must move what has elements"


@pytest.mark.parametrize(("case", "how"), ranks.RESUMED, ids=str)
def test_ranks_that_go_on_from_their_own_states_end_where_they_would_have(case, how, results):
    for got, wanted in zip(results[case, how], results[str(case)], strict=True):
        assert torch.equal(got, wanted)


def test_check_replicas_sees_one_bit_and_says_where(results):
    assert "weight: ranks [1] differ from rank 0" in results["replicas"]


@pytest.mark.parametrize("rounding", ranks.ROUNDINGS)
def test_an_infinite_gradient_on_one_rank_stops_all_ranks_and_leaves_its_averages_alone(rounding, results):
    values, step, averages = results["non_finite", rounding]["overflow"]
    assert step == 0
    assert not values.any()
    assert [average.any().item() for average in averages] == [rank != 1 for rank in range(WORLD_SIZE)]
    values, step = results["non_finite", rounding]["next"]
    assert step == 1
    assert torch.equal(values, torch.full((9,), -1.0)), "u = 1 everywhere: every sign is +1"


@pytest.mark.parametrize("how", ["gone", "hang", "overlap", "check"])
def test_a_rank_that_is_gone_or_hangs_is_told_in_a_sentence_and_never_waited_for_for_ever(how, tmp_path):
    launch(ranks.lose_a_rank, str(tmp_path), how, nprocs=2)
    told = (tmp_path / "told.txt").read_text()
    assert told.startswith("check_replicas: a rank is gone" if how == "check" else "BinSGDM: rank 1 is gone")
    assert "start all ranks again from their checkpoints" in told
