"""The kernels in plain torch, for any device: what the fast ones must equal bit for bit."""

import torch
from torch import Tensor

from binsgdm.kernels import checks, foreach, functional
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.random import Key, thresholds

name = "reference"


@torch.no_grad()
def update_(  # noqa: PLR0913
    grad: Tensor, m: Tensor, b: Tensor, *, beta: float, beta_b: float, nesterov: bool = False, out_u: Tensor
) -> Tensor:
    """Update both momenta and write u = m / b; see `binsgdm.kernels.Kernels`."""
    checks.update(grad, m, b, out_u)
    grad = grad.view(m.shape)
    new_m, new_b, finite = functional.momenta(grad, m, b, beta=beta, beta_b=beta_b)
    m.copy_(new_m)
    b.copy_(new_b)
    ahead = functional.look_ahead(grad, new_m, finite, beta=beta) if nesterov else new_m
    out_u.copy_(functional.ratio(ahead, new_b).view(out_u.shape))
    return finite.all()


@torch.no_grad()
def update_quantize_pack_(  # noqa: PLR0913
    grad: Tensor,
    m: Tensor,
    b: Tensor,
    *,
    beta: float,
    beta_b: float,
    nesterov: bool = False,
    key: Key,
    start: int,
    out: Tensor,
    gain: float = 1.0,
) -> Tensor:
    """Update both momenta and write the packed signs of Q(m / b); see `binsgdm.kernels.Kernels`."""
    checks.quantized(out, numel=grad.numel(), start=start, device=grad.device)
    u = torch.empty_like(m)
    finite = update_(grad, m, b, beta=beta, beta_b=beta_b, nesterov=nesterov, out_u=u)
    quantize_pack(u, key=key, start=start, out=out, gain=gain)
    return finite


@torch.no_grad()
def update_shape_pack_(  # noqa: PLR0913
    grad: Tensor,
    m: Tensor,
    b: Tensor,
    residual: Tensor,
    *,
    beta: float,
    beta_b: float,
    nesterov: bool = False,
    gain: float,
    out: Tensor,
) -> Tensor:
    """Update both momenta and write the packed signs of m / b, shaped; see `binsgdm.kernels.Kernels`."""
    checks.shaped(out, residual, grad)
    u = torch.empty_like(m)
    finite = update_(grad, m, b, beta=beta, beta_b=beta_b, nesterov=nesterov, out_u=u)
    shape_pack_(u, residual, gain=gain, out=out)
    return finite


@torch.no_grad()
def quantize_pack(u: Tensor, *, key: Key, start: int, out: Tensor, gain: float = 1.0) -> None:
    """Write Q(u), packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.quantized(out, numel=u.numel(), start=start, device=u.device)
    t = thresholds(key, start=start, numel=u.numel(), device=u.device)
    out.copy_(pack_signs(functional.quantize(functional.clip(u.view(-1), gain=gain), t)))


@torch.no_grad()
def shape_pack_(u: Tensor, residual: Tensor, *, gain: float, out: Tensor) -> None:
    """Write the signs of u, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.shaped(out, residual, u)
    positive, new_residual = functional.shape(u.view(-1), residual.view(-1), gain=gain)
    residual.view(-1).copy_(new_residual)
    out.copy_(pack_signs(positive))


@torch.no_grad()
def merge(packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
    """Write Q of the mean of K sign vectors, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge(packed_rows, numel=numel, start=start, out=out)
    sign_rows = torch.stack([unpack_signs(row, numel) for row in packed_rows])
    quantize_pack(functional.mean_of_signs(sign_rows), key=key, start=start, out=out)


@torch.no_grad()
def merge_shaped_(packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
    """Write the signs of the mean of K sign vectors, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge_shaped(packed_rows, residual, numel=numel, out=out)
    sums = torch.zeros(numel, dtype=torch.int32, device=out.device)
    for row in packed_rows:
        sums += unpack_signs(row, numel).to(torch.int32)
    positive, new_residual = functional.shape_merge(sums, residual.view(-1), num_vectors=packed_rows.shape[0])
    residual.view(-1).copy_(new_residual)
    out.copy_(pack_signs(positive))


@torch.no_grad()
def mean_(parts: Tensor, out: Tensor) -> None:
    """Write the mean of K vectors, summed in order and divided once; see `binsgdm.kernels.Kernels`."""
    checks.mean(parts, out)
    out.copy_(parts[0])
    # A fixed order: fp32 addition is not associative, and torch.sum may choose another order on another device.
    for part in parts[1:]:
        out.add_(part)
    functional.divided(out, parts.shape[0], out=out)


@torch.no_grad()
def unpack_apply_(x: Tensor, packed: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> None:
    """Do x = x (1 - lr weight_decay) - lr sign; see `binsgdm.kernels.Kernels`."""
    checks.apply(x, packed)
    signs = unpack_signs(packed, x.numel()).view_as(x)
    x.copy_(functional.apply_signs(x, signs, lr=lr, weight_decay=weight_decay, maximize=maximize))


foreach_update_ = foreach.foreach_update(update_)
foreach_update_quantize_pack_ = foreach.foreach_update_quantize_pack(update_quantize_pack_)
foreach_update_shape_pack_ = foreach.foreach_update_shape_pack(update_shape_pack_)
foreach_unpack_apply_ = foreach.foreach_unpack_apply(unpack_apply_)
