"""Hot loops, compiled by numba where that pays; a cache that cannot be written is not an error.

A kernel is plain Python at first: numba takes longer to load than most small problems take to
solve. A call that goes too many rounds of its loops ends, and runs compiled instead, as all later
ones do; the result is the same. Where there is no compiled code on disk more rounds are allowed,
once: what was interpreted for long is compiled when the next process needs it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import numpy as np

from dnnp.core.kernels.cache import LONG, folders, keep, known_files, known_long, name_of

if TYPE_CHECKING:
    from dnnp.core.kernels.interpreted import Interpreted

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

WARM_ROUNDS = 150_000
"""Rounds after which to load compiled code: a fifth of what loading numba and it takes."""

COLD_ROUNDS = 300
"""Rounds after which to compile, for each byte of Python's code: a quarter of what it takes."""

LONG_ROUNDS = 200_000
"""Rounds in one process after which the next one compiles: about a tenth of a second."""

_gone: Counter[Kernel | None] = Counter()
"""Rounds that each kernel was interpreted for in this process; None: all of them together."""

_always = False

_waiting: list[Callable[[], None]] = []

when_compiling = _waiting.append
"""Have a function called once, when from now on some kernel is compiled in this process."""


def _tell() -> None:
    while _waiting:
        _waiting.pop()()


def load_soon() -> None:
    """Load what is compiled at its first call: the problem is large enough to be worth it."""
    _gone[None] = max(_gone[None], WARM_ROUNDS)


def compile_always(always: bool = True) -> None:
    """Interpret nothing, or again what is not loaded, in this process."""
    global _always
    _always = always


