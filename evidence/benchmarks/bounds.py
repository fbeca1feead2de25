"""What theory allows a quantizer to lose and its code to take; every bound holds for any vector.

Shape letters: n elements of a block; s levels as each function says; r = |v_i| / ||v||_2, so that the r^2 add up to 1.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from binsgdm.compressors.quantizers import NUQSGD, LevelQuantizer, QSGDInf

FP32_BITS = 32
_LONGEST = 20
"""Gaps are at most 2^20, the largest block."""


def nuqsgd_variance(n: int, s: int) -> float:
    """Return the bound for the levels 0, 2^-s, ..., 1/2, 1 of the L2 norm; nothing smaller holds for all n and s.

    Between 2^-j-1 and 2^-j an element loses at most r^2 / 8; one below 2^-s loses r (2^-s - r). If those below have the
    part S of the squared norm, all lose at most x sqrt(S) - S + (1 - S) / 8 by the inequality of Cauchy and Schwarz,
    with x = sqrt(n) / 2^s. That is largest at S = (4 x / 9)^2, or at S = 1 where x is 9/4 or more.

    Source: derived here. That of NUQSGD, Ramezani-Kebrya et al., JMLR 2021, is smaller for some n and s.
    """
    x = math.sqrt(n) / 2**s
    return 1 / 8 + x**2 * 2 / 9 if x < 9 / 4 else x - 1


def variance_bound(quantizer: LevelQuantizer, n: int, peak: float = 1.0) -> float:
    """Return the most of E||Q(v) - v||^2 / ||v||^2; `peak` = max |v_i| / ||v||_2 matters to QSGDinf alone.

    For the levels j / s of the L2 norm, between two levels an element loses at most r / s and at most 1 / (4 s^2), in
    units of ||v||^2. Source: QSGD, Alistarh et al., NeurIPS 2017. No papers', derived here: for the levels j / s of the
    largest magnitude an element loses at most a quarter of the square of the distance of two levels; for the levels
    +-2^-s, ..., +-1/2, +-1 of the L2 norm it is as in `nuqsgd_variance`, but an element below 2^-s goes to -2^-s or
    2^-s and loses 4^-s - r^2.
    """
    s = 2 ** (quantizer.bits - 1) - 1
    if isinstance(quantizer, NUQSGD):
        return nuqsgd_variance(n, s - 1) if quantizer.with_zero else 1 / 8 + n / 4**s
    if isinstance(quantizer, QSGDInf):
        return n / (4 * s**2) * peak**2
    return min(n / s**2, math.sqrt(n) / s)


def coded_bits_bound(quantizer: LevelQuantizer, n: int) -> float | None:
    """Return the most bits per element of the Elias code on average, norm and block length included; None for QSGDinf.

    The papers derive theirs so: each level that is not zero has a gap, a sign and a magnitude. The gaps add up to n at
    most. The squares of the magnitudes add up to s^2 + n/4 at most for QSGD; for NUQSGD a magnitude is at most s + 1.
    The papers leave o(1) in the length of Elias's code; here it is a concave function that is never below the length.

    Source: QSGD and NUQSGD, as far as the argument goes.
    """
    if isinstance(quantizer, QSGDInf):
        return None
    s = 2 ** (quantizer.bits - 1) - 1
    if isinstance(quantizer, NUQSGD):
        s -= 1
        # At most 4^s elements are 2^-s or more, and another is rounded up from zero with the chance 2^s r.
        kept = min(n, 4**s + 2**s * math.sqrt(n))
        magnitudes = kept * omega_bits(s + 1)
    else:
        kept = min(n, s * (s + math.sqrt(n)))
        magnitudes = kept * _least_concave([(4**j, omega_bits(2**j)) for j in range(_LONGEST)])((s**2 + n / 4) / kept)
    gaps_of = _least_concave([(2**j, omega_bits(2**j)) for j in range(_LONGEST + 1)])
    with_gaps = min(kept, n / 2)  # where more than half are kept, the gaps of half of them would take most
    return (with_gaps * gaps_of(n / with_gaps) + kept + magnitudes + 2 * FP32_BITS) / n


def omega_bits(number: int) -> int:
    """Return the length of Elias's omega code.

    Example:
        >>> [omega_bits(number) for number in (1, 2, 4, 16)]
        [1, 3, 6, 11]
    """
    bits = 1
    while number > 1:
        bits += number.bit_length()
        number = number.bit_length() - 1
    return bits


def _least_concave(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Return the least concave function over some ascending points; constant outside of them."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))

    def value(x: float) -> float:
        for left, right in itertools.pairwise(hull):
            if x <= right[0]:
                return left[1] + max(0.0, x - left[0]) * _slope(left, right)
        return hull[-1][1]

    return value


def _slope(left: tuple[float, float], other: tuple[float, float]) -> float:
    return (other[1] - left[1]) / (other[0] - left[0])
