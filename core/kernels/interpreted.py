"""Kernels as plain Python, which counts its steps and gives up when it has gone too many.

To compile a kernel takes seconds, to load numba and a compiled one tenths of a second; a small
problem takes less in plain Python. The length of a call is not known beforehand, so its loops
count: a call that goes more rounds than are allowed ends, its arrays are restored, and compiled
code does the same from the start. Both give the same bytes, whatever the machine.

To index a numpy array from Python takes longer than most of what is done with what it holds. So a
kernel gets views of its arrays (`memoryview`), which hand out numbers of Python, and what it makes
itself are views as well. A view cannot do all that an array can: where a kernel asks for more, the
call starts again, and from then on only arrays of fewer dimensions are views.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import numpy as np

COPIED = 1 << 10
"""Bytes of arrays that are copied, to have them as before, in the time of about one round."""

VIEWED = "?bhilqId"
"""Types of arrays that are viewed, as numpy names them: Python computes with what they hold as
compiled code does. Not so short floats, and u64, which wrap; of u32 no two may be subtracted."""

DIMENSIONS = 3
"""Most that a view has."""

_ROUNDS = "_rounds"
"""Name of a first argument that all functions hand on: a list of how many rounds are left."""


class OverrunError(Exception):
    """A call went more rounds than it was allowed."""


_COUNT = f"{_ROUNDS}[0] -= 1\nif {_ROUNDS}[0] < 0:\n    raise {OverrunError.__name__}"
"""Statement at the head of each loop that counts its rounds."""


class Interpreted:
    """A kernel as plain Python, with those that it calls."""

    def __init__(
        self, function: FunctionType, code: CodeType, called: Mapping[str, Interpreted]
    ) -> None:
        self._original = function
        self._code = code
        self._called = called
        self._made: dict[int, Callable[..., Any]] = {}
        self._dimensions = DIMENSIONS

    def call(self, arguments: tuple[Any, ...], most: int) -> tuple[Any, int]:
        """Compute what the kernel returns, and count its rounds; nothing is said about overflow.

        Raises OverrunError: it would go more than `most` rounds; the arguments are as they were.
        """
        dimensions = self._dimensions
        before: list[tuple[np.ndarray, np.ndarray]] = []
        given = [_given(argument, before, dimensions) for argument in arguments]
        rounds = [most - sum(copy.nbytes for _, copy in before) // COPIED]
        try:
            with np.errstate(all="ignore"):
                answer = _returned(self.function(dimensions)(rounds, *given))
        except OverrunError:
            _restore(before)
            raise
        except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
            if not dimensions:
                raise
            _restore(before)
            # A view has no parts of fewer dimensions; whatever else fails needs an array.
            self._dimensions = dimensions - 1 if isinstance(error, NotImplementedError) else 0
            return self.call(arguments, most)
        return answer, most - rounds[0]

    def function(self, dimensions: int) -> Callable[..., Any]:
        """The function where arrays of so many dimensions at most are views."""
        if dimensions not in self._made:
            names = dict(self._original.__globals__)
            names |= {name: one.function(dimensions) for name, one in self._called.items()}
            names[OverrunError.__name__] = OverrunError
            if names.get("np") is np:
                names["np"] = _Numpy(dimensions)
            original = self._original
            self._made[dimensions] = FunctionType(
                self._code, names, original.__name__, original.__defaults__
            )
        return self._made[dimensions]


class _Numpy:
    """The package numpy for kernels: the arrays that they make are views."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def __getattr__(self, name: str) -> Any:
        found: Any = getattr(np, name)
        if name in ("empty", "full", "ones", "zeros"):
            make = found

            def found(*arguments: Any, **options: Any) -> Any:
                return _view(make(*arguments, **options), self._dimensions)

        setattr(self, name, found)
        return found


def interpreted_of(function: FunctionType) -> Interpreted | None:
    """A kernel as plain Python that counts; None: its source is not at hand, or it is a closure."""
    called: dict[str, Interpreted] = {}
    for name in function.__code__.co_names:
        value: Any = function.__globals__.get(name)
        if hasattr(value, "interpreted"):
            if value.interpreted is None:
                return None
            called[name] = value.interpreted
    code = None if function.__closure__ else _counting(function, called)
    return None if code is None else Interpreted(function, code, called)


def _view(array: np.ndarray, dimensions: int) -> Any:
    """An array as a view, if it can be one."""
    viewed = array.ndim <= dimensions and array.dtype.char in VIEWED
    return array.data if viewed else array


def _given(argument: Any, before: list[tuple[np.ndarray, np.ndarray]], dimensions: int) -> Any:
    """An argument as compiled code would take it; notes arrays, with copies of what they hold."""
    if isinstance(argument, np.ndarray):
        if argument.flags.writeable:
            before.append((argument, argument.copy()))
        return _view(argument, dimensions)
    if isinstance(argument, tuple):
        return _like(argument, [_given(part, before, dimensions) for part in argument])
    return _number(argument)


def _restore(before: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Have arrays as they were."""
    for array, copy in before:
        array[...] = copy


def _returned(value: Any) -> Any:
    """Convert a value to what compiled code would return: arrays, and numbers of Python."""
    if isinstance(value, memoryview):
        return np.asarray(value)
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


def _counting(function: FunctionType, called: Container[str]) -> CodeType | None:
    """The code of a function with counting loops, which hands the counter on to the kernels that it
    calls; None: its source is not at hand."""
    try:
        tree = _parsed(function)
    except (OSError, TypeError):
        return None
    (found,) = tree.body
    if not isinstance(found, ast.FunctionDef):
        return None
    found.decorator_list = []
    found.args.args.insert(0, ast.copy_location(ast.arg(_ROUNDS), found))
    for node in [*ast.walk(found)]:
        if isinstance(node, ast.For | ast.While):
            node.body[:0] = ast.parse(_COUNT).body
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in called:
            node.args.insert(0, ast.copy_location(ast.Name(_ROUNDS, ast.Load()), node))
    whole = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    inner = [c for c in whole.co_consts if isinstance(c, CodeType) and c.co_name == found.name]
    return inner[0]


def _parsed(function: FunctionType) -> ast.Module:
    """Parse the source of a function; OSError, TypeError: it is not at hand."""
    code = function.__code__
    # The positions of its code say where it ends; `inspect` reads it token by token instead.
    ends = (end for part in _nested(code) for _, end, _, _ in part.co_positions() if end)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : max(ends)]
    with suppress(SyntaxError):
        tree = ast.parse(textwrap.dedent("".join(lines)))
        if tree.body:
            return tree
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
