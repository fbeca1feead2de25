"""The update of BinSGDM and both ways to round it to signs, as pure functions on fp32 tensors.

Every product, sum and quotient is rounded to fp32 on its own, with no fused multiply-add, so that any device that
follows IEEE 754 gives the same bits. No argument is changed.

Source: "Birder: Communication-efficient 1-bit adaptive optimizer for practical distributed DNN training", NeurIPS 2023:
the update of m, b and x, and Q.
Differs: an element whose new b would not be finite keeps its m and b; the paper does not treat such gradients. A decay
of its own for b, the gain and the shaped rounding are ours.
"""

import torch
from torch import Tensor

from binsgdm.kernels import host_loops
from binsgdm.kernels.keys import SCALE


def packed_numel(numel: int) -> int:
    """Return how many bytes the signs of `numel` elements take."""
    return -(-numel // 8)


def momenta(
    grad: Tensor, m: Tensor, b: Tensor, *, beta: float, beta_b: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next m and b, and where they are finite.

    m' = beta m + (1 - beta) g and b' = beta_b b + (1 - beta_b) |g|. With one decay, since rounding is monotonic and
    odd, |m| <= b carries over to m' and b' exactly: starting from zeros, |m / b| never exceeds 1.
    Decays are in [0, 1), that of b by default the one of m; beta and 1 - beta are each rounded to fp32 once. The
    gradient has any floating dtype, all else is fp32.

    Returns:
        m', b' and a mask: False where b' would not be finite, and m and b are returned as they were.
    """
    g = grad.to(torch.float32)
    new_m = m * beta + g * (1.0 - beta)
    beta_b = beta if beta_b is None else beta_b
    new_b = b * beta_b + g.abs() * (1.0 - beta_b)
    # NaN compares false as well, so one comparison finds both infinity and NaN. b is a mean of absolute values: m
    # cannot overflow where b does not.
    finite = new_b < torch.inf
    return torch.where(finite, new_m, m), torch.where(finite, new_b, b), finite


def look_ahead(grad: Tensor, m: Tensor, finite: Tensor, *, beta: float) -> Tensor:
    """Return what the next m would be if the same gradient came again: beta m' + (1 - beta) g, as in Nesterov's form.

    The mask says where m is new; elsewhere it is returned as it is.
    """
    return torch.where(finite, m * beta + grad.to(torch.float32) * (1.0 - beta), m)


def ratio(m: Tensor, b: Tensor) -> Tensor:
    """Return u = m / b, and 0 where b is 0: a parameter that never had a gradient."""
    # u = 0 draws either sign with probability 1/2; 0 / 0 would be NaN, which the kernels turn into -1 every time.
    return torch.where(b > 0, m / b, 0.0)


def quantize(u: Tensor, thresholds: Tensor) -> Tensor:
    """Return Q(u): True for +1, which has probability (1 + u) / 2 if the thresholds are uniform in [-1, 1)."""
    return thresholds < u


def clip(u: Tensor, *, gain: float) -> Tensor:
    """Return gain u, but at least -1 and at most 1; -1 where u is NaN. The gain is rounded to fp32 once."""
    amplified = u * gain
    # In this order and by comparison: NaN compares false and becomes -1, as where a draw rounds it.
    raised = torch.where(amplified > -1.0, amplified, -1.0)
    return torch.where(raised < 1.0, raised, 1.0)


def shape(u: Tensor, residual: Tensor, *, gain: float) -> tuple[Tensor, Tensor]:
    """Round clip(gain u) to signs, shaped: what rounding loses is added before the next one.

    With k = round(SCALE clip(gain u)), half to even, V = k + residual: the sign is that of V, +1 where V is 0, and the
    next residual is V - SCALE sign. From k on these are exact integers; residuals (int16) are of at most SCALE. The
    gain is above 0 and rounded to fp32 once.

    Returns:
        Booleans, True for +1, and the next residual.
    """
    # The product is below 2**15, so that adding and subtracting 1.5 * 2**23, as the compiled kernels do, rounds alike.
    whole = (clip(u, gain=gain) * float(SCALE)).round().to(torch.int32)
    return _split(whole + residual, SCALE)


def shape_merge(sums: Tensor, residual: Tensor, *, num_vectors: int) -> tuple[Tensor, Tensor]:
    """Round the means of K signs to signs, shaped, without a division: V = sum + residual.

    The sign is that of V, +1 where V is 0, and the next residual is V - K sign. Residuals (int16) are of at most K, the
    number of vectors, which is at most MAX_SHAPED_VECTORS.

    Returns:
        Booleans, True for +1, and the next residual.
    """
    return _split(sums.to(torch.int32) + residual, num_vectors)


def _split(values: Tensor, unit: int) -> tuple[Tensor, Tensor]:
    """Return the signs of values, and what is left of them without these, a unit each."""
    positive = values >= 0
    return positive, torch.where(positive, values - unit, values + unit).to(torch.int16)


def mean_of_signs(sign_rows: Tensor) -> Tensor:
    """Return the mean of K sign vectors: an exact sum, and one rounding in the division by K."""
    return divided(sign_rows.sum(dim=0), sign_rows.shape[0])


def all_finite(values: Tensor) -> Tensor:
    """Return whether no value is infinite or NaN, as a boolean scalar."""
    if values.numel() and host_loops.is_used_on(values.device):
        # One pass without a temporary; NaN comes through as the smallest and the largest.
        values = torch.stack(torch.aminmax(values))
    return values.isfinite().all()


def divided(values: Tensor, number: int, *, out: Tensor | None = None) -> Tensor:
    """Return values / number, rounded once on every device; `out` may be `values`."""
    # By a number of Python's, torch on CUDA multiplies by the reciprocal, which rounds twice.
    return torch.div(values, torch.full((), number, dtype=values.dtype, device=values.device), out=out)


def apply_signs(x: Tensor, signs: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> Tensor:
    """Return x (1 - lr weight_decay) - lr sign, computed in fp32 and rounded to the dtype of x once.

    With `maximize`, + lr sign. lr and 1 - lr weight_decay are each rounded to fp32 once.
    """
    decayed = x.to(torch.float32) * (1.0 - lr * weight_decay)
    return (decayed - signs * (-lr if maximize else lr)).to(x.dtype)
