"""Compare kernels, draws and packed signs with the reference where an index needs more than 31 bits, in slices.

The reference runs on the CPU.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from binsgdm.bench.gpu.comparisons import Comparisons
from binsgdm.bench.gpu.kernel_cases import BETA, BETA_B, GAIN, KEY
from binsgdm.bench.kernels import available
from binsgdm.bench.record import Record
from binsgdm.kernels import Kernels, functional, reference, select
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.random import GROUP_NUMEL, draws

SIZES = (2**27 + 5, 2**31 + 4099)
SLICE_NUMEL = 2**16
MERGED_VECTORS = 3

Slices = list[slice]


def check_large(
    device: torch.device, comparisons: Comparisons, record: Record, end_s: float, sizes: tuple[int, ...] = SIZES
) -> None:
    """Compare the fastest kernels of a card with the reference on slices of large tensors, as far as these fit.

    Args:
        device: the card.
        comparisons: where comparisons are counted.
        record: for what is left out.
        end_s: no case begins after this moment of the monotonic clock.
        sizes: elements.
    """
    kernels = select("triton" if "triton" in available(device) else "reference", device)
    for numel in sizes:
        for name, case in CASES.items():
            if time.monotonic() > end_s:
                record.note(f"{numel:,} elements: {name}: no time was left: give more with --budget")
                continue
            try:
                where = f"{numel:,} elements"
                for got, wanted in case(kernels, numel, device):
                    comparisons.compare(f"{kernels.name} on {device}, beyond 2^27: {name}", wanted, got, where)
            except torch.cuda.OutOfMemoryError:
                record.note(f"{numel:,} elements: {name}: do not fit into the memory: left out")
            if device.type == "cuda":
                torch.cuda.empty_cache()


def slices(numel: int) -> Slices:
    """Return the begin, the end, and the places where an index passes 2^30, 2^31 and, in bytes of fp32, 2^31.

    Each begins with a group of draws; the one at the end is longer by what the begin of its group takes.
    """
    firsts = [0, *(power - SLICE_NUMEL // 2 for power in (2**29, 2**30, 2**31)), numel - SLICE_NUMEL]
    whole = sorted({max(0, first) // GROUP_NUMEL * GROUP_NUMEL for first in firsts if first < numel})
    ends = [first + SLICE_NUMEL for first in whole]
    return [slice(first, numel if end > numel - GROUP_NUMEL else end) for first, end in zip(whole, ends, strict=True)]


def _bytes_of(part: slice) -> slice:
    return slice(part.start // 8, -(-part.stop // 8))


def _random(numel: int, device: torch.device, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(numel, device=device, dtype=dtype).normal_(generator=_source(device, seed))


def _signs(numel: int, device: torch.device, seed: int) -> Tensor:
    source = _source(device, seed)
    return torch.randint(256, (-(-numel // 8),), dtype=torch.uint8, device=device, generator=source)


def _source(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def _update_quantize_pack(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    grad, m = _random(numel, device, 1, torch.bfloat16), _random(numel, device, 2)
    b = m.abs()
    parts = slices(numel)
    before = [tuple(one[part].to("cpu", copy=True) for one in (grad, m, b)) for part in parts]
    out = torch.zeros(-(-numel // 8), dtype=torch.uint8, device=device)
    kernels.update_quantize_pack_(grad, m, b, beta=BETA, beta_b=BETA, key=KEY, start=0, out=out)
    found = []
    for part, (some_grad, some_m, some_b) in zip(parts, before, strict=True):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        reference.update_quantize_pack_(
            some_grad, some_m, some_b, beta=BETA, beta_b=BETA, key=KEY, start=part.start, out=signs
        )
        found += [(m[part], some_m), (b[part], some_b), (out[_bytes_of(part)], signs)]
    return found


def _quantize_pack(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    u = _random(numel, device, 3)
    out = torch.zeros(-(-numel // 8), dtype=torch.uint8, device=device)
    kernels.quantize_pack(u, key=KEY, start=0, out=out)
    found = []
    for part in slices(numel):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        reference.quantize_pack(u[part].cpu(), key=KEY, start=part.start, out=signs)
        found.append((out[_bytes_of(part)], signs))
    return found


def _unpack_apply(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    x, signs = _random(numel, device, 4), _signs(numel, device, 5)
    given: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01}
    wanted = [x[part].to("cpu", copy=True) for part in slices(numel)]
    kernels.unpack_apply_(x, signs, **given)
    for part, some_x in zip(slices(numel), wanted, strict=True):
        reference.unpack_apply_(some_x, signs[_bytes_of(part)].cpu(), **given)
    return [(x[part], some_x) for part, some_x in zip(slices(numel), wanted, strict=True)]


def _merge(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    rows = torch.stack([_signs(numel, device, seed) for seed in range(MERGED_VECTORS)])
    out = torch.zeros_like(rows[0])
    kernels.merge(rows, numel=numel, key=KEY, start=0, out=out)
    found = []
    for part in slices(numel):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        some = rows[:, _bytes_of(part)].cpu().contiguous()
        reference.merge(some, numel=part.stop - part.start, key=KEY, start=part.start, out=signs)
        found.append((out[_bytes_of(part)], signs))
    return found


def _update_shape_pack(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    grad, m = _random(numel, device, 1, torch.bfloat16), _random(numel, device, 2)
    b, residual = m.abs(), _residuals(functional.SCALE, numel, device, 7)
    parts = slices(numel)
    before = [tuple(one[part].to("cpu", copy=True) for one in (grad, m, b, residual)) for part in parts]
    out = torch.zeros(-(-numel // 8), dtype=torch.uint8, device=device)
    given: dict[str, Any] = {"beta": BETA, "beta_b": BETA_B, "gain": GAIN}
    kernels.update_shape_pack_(grad, m, b, residual, out=out, **given)
    found = []
    for part, some in zip(parts, before, strict=True):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        reference.update_shape_pack_(*some, out=signs, **given)
        _, *changed = zip((grad, m, b, residual), some, strict=True)
        found += [(whole[part], slice_) for whole, slice_ in changed] + [(out[_bytes_of(part)], signs)]
    return found


def _shape_pack(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    u, residual = _random(numel, device, 3), _residuals(functional.SCALE, numel, device, 7)
    parts = slices(numel)
    before = [residual[part].to("cpu", copy=True) for part in parts]
    out = torch.zeros(-(-numel // 8), dtype=torch.uint8, device=device)
    kernels.shape_pack_(u, residual, gain=GAIN, out=out)
    found = []
    for part, some in zip(parts, before, strict=True):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        reference.shape_pack_(u[part].cpu(), some, gain=GAIN, out=signs)
        found += [(residual[part], some), (out[_bytes_of(part)], signs)]
    return found


def _merge_shaped(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    rows = torch.stack([_signs(numel, device, seed) for seed in range(MERGED_VECTORS)])
    residual, parts = _residuals(MERGED_VECTORS, numel, device, 7), slices(numel)
    before = [residual[part].to("cpu", copy=True) for part in parts]
    out = torch.zeros_like(rows[0])
    kernels.merge_shaped_(rows, residual, numel=numel, out=out)
    found = []
    for part, some in zip(parts, before, strict=True):
        signs = torch.empty_like(out[_bytes_of(part)], device="cpu")
        some_rows = rows[:, _bytes_of(part)].cpu().contiguous()
        reference.merge_shaped_(some_rows, some, numel=part.stop - part.start, out=signs)
        found += [(residual[part], some), (out[_bytes_of(part)], signs)]
    return found


def _residuals(most: int, numel: int, device: torch.device, seed: int) -> Tensor:
    made = torch.empty(numel, dtype=torch.int16, device=device)
    return made.random_(-most, most + 1, generator=_source(device, seed))


def _mean(kernels: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    parts = _random(2 * numel, device, 6).view(2, numel)
    out = torch.zeros(numel, device=device)
    kernels.mean_(parts, out)
    return [(out[part], (parts[0, part].cpu() + parts[1, part].cpu()) / 2) for part in slices(numel)]


def _pack_signs(_: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    positive = _random(numel, device, 8, torch.bfloat16) > 0
    packed = pack_signs(positive)
    return [(packed[_bytes_of(part)], pack_signs(positive[part].cpu())) for part in slices(numel)]


def _unpack_signs(_: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    packed = _signs(numel, device, 9)
    signs = unpack_signs(packed, numel)
    return [
        (signs[part], unpack_signs(packed[_bytes_of(part)].cpu(), part.stop - part.start)) for part in slices(numel)
    ]


def _draws(_: Kernels, numel: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    drawn = draws(KEY, start=0, numel=numel, device=device)
    return [(drawn[part], draws(KEY, start=part.start, numel=part.stop - part.start)) for part in slices(numel)]


CASES: dict[str, Callable[[Kernels, int, torch.device], list[tuple[Tensor, Tensor]]]] = {
    "update_quantize_pack_": _update_quantize_pack,
    "quantize_pack": _quantize_pack,
    "unpack_apply_": _unpack_apply,
    "merge": _merge,
    "update_shape_pack_": _update_shape_pack,
    "shape_pack_": _shape_pack,
    "merge_shaped_": _merge_shaped,
    "mean_": _mean,
    "pack_signs": _pack_signs,
    "unpack_signs": _unpack_signs,
    "draws": _draws,
}
