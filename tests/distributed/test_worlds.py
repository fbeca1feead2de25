"""Worlds of one to eight gloo ranks: nodes of every size, DDP, meshes, mistakes, and bytes on the worlds."""

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import binsgdm
from binsgdm import BinSGDM
from binsgdm.comm import flat_buckets
from binsgdm.kernels.random import GROUP_NUMEL
from tests.distributed import ranks
from tests.helpers.launch import heard, launch, of_all, once, rank_of_gloo

HIERARCHICAL, FLAT = ranks.Case(ranks.HIERARCHICAL), ranks.Case(ranks.FLAT)
SHAPED, SHAPED_ONE_BIT = ranks.Case(ranks.HIERARCHICAL, is_shaped=True), ranks.Case(ranks.ONE_BIT, is_shaped=True)
CASES = [  # world size, ranks per node, case
    (8, 2, FLAT),
    (8, 2, SHAPED),
    (4, 1, HIERARCHICAL),
    (4, 4, SHAPED_ONE_BIT),
    (2, 1, SHAPED),
    (2, 2, HIERARCHICAL),
]
WIRE = [(2, 1), (4, 1), (8, 2)]  # world size, ranks per node
NUMELS = (400_001, 7, 2_400_003)
"""Rows of the large bucket travel in rounds of their own between two nodes, and by the collective between four."""
BUCKET_ELEMENTS = 1_000_000
EXTRA_BYTES = 512
"""Upper bound of what gloo adds to a collective, per rank and peer: headers, and buffers announced as ready; flags."""
TCP_INFO_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received, a u64, in Linux's struct tcp_info."""


def work(rank: int, world_size: int, folder: str) -> None:
    """Do all that is asked of a world of this size; rank 0 leaves the results in a file."""
    with rank_of_gloo(rank, world_size, folder, leaves=f"results{world_size}.pt") as results:
        for size, local, case in CASES:
            if size == world_size:
                results[local, case] = ranks.train(rank, case, ranks_per_node=local)
        for size, local in WIRE:
            if size == world_size:
                results["wire", local] = of_all(one_step(local))
        if world_size == 4:
            results["mesh"] = ranks.train(rank, HIERARCHICAL, mesh=init_device_mesh("cpu", (2, 2)))
            results["told"] = {name: of_all(heard(mistake)) for name, mistake in _mistakes(rank).items()}
        if world_size == 1:
            results["alone"] = {case: ranks.train(rank, case, ranks_per_node=1) for case in (HIERARCHICAL, SHAPED)}


def one_step(local: int) -> dict[str, Any]:
    """Take two steps and return, of the second, what this rank reported and what the kernel counted into it."""
    values = [torch.nn.Parameter(torch.zeros(numel)) for numel in NUMELS]
    optimizer = binsgdm.BinSGDM(values)
    reported: list[Any] = []
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    binsgdm.attach(optimizer, ranks_per_node=local, bucket_cap_mb=cap_mb, on_sent=reported.append)
    counts = []
    for _ in range(2):
        reported.clear()
        dist.barrier()
        counts.append(received())
        dist.barrier()  # no rank sends before all have counted
        for value in values:
            value.grad = torch.ones_like(value)
        optimizer.step()
    return {"reported": reported, "counted": received() - counts[-1]}


def received() -> int:
    """Return the payload bytes that came in on all TCP connections of this process."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing is closed by now, and others are no connected TCP sockets
            if str(link.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as connection:
                    connection.getpeername()
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, TCP_INFO_BYTES_RECEIVED)[0]
    return total


def _mistakes(rank: int) -> dict[str, Callable[[], None]]:
    """Return mistakes that a user can make, all ranks alike or one rank alone."""

    def attach(*shapes: int, seed: int = 0, **options: Any) -> None:
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes or (3,)]
        binsgdm.attach(binsgdm.BinSGDM(parameters, seed=seed), **{"ranks_per_node": 2} | options)

    def step_on_two_devices() -> None:
        parameters = [torch.nn.Parameter(torch.zeros(3, device=device)) for device in ("cpu", "meta")]
        optimizer = binsgdm.BinSGDM(parameters)
        binsgdm.attach(optimizer, ranks_per_node=2)
        optimizer.step()

    return {
        "no node size": lambda: attach(ranks_per_node=None),
        "mesh of one dimension": lambda: attach(mesh=init_device_mesh("cpu", (4,))),
        "mesh in another order": lambda: attach(mesh=DeviceMesh("cpu", [[0, 2], [1, 3]])),
        "two devices": step_on_two_devices,
        "seed": lambda: attach(seed=5 if rank == 2 else 4),
        "number of parameters": lambda: attach(*[3] * (2 if rank == 1 else 1)),
        "bucket_cap_mb": lambda: attach(bucket_cap_mb=1.0 + rank),
    }


WORLD_SIZES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what the worlds of every size left, from one run each."""

    def make(folder):
        for size in WORLD_SIZES:
            launch(work, size, str(folder), nprocs=size)

    folder = once(tmp_path_factory, "worlds", make)
    return {size: torch.load(folder / f"results{size}.pt", weights_only=False) for size in WORLD_SIZES}


@pytest.mark.parametrize(("world_size", "local", "case"), CASES, ids=str)
def test_nodes_of_every_size_end_with_the_parameters_of_the_control_to_the_bit(world_size, local, case, results):
    expected = ranks.control(world_size, local, case)
    for shape, got, wanted in zip(ranks.SHAPES, results[world_size][local, case], expected, strict=True):
        assert torch.equal(got, wanted), shape


@pytest.mark.parametrize("case", [HIERARCHICAL, SHAPED], ids=str)
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
    for got, wanted in zip(results[4]["mesh"], ranks.control(4, 2, HIERARCHICAL), strict=True):
        assert torch.equal(got, wanted)


def padded_elements(world_size):
    """Return d: every parameter padded to whole groups of draws, every bucket to as many whole groups a rank."""
    d = held = 0
    for numel in reversed(NUMELS):
        held += -(-numel // GROUP_NUMEL) * GROUP_NUMEL
        if held >= BUCKET_ELEMENTS or numel == NUMELS[0]:
            d, held = d - (-held // (GROUP_NUMEL * world_size)) * GROUP_NUMEL * world_size, 0
    assert d == sum(b.numel for b in flat_buckets.build(NUMELS, bucket_elements=BUCKET_ELEMENTS, ranks=world_size))
    return d


def leaves_the_rank(record, members):
    """Return the bytes of a collective that a rank sends to others: a tensor in parts, or the whole to each."""
    parts = record.num_bytes / members if record.collective == "all_to_all" else record.num_bytes
    return parts * (members - 1)


@pytest.mark.parametrize(("world_size", "local"), WIRE)
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
    assert 0 <= extra <= EXTRA_BYTES * collectives * world_size * (world_size - 1)


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
