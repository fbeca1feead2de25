"""DDP with the communication hook of a system gives what one process computes for all ranks."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.distributed import compressing

pytestmark = pytest.mark.slow

LAUNCHED = compressing


@pytest.mark.parametrize("case", compressing.CASES, ids=str)
def test_four_ranks_get_what_one_process_gets_for_them(results, case):
    assert results[str(case)] == 0, "so many gradients differ"


@pytest.mark.parametrize("case", compressing.STACKED, ids=str)
def test_stacked_ranks_end_with_the_parameters_of_real_ones(results, case):
    wanted, start = results["stacked"][str(case)], list(compressing.model().parameters())
    for got, real, before in zip(compressing.train_stacked(*case), wanted, start, strict=True):
        if case[0] in ("dense", "one_bit_adam"):
            torch.testing.assert_close(got, real, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(got, real)
        assert not torch.equal(real, before)


def test_a_copy_of_a_model_has_no_exchange_and_may_get_one(results):
    copied = results["copied"]
    torch.testing.assert_close(copied["copy"], copied["plain"])
    assert copied["averaged"] == 1


@pytest.mark.parametrize("setting", compressing.SETTINGS)
def test_gradients_that_are_sent_as_they_are_have_ddps_mean(results, setting):
    torch.testing.assert_close(*results["wrapped"][setting], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("setting", "system"), compressing.RESUMED)
def test_a_resumed_run_goes_on_bit_for_bit(results, setting, system):
    found = results["resumed"][setting, system]
    assert found["same"] == [True] * compressing.WORLD_SIZE
    assert found["step"] == 7
    assert found["layout"] == found["was"]
    assert len(found["layout"]) > 1
