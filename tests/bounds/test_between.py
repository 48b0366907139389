"""Reachability between items."""

from __future__ import annotations

import numpy as np

from dnnp.core.bounds.pairs import closure


def test_closure():
    """0 -> 1 -> 3, 2 -> 3; things 0 and 2 are of one item."""
    tail, head = np.array([0, 1, 2]), np.array([1, 3, 3])
    alone = closure(4, np.arange(4), tail, head)
    assert [np.flatnonzero(row).tolist() for row in alone] == [[0, 1, 3], [1, 3], [2, 3], [3]]
    joined = closure(3, np.array([0, 1, 0, 2]), tail, head)
    assert [np.flatnonzero(row).tolist() for row in joined] == [[0, 1, 2, 3], [1, 3], [3]]
