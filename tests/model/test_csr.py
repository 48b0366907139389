"""Rows of different lengths in flat arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dnnp.core.model.graph import csr, csr_rows, distinct, offsets


@pytest.mark.parametrize(("sizes", "ptr"), [([], [0]), ([0], [0, 0]), ([2, 0, 3], [0, 2, 2, 5])])
def test_offsets(sizes, ptr):
    found = offsets(sizes)
    assert found.tolist() == ptr
    assert found.dtype == np.int64


def test_values_keep_their_order_within_a_row():
    ptr, idx = csr(np.array([2, 0, 2, 0]), np.array([7, 9, 5, 1]), 4)
    assert ptr.tolist() == [0, 2, 2, 4, 4]
    assert idx.tolist() == [9, 1, 7, 5]


def test_no_values():
    nothing = np.zeros(0, dtype=np.int64)
    ptr, idx = csr(nothing, nothing, 2)
    assert (ptr.tolist(), idx.tolist()) == ([0, 0, 0], [])
    ptr, idx = csr_rows(ptr, idx, np.array([1, 0]))
    assert (ptr.tolist(), idx.tolist()) == ([0, 0, 0], [])


def test_rows_in_another_order_and_twice():
    ptr, idx = np.array([0, 2, 2, 5]), np.array([10, 11, 30, 31, 32])
    chosen, found = csr_rows(ptr, idx, np.array([2, 1, 0, 2]))
    assert chosen.tolist() == [0, 3, 3, 5, 8]
    assert found.tolist() == [30, 31, 32, 10, 11, 30, 31, 32]


@pytest.mark.parametrize("values", [[], [3], [2, 2], [5, -1, 5, 0, -1]])
def test_distinct(values):
    found = distinct(np.array(values, dtype=np.int64))
    assert found.tolist() == sorted(set(values))
    assert found.dtype == np.int64
