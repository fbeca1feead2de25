"""No order of calls lets replicas end apart in silence: all ranks raise a sentence, or hold the same."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.distributed import keeping_alike

pytestmark = pytest.mark.slow

LAUNCHED = keeping_alike

CHANGED = "BinSGDM: a gradient has changed since backward, with overlap=True"
BEHIND = ": parameters have changed since the last step, and in no step of this optimizer"
ALL = {
    "gradients, forgotten": CHANGED,
    "gradients, replaced": CHANGED,
    "gradients, data": CHANGED,
    "gradients, a later hook": "BinSGDM: parameter 2: a hook that was registered after attach",
    "LocalSGD, one loads an older state": "step of rank 1: 4: must equal 6 of rank 0",
    "DiLoCo, one loads a state of the same step": "outer parameters and momentum of rank 1: must equal that of rank 0",
    "DiLoCo, all load": "",
    "1-bit Adam, momentum": "OneBitAdam: step 3: exp_avg of parameter 0 of rank 1: must equal that of rank 0",
    "BinSGDM, weights": "BinSGDM: step 3: parameter 0 of rank 1: must equal that of rank 0",
    "1-bit Adam, weights": "OneBitAdam: step 3: values of parameter 0 of rank 1: must equal that of rank 0",
    "DiLoCo, weights": "DiLoCo" + BEHIND,
    "DiLoCo, weights before the first step": "DiLoCo" + BEHIND,
    "DiLoCo, the same weights": "",
    "LocalSGD, weights": "LocalSGD" + BEHIND,
    "LocalSGD, a group": "LocalSGD: parameters of the inner optimizer have changed",
    "DiLoCo, a step of the inner optimizer": "DiLoCo: a step of the inner optimizer by itself",
    "DiLoCo, a copy": "DiLoCo: cannot be copied",
    "DiLoCo, nodes without DDP": "DiLoCo: step 2: parameters of rank 1: must equal that of rank 0",
    "replicas, lr": "compress_replicas: lr of group 0 of rank 2: 0.2: must equal rank 0's 0.1",
    "replicas, another optimizer": "compress_replicas: step() of a SGD on parameters that are exchanged",
    "replicas, a step": "compress_replicas: step of rank 1: 1: must equal rank 0's 2",
    "replicas, weights": "compress_replicas: step 2: shards of rank 2: must equal that of rank 0",
    "replicas, nothing": "",
    "attach_fsdp, weights": "BinSGDM: step 2: parameter 0 of rank 2: must equal that of rank 0",
}
"""By case, what every rank hears."""
ONE = {
    "gradients, rows on one rank": CHANGED,
    "DiLoCo, NaN": "DiLoCo: outer of the state: values that are not finite",
    "DiLoCo, no inner state": "DiLoCo: load_state_dict: an inner state of other than 6 parameters",
    "BinSGDM, cleared": "BinSGDM: parameter 0: a state that was emptied or replaced",
    "replicas, a group": "compress_replicas: parameters of the optimizer have changed",
}
"""By case, what the rank hears that alone does something wrong; the others hear that it does."""


@pytest.mark.parametrize("case", ALL)
def test_all_ranks_hear_the_same_sentence_or_none(results, case):
    for text in results[case]:
        assert (ALL[case] in text) if ALL[case] else (text == "")


@pytest.mark.parametrize("case", ONE)
def test_the_others_hear_what_one_rank_alone_does_wrong(results, case):
    for rank, text in enumerate(results[case]):
        assert text.startswith(ONE[case]) if rank == keeping_alike.WRONG else text


def test_a_rank_that_takes_no_step_is_noticed_after_the_timeout_that_was_given(results):
    for rank, text in enumerate(results["attach_fsdp, a rank stops"]):
        assert ("rank 1 is gone, or did not take this step" in text) == (rank != keeping_alike.WRONG)


def test_gradients_that_the_inner_optimizer_has_unscaled_are_divided_once(results):
    for by_wrapper, by_inner in results["unscaled"]:
        assert torch.equal(by_wrapper, by_inner)


def test_local_sgd_around_a_model_that_ddp_averages_anyway_is_warned_of_once(results):
    for found in results["warned"]:
        assert len(found) == 1
        assert "all workers have the same parameters before an exchange" in found[0]
