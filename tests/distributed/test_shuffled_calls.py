"""Random orders of calls end in replicas that are equal to the bit, or in a sentence on every rank."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import shuffled_calls

from tests.helpers.launch import launch, once


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder: Path) -> None:
        launch(shuffled_calls.work, str(folder), nprocs=shuffled_calls.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, "shuffled_calls", make) / "results.pt")


@pytest.mark.parametrize("kind", shuffled_calls.KINDS)
def test_ranks_end_alike_or_all_hear_why_not(results, kind):
    for seed in range(shuffled_calls.ORDERS):
        calls, sentences, are_same = results[kind, seed]
        assert all(are_same) or all(sentences), calls


def test_some_orders_end_alike_and_some_in_a_sentence(results):
    ends = {all(sentences) for _, sentences, _ in results.values()}
    assert ends == {False, True}
