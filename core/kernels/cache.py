"""Compiled kernels on disk, one sealed file for each signature.

Numba's own files hold a pickle and machine code without a checksum: what is cut short raises at
every run, what is changed crashes or computes something else, and code that was inlined from
another file is not noticed to be out of date. Here a file is loaded only if its seal is the digest
of its content and of everything it depends on; otherwise the kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

_DIGEST = hashlib.sha256().digest_size
"""Bytes of a digest. A file is the digest of the code, that of all, and the pickle."""


class KernelCache:
    """The files of one kernel, with the interface that numba asks of a cache.

    A file holds what was compiled for one signature. Where none can be written, a kernel lives as
    long as the process. `tell` is called when something is compiled, since no file serves.
    """

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], tell: Callable[[], None]
    ) -> None:
        self._function, self._options, self._tell = function, options, tell
        self.name = name_of(function)
        """First part of the names of its files."""
        self.cache_path = str(folders()[0])
        """Folder in numba's statistics."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load what was compiled for a signature, or None; delete damaged and stale files."""
        from numba.core.compiler import CompileResult

        target_context.refresh()  # so that it knows all the functions that machine code may call
        for folder in folders():
            payload = self._read(folder / set_name() / self._file(sig), sig)
            if payload is not None:
                return CompileResult._rebuild(target_context, *payload)
        self._tell()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what was compiled for a signature, in the first folder that takes it."""
        if data.library.has_dynamic_globals or any(not loop.can_cache for loop in data.lifted):
            return  # it holds addresses, which are others in the next process
        from numba.core.serialize import dumps

        content = dumps(data._reduce())
        keep(f"{set_name()}/{self._file(sig)}", self._seal(sig, content) + content)

    def paths(self) -> Iterator[Path]:
        """List the files that serve this machine."""
        for folder in folders():
            yield from (folder / set_name()).glob(f"{self.name}.{16 * '?'}.nbc")

    def is_compiled(self) -> bool:
        """True if some of them are of its code as it is now."""
        return any(path.read_bytes()[:_DIGEST] == self.code() for path in self.paths())

    def _file(self, sig: Any) -> str:
        """Name a signature's file; what else it depends on is sealed."""
        return f"{self.name}.{hashlib.sha256(repr(sig).encode()).hexdigest()[:16]}.nbc"

    def _read(self, path: Path, sig: Any) -> Any:
        with suppress(OSError):
            data = path.read_bytes()
            content = data[2 * _DIGEST :]
            if data[: 2 * _DIGEST] == self._seal(sig, content):
                with suppress(ImportError, AttributeError):  # of a type that has moved since
                    return pickle.loads(content)
            path.unlink()
        return None

    def _seal(self, sig: Any, content: bytes) -> bytes:
        code = self.code()
        # The name of a named tuple's type says nothing about the order of its fields.
        fields = [getattr(kind, "fields", None) for kind in sig]
        known = repr((made_by(), sig, fields)).encode()
        return code + hashlib.sha256(code + known + content).digest()

    def code(self) -> bytes:
        """Digest the kernel and all that it calls."""
        parts = repr(sorted(self._options.items())), *_dependencies(self._function)
        return hashlib.sha256("\n".join(parts).encode()).digest()


def _dependencies(function: Any) -> list[str]:
    """List the code of a kernel and of those that it calls, and the constants that they use."""
    parts: list[str] = []
    found = {function}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        parts += [*_described(one.__code__), repr(one.__defaults__)]
        closed = dict(zip(one.__code__.co_freevars, one.__closure__ or (), strict=True))
        for name in (*closed, *one.__code__.co_names):
            value = closed[name].cell_contents if name in closed else one.__globals__.get(name)
            callee = getattr(value, "py_func", None)
            if callee is not None and callee not in found:
                found.add(callee)
                waiting.append(callee)
                parts.append(repr(sorted(value.targetoptions.items())))
            elif isinstance(value, int | float | str | tuple | np.generic):
                parts.append(f"{name}={value!r}")
            elif isinstance(value, np.ndarray):
                parts.append(f"{name}={value.dtype} {value.shape} {value.tobytes().hex()}")
            elif hasattr(value, "_fields"):  # a named tuple: which place a name stands for
                parts.append(f"{name}={value._fields!r}")
    return parts


