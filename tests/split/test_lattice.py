"""The lattice of order ideals: what is refused is not enumerated again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnp.core.split.ideals import lattice
from dnnp.core.split.ideals.lattice import make_lattice


def test_too_many_ideals_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    enumerate_ = lattice._enumerate

    def counted(*arguments: Any) -> Any:
        asked.append((arguments[0], arguments[-1]))
        return enumerate_(*arguments)

    monkeypatch.setattr(lattice, "_enumerate", counted)
    lattice._refused.clear()
    tail, head = np.array([0]), np.array([1])
    for _ in range(2):
        assert make_lattice(6, tail, head, 40) is None
    assert asked == [(6, 40)]
    # One pair in order leaves three of four of its sets.
    found = make_lattice(6, tail, head, 48)
    assert found is not None
    assert found.size == 3 * 2**4
    for _ in range(2):
        more = make_lattice(6, np.array([0, 1]), np.array([1, 2]), 40)
        assert more is not None
        assert more.size == 4 * 2**3
    assert asked == [(6, 40), (6, 48), (6, 40), (6, 40)]


def test_turned_it_holds_what_is_outside() -> None:
    """The same arrays but for the order of ideals: each item and ideal from the other end."""
    rng = np.random.default_rng(3)
    for n in range(1, 9):
        pairs = [(a, b) for b in range(n) for a in range(b) if rng.random() < 0.3]
        tail, head = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        there = make_lattice(n, tail, head, 1000)
        assert there is not None
        back = there.turned()
        assert [one.dtype for one in back] == [one.dtype for one in there]
        assert (back.sets(n)[::-1, ::-1] == ~there.sets(n)).all()
        sizes = back.sets(n).sum(axis=1)
        assert [0, *np.flatnonzero(np.diff(sizes)) + 1, len(sizes)] == back.levels()
        for i in range(back.size):
            edges = slice(back.child_ptr[i], back.child_ptr[i + 1])
            items = back.child_item[edges].tolist()
            assert items == sorted(items)
            for item, child in zip(items, back.child_ideal[edges], strict=True):
                assert back.members(child) == sorted([*back.members(i), item])
            assert back.child_ptr[i + 1] > back.child_ptr[i] or i == back.size - 1


def test_pairs_given_twice_make_no_ideal_twice() -> None:
    once = make_lattice(3, np.array([0, 1]), np.array([1, 2]), 1000)
    twice = make_lattice(3, np.array([1, 0, 1]), np.array([2, 1, 2]), 1000)
    assert once is not None
    assert twice is not None
    for one, other in zip(once, twice, strict=True):
        assert (one == other).all()
