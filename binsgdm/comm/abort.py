"""Abort an exchange: a rank that cannot go on writes its reason to the store and closes its connections.

Otherwise the other ranks would wait in a collective for as long as its timeout, and then report the timeout in place of
the reason.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.comm.groups import Groups, store_key
from binsgdm.comm.stores import StoreError, ask

ABORT_S = 20.0  # for which NCCL may take to stop its kernels; after it the sentence is told all the same


def abort(groups: Groups, reason: str) -> None:
    """Tell the others why, and make every collective with this rank fail; the groups cannot be used any more.

    Over gloo connections close when the last reference to a group is gone, so the caller must drop `groups`, and the
    others fail at once. Over NCCL this rank's kernels stop, and the others find the reason in the store while they wait
    (`binsgdm.comm.nccl_wait`).

    Args:
        groups: of this rank; every reference to them is to be dropped after this.
        reason: one sentence. Only that of the first to abort is kept.
    """
    _leave(groups, f"rank {dist.get_rank()} refused: {reason}")


def give_up(groups: Groups, sentence: str) -> None:
    """Do as `abort`, where this rank did not refuse, but waited in vain for others."""
    _leave(groups, f"rank {dist.get_rank()} gave up: {sentence}")


def abort_reason(groups: Groups) -> str | None:
    """Return the reason of the first rank that aborted, or None if no rank has."""
    key = _key(groups)
    try:
        return ask(lambda store: store.get(key).decode() if store.check([key]) else None)
    except StoreError:  # it is gone with the rank that had it
        return None


def _leave(groups: Groups, reason: str) -> None:
    key = _key(groups)
    # Where the store is gone, so is the rank that had it, and all others are told of that by their own means.
    with suppress(StoreError):
        # The first reason is the cause; the ranks that fail because of it abort as well, with less to say.
        ask(lambda store: store.check([key]) or store.set(key, reason))
    close(groups)


def close(groups: Groups) -> None:
    """Make every collective with this rank fail, without a reason; see `abort`."""
    if groups.uses_nccl:
        _abort_communicators(groups.distinct)
        return
    for group in groups.distinct:
        # gloo fails the other ranks' collectives at once when a connection closes.
        dist.destroy_process_group(group)


def _abort_communicators(groups: Sequence[dist.ProcessGroup]) -> None:
    """Stop the kernels of these groups, which would spin for ever on a rank that is gone."""
    # All at once: to abort one communicator NCCL waits for the GPU, where a kernel of another may spin.
    threads = [threading.Thread(target=_abort_communicator, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ABORT_S)


def _abort_communicator(group: dist.ProcessGroup) -> None:
    # Whoever aborts has a sentence to raise, of which an error here would be a consequence.
    with suppress(RuntimeError):
        # Of the backend alone: that of a group with gloo beside NCCL need not have an abort.
        backend: Any = group._get_backend(torch.device("cuda"))
        backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
        # Before PyTorch 2.6 what a backend of NCCL calls shutdown aborts.
        stop = backend.abort if hasattr(backend, "abort") else backend._shutdown
        stop()


def _key(groups: Groups) -> str:
    return store_key("refused", groups.all_that_step.group_name)
