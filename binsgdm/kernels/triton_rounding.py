"""Shaped rounding of a tile in Triton: exact integers, as in `binsgdm.kernels.functional`."""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator"

import triton
import triton.language as tl

from binsgdm.kernels.functional import SCALE
from binsgdm.kernels.triton_tiles import TILE, load_each, store

_SCALE = tl.constexpr(SCALE)
_MAGIC = tl.constexpr(1.5 * 2**23)  # where the step of fp32 is 1: a sum rounds to a whole number, half to even
_MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def shape(u, gain, residual, inside, masked: tl.constexpr):
    """Round a tile of u, add its residuals and store what is left; return where the sums are not negative."""
    amplified = u * gain
    # In this order: NaN compares false and becomes -1.
    raised = tl.where(amplified > -1.0, amplified, -1.0)
    clipped = tl.where(raised < 1.0, raised, 1.0)
    rounded = clipped * (_SCALE * 1.0) + _MAGIC
    return split(rounded.to(tl.int32, bitcast=True) - _MAGIC_BITS, residual, _SCALE, inside, masked)


@triton.jit
def split(values, residual, unit, inside, masked: tl.constexpr):
    """Add a tile of residuals, take a unit of the same sign away and store what is left; return the signs."""
    # Four a thread, as of what is rounded.
    quads = tl.max_contiguous(tl.arange(0, TILE), 4)
    total = values + load_each(residual + quads, inside, masked).to(tl.int32)
    positive = total >= 0
    store(residual, (total - tl.where(positive, unit, -unit)).to(tl.int16), inside, masked)
    return positive
