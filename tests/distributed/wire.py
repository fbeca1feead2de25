"""Bytes that one step sends from rank to rank: as reported by `on_sent`, and as the kernel counted them."""

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import SOCK_STREAM
from typing import Any

import torch
import torch.distributed as dist

import binsgdm

NUMELS = (400_001, 7, 2_400_003)
"""Rows of the large bucket travel in rounds of their own between two nodes, and by the collective between four."""
BUCKET_ELEMENTS = 1_000_000
EXTRA_BYTES = 512
"""Upper bound of what gloo adds to a collective, per rank and peer: headers, and buffers announced as ready; flags."""
TCP_INFO_BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received, a u64, in Linux's struct tcp_info."""


def one_step(world_size: int, local: int) -> dict[str, Any]:
    """Take two steps and return, of the second, what this rank reported and what the kernel counted into it."""
    values = [torch.nn.Parameter(torch.zeros(numel)) for numel in NUMELS]
    optimizer = binsgdm.BinSGDM(values)
    reported: list[Any] = []
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    binsgdm.attach(optimizer, ranks_per_node=local, bucket_cap_mb=cap_mb, on_sent=reported.append)
    _step(values, optimizer)
    reported.clear()
    dist.barrier()
    before = received()
    dist.barrier()  # no rank sends before all have counted
    _step(values, optimizer)
    after = received()
    dist.barrier()
    counted = {ends: count - before.get(ends, 0) for ends, count in after.items()}
    return {"reported": reported, "counted": by_sender(counted, world_size)}


def _step(values: list[torch.nn.Parameter], optimizer: binsgdm.BinSGDM) -> None:
    for value in values:
        value.grad = torch.ones_like(value)
    optimizer.step()


def received() -> dict[tuple[Any, Any], int]:
    """Return the payload bytes that came in on every TCP connection of this process, by (own end, other end)."""
    counts = {}
    for connection in _connections():
        with connection:
            ends = connection.getsockname()[:2], connection.getpeername()[:2]
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            counts[ends] = struct.unpack_from("Q", info, TCP_INFO_BYTES_RECEIVED)[0]
    return counts


def _connections() -> Iterator[socket.socket]:
    """Yield a duplicate of every connected TCP socket of this process."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if str(link.readlink()).startswith("socket:"):
                connection = socket.socket(fileno=os.dup(int(link.name)))
                is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == SOCK_STREAM
                if is_tcp and _is_connected(connection):
                    yield connection
                connection.close()


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def by_sender(counts: dict[tuple[Any, Any], int], world_size: int) -> dict[int, int]:
    """Return the bytes that each other rank sent to this one.

    A connection is known by both its ends: ranks may share a port where they connect to different places.
    """
    connections: list[Any] = [None] * world_size
    dist.all_gather_object(connections, set(counts))
    senders: Counter[int] = Counter()
    for (own, other), count in counts.items():
        for rank, ends in enumerate(connections):
            if (other, own) in ends:
                senders[rank] += count
    return dict(senders)
