"""Kinds of arguments that kernels are compiled for: each kind costs seconds."""

from __future__ import annotations

import numba
import numpy as np

from dnnp.core.cost.kernel import callee, inlined


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
