"""Common divisors of numbers in floating point."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.cost.load_formula import MOST, NOISE, common_divisor, exact_divisor, snapped


@pytest.mark.parametrize(
    ("numbers", "divisor"),
    [
        ([6.0, -9.0, 0.0], 3.0),
        ([0.1, 0.3], 0.1),  # 0.3 / 0.1 is not 3 in floating point
        ([0.1 + 0.2, 0.6], 0.3),  # nor is 0.1 + 0.2 equal to 0.3
        ([2.5, 0.75], 0.25),
        ([1.0, 0.000004], 0.000004),
        ([1.0, 0.0000004], 0.0),  # too many digits
        ([1.0, 1 / 3], 0.0),
        ([float(MOST)], 0.0),
        ([3.0, 3.0 * (1 + NOISE / 2)], 3.0),
        ([3.0, 3.0 * (1 + NOISE * 2)], 0.0),
        ([1.0, np.inf], 0.0),
        ([0.0, 0.0], 0.0),
        ([], 0.0),
    ],
)
def test_common_divisor(numbers, divisor):
    assert common_divisor(np.array(numbers)) == divisor


@pytest.mark.parametrize(
    ("numbers", "divisor"),
    [
        ([6.0, -9.0, 0.0], 3.0),
        ([0.3, -0.3], 0.3),
        ([0.1, 0.3], 0.0),  # as binary fractions their divisor is tiny
        ([2.0**-30, 2.0**-28], 2.0**-30),
        ([1.0, 2e6], 0.0),
        ([0.0, 0.0], 0.0),
    ],
)
def test_exact_divisor(numbers, divisor):
    assert exact_divisor(np.array(numbers)) == divisor


def test_snapped():
    assert snapped(20.99998, 1.0) == pytest.approx(21.0, rel=1e-11)
    assert snapped(21.0, 1.0) < 21.0
    assert snapped(21.01, 0.1) == pytest.approx(21.1)
    assert snapped(20.99998, 0.0) == 20.99998
