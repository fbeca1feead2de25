"""The hot loops of BinSGDM: one interface and three implementations that give the same bits.

All of them work on contiguous segments. `start` is the global index of a segment's first element, a multiple of 8,
so that packed bytes of neighbouring segments never overlap.

Shape letters: N elements, P = ceil(N / 8) bytes, K vectors.
"""

import os
import warnings
from functools import cache
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels import triton_support
from binsgdm.kernels.columns import TensorColumn
from binsgdm.kernels.interface import Kernels
from binsgdm.kernels.triton_support import ENVIRONMENT_VARIABLE

__all__ = ["ENVIRONMENT_VARIABLE", "NAMES", "Kernels", "TensorColumn", "select", "zeros"]

NAMES = ("reference", "cpu", "triton")
_LINE_NUMEL = 16  # fp32 values of a cache line


def select(name: str | None = None, device: torch.device | str = "cpu") -> Kernels:
    """Return the kernels for a device.

    Args:
        name: One of `NAMES`; None takes the environment variable BINSGDM_KERNELS, and without it the fastest there is:
            "cpu" if numba can be imported, "triton" for CUDA if it works there, else "reference", on CUDA with a
            warning. On ROCm, whose tensors are torch's "cuda" as well, the same holds.
        device: Where the tensors are.

    Raises:
        BinsgdmError: If the name is unknown, or what it needs is missing, or it does not work on the device.
    """
    device = torch.device(device)
    where = "kernels" if name else ENVIRONMENT_VARIABLE
    name = name or os.environ.get(ENVIRONMENT_VARIABLE)
    if not name:
        return _fastest(device)
    if name not in NAMES:
        raise BinsgdmError(f"{where}: {name!r}: must be one of {', '.join(map(repr, NAMES))}")
    if reason := _obstacle(name, device):
        raise BinsgdmError(f"{where}: {name!r}: {reason}; drop it to let binsgdm choose")
    return _load(name)


def zeros(numel: int, device: torch.device | str = "cpu") -> Tensor:
    """Return fp32 zeros (N) for a momentum, on a CPU from memory with huge pages where the system offers them.

    numpy asks for them and torch does not; the update takes up to a tenth less (decision 5).
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(numel, device=device)
    # numpy's memory begins 16 bytes into a cache line, where every vector of 64 bytes would be in two.
    memory = np.empty(numel + _LINE_NUMEL, np.float32)
    first = -memory.ctypes.data // memory.itemsize % _LINE_NUMEL
    return torch.from_numpy(memory[first : first + numel]).zero_()


def _fastest(device: torch.device) -> Kernels:
    name = {"cpu": "cpu", "cuda": "triton"}.get(device.type, "reference")
    reason = _obstacle(name, device)
    if reason and device.type == "cuda":
        _warn(f"kernels: 'reference' is used on {device.type}, as 'triton', which is faster,  {reason}")
    return _load("reference" if reason else name)


@cache
def _warn(sentence: str) -> None:
    """Warn once: kernels are chosen anew for every session."""
    warnings.warn(sentence, stacklevel=4)


def _obstacle(name: str, device: torch.device) -> str:
    """Say why a kind of kernels cannot be used, or return an empty string."""
    needs = {"reference": ("torch", device.type), "cpu": ("numba", "cpu"), "triton": ("triton", "cuda")}
    library, device_type = needs[name]
    interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != device_type and not interpreted:
        return f"works on {device_type} tensors, but the parameters are on {device.type}"
    if name == "triton":
        return triton_support.obstacle(device)
    try:
        import_module(library)
    except ImportError as error:
        return f"needs {library}, which cannot be imported ({error}): pip install {library}"
    return ""


@cache
def _load(name: str) -> Kernels:
    return Kernels(name, import_module(f"binsgdm.kernels.{'triton_kernels' if name == 'triton' else name}"))
