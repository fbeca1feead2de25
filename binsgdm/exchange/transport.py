"""Carry the messages of an exchange over torch.distributed."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from binsgdm.exchange.abort import abort, abort_reason
from binsgdm.exchange.groups import Groups
from binsgdm.exchange.messages import (
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

T = TypeVar("T")

# Over gloo, rows of this size and larger travel one at a time: that keeps a wire busier than gloo's collectives do.
# Shorter rows go by the collectives, which wait less often (ADR 6).
MIN_ROUND_BYTES = 128 * 1024

# Names of nccl-tests, and of simnet's schedules: contract tests compare both sides by them.
COLLECTIVES: dict[type, str] = {
    AllToAll: "all_to_all",
    AllGather: "all_gather",
    SendRecv: "send_recv",
    AllReduceSum: "all_reduce",
}


class Sent(NamedTuple):
    """One collective as this rank took part in it: what, in which group, and the bytes of the tensor that it gave."""

    collective: str
    group: GroupName
    num_bytes: int


class Transport:
    """Drives protocols over process groups.

    Collectives run one after the other, in the order in which the protocol asks for them, which is the same on all
    ranks. A rank that is gone makes them fail (or time out) here.
    """

    def __init__(self, groups: Groups, on_sent: Callable[[Sent], None] | None = None) -> None:
        self._groups = groups
        self._on_sent = on_sent
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def member(self) -> Member:
        """Return this rank as an optimizer takes it, with messages carried here."""
        groups = self._groups
        return Member(
            rank=groups.rank, world_size=groups.world_size, ranks_per_node=groups.ranks_per_node, run=self.run
        )

    def run(self, protocol: Protocol) -> torch.Tensor:
        """Carry every message and return what the protocol returns."""
        answer: torch.Tensor | None = None
        while True:
            try:
                message = protocol.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                result: torch.Tensor = stop.value
                return result
            answer = self.guarded(partial(self._communicate, message), f"{type(message).__name__} in {message.group}")

    def abort(self, reason: str) -> None:
        """Tell the others why this rank cannot go on, and close its connections; nothing can be carried any more."""
        groups = self._groups
        del self._groups  # what failed may still hold this object, and an open group lets the others wait
        abort(groups, reason)

    def guarded(self, collective: Callable[[], T], what: str) -> T:
        """Call a collective.

        Raises:
            BinsgdmError: it failed; with the reason of the rank that aborted, if one did.
        """
        try:
            return collective()
        except RuntimeError as error:
            if (refused := abort_reason(self._groups)) is not None:
                raise BinsgdmError(
                    f"{refused} (reported by rank {self._groups.rank}, which cannot continue)"
                ) from error
            reason = str(error).splitlines()[0]
            raise BinsgdmError(
                f"BinSGDM: {what} failed on rank {self._groups.rank} ({reason}): a rank is gone or did not take this "
                "step; restart all ranks from their checkpoints"
            ) from error

    def _communicate(self, message: Message) -> torch.Tensor:
        sent = message.sent.contiguous()
        if isinstance(message, AllReduceMax):
            return self._all_reduce_max(sent)
        group: dist.ProcessGroup = getattr(self._groups, message.group)
        if dist.get_world_size(group) == 1:
            # A group of one sends nothing and is not counted: with one rank a node, nothing is sent inside nodes.
            return sent.unsqueeze(0) if isinstance(message, AllGather) else sent
        if self._on_sent is not None:
            self._on_sent(Sent(COLLECTIVES[type(message)], message.group, sent.numel() * sent.element_size()))
        return _COMMUNICATE[type(message)](self, sent, group, message.group)

    def _all_reduce_max(self, flags: torch.Tensor) -> torch.Tensor:
        """Return the maximum over all ranks that step together; `on_sent` does not count it: one byte a parameter."""
        group = self._groups.finite_check or self._groups.world
        if dist.get_world_size(group) > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
        return flags

    def _all_reduce(self, sent: torch.Tensor, group: dist.ProcessGroup, _name: GroupName) -> torch.Tensor:
        total = sent.clone()
        dist.all_reduce(total, group=group)
        return total

    def _all_to_all(self, sent: torch.Tensor, group: dist.ProcessGroup, name: GroupName) -> torch.Tensor:
        received = self._receive_buffer(sent)
        # Inside a node there is no wire to keep busy, and the collective is as fast.
        in_rounds = name != "intra_node" and _is_long_row_on_gloo(sent[0], group)
        (all_to_all_in_rounds if in_rounds else all_to_all_by_collective)(received, sent, group)
        return received

    def _all_gather(self, sent: torch.Tensor, group: dist.ProcessGroup, _name: GroupName) -> torch.Tensor:
        gathered = torch.empty((dist.get_world_size(group), *sent.shape), dtype=sent.dtype, device=sent.device)
        # Inside a node as well: there too gloo's all-gather is slower than the ring (ADR 6).
        in_ring = _is_long_row_on_gloo(sent, group)
        (all_gather_in_ring if in_ring else all_gather_by_collective)(gathered, sent, group)
        return gathered

    def _receive_buffer(self, sent: torch.Tensor) -> torch.Tensor:
        """Return memory for an all-to-all, kept from one to the next."""
        # Fresh memory costs page faults in every step; the answer of an all-to-all is used up before the next one.
        num_bytes = sent.numel() * sent.element_size()
        if self._buffer.numel() < num_bytes or self._buffer.device != sent.device:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=sent.device)
        return self._buffer[:num_bytes].view(sent.dtype).view(sent.shape)


_COMMUNICATE: dict[type, Callable[[Transport, torch.Tensor, dist.ProcessGroup, GroupName], torch.Tensor]] = {
    AllToAll: Transport._all_to_all,
    AllGather: Transport._all_gather,
    AllReduceSum: Transport._all_reduce,
    SendRecv: lambda _, sent, group, _name: send_recv(sent, group),
}


def all_to_all_by_collective(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Do the same as `all_to_all_in_rounds`, in torch's way, on any backend."""
    dist.all_to_all_single(received, sent, group=group)


