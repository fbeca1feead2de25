"""The kernels for many tensors made of those for one, where a call a tensor is good enough; and the other way round."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Decay = tuple[float, float, float, float, float, float]
"""beta, 1 - beta, beta_b, 1 - beta_b, factors of m and g in u"""


def decay_of(beta: float, beta_b: float, nesterov: bool) -> Decay:
    """Return the numbers that compiled kernels update the momenta by."""
    beta, beta_b = float(beta), float(beta_b)
    # What u is made of: 1 m + 0 g is m exactly, so that one compiled loop does both.
    of_m, of_g = (beta, 1.0 - beta) if nesterov else (1.0, 0.0)
    return beta, 1.0 - beta, beta_b, 1.0 - beta_b, of_m, of_g


def update(foreach_update_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `update_` made of `foreach_update_`; see `binsgdm.kernels.Kernels`."""

    def update_(grad: Tensor, m: Tensor, b: Tensor, *, out_u: Tensor, **same: Any) -> Tensor:
        return foreach_update_([grad], [m], [b], outs_u=[out_u], **same)

    return update_


def update_quantize_pack(foreach_update_quantize_pack_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `update_quantize_pack_` made of `foreach_update_quantize_pack_`; see `binsgdm.kernels.Kernels`."""

    def update_quantize_pack_(grad: Tensor, m: Tensor, b: Tensor, *, start: int, out: Tensor, **same: Any) -> Tensor:
        return foreach_update_quantize_pack_([grad], [m], [b], starts=[start], outs=[out], **same)

    return update_quantize_pack_


def update_shape_pack(foreach_update_shape_pack_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `update_shape_pack_` made of `foreach_update_shape_pack_`; see `binsgdm.kernels.Kernels`."""

    def update_shape_pack_(grad: Tensor, m: Tensor, b: Tensor, residual: Tensor, *, out: Tensor, **same: Any) -> Tensor:
        return foreach_update_shape_pack_([grad], [m], [b], [residual], outs=[out], **same)

    return update_shape_pack_


def unpack_apply(foreach_unpack_apply_: Callable[..., None]) -> Callable[..., None]:
    """Return `unpack_apply_` made of `foreach_unpack_apply_`; see `binsgdm.kernels.Kernels`."""

    def unpack_apply_(x: Tensor, packed: Tensor, **same: Any) -> None:
        foreach_unpack_apply_([x], [packed], **same)

    return unpack_apply_


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
