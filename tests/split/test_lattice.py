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
