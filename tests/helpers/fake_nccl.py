"""A backend that keeps to NCCL's rules and breaks as NCCL does, on CPU tensors or pretended GPUs, over gloo.

Calls return before anything is done; collectives of a group are done one after the other; what waits for a rank that is
gone never fails and never ends, unless it is aborted; a send and a receive that are no batch are done one after the
other, too. What NCCL or PyTorch's use of it refuses raises `BrokenRuleError`.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from tests.helpers.pretend_device import PretendTensor

NAME = "fake_nccl"
DTYPES = {
    torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64,
}  # fmt: skip
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG)
GLOO_TIMEOUT = timedelta(seconds=60)

calls: list[tuple[str, int, str]] = []
"""What this rank has enqueued in groups of its own, in order: collective, elements, dtype."""
made_in: list[str] = []
"""The thread in which each communicator of this rank was made."""


class BrokenRuleError(AssertionError):
    """NCCL, or PyTorch's use of it, does not do this."""


class FakeWork(dist._Work):  # type: ignore[misc]
    """A collective that was enqueued.

    `wait` lets the stream wait, not the host. Tensors of the CPU have no stream, so the host waits here, but no longer
    than `patience_s`: then it goes on as a host does, with what happens to be in memory.
    """

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.done, self.stuck = threading.Event(), threading.Event()
        self._patience_s, self._is_aborted = patience_s, False

    def wait(self, _timeout: timedelta = timedelta(0)) -> bool:
        for _ in range(int(self._patience_s / 0.005)):
            if self.done.wait(0.005) or self.stuck.is_set():
                break
        return True

    def is_completed(self) -> bool:
        return self.done.is_set()

    def abort(self) -> None:
        self.stuck.set()
        self.done.set()


