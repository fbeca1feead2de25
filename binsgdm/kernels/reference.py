"""The kernels in plain torch, one tensor after the other, for any device: what the fast ones must equal bit for bit."""

# ruff: noqa: D103 - `binsgdm.kernels.interface.Kernels` says what these do

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from binsgdm.kernels import functional
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.columns import Columns
from binsgdm.kernels.keys import Key
from binsgdm.kernels.random import thresholds


@torch.no_grad()
def update(columns: Columns, decay: Sequence[float]) -> Tensor:
    return _update(columns, decay, lambda u, out_u: out_u.copy_(u.view(out_u.shape)))


@torch.no_grad()
def update_quantize_pack(
    columns: Columns, starts: Sequence[int], decay: Sequence[float], gain: float, key: Key
) -> Tensor:
    arguments = *columns, starts
    return _update(arguments, decay, lambda u, out, start: _quantize_pack(u, out, start, gain, key))


@torch.no_grad()
def update_shape_pack(columns: Columns, decay: Sequence[float], gain: float) -> Tensor:
    return _update(columns, decay, lambda u, residual, out: _shape_pack(u, residual, out, gain))


@torch.no_grad()
def unpack_apply(columns: Columns, lr: float, weight_decay: float, maximize: bool) -> None:
    for x, packed in zip(*columns, strict=True):
        signs = unpack_signs(packed, x.numel()).view_as(x)
        x.copy_(functional.apply_signs(x, signs, lr=lr, weight_decay=weight_decay, maximize=maximize))


@torch.no_grad()
def quantize_pack(columns: Columns, start: int, gain: float, key: Key) -> None:
    (u,), (out,) = columns
    _quantize_pack(u, out, start, gain, key)


@torch.no_grad()
def shape_pack(columns: Columns, gain: float) -> None:
    (u,), (residual,), (out,) = columns
    _shape_pack(u, residual, out, gain)


@torch.no_grad()
def merge(rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None:
    sign_rows = torch.stack([unpack_signs(row, numel) for row in rows])
    _quantize_pack(functional.mean_of_signs(sign_rows), out, start, 1.0, key)


@torch.no_grad()
def merge_shaped(rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None:
    sums = torch.zeros(numel, dtype=torch.int32, device=out.device)
    for row in rows:
        sums += unpack_signs(row, numel).to(torch.int32)
    positive, new_residual = functional.shape_merge(sums, residual.view(-1), num_vectors=rows.shape[0])
    residual.view(-1).copy_(new_residual)
    out.copy_(pack_signs(positive))


@torch.no_grad()
def mean(parts: Tensor, out: Tensor) -> None:
    out.copy_(parts[0])
    # A fixed order: fp32 addition is not associative, and torch.sum may choose another order on another device.
    for part in parts[1:]:
        out.add_(part)
    functional.divided(out, parts.shape[0], out=out)


def _update(columns: Sequence[Sequence[Any]], decay: Sequence[float], write: Callable[..., object]) -> Tensor:
    """Update m and b of each tensor and hand u over; return whether all is finite."""
    beta, _, beta_b, _, _, of_gradient = decay
    finite = []
    for flat, m, b, *others in zip(*columns, strict=True):
        grad = flat.view(m.shape)
        new_m, new_b, is_finite = functional.momenta(grad, m, b, beta=beta, beta_b=beta_b)
        m.copy_(new_m)
        b.copy_(new_b)
        ahead = functional.look_ahead(grad, new_m, is_finite, beta=beta) if of_gradient else new_m
        write(functional.ratio(ahead, new_b), *others)
        finite.append(is_finite.all())
    return torch.stack(finite).all() if finite else torch.tensor(True)


def _quantize_pack(u: Tensor, out: Tensor, start: int, gain: float, key: Key) -> None:
    t = thresholds(key, start=start, numel=u.numel(), device=u.device)
    out.copy_(pack_signs(functional.quantize(functional.clip(u.view(-1), gain=gain), t)))


def _shape_pack(u: Tensor, residual: Tensor, out: Tensor, gain: float) -> None:
    positive, new_residual = functional.shape(u.view(-1), residual.view(-1), gain=gain)
    residual.view(-1).copy_(new_residual)
    out.copy_(pack_signs(positive))
