"""Count what a call costs the host of a GPU: waits until the GPU has caught up, and requests for memory."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

REQUESTS = "allocation.all.allocated"  # of torch.cuda.memory_stats: blocks handed out so far


class CallCost(NamedTuple):
    """How often a call waits for the GPU, and asks PyTorch's allocator for memory."""

    waits: int
    requests: int


def host_cost(call: Callable[[], object]) -> CallCost:
    """Make a call, and count. PyTorch warns of every operation of its own for which the host waits."""
    before = torch.cuda.memory_stats().get(REQUESTS, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    requests = torch.cuda.memory_stats().get(REQUESTS, 0) - before
    return CallCost(sum("synchronizing CUDA operation" in str(one.message) for one in caught), requests)
