"""Systems work, and resume bit for bit, in models that are wrapped and stepped in every way that DDP offers."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import small_model
import wrapping

from tests.helpers.launch import launch, once


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder: Path) -> None:
        launch(wrapping.work, str(folder), nprocs=small_model.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, "wrapping", make) / "results.pt")


@pytest.mark.parametrize("setting", wrapping.SETTINGS)
def test_gradients_that_are_sent_as_they_are_have_ddps_mean(results, setting):
    torch.testing.assert_close(*results[setting], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("system", wrapping.SYSTEMS)
@pytest.mark.parametrize("setting", wrapping.SETTINGS)
def test_a_resumed_run_goes_on_bit_for_bit(results, setting, system):
    found = results[setting, system]
    assert found["same"] == [True] * small_model.WORLD_SIZE
    assert found["step"] == 7
    assert found["layout"] == found["was"]
    assert len(found["layout"]) > 1