class FakeNccl(dist.ProcessGroup):
    """One rank's end of a group, with a thread in place of the stream."""

    patience_s = world_patience_s = 60.0
    card: torch.device | None = None  # this rank's, if tensors are on pretended GPUs

    def __init__(self, store: Any, rank: int, size: int, _timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, GLOO_TIMEOUT)
        self._enqueued: queue.SimpleQueue[tuple[Callable[[], Sequence[Any]], FakeWork]] = queue.SimpleQueue()
        self._works: list[FakeWork] = []
        self._batch: list[Callable[[], Any]] | None = None
        self._in_use = threading.Lock()
        self._is_aborted = self._has_communicator = False
        threading.Thread(target=self._carry, daemon=True).start()

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def _carry(self) -> None:
        while True:
            start, work = self._enqueued.get()
            try:
                for one in start():
                    one.wait()
            except RuntimeError:  # a rank is gone: the kernel spins, and all behind it wait
                work.stuck.set()
                return
            work.done.set()

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu" if self.card is None else "cuda")]

    def _enqueue(self, start: Callable[[], Sequence[Any]], what: str, *tensors: torch.Tensor) -> FakeWork:
        if not self._in_use.acquire(blocking=False):
            raise BrokenRuleError(f"{what}: another thread is in a call of this communicator")
        try:
            self._check(what, tensors)
            if not self._has_communicator:
                self._has_communicator = True
                made_in.append(threading.current_thread().name)
            is_world = self is dist.group.WORLD
            if not is_world:
                calls.append((what, sum(tensor.numel() for tensor in tensors), str(tensors[0].dtype)))
            # The host reads what is gathered over the world right away, and there it waits.
            work = FakeWork(FakeNccl.world_patience_s if is_world else self.patience_s)
            self._works = [one for one in self._works if not one.is_completed()] + [work]
            self._enqueued.put((start, work))
            return work
        finally:
            self._in_use.release()

    def _check(self, what: str, tensors: Sequence[torch.Tensor]) -> None:
        if self._is_aborted:
            raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}.")
        for tensor in tensors:
            if self.card is not None and tensor.device != self.card:
                raise BrokenRuleError(f"{what}: a tensor on {tensor.device}, in a communicator of {self.card}")
            if tensor.dtype not in DTYPES:
                raise BrokenRuleError(f"{what}: input tensor data type is not supported: {tensor.dtype}")
            if not tensor.is_contiguous():
                raise BrokenRuleError(f"{what}: tensors must be contiguous")

    def _get_backend(self, _device: torch.device) -> "FakeNccl":
        return self

    def abort(self) -> None:
        self._is_aborted = True
        for work in self._works:
            work.abort()

    def shutdown(self) -> None:
        self._is_aborted = True

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> FakeWork:
        opts = opts or dist.AllreduceOptions()
        if all(opts.reduceOp != op for op in OPS) or (
            tensors[0].dtype == torch.bool and opts.reduceOp == dist.ReduceOp.AVG
        ):
            raise BrokenRuleError(f"all_reduce: cannot use {opts.reduceOp} with {tensors[0].dtype}")
        return self._enqueue(lambda: [self._gloo.allreduce(_values(tensors), opts)], "all_reduce", *tensors)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> FakeWork:
        opts = opts or dist.AllgatherOptions()
        return self._enqueue(
            lambda: [self._gloo.allgather(_values(outputs), _values(inputs), opts)], "all_gather", *inputs, *outputs[0]
        )

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> FakeWork:
        opts = opts or dist.AllgatherOptions()
        gather = partial(self._gloo._allgather_base, _values(output), _values(given), opts)
        return self._enqueue(lambda: [gather()], "all_gather", given, output)

    _allgather_base = all_gather_single  # before PyTorch 2.13

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, to: list[int], sizes: list[int], opts: Any = None
    ) -> FakeWork:
        opts = opts or dist.AllToAllOptions()
        exchange = partial(self._gloo.alltoall_base, _values(output), _values(given), to, sizes, opts)
        return self._enqueue(lambda: [exchange()], "all_to_all", given, output)

    alltoall_base = all_to_all_single

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> FakeWork:
        opts = opts or dist.BroadcastOptions()
        return self._enqueue(lambda: [self._gloo.broadcast(_values(tensors), opts)], "broadcast", *tensors)

    def barrier(self, opts: Any = None) -> FakeWork:
        return self.allreduce([torch.zeros(1, device=self.card or "cpu")])

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return self._point_to_point(partial(self._gloo.send, _values(tensors), to, tag), "send", *tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._point_to_point(partial(self._gloo.recv, _values(tensors), source, tag), "recv", *tensors)

    def _point_to_point(self, start: Callable[[], Any], what: str, tensor: torch.Tensor) -> Any:
        if self._batch is None:
            return self._enqueue(lambda: [start()], what, tensor)
        self._check(what, [tensor])
        self._batch.append(start)
        return None

    def as_batch(self, ops: Sequence[dist.P2POp]) -> list[FakeWork]:
        self._batch = batch = []
        for op in ops:
            op.op(op.tensor, op.peer, op.group)
        self._batch = None
        return [self._enqueue(lambda: [start() for start in batch], "send_recv", ops[0].tensor)]


def _values(given: Any) -> Any:
    """Return what tensors on a pretended GPU hold."""
    return tree_map(lambda leaf: leaf.values if isinstance(leaf, PretendTensor) else leaf, given)


def _batch_isend_irecv(ops: list[dist.P2POp]) -> list[Any]:
    group: Any = ops[0].group
    works: list[Any] = group.as_batch(ops)
    return works


@contextmanager
def ranks(rank: int, world_size: int, store: str, *, has_card: bool = False) -> Iterator[None]:
    """Be one rank of a world that the fake carries; with tensors on the CPU, or each rank on a pretended GPU."""
    torch.set_num_threads(1)
    FakeNccl.card = torch.device("cuda", rank) if has_card else None
    dist.Backend.register_backend(NAME, FakeNccl, devices=["cuda" if has_card else "cpu"])
    dist.batch_isend_irecv = _batch_isend_irecv
    dist.init_process_group(NAME, init_method=store, rank=rank, world_size=world_size)
    yield
