"""Training on stacked gradients in one process ends where four gloo ranks under DDP end."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import stacking

from tests.helpers.launch import launch, once


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder: Path) -> None:
        launch(stacking.work, str(folder), nprocs=stacking.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, "stacking", make) / "results.pt")


@pytest.mark.parametrize("case", stacking.CASES, ids=str)
def test_stacked_ranks_end_with_the_parameters_of_real_ones(results, case):
    """To the bit where nothing is summed by the backend; its order of a sum of fp32 is its own."""
    wanted, start = results[str(case)], list(stacking.model().parameters())
    for got, real, before in zip(stacking.control(*case), wanted, start, strict=True):
        if case[0] in ("dense", "power_sgd", "one_bit_adam"):
            torch.testing.assert_close(got, real, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(got, real)
        assert not torch.equal(real, before)
