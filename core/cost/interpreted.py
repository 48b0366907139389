"""Kernels as plain Python, which counts its steps and gives up when it has gone too many.

To compile a kernel takes seconds, to load numba and a compiled one tenths of a second; what a small
problem asks of it takes less in plain Python. Nobody knows beforehand how long a call takes, so its
loops count: where a call goes more rounds than are allowed it ends, the arrays that it was given
are as before, and compiled code does the same from the start. Both find the same bytes, and what is
counted does not depend on the machine.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from threading import local
from types import CodeType, FunctionType
from typing import Any

import numpy as np

COPIED = 1 << 10
"""Bytes of arrays that are copied, to have them as before, in the time of about one round."""

_NAME = "_rounds_left"
_rounds_left = local()
"""Its `count`, of the call that is under way in a thread."""


class OverrunError(Exception):
    """A call went more rounds than it was allowed."""


class Twin:
    """A kernel as plain Python, with those that it calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def call(self, arguments: tuple[Any, ...], most: int) -> tuple[Any, int]:
        """What the kernel returns, and the rounds it went; nothing is said about overflow.

        Raises
        ------
        OverrunError
            It would go more than `most` rounds; the arguments are as they were.
        """
        before: list[tuple[np.ndarray, np.ndarray]] = []
        given = tuple(_given(argument, before) for argument in arguments)
        _rounds_left.count = most - sum(copy.nbytes for _, copy in before) // COPIED
        try:
            with np.errstate(all="ignore"):
                answer = _returned(self.function(*given))
        except OverrunError:
            for array, copy in before:
                array[...] = copy
            raise
        return answer, most - _rounds_left.count


def twin_of(function: FunctionType) -> Twin | None:
    """A kernel as plain Python that counts; None: its source is not at hand, or it is a closure."""
    code = None if function.__closure__ else _counting(function)
    if code is None:
        return None
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        value: Any = names.get(name)
        if hasattr(value, "twin"):
            if value.twin is None:
                return None
            names[name] = value.twin.function
    names[_NAME] = _rounds_left
    names[OverrunError.__name__] = OverrunError
    return Twin(FunctionType(code, names, function.__name__, function.__defaults__))


def _given(argument: Any, before: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """An argument as compiled code would take it; notes arrays, with copies of what they hold."""
    if isinstance(argument, np.ndarray):
        if argument.flags.writeable:
            before.append((argument, argument.copy()))
        return argument
    if isinstance(argument, tuple):
        return _like(argument, [_given(part, before) for part in argument])
    return _number(argument)


def _returned(value: Any) -> Any:
    """What compiled code would return: numbers of Python."""
    if isinstance(value, tuple):
        return _like(value, [_returned(part) for part in value])
    return _number(value)


def _number(value: Any) -> Any:
    """Compiled code computes with 64 bits; numbers of numpy would with as many as they have."""
    return value.item() if isinstance(value, np.bool_ | np.signedinteger | np.float64) else value


def _like(one: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same type."""
    kind = type(one)
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _counting(function: FunctionType) -> CodeType | None:
    """The code of a function whose loops count; None: its source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    tree = ast.parse(source)
    (found,) = tree.body
    if not isinstance(found, ast.FunctionDef):
        return None
    found.decorator_list = []
    for loop in ast.walk(found):
        if isinstance(loop, ast.For | ast.While):
            loop.body[:0] = _count(loop)
    whole = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    inner = [c for c in whole.co_consts if isinstance(c, CodeType) and c.co_name == found.name]
    return inner[0]


def _count(loop: ast.For | ast.While) -> list[ast.stmt]:
    """What a loop does first in every round."""
    text = f"{_NAME}.count -= 1\nif {_NAME}.count < 0:\n    raise {OverrunError.__name__}"
    body = ast.parse(text).body
    for statement in body:
        for node in ast.walk(statement):
            ast.copy_location(node, loop)
    return body
