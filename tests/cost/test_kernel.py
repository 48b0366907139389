"""Kinds of arguments that kernels are compiled for: each kind costs seconds."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np

from dnnp.core.kernels.kernel import callee, inlined


@callee
def entry(values, at, twice):  # type: ignore[no-untyped-def]
    return values[at] * (2 if twice else 1)


@inlined
def last(values, count):  # type: ignore[no-untyped-def]
    if count == 0:
        return 0
    return values[count - 1]


def total(values, at):  # type: ignore[no-untyped-def]
    return entry(values, 0, False) + entry(values, at, True) + last(values, len(values))


def test_a_number_in_a_call_is_no_kind_of_its_own() -> None:
    # Not as a kernel, which may be in the cache.
    assert numba.njit(total)(np.array([3, 5, 7]), 2) == 3 + 2 * 7 + 7
    assert len(entry.signatures) == 1


LOADS = """
import sys
from dnnp.core.cost.load_formula import load_of
assert load_of.compiled(0, 1.0, 2.0, 3.0, 4.0) == load_of.py_func(0, 1.0, 2.0, 3.0, 4.0)
assert "numba.np.arraymath" in sys.modules
assert "scipy.linalg" not in sys.modules
import scipy.linalg.cython_blas
"""


def test_linear_algebra_is_not_loaded_for_kernels() -> None:
    subprocess.run([sys.executable, "-c", LOADS], check=True)
