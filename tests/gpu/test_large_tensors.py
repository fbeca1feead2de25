"""Kernels, draws and packed signs where an index needs more than 31 bits, against the reference on the CPU, in slices.

Without a card a thousand elements are cut as billions are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor

from binsgdm.kernels import functional, select
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.random import GROUP_NUMEL, draws
from tests.helpers.kernel_samples import KEY, reference, same_bits
from tests.helpers.kernel_samples import device as device_name

IS_CARD = device_name() == "cuda"
BYTES_PER_ELEMENT = 24  # and less is made of any case
MEMORY_BYTES = torch.cuda.get_device_properties(0).total_memory if IS_CARD else 0
ALL_SIZES, SLICE_NUMEL = ((2**27 + 5, 2**31 + 4099), 2**16) if IS_CARD else ((2**10 + 5,), 2**8)
SIZES = [numel for numel in ALL_SIZES if not IS_CARD or numel * BYTES_PER_ELEMENT < MEMORY_BYTES]
HOW: dict[str, Any] = {"beta": 0.95, "beta_b": 0.99}
APPLIED: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}
NUM_ROWS = 3


class Made:
    """Makes random tensors of so many elements on a device."""

    def __init__(self, numel: int, device: torch.device) -> None:
        self._numel, self._device = numel, device
        self._source = torch.Generator(device).manual_seed(1)

    def normal(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(self._numel, device=self._device, dtype=dtype).normal_(generator=self._source)

    def signs(self, *rows: int) -> Tensor:
        made = torch.empty(*rows, packed_numel(self._numel), dtype=torch.uint8, device=self._device)
        return made.random_(256, generator=self._source)

    def residuals(self, most: int) -> Tensor:
        made = torch.empty(self._numel, dtype=torch.int16, device=self._device)
        return made.random_(-most, most + 1, generator=self._source)

    def gradient_and_averages(self) -> list[Tensor]:
        m = self.normal()
        return [self.normal(torch.bfloat16), m, m.abs()]


# What is made, and what is called with kernels, the tensors, the first element and how many; it writes into tensors, or
# returns another.
CASES: dict[str, tuple[Callable[[Made], list[Tensor]], Callable[..., Tensor | None]]] = {
    "update_quantize_pack_": (
        lambda made: [*made.gradient_and_averages(), made.signs()],
        lambda k, t, start, _: k.update_quantize_pack_(*t[:3], key=KEY, start=start, out=t[3], **HOW) and None,
    ),
    "quantize_pack": (
        lambda made: [made.normal(), made.signs()],
        lambda k, t, start, _: k.quantize_pack(t[0], key=KEY, start=start, out=t[1]),
    ),
    "unpack_apply_": (lambda made: [made.normal(), made.signs()], lambda k, t, *_: k.unpack_apply_(*t, **APPLIED)),
    "merge": (
        lambda made: [made.signs(NUM_ROWS), made.signs()],
        lambda k, t, start, numel: k.merge(t[0], numel=numel, key=KEY, start=start, out=t[1]),
    ),
    "update_shape_pack_": (
        lambda made: [*made.gradient_and_averages(), made.residuals(functional.SCALE), made.signs()],
        lambda k, t, *_: k.update_shape_pack_(*t[:4], gain=2.5, out=t[4], **HOW) and None,
    ),
    "shape_pack_": (
        lambda made: [made.normal(), made.residuals(functional.SCALE), made.signs()],
        lambda k, t, *_: k.shape_pack_(t[0], t[1], gain=2.5, out=t[2]),
    ),
    "merge_shaped_": (
        lambda made: [made.signs(NUM_ROWS), made.residuals(NUM_ROWS), made.signs()],
        lambda k, t, _, numel: k.merge_shaped_(t[0], t[1], numel=numel, out=t[2]),
    ),
    "mean_": (
        lambda made: [torch.stack([made.normal(), made.normal()]), made.normal()],
        lambda k, t, *_: k.mean_(*t),
    ),
    "pack_signs": (lambda made: [made.normal(torch.bfloat16) > 0], lambda _, t, *__: pack_signs(t[0])),
    "unpack_signs": (lambda made: [made.signs()], lambda _, t, __, numel: unpack_signs(t[0], numel)),
    "draws": (
        lambda made: [made.signs()],
        lambda _, t, start, numel: draws(KEY, start=start, numel=numel, device=t[0].device),
    ),
}


def slices(numel: int) -> list[slice]:
    """Return the begin, the end, and the places where an index passes 2^30, 2^31 and, in bytes of fp32, 2^31.

    Each begins with a group of draws; the one at the end is longer by what the begin of its group takes.
    """
    firsts = [0, *(power - SLICE_NUMEL // 2 for power in (2**29, 2**30, 2**31)), numel - SLICE_NUMEL]
    whole = sorted({max(0, first) // GROUP_NUMEL * GROUP_NUMEL for first in firsts if first < numel})
    return [slice(first, numel if (end := first + SLICE_NUMEL) > numel - GROUP_NUMEL else end) for first in whole]


def cut(tensor: Tensor, part: slice) -> Tensor:
    """Return elements of a tensor, or the bytes that hold their signs."""
    return tensor[..., part if tensor.dtype != torch.uint8 else slice(part.start // 8, packed_numel(part.stop))]


def wrong_tensors(name: str, kernels: Any, numel: int, device: torch.device) -> list[int]:
    """Return the numbers of the tensors that differ from what the reference makes of slices."""
    make, call = CASES[name]
    tensors = make(Made(numel, device))
    before = [[cut(tensor, part).to("cpu", copy=True).contiguous() for tensor in tensors] for part in slices(numel)]
    found = _with_returned(tensors, call(kernels, tensors, 0, numel))
    wrong = []
    for part, some in zip(slices(numel), before, strict=True):
        wanted = _with_returned(some, call(reference, some, part.start, part.stop - part.start))
        pairs = zip(wanted, found, strict=True)
        wrong += [number for number, (one, other) in enumerate(pairs) if not same_bits(one, cut(other, part))]
    return wrong


def _with_returned(tensors: Sequence[Tensor], returned: Tensor | None) -> list[Tensor]:
    return [*tensors, *([] if returned is None else [returned])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("numel", SIZES)
def test_slices_of_a_large_tensor_have_the_bits_of_the_reference(device: torch.device, numel: int, name: str) -> None:
    assert wrong_tensors(name, select(None, device), numel, device) == []
    if device.type == "cuda":
        torch.cuda.empty_cache()