def all_gather_by_collective(gathered: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Do the same as `all_gather_in_ring`, on any backend.

    Under either name: all_gather_into_tensor became all_gather_single in PyTorch 2.13.
    """
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered.view(-1), sent.reshape(-1), group=group)


def all_to_all_in_rounds(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Send row k of `sent` to position k and receive its row into row k of `received`, one row at a time.

    In round r every rank sends to the r-th rank after it and receives from the r-th before it. As long as ranks keep in
    step, every NIC sends one row and receives one row at a time. No barrier separates the rounds: a rank goes on when
    its own two rows are through.

    Args:
        received: as `sent`, contiguous; written.
        sent: one row a rank, contiguous, any dtype.
        group: gloo; every rank of it calls.

    Raises:
        RuntimeError: from torch: a rank is gone, or did not take part in time.
    """
    position, size = dist.get_rank(group), dist.get_world_size(group)
    received[position].copy_(sent[position])
    for distance in range(1, size):
        # A rotation by `distance`: no two ranks send to the same one.
        to, source = (position + distance) % size, (position - distance) % size
        _exchange_rows(sent[to], to, received[source], source, group)


def all_gather_in_ring(gathered: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Receive `sent` of position k into row k of `gathered`; in every round each rank passes on what it got last.

    Args:
        gathered: one row a rank, each as `sent`, contiguous; written.
        sent: contiguous, any dtype.
        group: gloo; every rank of it calls.

    Raises:
        RuntimeError: from torch: a rank is gone, or did not take part in time.
    """
    position, size = dist.get_rank(group), dist.get_world_size(group)
    gathered[position].copy_(sent)
    # Each row travels once over each link of the ring; all links are busy in every round.
    for hop in range(size - 1):
        # The row that arrived in the last round (at first the own one) goes on; the row before it arrives.
        passed_on, arriving = (position - hop) % size, (position - hop - 1) % size
        _exchange_rows(gathered[passed_on], (position + 1) % size, gathered[arriving], (position - 1) % size, group)


def send_recv(sent: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Send to the next position of a group while receiving from the previous, and wait for both.

    Args:
        sent: any dtype and shape, contiguous, the same on all ranks of the group.
        group: every rank of it calls.

    Returns:
        What the previous position sent, a new tensor.

    Raises:
        RuntimeError: from torch: a rank is gone, or did not take part in time.
    """
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
