"""Answer every message of a training at once, as if all ranks had sent the same: what is left is a step's own work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.exchange import AllGather, AllReduceSum, Message
from binsgdm.exchange.transport import Transport


@contextmanager
def answered_at_once() -> Iterator[None]:
    """Let transports of this process send nothing; all ranks of a training must do so, or those that send would wait.

    What carries messages is replaced here and not in `Transport`, since nobody who trains may come upon such a switch.
    """
    carry, finite_check = Transport._carry, Transport._all_reduce_max
    Transport._carry, Transport._all_reduce_max = _answer, _own_flags  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Transport._carry, Transport._all_reduce_max = carry, finite_check  # type: ignore[method-assign]


def is_answered_at_once() -> bool:
    """Tell whether messages of this process are answered at once; DDP's own go by no transport, and need a hook."""
    return Transport._carry is _answer


def _answer(self: Transport, message: Message, sent: torch.Tensor) -> torch.Tensor:
    """Return what this rank would receive if all ranks sent what it sends, without a copy where one can do without.

    Copying is work of the messages, which are measured by themselves.
    """
    size = dist.get_world_size(getattr(self._groups, message.group))
    if isinstance(message, AllGather):
        return sent.unsqueeze(0).expand(size, *sent.shape).contiguous()  # of a group of one no copy, as in `_carry`
    return sent * size if isinstance(message, AllReduceSum) and size > 1 else sent


def _own_flags(_self: Transport, flags: torch.Tensor) -> torch.Tensor:
    return flags


def keep_bucket(
    _state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:
    """Hand a bucket of DDP back as it is: a communication hook."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
