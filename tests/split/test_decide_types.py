"""Indices of the ideal search are unsigned: what is subtracted from one of them is signed.

Below 0 the difference of two unsigned numbers is a very large one, and as an index reads anything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import types
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags
from numba.core.compiler_machinery import PassManager
from numba.core.errors import CompilerError
from numba.core.registry import cpu_target

from dnnp.core.split.ideals import search
from dnnp.core.split.ideals.search import ideal_search
from support.cases import random_case


class Typed(CompilerBase):
    """The passes that find types and inline calls: machine code takes three times as long."""

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("typed")
        for build in ("define_untyped_pipeline", "define_typed_pipeline"):
            passes.passes += getattr(DefaultPassBuilder, build)(self.state).passes
        passes.finalize()
        return [passes]


def types_of_calls(function: Callable[..., Any], *arguments: Any) -> dict[Any, Any]:
    """Types of the operations of a function for such arguments, with those that it inlines."""
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    kinds = tuple(numba.typeof(one) for one in arguments)
    typed = Typed(typing, target, None, kinds, None, Flags(), locals={})
    typed.state["cr"] = None
    with suppress(CompilerError):  # no pass leaves machine code
        typed.compile_extra(function)
    return typed.state.calltypes


def differences_of_unsigned(calls: dict[Any, Any]) -> list[str]:
    """Lines that subtract two unsigned numbers."""
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
    assert len(differences_of_unsigned(types_of_calls(planted, begins, 1))) == 1
    assert not differences_of_unsigned(types_of_calls(planted, begins.astype(np.int64), 1))
    assert not differences_of_unsigned(types_of_calls(harmless, begins, 1))


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
    calls = types_of_calls(real.dispatcher.py_func, *asked[0])
    assert len(calls) > 400, "what is inlined is not there"
    assert not differences_of_unsigned(calls)
