"""Whether Triton can be used on a device, and how its programs are launched."""

import os
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

ENVIRONMENT_VARIABLE = "BINSGDM_KERNELS"
# Before 3.6, a division rounded to nearest still flushes subnormal numbers to 0, and 0 / 0 is NaN.
LEAST_TRITON = (3, 6)
LEAST_CAPABILITY = (7, 0)
# Registers a thread: of 64, eight programs of 128 threads share a multiprocessor, which keeps loads under way; the
# larger programs would spill theirs to memory, and take more.
_MANY_PROGRAMS = 64
FEW_PROGRAMS = 96

Words = tuple[int, int, int, int, int]


def obstacle(device: torch.device) -> str:
    """Say why Triton cannot be used on a CUDA device, or return an empty string."""
    try:
        version = import_module("triton").__version__
    except ImportError as error:
        return f"needs triton, which cannot be imported ({error}): pip install triton"
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_TRITON:
        return f"needs Triton {_dotted(LEAST_TRITON)} or newer, as torch 2.9 and newer bring it, and finds {version}"
    if device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip:
        return ""
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"needs compute capability {_dotted(LEAST_CAPABILITY)}, and {device} has {_dotted(capability)}"
    return ""


def is_used_on(device: torch.device) -> bool:
    """Tell whether what plain torch computes in many passes is left to Triton: on a GPU, unless told otherwise."""
    return device.type == "cuda" and os.environ.get(ENVIRONMENT_VARIABLE) != "reference" and _has_triton(device)


@cache
def _has_triton(device: torch.device) -> bool:
    return not obstacle(device)


def launch(
    program: Any,
    num_programs: int,
    first: Tensor,
    *arguments: object,
    registers: int = _MANY_PROGRAMS,
    **constants: Any,
) -> None:
    """Launch a program on the current stream of the device of its first argument."""
    if num_programs == 0:
        return
    # Triton launches on the current device, which need not be that of the tensors.
    with torch.cuda.device(first.device if first.is_cuda else -1):
        program[(num_programs,)](first, *arguments, **constants, **options(first.device, registers))


def options(device: torch.device, registers: int) -> dict[str, Any]:
    """Return how programs are compiled for a device."""
    # With fusion, Triton's choice, a product and a sum would be rounded only once.
    chosen: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
    if device.type == "cuda" and not torch.version.hip:
        chosen["maxnreg"] = registers
    return chosen


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
