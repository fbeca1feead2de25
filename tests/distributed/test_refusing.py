"""A rank that refuses leaves nobody waiting: the others are told within seconds, and in its words."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed import refusing

LAUNCHED = refusing

SECONDS = 90
"""Far above what a case takes, far below the two minutes of the collectives."""
BY_ONE = {
    "bits": "qsgd: bits: 9: must be a whole number from 2 to 8",
    "system": "system: 'qsdg': unknown, did you mean 'qsgd'?",
    "seed": "compress_gradients: seed: -1: must be a whole number from 0 to",
    "bits, a function": "qsgd: bits: <function ",
    "topology, a list": "qsgd: topology: ['gather']: must be one of",
    "timeout, a number": "compress_gradients: timeout=60: must be a datetime.timedelta above 0, or None",
    "LOCAL_WORLD_SIZE": "LOCAL_WORLD_SIZE: 'two': must divide the world size 3",
    "no DDP": "compress_gradients: a Linear: must be a DistributedDataParallel model",
    "residual of another model": "error feedback: parameter 0 of 60 elements: its residual has 61",
    "a broken compressor": "svd did not converge",
    "BinSGDM, state after attach": "BinSGDM: parameter 0: merge_residual from 4 to 4: must be from -3 to 3; load this ",
    "BinSGDM, residual put in": "BinSGDM: parameter 0: local_residual of torch.float32 and shape (40,): must be torch",
    "BinSGDM, residual put in, overlap": "BinSGDM: parameter 0: local_residual of torch.float32 and shape (40,): must",
    "BinSGDM, sparse": "BinSGDM: a sparse gradient of shape (4, 2): must be dense and real",
    "1-bit Adam, sparse": "OneBitAdam: a sparse gradient",
    "1-bit Adam, node size": "ranks_per_node: 2: must divide the world size 3",
}
"""What one rank refuses, in its words."""
BY_ALL = {
    "bits that differ": "bits of rank 1: 3: must equal rank 0's 4",
    "threads, power_sgd": "torch.get_num_threads() of rank 1: 2: must equal rank 0's 1",
    "threads, atomo": "torch.get_num_threads() of rank 1: 2: must equal rank 0's 1",
    "threads, qsgd": "",
    "step of another time": "compress_gradients: state: step of rank 1: 7: must equal rank 0's 1",
    "factors on one rank": "compress_gradients: state: factors of rank 1: [('0', (6, 4), ",
    "state after backward": "compress_gradients: a state after the first backward: ",
    "BinSGDM, beta_b": "attach: beta_b of group 0 of rank 1: 0.5: must equal rank 0's None",
}


@pytest.mark.parametrize("name", BY_ONE)
def test_what_one_rank_refuses_is_told_to_all_in_its_words(results, name):
    for rank, (kind, said, seconds) in enumerate(results[name]):
        is_wrong = rank == refusing.WRONG
        assert kind == "BinsgdmError" or (is_wrong and kind), "it went on"
        assert BY_ONE[name] in said
        assert (f"rank {refusing.WRONG} refused: " in said) == (not is_wrong)
        assert "\n" not in said
        assert seconds < SECONDS


@pytest.mark.parametrize("name", BY_ALL)
def test_what_differs_between_ranks_is_told_to_all_alike(results, name):
    for _, said, seconds in results[name]:
        assert BY_ALL[name] in said
        assert bool(said) == bool(BY_ALL[name])
        assert seconds < SECONDS
