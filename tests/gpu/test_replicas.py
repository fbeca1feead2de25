"""Ranks over all cards, on a CPU two over gloo, get the bits of one process for all; one that fails ends the others.

On one card NCCL carries nothing. How gloo ranks fail, and NCCL's rules, are tested in `tests/distributed`.
"""

import json
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.gpu import every_rank
from tests.helpers.kernel_samples import device as device_name
from tests.helpers.launch import launch, meeting_point, once

NUM_CARDS = torch.cuda.device_count()
WORLD_SIZE = NUM_CARDS or 2
MOST_S = 10.0  # for the others to end: far above the timeout, far below the minute more of PyTorch's watchdog

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

Outcomes = dict[str, str]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return what is wrong in each comparison."""

    def make(folder: Path) -> None:
        with meeting_point() as where:
            launch(every_rank.compare, where, WORLD_SIZE, device_name(), str(folder), nprocs=WORLD_SIZE)

    read: Outcomes = json.loads((once(tmp_path_factory, "every_rank", make) / "outcomes.json").read_text())
    return read


@pytest.mark.parametrize("name", every_rank.COMPARISONS)
def test_ranks_get_what_one_process_gets_for_all_of_them(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name] == ""


def test_a_rank_that_refuses_and_one_that_takes_no_step_end_the_others_with_a_sentence(tmp_path: Path) -> None:
    needs(*(["two GPUs"] if NUM_CARDS else []))
    world_size = NUM_CARDS or 3
    with meeting_point() as where:
        launch(every_rank.fail, where, world_size, str(tmp_path), nprocs=world_size)
    for endings, sentence in zip(
        json.loads((tmp_path / "endings.json").read_text()),
        (f"rank {world_size - 1} refused: BinSGDM: a sparse gradient", "a rank is gone or did not take this step"),
        strict=True,
    ):
        for told, seconds in endings[:-1]:
            assert sentence in told
            assert seconds < MOST_S
