"""What gloo sends for each collective: all ranks of a lab run `python -m studies.lab.gloo_on_the_wire FILE`."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

MESSAGE_BYTES = 2**21
REPETITIONS = 3
RANKS_PER_NODE = 2


def collectives() -> dict[str, Callable[[], object]]:
    """Return the collectives by what they are."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    whole = [torch.ones(MESSAGE_BYTES // 4) for _ in range(world_size)]
    part = torch.ones(MESSAGE_BYTES // 4 // world_size)
    rails = [dist.new_group(list(range(one, world_size, RANKS_PER_NODE))) for one in range(RANKS_PER_NODE)]

    def of_all_roots(*, is_async: bool) -> None:
        works = [dist.broadcast(one, root, async_op=is_async) for root, one in enumerate(whole)]
        for work in works if is_async else ():
            work.wait()

    def two_all_reduces() -> None:
        for work in [dist.all_reduce(one, async_op=True) for one in whole[:2]]:
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole[0]),
        "two all_reduce at once": two_all_reduces,
        "all_reduce between nodes, two groups": lambda: dist.all_reduce(whole[0], group=rails[rank % RANKS_PER_NODE]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole[0]),
        "all_gather": lambda: dist.all_gather_into_tensor(whole[0], part),
        "broadcast from rank 0": lambda: dist.broadcast(whole[0], 0),
        "broadcast from rank 1": lambda: dist.broadcast(whole[0], 1),
        "a broadcast from every rank, in turn": lambda: of_all_roots(is_async=False),
        "a broadcast from every rank, at once": lambda: of_all_roots(is_async=True),
    }


def main(path: Path) -> None:
    """Time every collective, and count the bytes that leave each node."""
    dist.init_process_group("gloo")
    found = {name: _measured(run) for name, run in collectives().items()}
    if dist.get_rank() == 0:
        path.write_text(json.dumps({"message_bytes": MESSAGE_BYTES, "found": found}), encoding="utf-8")
    dist.destroy_process_group()


def _measured(run: Callable[[], object]) -> dict[str, object]:
    run()
    times_s = []
    for _ in range(REPETITIONS):
        dist.barrier()
        before, begin = _sent_bytes(), time.perf_counter()
        run()
        own_s = time.perf_counter() - begin
        dist.barrier()
        sent_bytes = _sent_bytes() - before
        every = _of_all_ranks(own_s, sent_bytes)
        times_s.append(max(seconds for seconds, _ in every))
    sent = [int(num_bytes) for _, num_bytes in every[::RANKS_PER_NODE]]
    return {"seconds": statistics.median(times_s), "sent_bytes": sent}


def _of_all_ranks(*values: float) -> list[tuple[float, ...]]:
    mine = torch.tensor(values, dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [tuple(one.tolist()) for one in every]


def _sent_bytes() -> int:
    """Return what this node's NIC has sent."""
    nic = os.environ["GLOO_SOCKET_IFNAME"]
    (line,) = [one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith(f"{nic}:")]
    return int(line.partition(":")[2].split()[8])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
