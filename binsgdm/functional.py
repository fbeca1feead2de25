"""The update of BinSGDM as pure functions on fp32 tensors.

Every product, sum and quotient is rounded to fp32 on its own, with no fused multiply-add, so that any device that
follows IEEE 754 gives the same bits. No argument is changed.

Source: "Birder: Communication-efficient 1-bit adaptive optimizer for practical distributed DNN training", NeurIPS 2023:
the update of m, b and x, and Q.
Differs: an element whose new b would not be finite keeps its m and b; the paper does not treat such gradients.
"""

import torch
from torch import Tensor


def momenta(grad: Tensor, m: Tensor, b: Tensor, *, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next m and b, and where they are finite.

    m' = beta m + (1 - beta) g and b' = beta b + (1 - beta) |g|. Rounding is monotonic and odd, so |m| <= b carries over
    to m' and b' exactly: starting from zeros, |m / b| never exceeds 1 and needs no clamp.

    Args:
        grad: Gradient, any floating dtype.
        m: First momentum, fp32.
        b: Momentum of the absolute gradient, fp32.
        beta: Decay of both, in [0, 1); beta and 1 - beta are each rounded to fp32 once.

    Returns:
        m', b' (fp32) and a mask: False where b' would not be finite, and m and b are returned as they were.
    """
    g = grad.to(torch.float32)
    new_m = m * beta + g * (1.0 - beta)
    new_b = b * beta + g.abs() * (1.0 - beta)
    # NaN compares false as well, so one comparison finds both infinity and NaN. b is a mean of absolute values: m
    # cannot overflow where b does not.
    finite = new_b < torch.inf
    return torch.where(finite, new_m, m), torch.where(finite, new_b, b), finite


def ratio(m: Tensor, b: Tensor) -> Tensor:
    """Return u = m / b, and 0 where b is 0: a parameter that never had a gradient."""
    # u = 0 draws either sign with probability 1/2; 0 / 0 would be NaN, which the kernels turn into -1 every time.
    return torch.where(b > 0, m / b, 0.0)


def quantize(u: Tensor, thresholds: Tensor) -> Tensor:
    """Return Q(u): True for +1, which has probability (1 + u) / 2 if the thresholds are uniform in [-1, 1)."""
    return thresholds < u


def mean_of_signs(sign_rows: Tensor) -> Tensor:
    """Return the mean of K sign vectors: an exact sum, and one rounding in the division by K."""
    return divided(sign_rows.sum(dim=0), sign_rows.shape[0])


def divided(values: Tensor, number: int, *, out: Tensor | None = None) -> Tensor:
    """Return values / number, rounded once on every device; `out` may be `values`."""
    # By a number of Python's, torch on CUDA multiplies by the reciprocal, which rounds twice.
    return torch.div(values, torch.full((), number, dtype=values.dtype, device=values.device), out=out)


def apply_signs(x: Tensor, signs: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> Tensor:
    """Return x (1 - lr weight_decay) - lr sign, computed in fp32 and rounded to the dtype of x once.

    Args:
        x: Parameter, any floating dtype.
        signs: +1 or -1, fp32.
        lr: Learning rate, rounded to fp32 once.
        weight_decay: Decoupled; 1 - lr weight_decay is rounded to fp32 once.
        maximize: Add lr sign instead.
    """
    decayed = x.to(torch.float32) * (1.0 - lr * weight_decay)
    return (decayed - signs * (-lr if maximize else lr)).to(x.dtype)