class Kernel:
    """A function that is interpreted, loaded or compiled, whichever takes the least time."""

    def __init__(self, function: Callable[..., Any], *, kept: bool = False, **options: Any) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.kept = kept
        """True if what is compiled is kept in files."""
        self.options = options
        self._loaded: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._loaded is None:
            return _first_call(self, arguments)
        return self._loaded(*arguments)

    def __reduce__(self) -> str:
        return self.py_func.__qualname__

    @cached_property
    def name(self) -> str:
        """Name of its files; empty: it has none."""
        return name_of(self.py_func) if self.kept else ""

    @cached_property
    def dispatcher(self) -> Any:
        """The dispatcher that numba makes of the function."""
        numba = _numba()
        from dnnp.core.kernels.cache import KernelCache

        compiler: Any = numba.njit  # its types do not know all options
        # No kernel is called by its address.
        made = compiler(nogil=True, no_cfunc_wrapper=True, **self.options)(self.py_func)
        compile_for = made.compile
        # A literal number in a call is no type of its own.
        made.compile = lambda kinds: compile_for(tuple(map(numba.types.unliteral, kinds)))
        if self.name:
            made._cache = KernelCache(self.py_func, made.targetoptions, _tell)
        return made

    @cached_property
    def interpreted(self) -> Interpreted | None:
        """The same as plain Python; None: its source is not at hand."""
        from dnnp.core.kernels.interpreted import interpreted_of

        return interpreted_of(self.py_func)  # type: ignore[arg-type]

    def called(self) -> list[Kernel]:
        """The kernels that it calls."""
        code, names = self.py_func.__code__, self.py_func.__globals__
        return [one for name in code.co_names if isinstance(one := names.get(name), Kernel)]

    @cached_property
    def cold_rounds(self) -> int:
        """Rounds that take about as long as compiling it, with those that it calls."""
        found, waiting = {self}, [self]
        while waiting:
            new = {*waiting.pop().called()} - found
            found |= new
            waiting += new
        return COLD_ROUNDS * sum(len(one.py_func.__code__.co_code) for one in found)

    def __getattr__(self, name: str) -> Any:
        """Attributes that numba reads of a callee, and its statistics."""
        if name not in ("_numba_type_", "targetoptions", "stats", "signatures"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def is_cold(self) -> bool:
        """True if it has no file and is not due for one; numba, slow to load, is not asked."""
        places = tuple(folders())
        return self.name not in known_files(places) and self.name not in known_long(places)

    def compiled(self, *arguments: Any) -> Any:
        """Call it, compiled, from now on."""
        self._loaded = self.dispatcher
        return self._loaded(*arguments)


def expect(rounds: float, *kernels: Callable[..., Any]) -> None:
    """Compile or load kernels that will go so many rounds: interpreting them first is in vain."""
    for one in kernels:
        if not isinstance(one, Kernel) or one._loaded is not None:
            continue
        if rounds > (one.cold_rounds if one.is_cold() else WARM_ROUNDS):
            one._loaded = one.dispatcher


def kernel(function: F) -> F:
    """A hot loop, with a cache on disk where one can be written; other threads may run beside."""
    return _made(function, kept=True)


def lean(function: F) -> F:
    """A `kernel` that makes no arrays, nor does what it calls: numba counts no references.

    That is less to compile, and large tuples of arrays cost less.
    """
    return _made(function, kept=True, _nrt=False)


def part(function: F) -> F:
    """A part of a kernel, compiled into what calls it; neither it nor what it calls makes arrays.

    Elsewhere numba counts references to each array of the tuples that are handed over, which takes
    longer than much of what is done with them. So a kernel that takes large tuples makes its
    arrays and leaves the loops to a part, which need not count.
    """
    return callee(function, forceinline=True)


def callee(function: F, **options: Any) -> F:
    """Make a kernel that only kernels call; neither it nor what it calls makes arrays.

    Taking large tuples of arrays from Python is most of the code of a small kernel.
    """
    return _made(function, _nrt=False, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    """A part of a kernel that numba copies into what calls it, and never compiles by itself.

    What is called in few places compiles soonest so: a kernel or part is compiled once alone, and
    once again within each kernel above it.
    """
    return _made(function, inline="always")


def _made(function: F, *, kept: bool = False, **options: Any) -> F:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return function
    return cast(F, Kernel(function, kept=kept, **options))


def _first_call(kernel: Kernel, arguments: tuple[Any, ...]) -> Any:
    """Call a kernel that is not loaded."""
    most = kernel.cold_rounds - _gone[kernel] if kernel.is_cold() else WARM_ROUNDS - _gone[None]
    plain_version = None if most <= 0 or _always else kernel.interpreted
    if plain_version is None:
        return kernel.compiled(*arguments)
    from dnnp.core.kernels.interpreted import OverrunError

    try:
        answer, rounds = plain_version.call(arguments, most)
    except OverrunError:
        _note(kernel, most)
        return kernel.compiled(*arguments)
    _note(kernel, rounds)
    return answer


def _note(kernel: Kernel, rounds: int) -> None:
    """Count interpreted rounds; many of them for later processes too."""
    before = _gone[kernel]
    _gone.update({kernel: rounds, None: rounds})
    if kernel.name and before <= LONG_ROUNDS < before + rounds:
        keep(f"{LONG}/{kernel.name}", b"")


_BLAS = "scipy.linalg.cython_blas"


def _numba() -> Any:
    """The package numba, without linear algebra: no kernel needs it, and it takes long to load."""
    import numba

    if "numba.np.arraymath" not in sys.modules and _BLAS not in sys.modules:
        sys.modules[_BLAS] = None  # type: ignore[assignment]  # numba asks whether it is there
        try:
            import_module("numba.np.arraymath")
        finally:
            del sys.modules[_BLAS]
    return numba


def plain(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Writable C-ordered copies, so that a kernel is compiled for one kind of array only."""
    return tuple(np.array(a, order="C") for a in arrays)


def scratch(bundle: Callable[..., T], sizes: Mapping[str, int], **given: Any) -> T:
    """Make a named tuple of zero arrays, shaped as its annotations say.

    A field `Annotated[Ints, "i32[n, 2]"]` becomes an array of that type and shape, where `sizes`
    says what names in shapes stand for; `"unset i32[n, 2]"` is not cleared. Fields without a shape
    must be `given`; others may be.
    """
    arrays = {
        name: make([int(size) if size.isdigit() else sizes[size] for size in shape], dtype)
        for name, (make, dtype, shape) in _shapes(bundle).items()
        if name not in given
    }
    return bundle(**arrays, **given)


@cache
def _shapes(bundle: Any) -> dict[str, tuple[Callable[..., Any], np.dtype, list[str]]]:
    """Constructor, type and shape of the array of each field that states them."""
    found = {}
    for name, hint in get_type_hints(bundle, include_extras=True).items():
        for text in getattr(hint, "__metadata__", ()):
            code, _, shape = text.removeprefix("unset ").rstrip("]").partition("[")
            make = np.empty if text.startswith("unset ") else np.zeros
            found[name] = make, _TYPES[code], [part for part in shape.split(", ") if part]
    return found


_TYPES = {
    code: np.dtype(name)
    for code, name in {
        "bool": "bool", "i16": "int16", "i32": "int32", "i64": "int64", "u32": "uint32",
        "u64": "uint64", "f64": "float64",
    }.items()
}  # fmt: skip
