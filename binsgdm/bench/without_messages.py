"""Answer every message of a training at once, as if all ranks had sent the same: what is left is a step's own work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Message
from binsgdm.comm.transport import Transport

_COMMUNICATE = Transport._communicate


@contextmanager
def answered_at_once() -> Iterator[None]:
    """Let transports of this process send nothing; all ranks of a training must do so, or those that send would wait.

    What carries messages is replaced here and not in `Transport`, since nobody who trains may come upon such a switch.
    """
    answers = _Answers()

    def answer(transport: Transport, message: Message) -> torch.Tensor:
        return answers.to(transport, message)

    Transport._communicate = answer  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Transport._communicate = _COMMUNICATE  # type: ignore[method-assign]


def is_answered_at_once() -> bool:
    """Tell whether messages of this process are answered at once; DDP's own go by no transport, and need a hook."""
    return Transport._communicate is not _COMMUNICATE


class _Answers:
    """What ranks would receive if all sent what they send, without a copy where one can do without.

    Copying is work of the messages, which are measured by themselves. Payloads, which are bytes, are copied: they are
    few, and each can only be decoded as the piece of a bucket that it encodes, since pieces differ in length.
    """

    def __init__(self) -> None:
        self._scattered: WeakKeyDictionary[Transport, torch.Tensor] = WeakKeyDictionary()

    def to(self, transport: Transport, message: Message) -> torch.Tensor:
        """Return the answer to a message of this rank."""
        sent = message.sent.contiguous()
        group = getattr(transport._groups, message.group)
        size = dist.get_world_size(group)
        is_payload = sent.dtype == torch.uint8 and size > 1
        if isinstance(message, AllToAll) and is_payload:
            self._scattered[transport] = sent
            return sent[dist.get_rank(group)].expand_as(sent).contiguous()  # all that comes is of this rank's piece
        if isinstance(message, AllGather):
            pieces = self._scattered.pop(transport, None)
            if pieces is not None and is_payload and pieces.shape == (size, *sent.shape):
                return pieces.clone()  # of every piece a payload, as owners send them
            return sent.unsqueeze(0).expand(size, *sent.shape).contiguous()  # of a group of one no copy, as there
        return sent * size if isinstance(message, AllReduceSum) and size > 1 else sent


def keep_bucket(
    _state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:
    """Hand a bucket of DDP back as it is: a communication hook."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
