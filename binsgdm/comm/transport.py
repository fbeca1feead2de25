"""Carry the messages of an exchange over torch.distributed."""

import traceback
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.comm.failure import REPAIR, Company, Pending, abort, end, introduce, store_barrier
from binsgdm.comm.groups import Groups, release
from binsgdm.comm.messages import (
    AllGather,
    AllReduceMax,
    AllReduceSum,
    AllToAll,
    GroupName,
    Member,
    Message,
    Protocol,
    SendRecv,
)
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.profiler_stages import stage

T = TypeVar("T")

# Over gloo, rows of this size and larger travel one at a time: that keeps a wire busier than gloo's collectives do.
# Shorter rows go by the collectives, which wait less often (decision 6).
MIN_ROUND_BYTES = 128 * 1024


class Sent(NamedTuple):
    """One collective as this rank took part in it: what, in which group, and the bytes of the tensor that it gave."""

    collective: str
    group: GroupName
    num_bytes: int


class Transport:
    """Drives protocols over process groups.

    Collectives run one after the other, in the order in which the protocol asks for them, which is the same on all
    ranks and in all groups together: NCCL may deadlock where two communicators of a GPU are used in another order on
    another rank. So one thread at a time runs protocols, in groups that nobody else uses. A rank that is gone makes a
    collective fail (or time out) here.

    Args:
        groups: of this rank.
        on_sent: called with every collective that this rank takes part in.
        where: begins every sentence: the class or function that the user called.
    """

    def __init__(self, groups: Groups, on_sent: Callable[[Sent], None] | None = None, where: str = "binsgdm") -> None:
        self._open_groups: Groups | None = groups
        self._where = where
        self._company: Company | None = None
        self._on_sent = on_sent
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._pending = Pending()

    def member(self, groups: Groups | None = None) -> Member:
        """Return this rank as an optimizer takes it, with messages carried here.

        Args:
            groups: among whose ranks, all of which step together; default those of this transport.
        """
        groups = groups or self._groups
        return Member(
            rank=groups.rank,
            world_size=groups.world_size,
            ranks_per_node=groups.ranks_per_node,
            run=self.run,
            ranks=groups.ranks,
            stands_for_all=groups.is_recorded,
        )

    @property
    def is_open(self) -> bool:
        """Tell whether messages can be carried: the exchange was neither ended nor aborted."""
        return self._open_groups is not None

    def group(self, name: GroupName) -> dist.ProcessGroup:
        """Return a group, which nobody may keep: its connections close with the last reference."""
        group: dist.ProcessGroup = getattr(self._groups, name)
        return group

    def run(self, protocol: Protocol) -> torch.Tensor:
        """Carry every message and return what the protocol returns.

        An error of the protocol's own is raised as it is. If nothing was agreed on with the other ranks, which is so
        before the first message, or if it is no sentence, then the others are told, since they wait for this rank.
        """
        answer: torch.Tensor | None = None
        while True:
            try:
                message = protocol.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                result: torch.Tensor = stop.value
                return result
            except Exception as error:
                if answer is None or not isinstance(error, BinsgdmError):
                    self._abort_for(error)
                raise
            with stage(f"{message.collective} {message.group}"):
                what = f"{type(message).__name__} in {message.group}"
                answer = self.guarded(partial(self._communicate, message), what)

    def abort(self, reason: str) -> None:
        """Tell the others why this rank cannot go on, and close its connections; nothing can be carried any more."""
        if (groups := self._close()) is not None:
            abort(groups, reason)

    def close(self, where: str) -> None:
        """End the exchange with the other ranks, each of which must call it; where one does not, they are free, too."""
        groups = self._open_groups
        if groups is None or not dist.is_initialized():
            return
        try:
            # A rank that goes closes its connections, which another may still need for its last message.
            store_barrier(where, groups.all_that_step, groups.timeout)
        except BinsgdmError as error:
            del groups
            self.abort(str(error))
            raise
        self._close()
        release(groups)

    def wait(self, what: str) -> None:
        """Wait on the host until all that was carried has arrived, for which it need not wait over gloo."""
        if self._open_groups is not None:
            self.guarded(partial(self._pending.wait, self._open_groups), what)

    def guarded(self, collective: Callable[[], T], what: str) -> T:
        """Call a collective; where it fails, say why, which may be what the rank has left that aborted.

        Raises:
            RuntimeError: this rank cannot take part, for want of memory for example; the others are told.
        """
        try:
            if self._company is None and self._groups.are_connected:
                self._company = introduce(self._groups)
            return collective()
        except RuntimeError as error:
            if is_own_failure(error):
                self._abort_for(error)
                raise
            # In a list, out of which they are taken: no frame may hold them, since an open group lets the others wait.
            ended = [groups for groups in [self._close()] if groups]
            raise end(self._where, ended, self._company, what, error) from error

    @property
    def _groups(self) -> Groups:
        if self._open_groups is None:
            raise BinsgdmError(f"{self._where}: the exchange was aborted before, and ranks may differ; {REPAIR}")
        return self._open_groups

    def _close(self) -> Groups | None:
        """Let go of the groups and return them, once."""
        # What failed may still hold this object, and an open group lets the others wait.
        groups, self._open_groups = self._open_groups, None
        self._pending.clear()
        return groups

    def _abort_for(self, error: Exception) -> None:
        """Tell the others of an error that they know nothing of, if there are others, and if it is not theirs."""
        if self._open_groups is None or dist.get_world_size(self._open_groups.all_that_step) == 1:
            return
        traceback.clear_frames(error.__traceback__)  # they hold groups, whose connections are to close
        self.abort((str(error) or type(error).__name__).splitlines()[0])

    def _communicate(self, message: Message) -> torch.Tensor:
        answer = message.sent.contiguous()
        is_check = isinstance(message, AllReduceMax)
        group = self._groups.all_that_step if is_check else self.group(message.group)
        if dist.get_world_size(group) == 1:
            # A group of one sends nothing and is not counted: with one rank a node, nothing is sent inside nodes.
            answer = answer.unsqueeze(0) if isinstance(message, AllGather) else answer
        else:
            # Nor is the finite check, of one byte a parameter.
            if self._on_sent is not None and not is_check:
                num_bytes = answer.numel() * answer.element_size()
                self._on_sent(Sent(message.collective, message.group, num_bytes))
            answer = self._carry(message, answer, group)
        if is_check or (isinstance(message, AllGather | AllReduceSum) and message.is_read_by_host):
            self._pending.wait(self._groups)
        return answer

    def _carry(self, message: Message, sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        uses_nccl, size = self._groups.uses_nccl, dist.get_world_size(group)
        if isinstance(message, SendRecv):
            if not uses_nccl:
                return send_recv(sent, group)
            received, position = torch.empty_like(sent), dist.get_rank(group)
            to, source = (dist.get_global_rank(group, (position + hop) % size) for hop in (1, -1))
            # Over NCCL sends and receives wait for each other unless they are one batch.
            batch = [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, received, source, group)]
            self._pending.add(dist.batch_isend_irecv(batch)[-1], group, sent.device)
            return received
        if isinstance(message, AllToAll):
            received = self._receive_buffer(sent)
            # Inside a node there is no wire to keep busy, and the collective is as fast.
            if message.group != "intra_node" and _is_long_row_on_gloo(sent[0], group):
                all_to_all_in_rounds(received, sent, group)
                return received
            collective = partial(dist.all_to_all_single, received, sent)
        elif isinstance(message, AllGather):
            received = torch.empty((size, *sent.shape), dtype=sent.dtype, device=sent.device)
            # Inside a node as well: there too gloo's all-gather is slower than the ring (decision 6).
            if _is_long_row_on_gloo(sent, group):
                all_gather_in_ring(received, sent, group)
                return received
            # all_gather_into_tensor became all_gather_single in PyTorch 2.13.
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            collective = partial(gather, received.view(-1), sent.reshape(-1))
        else:
            is_sum = isinstance(message, AllReduceSum)
            received = sent.clone() if isinstance(message, AllReduceSum) and not message.may_overwrite else sent
            collective = partial(dist.all_reduce, received, op=dist.ReduceOp.SUM if is_sum else dist.ReduceOp.MAX)
        # Over NCCL the call returns before it is done.
        work = collective(group=group, async_op=uses_nccl)
        if uses_nccl:
            self._pending.add(work, group, sent.device)
        return received

    def _receive_buffer(self, sent: torch.Tensor) -> torch.Tensor:
        """Return memory for an all-to-all, kept from one to the next."""
        # Fresh memory costs page faults in every step; the answer of an all-to-all is used up before the next one.
        num_bytes = sent.numel() * sent.element_size()
        if self._buffer.numel() < num_bytes or self._buffer.device != sent.device:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=sent.device)
        return self._buffer[:num_bytes].view(sent.dtype).view(sent.shape)


