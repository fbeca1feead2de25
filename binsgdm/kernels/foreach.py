"""The kernels for many tensors, where one call a tensor is good enough."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def foreach_update(update_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `foreach_update_` made of `update_`; see `binsgdm.kernels.Kernels`."""

    def foreach_update_(
        grads: Sequence[Tensor], ms: Sequence[Tensor], bs: Sequence[Tensor], *, outs_u: Sequence[Tensor], **same: Any
    ) -> Tensor:
        given = zip(grads, ms, bs, outs_u, strict=True)
        return _all([update_(grad, m, b, out_u=out_u, **same) for grad, m, b, out_u in given])

    return foreach_update_


def foreach_update_quantize_pack(update_quantize_pack_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `foreach_update_quantize_pack_` made of `update_quantize_pack_`; see `binsgdm.kernels.Kernels`."""

    def foreach_update_quantize_pack_(
        grads: Sequence[Tensor],
        ms: Sequence[Tensor],
        bs: Sequence[Tensor],
        *,
        starts: Sequence[int],
        outs: Sequence[Tensor],
        **same: Any,
    ) -> Tensor:
        given = zip(grads, ms, bs, starts, outs, strict=True)
        return _all(
            [update_quantize_pack_(grad, m, b, start=start, out=out, **same) for grad, m, b, start, out in given]
        )

    return foreach_update_quantize_pack_


def foreach_update_shape_pack(update_shape_pack_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `foreach_update_shape_pack_` made of `update_shape_pack_`; see `binsgdm.kernels.Kernels`."""

    def foreach_update_shape_pack_(
        grads: Sequence[Tensor],
        ms: Sequence[Tensor],
        bs: Sequence[Tensor],
        residuals: Sequence[Tensor],
        *,
        outs: Sequence[Tensor],
        **same: Any,
    ) -> Tensor:
        given = zip(grads, ms, bs, residuals, outs, strict=True)
        return _all([update_shape_pack_(grad, m, b, e, out=out, **same) for grad, m, b, e, out in given])

    return foreach_update_shape_pack_


def foreach_unpack_apply(unpack_apply_: Callable[..., None]) -> Callable[..., None]:
    """Return `foreach_unpack_apply_` made of `unpack_apply_`; see `binsgdm.kernels.Kernels`."""

    def foreach_unpack_apply_(xs: Sequence[Tensor], packed: Sequence[Tensor], **same: Any) -> None:
        for x, signs in zip(xs, packed, strict=True):
            unpack_apply_(x, signs, **same)

    return foreach_unpack_apply_


def _all(finite: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(finite)).all() if finite else torch.tensor(True)
