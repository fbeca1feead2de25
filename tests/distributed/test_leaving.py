"""Models that are joined, trained, left and dropped leave nothing: no process group, thread or open file."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import leaving

from tests.helpers.launch import launch


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaving")
    launch(leaving.work, str(folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", leaving.LIVES)
def test_what_a_process_holds_does_not_grow_with_the_models_it_has_trained(held, name):
    for of_rank in held:
        first, *later = of_rank[name][leaving.WARM_UP :]
        assert [{key for key, number in one.items() if number > first[key]} for one in later] == [set()] * len(later)
