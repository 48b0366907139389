"""Compile hot loops with numba; a cache that cannot be written is not an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import event

from dnnp.core.cost.kernel_cache import KernelCache

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """`numba.njit` with a cache on disk where one can be written; other threads may run beside."""
    compiled: Any = numba.njit(nogil=True)(function)
    if compiled is not function:  # NUMBA_DISABLE_JIT=1
        with suppress(RuntimeError):  # numba found no folder for its cache
            compiled._cache = KernelCache(function, compiled.targetoptions)
    return cast(F, compiled)


def part(function: F) -> F:
    """A part of a kernel, compiled into what calls it; neither it nor what it calls makes arrays.

    Elsewhere numba counts references to each array of the tuples that are handed over, which takes
    longer than much of what is done with them. So a kernel that takes large tuples makes its
    arrays and leaves the loops to a part, which need not count.
    """
    compiler: Any = numba.njit  # whose types do not know `_nrt`
    return cast(F, compiler(nogil=True, forceinline=True, _nrt=False)(function))


def is_cold(kernels: Iterable[Callable[..., Any]]) -> bool:
    """Whether some kernel has no compiled form on disk yet, so that a first call takes seconds."""
    for function in kernels:
        cache = getattr(function, "_cache", None)
        if cache is None:  # NUMBA_DISABLE_JIT=1: plain Python, nothing to compile
            continue
        if not isinstance(cache, KernelCache) or cache.is_empty():
            return True
    return False


class _Once(event.Listener):
    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell: Callable[[], None] | None = tell

    def on_start(self, event: Any) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def on_end(self, event: Any) -> None:
        pass


def when_compiling(tell: Callable[[], None]) -> None:
    """Call `tell` once, when from now on some kernel is compiled in this process."""
    event.register("numba:compile", _Once(tell))


def interpreted(function: F) -> F:
    """The kernel as plain Python, with every kernel that it calls.

    For small problems while nothing is compiled: compiling takes seconds. Like compiled code it
    says nothing about overflow.
    """
    twin = _twin(function, {})

    @wraps(twin)
    def quiet(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return twin(*arguments)

    return cast(F, quiet)


def _twin(function: Any, twins: dict[Any, Any]) -> Any:
    source = getattr(function, "py_func", None)
    if source is None:  # NUMBA_DISABLE_JIT=1
        return function
    if function not in twins:
        names = dict(source.__globals__)
        twins[function] = FunctionType(source.__code__, names, source.__name__)
        for name in source.__code__.co_names:
            if hasattr(names.get(name), "py_func"):
                names[name] = _twin(names[name], twins)
    return twins[function]


def plain(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Writable C-ordered copies, so that a kernel is compiled for one kind of array only."""
    return tuple(np.array(a, order="C") for a in arrays)