_LOCAL_ERRORS = tuple(
    getattr(torch, name) for name in ("OutOfMemoryError", "AcceleratorError") if hasattr(torch, name)
) or (torch.cuda.OutOfMemoryError,)  # before PyTorch 2.5
_LOCAL_TEXTS = ("CUDA error", "CUDA out of memory", "HIP error", "HIP out of memory", "DefaultCPUAllocator")


def is_own_failure(error: RuntimeError) -> bool:
    """Tell whether an error is this rank's own, such as too little memory, and no sign that another rank is gone."""
    if isinstance(error, dist.DistError):
        return False
    return isinstance(error, _LOCAL_ERRORS) or any(text in str(error) for text in _LOCAL_TEXTS)


def all_to_all_in_rounds(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Send row k of `sent` to position k and receive its row into row k of `received`, one row at a time.

    In round r every rank sends to the r-th rank after it and receives from the r-th before it. As long as ranks keep in
    step, every NIC sends one row and receives one row at a time. No barrier separates the rounds: a rank goes on when
    its own two rows are through.
    """
    position, size = dist.get_rank(group), dist.get_world_size(group)
    received[position].copy_(sent[position])
    for distance in range(1, size):
        # A rotation by `distance`: no two ranks send to the same one.
        to, source = (position + distance) % size, (position - distance) % size
        _exchange_rows(sent[to], to, received[source], source, group)


def all_gather_in_ring(gathered: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Receive `sent` of position k into row k of `gathered`; in every round each rank passes on what it got last."""
    position, size = dist.get_rank(group), dist.get_world_size(group)
    gathered[position].copy_(sent)
    # Each row travels once over each link of the ring; all links are busy in every round.
    for hop in range(size - 1):
        # The row that arrived in the last round (at first the own one) goes on; the row before it arrives.
        passed_on, arriving = (position - hop) % size, (position - hop - 1) % size
        _exchange_rows(gathered[passed_on], (position + 1) % size, gathered[arriving], (position - 1) % size, group)


def send_recv(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Send to the next position of a group, and return what the previous one has sent, of the same shape."""
    position, size = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(sent)
    _exchange_rows(sent, (position + 1) % size, received, (position - 1) % size, group)
    return received


def _exchange_rows(sent: torch.Tensor, to: int, received: torch.Tensor, source: int, group: dist.ProcessGroup) -> None:
    """Send to one position while receiving from another, and wait for both."""
    # Both are posted before either is waited for: if all ranks of a ring waited for their send first, none would
    # receive.
    works = (
        dist.irecv(received, src=dist.get_global_rank(group, source), group=group),
        dist.isend(sent, dst=dist.get_global_rank(group, to), group=group),
    )
    for work in works:
        if work is None:
            raise AssertionError("this rank is not in the group")
        work.wait()


def _is_long_row_on_gloo(row: torch.Tensor, group: dist.ProcessGroup) -> bool:
    """Return whether a row is long enough for rounds of its own, and gloo carries it."""
    long_enough = row.numel() * row.element_size() >= MIN_ROUND_BYTES
    return long_enough and row.device.type == "cpu" and "cpu:gloo" in dist.get_backend_config(group)
