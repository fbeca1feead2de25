"""The precisions in which a model is trained on a GPU: fp32, tf32, and autocast to bf16 and fp16."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("bf16", "tf32", "fp16", "fp32")
"""In the order in which they are measured."""
FIRST_WITH_TF32_AND_BF16 = (8, 0)  # compute capability of A100


def refusal(precision: str, device: torch.device) -> str:
    """Say in a sentence why a device has no such precision, or return an empty string."""
    if device.type != "cuda":
        wanted = {"tf32": "tf32 is a mode of NVIDIA's tensor cores", "fp16": "fp16 is slow on a CPU"}
        return f"{wanted[precision]}: left out on a CPU" if precision in wanted else ""
    if precision == "tf32" and torch.version.hip is not None:
        return "tf32 is a mode of NVIDIA's tensor cores: left out"
    capability = torch.cuda.get_device_capability(device)
    if precision in {"tf32", "bf16"} and torch.version.hip is None and capability < FIRST_WITH_TF32_AND_BF16:
        return f"{precision} needs compute capability 8.0, and the card has {capability[0]}.{capability[1]}: left out"
    return ""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a forward runs in a precision."""
    dtype = AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """Let fp32 matrix products and convolutions round to tf32 if that is the precision, else not."""
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed
