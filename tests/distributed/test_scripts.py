"""What training scripts do around an attached optimizer: detach, copies of the model, other optimizers, wrong types."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed import scripts

LAUNCHED = scripts

CHANGED = "parameters have changed since the last backward, but not in its step(): their gradients are each rank's own"


def test_after_detach_of_one_of_two_optimizers_only_its_gradients_are_averaged(results):
    assert results["one of two"] == [[False, True, True, True]] * scripts.WORLD_SIZE


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("detach after a refusal", ""),
        ("by hand", f"BinsgdmError: BinSGDM: {CHANGED}"),
        ("steps after detach", "BinSGDM: a step after detach, on averages of this rank's own gradients: ranks of one"),
        ("slices after detach", "BinsgdmError: BinSGDM: averages of slices for 1 ranks a node of 2, bucket_cap_mb=25:"),
        ("detach of none", ""),
        ("a built-in hook", "BinsgdmError: attach_one_bit_adam: a model with the communication hook Builtin"),
        ("the module", "BinsgdmError: attach: model: a Sequential: must be the DistributedDataParallel model, not its"),
        ("another model", "BinsgdmError: attach: model: it does not have parameter 0 of the optimizer: must have all"),
        ("several models", ""),
        ("replicas of other dtypes", "BinsgdmError: check_replicas: shape and dtype of weight of rank 1: ((2, 3), "),
        ("replicas of more", "BinsgdmError: check_replicas: shape and dtype of 1 of rank 1: ((2,), 'torch.float32'):"),
        ("replicas of none", ""),
        ("replicas -1", ""),
    ],
)
def test_all_ranks_are_told_alike_what_does_not_go_together_and_the_rest_works(case, said, results):
    for told in results["told", case]:
        assert told.startswith(said)
        assert bool(told) == bool(said)
        assert "\n" not in told
    if CHANGED in said:
        assert "call binsgdm.detach(optimizer) on all ranks" in told


def test_a_rank_that_waits_for_the_others_to_detach_names_those_that_did_not_come(results):
    first, second = results["told", "detach on one rank"]
    assert not first
    assert second.startswith("BinsgdmError: detach: rank 0 did not come within 1 s: every rank must call it")


def test_a_bit_that_differs_is_seen_in_parameters_of_every_dtype(results):
    for number, dtype in enumerate(scripts.DTYPES):
        for told in results["told", f"replicas {number}"]:
            assert told.startswith(f"BinsgdmError: check_replicas: {number}: ranks [1] differ from rank 0: "), dtype


def test_a_copy_of_an_attached_ddp_model_averages_gradients_until_it_is_attached_itself(results):
    for found in results["copies"]:
        assert len(found) == 3 * len(scripts.WAYS)
        assert all(found.values()), found


def test_an_argument_of_another_type_is_told_to_all_ranks_in_a_sentence_that_names_function_and_argument(results):
    functions = {"attach": "attach", "adam": "attach_one_bit_adam", "fsdp": "attach_fsdp", "check": "check_replicas"}
    assert len(results["types"]) > 50
    for case, told in results["types"].items():
        function, argument = case.split(", ")[:2]
        for rank, said in enumerate(told):
            assert said.startswith(f"BinsgdmError: {functions.get(function, function)}: "), case
            assert f" {argument}=" in said or f" {argument}: " in said, case
            assert "must be" in said or "unknown: give one of" in said, case
            assert "\n" not in said, case
            assert ("rank 1 refused: " in said) == (rank == 0 and said != told[1]), case
