"""Common divisors of numbers in floating point, so that a bound can be rounded up to a multiple."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.model.graph import Floats

SCALES = tuple(10.0**digits for digits in range(7))
"""Short decimals become whole numbers by one of these factors."""

NOISE = 1e-13
"""Relative error up to which a number that was computed counts as a short decimal."""

MOST = 2**40
"""What the multiples stay below: beyond, one more of them is lost in `ROUNDING`."""

FINEST = 1e6
"""Numbers that are whole multiples of one this much smaller count as real numbers."""


def common_divisor(values: Floats) -> float:
    """The largest number that all are whole multiples of, if they are short decimals; else 0.

    Also 0 if all are 0, or some are not finite. For decimals that floats only come close to.
    """
    parts = np.abs(values[values != 0])
    if not len(parts) or not np.isfinite(parts).all():
        return 0.0
    for scale in SCALES:
        whole = np.rint(parts * scale)
        if whole.max() < MOST and (np.abs(whole / scale - parts) <= NOISE * parts).all():
            return math.gcd(*whole.astype(np.int64).tolist()) / scale
    return 0.0


def exact_divisor(values: Floats) -> float:
    """The largest number that all are whole multiples of, as the binary fractions that they are.

    Their sums are exact multiples, too. 0 if all are 0, or it is more than `FINEST` times smaller
    than one of them.
    """
    exact = [abs(Fraction(v)) for v in values.tolist() if v]
    if not exact:
        return 0.0
    below = max(f.denominator for f in exact)  # powers of 2: of floats
    divisor = Fraction(math.gcd(*(int(f * below) for f in exact)), below)
    return float(divisor) if max(exact) <= FINEST * divisor else 0.0


def snapped(bound: float, divisor: float) -> float:
    """The least multiple of a divisor that is not below a bound, less rounding; 0: the bound."""
    if not divisor:
        return bound
    return float(np.ceil(bound / divisor - 1e-6) * divisor * (1 - ROUNDING))
