"""Abort an exchange: a rank that cannot go on writes its reason to the store and closes its connections.

Otherwise the other ranks would wait in a collective for as long as its timeout, and then report the timeout in place of
the reason.
"""

from typing import Any

import torch.distributed as dist

from binsgdm.exchange.groups import Groups


def abort(groups: Groups, reason: str) -> None:
    """Tell the others why, and make every collective with this rank fail; the groups cannot be used any more.

    Connections close when the last reference to a group is gone, so the caller must drop `groups`. Over gloo the others
    fail at once; over NCCL, whose groups stay, when their collectives time out.

    Args:
        groups: of this rank; every reference to them is to be dropped after this.
        reason: one sentence. Only that of the first to abort is kept.
    """
    store, key = _store_and_key(groups)
    # The first reason is the cause; the ranks that fail because of it abort as well, with less to say.
    if not store.check([key]):
        store.set(key, f"rank {groups.rank} refused: {reason}")
    for group in (groups.world, groups.intra_node, groups.inter_node):
        # Only gloo fails the other ranks' collectives at once when a connection closes. NCCL groups stay open, and the
        # other ranks notice when their collective times out (ADR 8).
        if "nccl" not in dist.get_backend_config(group):
            dist.destroy_process_group(group)


def abort_reason(groups: Groups) -> str | None:
    """Return the reason of the first rank that aborted, or None if no rank has."""
    try:
        store, key = _store_and_key(groups)
        return store.get(key).decode() if store.check([key]) else None
    except RuntimeError:  # the store is gone with the rank that had it
        return None


def _store_and_key(groups: Groups) -> tuple[Any, str]:
    """Return the store of all ranks and the key of these groups in it."""
    store = dist.distributed_c10d._get_default_store()  # torch has no public name for it
    return store, f"binsgdm/refused/{groups.world.group_name}"
