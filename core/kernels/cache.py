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
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from dnnp.core.kernels.folders import (
    Target,
    folders,
    known_files,
    made_by,
    name_of,
    set_name,
    targets,
)

_DIGEST = hashlib.sha256().digest_size
"""Bytes of a digest. A file is the digest of the code, that of all, and the pickle."""


class KernelCache:
    """The files of one kernel, with the interface that numba asks of a cache.

    A file holds what was compiled for one signature. Where none can be written, a kernel lives as
    long as the process.

    Parameters
    ----------
    function
        Plain Python.
    options
        Those that numba was given.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._function = function
        self._options = options
        self.name = name_of(function)
        """First part of the names of its files."""

    @property
    def cache_path(self) -> str:
        """Name the folder that is looked into first, for numba's statistics."""
        return str(folders()[0])

    def is_empty(self) -> bool:
        """Tell whether there is no file that serves this machine."""
        return next(self.paths(), None) is None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load what was compiled for a signature, or None; delete damaged and stale files."""
        from numba.core.compiler import CompileResult

        target_context.refresh()  # so that it knows all the functions that machine code may call
        for target in targets():
            for folder in folders():
                path = folder / set_name(target) / self._file(sig)
                payload = self._read(path, sig, target)
                if payload is not None:
                    return CompileResult._rebuild(target_context, *payload)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what was compiled for a signature, in the first folder that takes it."""
        if data.library.has_dynamic_globals or any(not loop.can_cache for loop in data.lifted):
            return  # it holds addresses, which are others in the next process
        from numba.core.serialize import dumps

        target = data.codegen.magic_tuple()
        content = dumps(data._reduce())
        content = self._seal(sig, target, content) + content
        for folder in folders():
            path = folder / set_name(target) / self._file(sig)
            with suppress(OSError):
                _write(path, content)
                known_files.cache_clear()
                return

    def paths(self) -> Iterator[Path]:
        """List the files that serve this machine."""
        for target in targets():
            for folder in folders():
                yield from (folder / set_name(target)).glob(f"{self.name}.{16 * '?'}.nbc")

    def _file(self, sig: Any) -> str:
        """Name a signature's file; what else it depends on is sealed."""
        return f"{self.name}.{hashlib.sha256(repr(sig).encode()).hexdigest()[:16]}.nbc"

    def _read(self, path: Path, sig: Any, target: Target) -> Any:
        with suppress(OSError):
            data = path.read_bytes()
            content = data[2 * _DIGEST :]
            if data[: 2 * _DIGEST] == self._seal(sig, target, content):
                with suppress(ImportError, AttributeError):  # of a type that has moved since
                    return pickle.loads(content)
            path.unlink()
        return None

    def _seal(self, sig: Any, target: Target, content: bytes) -> bytes:
        code = self.code()
        # The name of a named tuple's type says nothing about the order of its fields.
        fields = [getattr(kind, "fields", None) for kind in sig]
        known = repr((made_by(target), sig, fields)).encode()
        return code + hashlib.sha256(code + known + content).digest()

    def code(self) -> bytes:
        """Digest the kernel and all that it calls."""
        parts = repr(sorted(self._options.items())), *_dependencies(self._function)
        return hashlib.sha256("\n".join(parts).encode()).digest()


def _write(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
