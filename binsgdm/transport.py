"""Carry the messages of an exchange over torch.distributed."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import AllToAll, Conversation, GroupName, Message
from binsgdm.groups import Groups

T = TypeVar("T")


class Sent(NamedTuple):
    """One collective as this rank took part in it: what, in which group, and the bytes of the tensor that it gave."""

    collective: str
    group: GroupName
    num_bytes: int


class Transport:
    """Drives conversations over process groups.

    Collectives run one after the other, in the order in which the conversation asks for them, which is the same on all
    ranks. A rank that is gone makes them fail (or time out) here.
    """

    def __init__(self, groups: Groups, on_sent: Callable[[Sent], None] | None = None) -> None:
        self._groups = groups
        self._on_sent = on_sent

    def run(self, conversation: Conversation) -> torch.Tensor:
        """Carry every message and return what the conversation returns."""
        answer: torch.Tensor | None = None
        while True:
            try:
                message = conversation.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                signs: torch.Tensor = stop.value
                return signs
            answer = self._guarded(partial(self._carry, message), f"{type(message).__name__} in {message.group}")

    def largest(self, flags: torch.Tensor) -> torch.Tensor:
        """Return the element-wise maximum of uint8 flags over all ranks, in place."""
        if self._groups.world_size > 1:
            reduce = partial(dist.all_reduce, flags, op=dist.ReduceOp.MAX, group=self._groups.world)
            self._guarded(reduce, "all_reduce of flags in world")
        return flags

    def _guarded(self, collective: Callable[[], T], what: str) -> T:
        """Call a collective; say in a sentence that it failed."""
        try:
            return collective()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BinsgdmError(
                f"BinSGDM: {what} failed on rank {self._groups.rank} ({reason}): a rank is gone or did not take this "
                "step; start all ranks again from their checkpoints"
            ) from error

    def _carry(self, message: Message) -> torch.Tensor:
        group: dist.ProcessGroup = getattr(self._groups, message.group)
        size = dist.get_world_size(group)
        name = "all_to_all" if isinstance(message, AllToAll) else "all_gather"
        sent = message.sent.contiguous()
        if size == 1:
            return sent if isinstance(message, AllToAll) else sent.unsqueeze(0)
        if self._on_sent is not None:
            self._on_sent(Sent(name, message.group, sent.numel() * sent.element_size()))
        if isinstance(message, AllToAll):
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group)
            return received
        gathered = torch.empty((size, *sent.shape), dtype=sent.dtype, device=sent.device)
        _all_gather(gathered, sent, group)
        return gathered


def _all_gather(gathered: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Gather under either name: all_gather_into_tensor became all_gather_single in PyTorch 2.13."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered.view(-1), sent.reshape(-1), group=group)
