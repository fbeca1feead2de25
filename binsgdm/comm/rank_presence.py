"""Learn from the store of torch.distributed which ranks are at the same point: NCCL cannot tell who is missing."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from binsgdm.comm.groups import Groups, store_key, timeout_of
from binsgdm.comm.stores import default_store
from binsgdm.errors import BinsgdmError

LONGEST_POLL_S = 0.05


def meet(where: str, group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
    """Wait until all ranks of a group are here; every one of them must call it, as often as the others.

    Args:
        where: begins the message.
        group: default all ranks.
        timeout: after which the ranks that are here give up; default that of the group.

    Raises:
        BinsgdmError: a rank did not come, by its number.
    """
    group = group or dist.group.WORLD
    assert group is not None  # torch.distributed is initialized
    timeout = timeout or timeout_of(group)
    ranks = dist.get_process_group_ranks(group)
    store, name = default_store(), store_key("meet", group.group_name)
    number = (store.add(f"{name}/arrived", 1) - 1) // len(ranks)  # how often all ranks have met before
    store.set(f"{name}/{number}/{dist.get_rank()}", "here")
    start, poll_s = time.monotonic(), 1e-3
    while store.add(f"{name}/arrived", 0) < (number + 1) * len(ranks):
        if time.monotonic() - start > timeout.total_seconds():
            missing = [rank for rank in ranks if not store.check([f"{name}/{number}/{rank}"])]
            raise BinsgdmError(
                f"{where}: {_ranks(missing)} did not come within {timeout.total_seconds():g} s: every rank must call "
                "it; read there why"
            )
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, LONGEST_POLL_S)


def has_store() -> bool:
    """Tell whether the store still answers; it ends with the process that has it, that of rank 0 or torchrun's."""
    try:
        default_store().check(["binsgdm"])
    except RuntimeError:
        return False
    return True


def sign_in(groups: Groups, number: int) -> None:
    """Note that this rank waits for the others, for the n-th time."""
    with suppress(RuntimeError):  # without the store nobody can be named
        default_store().set(_key(groups, dist.get_rank()), str(number))


def missing_ranks(groups: Groups, number: int) -> str:
    """Return which ranks do not wait as often as this one, in words that begin with a comma; empty if unknown."""
    ranks, store = dist.get_process_group_ranks(groups.all_that_step), default_store()
    with suppress(RuntimeError):
        missing = [rank for rank in ranks if _number_of(store, _key(groups, rank)) != number]
        if 0 < len(missing) < len(ranks):
            return f", {_ranks(missing)} not among those that wait"
    return ""


def _number_of(store: Any, key: str) -> int | None:
    return int(store.get(key)) if store.check([key]) else None


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {list(numbers)}"


def _key(groups: Groups, rank: int) -> str:
    return store_key("waits", groups.all_that_step.group_name, rank)
