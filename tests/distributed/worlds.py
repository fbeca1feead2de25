"""What the ranks of worlds of several sizes do: nodes of every size, meshes, mistakes, and bytes on the wire."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import binsgdm
from tests.distributed import ranks
from tests.helpers.launch import heard, of_all, rank_of_gloo

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
