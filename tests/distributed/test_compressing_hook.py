"""DDP with the communication hook of every system gives what one process computes for all ranks."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import compressing

from tests.helpers.launch import launch, once


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder: Path) -> None:
        launch(compressing.work, str(folder), nprocs=compressing.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, "compressing", make) / "results.pt")


@pytest.mark.parametrize("case", compressing.CASES, ids=str)
def test_four_ranks_get_what_one_process_gets_for_them(results, case):
    """To the bit where nothing is summed by the backend; its order of a sum of fp32 is its own."""
    found = results[str(case)]
    assert found["buckets"][0] == 1
    assert found["buckets"][-1] > 1
    for one, other in zip(found["found"], found["control"], strict=True):
        for gradient, wanted in zip(one, other, strict=True):
            if case[0] in ("dense", "random_k", "power_sgd", "grad_zip"):
                torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)
            else:
                assert torch.equal(gradient, wanted)
            assert gradient.count_nonzero() or case[0] in ("top_k", "ms_top_k", "random_k")


def test_what_is_wrong_is_told_in_a_sentence_on_all_ranks(results):
    unknown, option, value, differs = results["refused"]
    assert "'qsdg': unknown, did you mean 'qsgd'?" in unknown
    assert "bit: unknown option, did you mean 'bits'?" in option
    assert "bits: 9: must be a whole number from 2 to 8" in value
    assert "bits of rank 1: 4: must equal rank 0's 3" in differs


def test_ranks_with_other_numbers_of_threads_are_refused_where_replicas_would_differ(results):
    heard = results["threads"]
    assert "torch.get_num_threads() of rank 1: 2: must equal rank 0's 1" in heard["power_sgd"]
    assert "torch.get_num_threads() of rank 1" in heard["atomo"]
    assert not heard["qsgd"]


def test_a_detached_exchange_leaves_ddps_mean(results):
    found, wanted = results["detached"]
    torch.testing.assert_close(found, wanted)


def test_a_copy_of_a_model_has_no_exchange_and_may_get_one(results):
    copied = results["copied"]
    torch.testing.assert_close(copied["copy"], copied["plain"])
    assert copied["averaged"] == 1


def test_join_is_refused_on_all_ranks(results):
    assert all("a backward inside DDP.join()" in heard for heard in results["joined"]), results["joined"]


@pytest.mark.parametrize("case", compressing.RESUMED, ids=str)
def test_a_resumed_run_goes_on_bit_for_bit_though_ddp_begins_with_other_buckets(results, case):
    found = results["resumed"][str(case)]
    assert found["same"] == [True] * compressing.WORLD_SIZE
    assert found["buckets"][0] == found["buckets"][1] > 1
