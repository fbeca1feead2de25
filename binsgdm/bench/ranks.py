"""The ranks that measure together: one process alone, or all that torchrun (or a lab) has started."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from binsgdm.comm import groups as grouping
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import is_own_failure
from binsgdm.errors import BinsgdmError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among all; by default a process alone, without groups.

    Attributes:
        ranks_on_machine: ranks that share this machine's cores; several nodes may be one machine, as in the lab.
        backend: "gloo" or "nccl"; empty for a process alone.
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    ranks_on_machine: int = 1
    backend: str = ""
    groups: Groups | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.ranks_per_node

    def barrier(self) -> None:
        """Wait until all ranks are here, and a GPU has no more to do."""
        # Before the barrier: this GPU's work belongs to the trial before.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.groups is not None:
            # NCCL's barrier is a collective on a GPU, and without a name it guesses which.
            device_ids = [self.device.index] if self.backend == "nccl" else None
            guarded(lambda: dist.barrier(device_ids=device_ids))
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""
        if self.groups is None or not seconds:
            return list(seconds)
        # In fp64, which holds microseconds of a long run.
        values = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        guarded(lambda: dist.all_reduce(values, op=dist.ReduceOp.MAX))
        return [float(value) for value in values.tolist()]

    def of_all(self, seconds: Sequence[float]) -> list[list[float]]:
        """Return the values of every rank, which has as many as all others, in the order of the ranks."""
        if self.groups is None or not seconds:
            return [list(seconds)] * self.world_size
        values = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        guarded(lambda: dist.all_gather(gathered, values))
        return [row.tolist() for row in gathered]

    def from_rank_0(self, answer: Callable[[], str]) -> str:
        """Return on all ranks the answer that rank 0 finds."""
        answers = [answer() if self.rank == 0 else ""]
        if self.groups is not None:
            guarded(lambda: dist.broadcast_object_list(answers, src=0, device=self.device))
        return answers[0]


def guarded(collective: Callable[[], T]) -> T:
    """Call a collective; report in one sentence if it failed.

    Raises:
        BinsgdmError: a rank is gone.
        RuntimeError: of this rank itself, such as too little memory.
    """
    try:
        return collective()
    except RuntimeError as error:
        if is_own_failure(error):
            raise
        reason = str(error).splitlines()[0]
        raise BinsgdmError(f"ranks: a collective failed ({reason}): a rank ended; restart all ranks") from error


@contextmanager
def joined(
    *, device: str | None = None, ranks_per_node: int | None = None, threads: int | None = None
) -> Iterator[Ranks]:
    """Join the process group if RANK says that this is one of several; leave it at the end.

    Args:
        device: "cpu" or "cuda"; default a GPU for each rank of the node if there are as many, else the CPU.
        ranks_per_node: default LOCAL_WORLD_SIZE.
        threads: of torch and the kernels; default torch's, which torchrun sets to 1.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = _device(device)
    if "RANK" not in os.environ:
        if ranks_per_node not in (None, 1):
            raise BinsgdmError(f"--ranks-per-node {ranks_per_node}: needs several processes; launch them with torchrun")
        yield Ranks(device=chosen)
        return
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    guarded(lambda: dist.init_process_group(backend))
    try:
        groups = grouping.make(ranks_per_node, device=chosen)
        # A "node" may be a network namespace of this machine, as in the lab; the cores are shared by all ranks of the
        # machine, whose boot has the same identity in all of them.
        boot = Path("/proc/sys/kernel/random/boot_id")
        machine = boot.read_text(encoding="ascii").strip() if boot.exists() else os.uname().nodename
        machines: list[str] = [""] * groups.world_size
        guarded(lambda: dist.all_gather_object(machines, machine))
        yield Ranks(
            device=chosen,
            rank=groups.rank,
            world_size=groups.world_size,
            ranks_per_node=groups.ranks_per_node,
            ranks_on_machine=machines.count(machine),
            backend=backend,
            groups=groups,
        )
    except BaseException:
        # NCCL leaves when its kernels are done, some of which may wait for a rank that is gone.
        if backend != "nccl":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _device(name: str | None) -> torch.device:
    """Return this rank's device, a GPU of its own or the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.device_count() > local_rank
    if name == "cuda" and not has_gpu:
        raise BinsgdmError(
            f"--device cuda: no GPU for local rank {local_rank}; use --device cpu, or fewer ranks a node"
        )
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if name == "cpu" or (name is None and not (has_gpu and enough)):
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
