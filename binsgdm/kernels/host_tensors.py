"""Numbers of the host as tensors on a device, without a wait for it.

`torch.tensor(numbers, device="cuda")` copies from pageable memory, for which torch waits until all that was enqueued
before is done.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch

_MAX_CONSTANTS = 256  # small tensors; those of all buckets of a model


@lru_cache(maxsize=_MAX_CONSTANTS)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers that are the same in every step; copied to a device once, then kept. Nobody may change them.

    Shape:
        values: (N,); returned: (N,).
    """
    # Copied with a wait, so that any stream may read it afterwards.
    return torch.tensor(values, dtype=dtype, device=device)


def upload(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers that may be others in the next step, for what is enqueued on the current stream.

    Shape:
        values: (N,); returned: (N,).
    """
    return upload_tensor(torch.tensor(values, dtype=dtype, device="cpu"), device)


def upload_tensor(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a small CPU tensor on a device, for what is enqueued on the current stream."""
    # From pinned memory, which torch keeps until the copy is done, the host does not wait.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
