"""Connected components, and strongly connected ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dnnp.core.model.graph import connected, strong


def drawn(seed: int) -> tuple[int, np.ndarray, np.ndarray]:
    """A random graph; with loops, parallel edges and vertices without any."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    ends = rng.integers(0, n, (2, int(rng.integers(0, 2 * n))))
    return n, ends[0], ends[1]


@pytest.mark.parametrize("seed", range(200))
def test_numbers_are_those_of_scipy(seed: int) -> None:
    n, tail, head = drawn(seed)
    arcs = coo_array((np.ones(len(tail)), (tail, head)), shape=(n, n))
    theirs = connected_components(arcs, directed=True, connection="strong")[1]
    assert strong(n, tail, head).tolist() == theirs.tolist()
    theirs = connected_components(arcs, directed=False)[1]
    assert connected(n, tail, head).tolist() == theirs.tolist()


def test_edges_lead_to_numbers_that_are_no_greater() -> None:
    # 0 -> (1 <-> 2) -> 3, and 4 alone
    found = strong(5, np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]))
    assert found.tolist() == [2, 1, 1, 0, 3]


def test_no_vertices() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert strong(0, nothing, nothing).tolist() == []
    assert connected(0, nothing, nothing).tolist() == []


def test_a_long_way_needs_no_recursion() -> None:
    n = 20_000
    last = np.arange(n - 1)
    assert strong(n, last, last + 1).tolist() == [*reversed(range(n))]
    assert not connected(n, last + 1, last).any()
    assert not strong(n, np.append(last, n - 1), np.append(last + 1, 0)).any()
