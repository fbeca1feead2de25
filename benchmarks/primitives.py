"""`torchrun --nproc-per-node 4 -m benchmarks.primitives`: ways of carrying an all-to-all and an all-gather over gloo.

Rank 0 prints a Markdown table. Figures are worth something where ranks are on nodes of their own: run it there with
torchrun, or with RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand and GLOO_SOCKET_IFNAME
naming the NIC. `--lanes` runs in the groups of ranks with the same local rank, all at once, as the exchange between
nodes does.

A message is what a rank sends in an all-to-all or ends with in an all-gather; (n-1)/n of it leaves the rank, from which
the bus rate comes. All ways take turns, in an order that is drawn anew for every turn, and a turn takes as long as its
slowest rank. The first turn is warm-up, given apart: memory is touched and TCP wakes.
"""

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from binsgdm.comm.transport import (
    all_gather_by_collective,
    all_gather_in_ring,
    all_to_all_by_collective,
    all_to_all_in_rounds,
)

PAUSE_S = 0.005
Way = Callable[[torch.Tensor, torch.Tensor, dist.ProcessGroup], None]


def exchange(  # noqa: PLR0913
    received: torch.Tensor,
    sent: Sequence[torch.Tensor],
    group: dist.ProcessGroup,
    *,
    in_flight: int = 1,
    xor: bool = False,
    between: Callable[[int, int], None] | None = None,
) -> None:
    """Exchange rows in rounds, `in_flight` of them at once; `between(to, source)` comes before all but the first."""
    position, size = dist.get_rank(group), dist.get_world_size(group)
    received[position].copy_(sent[position])
    works: list[list[dist.Work | None]] = []
    for distance in range(1, size):
        if len(works) == in_flight:
            wait(works.pop(0))
        to = position ^ distance if xor else (position + distance) % size
        source = to if xor else (position - distance) % size
        if between is not None and distance > 1:
            between(dist.get_global_rank(group, to), dist.get_global_rank(group, source))
        works.append(
            [
                dist.irecv(received[source], src=dist.get_global_rank(group, source), group=group),
                dist.isend(sent[to], dst=dist.get_global_rank(group, to), group=group),
            ]
        )
    for pair in works:
        wait(pair)


def wait(works: Sequence["dist.Work | None"]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def rounds_with_barrier(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    exchange(received, list(sent), group, between=lambda _to, _source: dist.barrier(group))


def rounds_when_ready(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Each receiver sends its next sender one byte when it is ready."""

    def say_ready(to: int, source: int) -> None:
        mine, other = torch.zeros(2, 1, dtype=torch.uint8)
        wait([dist.isend(mine, dst=source, group=group, tag=1), dist.irecv(other, src=to, group=group, tag=1)])

    exchange(received, list(sent), group, between=say_ready)


def in_rounds(
    received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup, *, in_flight: int = 1, xor: bool = False
) -> None:
    exchange(received, list(sent), group, in_flight=in_flight, xor=xor)


def gather_in_rounds(
    received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup, *, in_flight: int = 1
) -> None:
    """Every rank sends the same to all others, straight."""
    exchange(received, [sent] * len(received), group, in_flight=in_flight)


EVERYTHING = 1 << 30
ALL_TO_ALL: dict[str, Way] = {
    "collective": all_to_all_by_collective,
    "all at once": partial(in_rounds, in_flight=EVERYTHING),
    "rounds": all_to_all_in_rounds,
    "rounds, two in flight": partial(in_rounds, in_flight=2),
    "rounds by XOR": partial(in_rounds, xor=True),
    "rounds, receiver says ready": rounds_when_ready,
    "rounds, barrier between": rounds_with_barrier,
}
ALL_GATHER: dict[str, Way] = {
    "collective": all_gather_by_collective,
    "all at once": partial(gather_in_rounds, in_flight=EVERYTHING),
    "rounds": gather_in_rounds,
    "ring": all_gather_in_ring,
}
OPERATIONS = {"all_to_all": ALL_TO_ALL, "all_gather": ALL_GATHER}


def times_s(
    ways: dict[str, Way], tensors: tuple[torch.Tensor, torch.Tensor], group: dist.ProcessGroup, repeat: int
) -> dict[str, list[float]]:
    """Return what every turn of every way took, the slowest rank's time [s]; turn 0 is the warm-up."""
    order, times = random.Random(0), torch.zeros(len(ways), repeat + 1, dtype=torch.float64)
    names = list(ways)
    for turn in range(repeat + 1):
        for name in order.sample(names, len(names)):
            dist.barrier()
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            ways[name](*tensors, group)
            times[names.index(name), turn] = time.perf_counter() - start
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return dict(zip(names, times.tolist(), strict=True))


def measure(operation: str, message_bytes: int, group: dist.ProcessGroup, options: argparse.Namespace) -> None:
    """Time all ways of one operation for one size; rank 0 prints their rows."""
    size = dist.get_world_size(group)
    ways = {
        name: way
        for name, way in OPERATIONS[operation].items()
        if (options.only is None or name in options.only) and not ("XOR" in name and size & (size - 1))
    }
    received = torch.zeros(size, message_bytes // size, dtype=torch.uint8)
    sent = torch.ones_like(received) if operation == "all_to_all" else torch.ones_like(received[0])
    for name, (first, *others) in times_s(ways, (received, sent), group, options.repeat).items():
        median, spread = statistics.median(others), statistics.pstdev(others) / statistics.mean(others)
        mbit_per_s = received[1:].numel() * 8 / median / 1e6
        if dist.get_rank() == 0:
            print(
                f"| {operation} | {message_bytes / 1e6:g} | {name} | {first * 1e3:.1f} | {median * 1e3:.2f} | "
                f"{spread:.2f} | {mbit_per_s:.0f} |",
                flush=True,
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [8192, 65536, 262_144, 1_000_000, 4_000_000, 25_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="bytes of a message")
    parser.add_argument("--repeat", type=int, default=11, help="turns after the warm-up")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--only", nargs="+", metavar="WAY", help="by name as in the table")
    parser.add_argument("--lanes", action="store_true", help="groups of one rank a node, all at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world_size, local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"]) if options.lanes else 1
    lanes = [list(range(lane, world_size, local)) for lane in range(local)]
    group = dist.new_subgroups_by_enumeration(lanes)[0]  # type: ignore[no-untyped-call]
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {platform.system()} {platform.release()}, {os.cpu_count()} cores;")
        print(
            f"{local} group(s) of {dist.get_world_size(group)}; {options.repeat} turns; load {os.getloadavg()[0]:.1f}\n"
        )
        print("| operation | message [MB] | way | first [ms] | median [ms] | cv | bus rate [Mbit/s] |")
        print("|---|---|---|---|---|---|---|")
    for operation in options.operations:
        for message_bytes in options.sizes:
            measure(operation, message_bytes, group, options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
