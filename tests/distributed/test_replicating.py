"""Two nodes of two ranks whose copies of a sharded model a system averages, against one process, bit for bit."""

import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))

import replicating

from tests.helpers.launch import launch, once

RANKS = range(replicating.NODES * replicating.LOCAL)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what every rank left, from one run."""
    folder = once(tmp_path_factory, "replicating", lambda path: launch(replicating.work, str(path), nprocs=len(RANKS)))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in RANKS]


@pytest.mark.parametrize("name", replicating.CASES)
def test_all_ranks_end_with_the_parameters_of_the_control_to_the_bit(name, results):
    expected = replicating.control(name)
    start = list(replicating.Model().parameters())
    assert sum(not torch.equal(got, begin) for got, begin in zip(expected, start, strict=True)) == len(start) - 1
    for rank, result in enumerate(results):
        for number, (got, wanted) in enumerate(zip(result[name][0], expected, strict=True)):
            assert torch.equal(got, wanted), (rank, number)


def test_only_the_ranks_that_hold_the_same_shard_exchange(results):
    for result in results:
        assert {record.group for record in result["byte_grad"][1]} == {"inter_node"}


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("not sharded", "compress_replicas: parameter 0 has no placements: must be sharded over ranks"),
        ("one dimension", "mesh: 1 dimensions: must have two"),
        ("system", "byte_grid"),
        ("hierarchical", "must not be hierarchical, as FSDP2 averages inside the node"),
        ("one rank's seed", "seed"),
        ("binsgdm", "optimizer: a BinSGDM: must be an optimizer of torch that exchanges nothing"),
        ("bucket", "bucket_cap_mb=0: must be above 0"),
        ("twice", "an optimizer with a system: must have none"),
        ("no gradients", "a step without gradients"),
        ("state", "must be ['settings', 'step', 'system']"),
        ("closure", "gradients would be made after the exchange"),
        ("scaler", "a GradScaler: each rank would skip steps by its own shard"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_on_all_ranks(mistake, said, results):
    assert all(said in result["told"][mistake] for result in results)
