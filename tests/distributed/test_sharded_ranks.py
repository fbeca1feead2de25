"""Two nodes of two ranks that shard a model with FSDP2, against one process, bit for bit."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import flat_buckets
from binsgdm.kernels.keys import RandomStream
from tests.distributed import sharded

pytestmark = pytest.mark.slow  # its ranks take more than five seconds to start

LAUNCHED = sharded
RANKS = range(sharded.WORLD_SIZE)


@pytest.mark.parametrize("name", sharded.CASES)
def test_all_ranks_end_with_the_parameters_of_the_control_to_the_bit(name, results):
    records = [result[name] for result in results]
    expected = sharded.control(sharded.CASES[name], records)
    for rank, record in enumerate(records):
        for number, (got, wanted) in enumerate(zip(record.parameters, expected, strict=True)):
            assert torch.equal(got, wanted), (rank, number)


def test_what_is_trained_moves_and_the_rest_does_not(results):
    names = [name for name, _ in sharded.Model().named_parameters()]
    for case, still in (
        ("plain", set()),
        ("shaped, unused on one node", set()),
        ("unused", {"extra.weight", "extra.bias"}),
    ):
        values = zip(results[0][case].parameters, sharded.Model().parameters(), strict=True)
        kept = {name for name, (got, start) in zip(names, values, strict=True) if torch.equal(got, start)}
        assert kept == {"first.bias"} | still, case


def test_clipping_scales_the_gradients_of_a_node_to_its_norm(results):
    for node in range(sharded.NODES):
        shards = [results[node * sharded.LOCAL + local]["clip"].gradients[0] for local in range(sharded.LOCAL)]
        squares = sum(gradient.square().sum() for shard in shards for gradient in shard if gradient is not None)
        torch.testing.assert_close(squares.sqrt(), torch.tensor(sharded.CLIP_NORM), rtol=1e-4, atol=0)


def test_what_leaves_a_rank_is_two_bits_an_element_of_its_shard_times_n_minus_one_over_n(results):
    nodes, cap = sharded.NODES, sharded.BUCKET_ELEMENTS
    for rank, result in enumerate(results):
        sent = result["plain"].sent
        assert {record.group for record in sent} == {"inter_node"}
        exchanged = sum(record.num_bytes for record in sent if record.collective == "all_to_all")
        gathered = sum(record.num_bytes for record in sent if record.collective == "all_gather")
        numels = [piece.numel() for piece in sharded.pieces(sharded.Model(), rank % sharded.LOCAL)]
        d = sum(bucket.numel for bucket in flat_buckets.build(numels, bucket_elements=cap, ranks=nodes))
        left = exchanged * (nodes - 1) / nodes + gathered * (nodes - 1)
        assert left == sharded.STEPS * 2 * (nodes - 1) / nodes * d / 8 > 0


def test_no_two_ranks_share_draws():
    contexts = [
        sharded.ShardContext(
            rank=rank // 2, world_size=2, ranks_per_node=1, seed=1, step=2, shard=rank % 2, num_shards=2
        )
        for rank in RANKS
    ]
    assert len({context.key(stream) for context in contexts for stream in RandomStream}) == len(RANKS) * len(
        RandomStream
    )


def test_an_infinite_gradient_in_one_shard_stops_all_ranks(results):
    assert [result["overflow"] for result in results] == [(False, 0)] * len(RANKS)


@pytest.mark.parametrize("name", sharded.COMPRESSED)
def test_all_ranks_end_with_the_parameters_that_a_system_gives_in_one_process_to_the_bit(name, results):
    expected = sharded.control_of_system(name)
    start = list(sharded.Model().parameters())
    assert sum(not torch.equal(got, begin) for got, begin in zip(expected, start, strict=True)) == len(start) - 1
    for rank, result in enumerate(results):
        for number, (got, wanted) in enumerate(zip(result["compressed"][name][0], expected, strict=True)):
            assert torch.equal(got, wanted), (rank, number)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("not sharded", "parameter 0 has no placements: must be sharded over ranks [0, 1], the ranks of the node"),
        ("replicated", "parameter 0 has placements (Replicate(), Shard(dim=0)) on ranks [[0, 1], [2, 3]]: must be"),
        ("spanning", "parameter 0 has placements (Shard(dim=0),) on ranks [0, 1, 2, 3]: must be sharded over ranks"),
        ("one dimension", "mesh: 1 dimensions: must have two"),
        ("bucket", "bucket_cap_mb=0: must be above 0"),
        ("hierarchical", "must not be hierarchical, as FSDP2 averages inside the node"),
        ("one rank's seed", "seed"),
        ("binsgdm", "optimizer: a BinSGDM: must be an optimizer of torch that exchanges nothing"),
        ("twice", "an optimizer with a system: must have none"),
        ("no gradients", "a step without gradients"),
        ("state", "must be ['settings', 'step', 'system']"),
        ("closure", "gradients would be made after the exchange"),
        ("scaler", "a GradScaler: each rank would skip steps by its own shard"),
        ("cleared", "step 4: state of the optimizer"),
        ("loaded", "step 4: state of the optimizer"),
        ("written", "step 4: shards"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_on_all_ranks(mistake, said, results):
    # attach_fsdp names the ranks of its own node.
    assert said in results[0]["told"][mistake]
    assert all(result["told"][mistake] for result in results)
