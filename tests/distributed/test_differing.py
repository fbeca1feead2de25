"""Settings and states that differ between ranks after attach are found in the same step, on all ranks alike."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed import differing, refusing

pytestmark = pytest.mark.slow  # its ranks take more than five seconds to start

LAUNCHED = refusing

WRONG = refusing.WRONG
DIFFERENCES = {
    "lr": "step 2: lr of group 1 of rank 1: 0.5: must equal rank 0's 0.001; no rank has moved: ",
    "weight_decay": "step 2: weight_decay of group 1 of rank 1: 0.5: must equal rank 0's 0.0; no rank has moved: ",
    "num_skipped": "step 2: num_skipped of group 1 of rank 1: 7.0: must equal rank 0's 0.0; no rank has moved: ",
    "model on one": "step 2: parameter 1 of rank 1: must equal that of rank 0; no rank has moved: ",
}
REFUSALS = {
    "lr is NaN on one": "BinSGDM: lr: nan: must be 0 or more, and finite",
    "gain": "BinSGDM: gain of a group: 3.0: must equal None of the first group",
    "sparse": "BinSGDM: a sparse gradient of shape (3, 5): must be dense and real; ",
}
REFUSED_BY_ALL = {
    ("lr is NaN", False): "BinSGDM: lr: nan: must be 0 or more, and finite",
    ("lr is NaN", True): "BinSGDM: lr: nan: must be 0 or more, and finite",
    ("weight_decay is NaN", False): "BinSGDM: weight_decay: tensor(nan): must be 0 or more, and at most 1 / lr",
    ("weight_decay is NaN", True): "BinSGDM: weight_decay: tensor(nan): must be 0 or more, and at most 1 / lr",
    ("second backward of DDP", True): "BinSGDM: a second backward before optimizer.step(), which adds to what was sen",
    ("second backward", True): "BinSGDM: a second backward before optimizer.step(), which adds to what was sent; ",
}
both = pytest.mark.parametrize("overlap", [False, True])


def check_nobody_moved_and_all_go_on(outcomes):
    for outcome in outcomes:
        assert not outcome.has_moved
        assert outcome.goes_on
        assert outcome.is_at_one


@both
@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_differs_is_named_on_all_ranks_before_one_moves(results, name, overlap):
    outcomes = results["differing"][name, overlap]
    assert [outcome.sentence.startswith(f"BinSGDM: {DIFFERENCES[name]}") for outcome in outcomes] == [True] * 3
    check_nobody_moved_and_all_go_on(outcomes)


@both
def test_a_state_that_one_rank_alone_has_loaded_is_found_by_its_step(results, overlap):
    outcomes = results["differing"]["load on one", overlap]
    for outcome in outcomes:
        assert "step of group 0 of rank 1: 0.0: must equal rank 0's 1.0" in outcome.sentence
    check_nobody_moved_and_all_go_on(outcomes)


@both
@pytest.mark.parametrize("name", REFUSALS)
def test_what_one_rank_refuses_is_refused_by_all_who_go_on_once_it_is_repaired(results, name, overlap):
    outcomes = results["differing"][name, overlap]
    for rank, outcome in enumerate(outcomes):
        assert REFUSALS[name] in outcome.sentence
        assert outcome.sentence.startswith(REFUSALS[name]) == (rank == WRONG)
        assert (f"rank {WRONG} refused: " in outcome.sentence) == (rank != WRONG)
    check_nobody_moved_and_all_go_on(outcomes)


@pytest.mark.parametrize(("name", "overlap"), REFUSED_BY_ALL)
def test_what_all_ranks_refuse_alike_ends_no_run(results, name, overlap):
    outcomes = results["differing"][name, overlap]
    for outcome in outcomes:
        assert outcome.sentence.startswith(REFUSED_BY_ALL[name, overlap])
    check_nobody_moved_and_all_go_on(outcomes)


def test_a_step_that_all_ranks_leave_out_beside_backward_moves_nobody_and_all_go_on(results):
    for outcome in results["differing"]["second backward and no step", True]:
        assert outcome == differing.Told("", has_moved=False, goes_on=True, is_at_one=True)


@both
def test_slices_of_averages_of_rank_0_are_refused_on_the_others_who_tell_it(results, overlap):
    outcomes = results["differing"]["state of rank 0, slices", overlap]
    sentence = "load_state_dict: averages of rank 0 of 3: here is rank {} of 3, which keeps another slice of them; "
    for rank in (1, 2):
        assert outcomes[rank].sentence.startswith(sentence.format(rank))
    assert " refused: load_state_dict: averages of rank 0 of 3: " in outcomes[0].sentence
    check_nobody_moved_and_all_go_on(outcomes)


@both
def test_averages_of_rank_0_are_taken_on_the_others_with_a_warning(results, overlap):
    outcomes = results["differing"]["state of rank 0", overlap]
    assert outcomes[0] == differing.Told("", has_moved=True, goes_on=True, is_at_one=True)
    for rank in (1, 2):
        assert (
            f"warned: BinSGDM: the averages are those of rank 0 of 3, here is rank {rank} of 3: "
            in outcomes[rank].sentence
        )


def test_a_step_that_one_rank_alone_leaves_out_is_found(results):
    for outcome in results["differing"]["left out on one", True]:
        assert "optimizer.step() called after backward of rank 1: False: must equal rank 0's True" in outcome.sentence
        assert not outcome.has_moved
