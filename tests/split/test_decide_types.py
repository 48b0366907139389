"""Indices of the ideal search are unsigned: what is subtracted from one of them is signed.

Below 0 the difference of two unsigned numbers is a very large one, and as an index reads anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import types

from dnnp.core.split.ideals import search
from dnnp.core.split.ideals.search import ideal_search
from support.cases import random_case


def differences_of_unsigned(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Lines of a function, as compiled for the arguments, that subtract two unsigned numbers."""
    made = numba.njit(function)
    made.compile(tuple(numba.typeof(one) for one in arguments))
    (compiled,) = made.overloads.values()
    calls = compiled.type_annotation.calltypes
    return [
        f"{expression.loc}: {expression}"
        for expression, signature in calls.items()
        if getattr(expression, "op", "") in ("binop", "inplace_binop")
        and expression.fn.__name__ in ("sub", "isub")
        and all(isinstance(one, types.Integer) and not one.signed for one in signature.args)
    ]


def planted(begins: np.ndarray, edge: int) -> int:
    return int(begins[edge + 1] - begins[edge])


def harmless(begins: np.ndarray, edge: int) -> int:
    return int(begins[edge + 1] - 1) + edge - len(begins)


def test_one_that_is_planted_is_found() -> None:
    begins = np.zeros(3, np.uint32)
    assert len(differences_of_unsigned(planted, begins, 1)) == 1
    assert not differences_of_unsigned(planted, begins.astype(np.int64), 1)
    assert not differences_of_unsigned(harmless, begins, 1)


@pytest.mark.parametrize("name", ["decide", "decide_plain"])
def test_no_two_are_subtracted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = getattr(search, name), list[tuple[Any, ...]]()

    def noted(*arguments: Any) -> Any:
        asked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(search, name, noted)
    for seed in range(100):
        ideal_search(random_case(seed, 7).problem)
        if asked:
            break
    p, lattice = asked[0][:2]
    unsigned = (p.nets.item_ptr, p.nets.item_net, lattice.child_item, lattice.child_ideal)
    assert {one.dtype for one in unsigned} == {np.dtype(np.uint32)}
    assert not differences_of_unsigned(real.dispatcher.py_func, *asked[0])
