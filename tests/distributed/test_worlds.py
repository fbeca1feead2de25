"""Worlds of one to eight gloo ranks: nodes of every size, DDP, meshes, mistakes, and bytes on the worlds."""

from collections import Counter

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import BinSGDM
from binsgdm.comm import flat_buckets
from binsgdm.kernels.random import GROUP_NUMEL
from tests.distributed import ranks, worlds
from tests.helpers.launch import launch, once

WORLD_SIZES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what the worlds of every size left, from one run each."""

    def make(folder):
        for size in WORLD_SIZES:
            launch(worlds.work, size, str(folder), nprocs=size)

    folder = once(tmp_path_factory, "worlds", make)
    return {size: torch.load(folder / f"results{size}.pt", weights_only=False) for size in WORLD_SIZES}


@pytest.mark.parametrize(("world_size", "local", "case"), worlds.CASES, ids=str)
def test_nodes_of_every_size_end_with_the_parameters_of_the_control_to_the_bit(world_size, local, case, results):
    expected = ranks.control(world_size, local, case)
    for shape, got, wanted in zip(ranks.SHAPES, results[world_size][local, case], expected, strict=True):
        assert torch.equal(got, wanted), shape


@pytest.mark.parametrize("case", [worlds.HIERARCHICAL, worlds.SHAPED], ids=str)
def test_a_world_of_one_rank_does_what_the_optimizer_does_alone(case, results):
    values = ranks.parameters()
    optimizer = BinSGDM(ranks.groups_of(values, case), **ranks.settings_of(case))
    for step in range(ranks.STEPS):
        for value, gradient in zip(values, ranks.gradients(0, step), strict=True):
            value.grad = gradient
        optimizer.step()
    for got, wanted in zip(results[1]["alone"][case], values, strict=True):
        assert torch.equal(got, wanted)


def test_a_mesh_gives_the_bits_that_ranks_per_node_gives(results):
    for got, wanted in zip(results[4]["mesh"], ranks.control(4, 2, worlds.HIERARCHICAL), strict=True):
        assert torch.equal(got, wanted)


def padded_elements(world_size):
    """Return d: every parameter padded to whole groups of draws, every bucket to as many whole groups a rank."""
    d = held = 0
    for numel in reversed(worlds.NUMELS):
        held += -(-numel // GROUP_NUMEL) * GROUP_NUMEL
        if held >= worlds.BUCKET_ELEMENTS or numel == worlds.NUMELS[0]:
            d, held = d - (-held // (GROUP_NUMEL * world_size)) * GROUP_NUMEL * world_size, 0
    assert d == sum(
        b.numel for b in flat_buckets.build(worlds.NUMELS, bucket_elements=worlds.BUCKET_ELEMENTS, ranks=world_size)
    )
    return d


def leaves_the_rank(record, members):
    """Return the bytes of a collective that a rank sends to others: a tensor in parts, or the whole to each."""
    parts = record.num_bytes / members if record.collective == "all_to_all" else record.num_bytes
    return parts * (members - 1)


@pytest.mark.parametrize(("world_size", "local"), worlds.WIRE)
def test_two_bits_an_element_times_n_minus_one_over_n_leave_every_node_as_reported(world_size, local, results):
    nodes = world_size // local
    of_node = Counter()
    for rank, seen in enumerate(results[world_size]["wire", local]):
        for record in seen["reported"]:
            if record.group == "inter_node":
                of_node[rank // local] += leaves_the_rank(record, nodes)
    expected = 2 * (nodes - 1) / nodes * padded_elements(world_size) / 8
    assert [of_node[node] for node in range(nodes)] == [expected] * nodes


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_kernel_counts_those_bytes_on_the_connections_between_nodes(world_size, results):
    needs("Linux")  # reads its struct tcp_info
    seen = results[world_size]["wire", 1]
    expected = 2 * (world_size - 1) * padded_elements(world_size) / 8
    collectives = 2 + sum(record.group == "inter_node" for record in seen[0]["reported"])
    extra = sum(one["counted"] for one in seen) - expected
    assert 0 <= extra <= worlds.EXTRA_BYTES * collectives * world_size * (world_size - 1)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("no node size", "ranks_per_node: not given and LOCAL_WORLD_SIZE is not set: give it, or launch with torchrun"),
        ("mesh of one dimension", "mesh: 1 dimensions: must have two, nodes and ranks of a node"),
        ("mesh in another order", "mesh: ranks [0, 2, 1, 3]: must be in ascending order, node by node"),
        ("two devices", "BinSGDM: parameters on cpu, meta: must be on one device"),
        ("seed", "attach: seed of rank 2: 5: must equal rank 0's 4"),
        ("number of parameters", "attach: shape of parameter 1 of rank 1: (3,): must equal rank 0's None"),
        ("bucket_cap_mb", "attach: bucket_cap_mb of rank 1: 2.0: must equal rank 0's 1.0"),
    ],
)
def test_all_ranks_are_told_of_a_mistake_in_one_sentence(mistake, said, results):
    for told in results[4]["told"][mistake]:
        assert told.startswith(said)
        assert "\n" not in told