def _described(code: CodeType) -> list[str]:
    """Describe what a code object does, whatever its place in the file."""
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for constant in code.co_consts:
        parts += _described(constant) if isinstance(constant, CodeType) else [repr(constant)]
    return parts


OWN = Path(__file__).resolve().parent / "kernels.d"
"""The folder that comes with the package, empty unless the package was built with kernels."""

LONG = "interpreted"
"""Folder of empty files, named like kernels, in a folder of kernels."""

_SETTINGS = (
    "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DEBUG_NRT", "ENABLE_PROFILING",
    "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_FLAGS", "LLVM_REFPRUNE_PASS", "LOOP_VECTORIZE",
    "NRT_STATS", "OPT", "SLP_VECTORIZE", "USING_SVML",
)  # fmt: skip
"""Settings of numba (`NUMBA_OPT` and so on) that change what it makes of the same code."""


def folders() -> list[Path]:
    """List where kernels are looked for; the first that can be written to takes new ones.

    `NUMBA_CACHE_DIR` alone, where it is set; else the package's own folder, then one of the user,
    if there is one.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = os.path.join(os.path.expanduser("~"), ".cache")
    users = [Path(caches, "dnnp")] if os.path.isabs(caches) else []
    return [OWN, *users]


def name_of(function: Callable[..., Any]) -> str:
    """First part of the names of a kernel's files."""
    module = function.__module__.removeprefix("dnnp.").removeprefix("core.")
    return f"{module}.{function.__qualname__}".replace("<", "").replace(">", "")


@cache
def known_files(places: tuple[Path, ...]) -> frozenset[str]:
    """Names of the kernels that have files, for whatever machine, until another is written."""
    files = (file for folder in places for file in folder.glob("*/*.nbc"))
    return frozenset(file.name.rsplit(".", 2)[0] for file in files)


def keep(name: str, content: bytes) -> Path | None:
    """Write a file atomically, in the first folder that takes it, if one does."""
    for folder in folders():
        path = folder / name
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
                known_files.cache_clear()
                return folder
            finally:
                temporary.unlink(missing_ok=True)
    return None


@cache
def known_long(places: tuple[Path, ...]) -> frozenset[str]:
    """Names of the kernels that earlier runs interpreted for long."""
    return frozenset(path.name for folder in places for path in (folder / LONG).glob("*"))


def writable() -> Path | None:
    """The folder that kernels are written to; None: there is none."""
    return keep("CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55")


@cache
def set_name() -> str:
    """Name of the subfolder for all kernels compiled by these versions and settings.

    It begins with what tells people which set it is; the number stands for the rest.
    """
    import numba

    name, number = made_by()[2][1], hashlib.sha256(repr(made_by()).encode()).hexdigest()[:8]
    return f"{sys.implementation.cache_tag}-numba-{numba.__version__}-{name}-{number}"


@cache
def made_by() -> tuple[Any, ...]:
    """All but the code of a kernel and its types that decides what it is compiled to.

    Third comes the target: triple, name of the processor, its features as `+avx,-fma`.
    """
    import llvmlite
    import numba
    import numpy as np
    from numba.core.registry import cpu_target

    versions = numba.__version__, llvmlite.__version__, np.__version__
    python = sys.implementation.cache_tag, getattr(sys, "abiflags", "")
    settings = [(name, repr(getattr(numba.config, name, None))) for name in _SETTINGS]
    return versions, python, cpu_target.target_context.codegen().magic_tuple(), settings
