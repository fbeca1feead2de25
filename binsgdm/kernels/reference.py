"""The kernels in plain torch, for any device: what the fast ones must equal bit for bit."""

from collections.abc import Sequence

import torch
from torch import Tensor

from binsgdm.kernels import functional
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.interface import Columns, Decay, Kernels, SignStep
from binsgdm.kernels.random import Key, thresholds


class ReferenceKernels(Kernels):
    """One tensor after the other."""

    name = "reference"

    @torch.no_grad()
    def _update(self, columns: Columns, decay: Decay) -> Tensor:
        given = zip(*columns, strict=True)
        return _all([_update(grad, m, b, out_u, decay) for grad, m, b, out_u in given])

    @torch.no_grad()
    def _update_quantize_pack(
        self, columns: Columns, starts: Sequence[int], decay: Decay, gain: float, key: Key
    ) -> Tensor:
        finite = []
        for grad, m, b, out, start in zip(*columns, starts, strict=True):
            u = torch.empty_like(m)
            finite.append(_update(grad, m, b, u, decay))
            self._quantize_pack(u, out, gain, start, key)
        return _all(finite)

    @torch.no_grad()
    def _update_shape_pack(self, columns: Columns, decay: Decay, gain: float) -> Tensor:
        finite = []
        for grad, m, b, residual, out in zip(*columns, strict=True):
            u = torch.empty_like(m)
            finite.append(_update(grad, m, b, u, decay))
            self._shape_pack(u, residual, out, gain)
        return _all(finite)

    @torch.no_grad()
    def _unpack_apply(self, columns: Columns, step: SignStep) -> None:
        for x, packed in zip(*columns, strict=True):
            signs = unpack_signs(packed, x.numel()).view_as(x)
            x.copy_(functional.apply_signs(x, signs, **step._asdict()))

    @torch.no_grad()
    def _quantize_pack(self, u: Tensor, out: Tensor, gain: float, start: int, key: Key) -> None:
        t = thresholds(key, start=start, numel=u.numel(), device=u.device)
        out.copy_(pack_signs(functional.quantize(functional.clip(u.view(-1), gain=gain), t)))

    @torch.no_grad()
    def _shape_pack(self, u: Tensor, residual: Tensor, out: Tensor, gain: float) -> None:
        positive, new_residual = functional.shape(u.view(-1), residual.view(-1), gain=gain)
        residual.view(-1).copy_(new_residual)
        out.copy_(pack_signs(positive))

    @torch.no_grad()
    def _merge(self, rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None:
        sign_rows = torch.stack([unpack_signs(row, numel) for row in rows])
        self._quantize_pack(functional.mean_of_signs(sign_rows), out, 1.0, start, key)

    @torch.no_grad()
    def _merge_shaped(self, rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None:
        sums = torch.zeros(numel, dtype=torch.int32, device=out.device)
        for row in rows:
            sums += unpack_signs(row, numel).to(torch.int32)
        positive, new_residual = functional.shape_merge(sums, residual.view(-1), num_vectors=rows.shape[0])
        residual.view(-1).copy_(new_residual)
        out.copy_(pack_signs(positive))

    @torch.no_grad()
    def _mean(self, parts: Tensor, out: Tensor) -> None:
        out.copy_(parts[0])
        # A fixed order: fp32 addition is not associative, and torch.sum may choose another order on another device.
        for part in parts[1:]:
            out.add_(part)
        functional.divided(out, parts.shape[0], out=out)


def _update(grad: Tensor, m: Tensor, b: Tensor, out_u: Tensor, decay: Decay) -> Tensor:
    grad = grad.view(m.shape)
    new_m, new_b, finite = functional.momenta(grad, m, b, beta=decay.beta, beta_b=decay.beta_b)
    m.copy_(new_m)
    b.copy_(new_b)
    ahead = functional.look_ahead(grad, new_m, finite, beta=decay.beta) if decay.nesterov else new_m
    out_u.copy_(functional.ratio(ahead, new_b).view(out_u.shape))
    return finite.all()


def _all(finite: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(finite)).all() if finite else torch.tensor(True)


kernels = ReferenceKernels()
