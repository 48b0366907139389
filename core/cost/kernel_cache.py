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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

_SEAL_BYTES = hashlib.sha256().digest_size


class KernelCache(FunctionCache):
    """Numba's cache of a function with files of our own; what cannot be written is not kept.

    `options` are those that numba was given.

    Raises
    ------
    RuntimeError
        There is no folder that can be written to.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        super().__init__(function)
        self._cache_file: Any = _SealedFiles(
            function, options, Path(self.cache_path, self._impl.filename_base)
        )

    def is_empty(self) -> bool:
        """Whether nothing was ever compiled."""
        return not self._cache_file.paths()

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what was compiled for a signature."""
        with suppress(OSError):
            super().save_overload(sig, data)


class _SealedFiles:
    """The files of one kernel; what numba asks of its `IndexDataCacheFile`."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], base: Path
    ) -> None:
        self._function = function
        self._options = options
        self._base = base

    def load(self, key: Any) -> Any:
        """What was saved for a key, or None; a file that is damaged or out of date is deleted."""
        path = self._path(key)
        with suppress(OSError):
            data = path.read_bytes()
            if data[:_SEAL_BYTES] == self._seal(key, data[_SEAL_BYTES:]):
                with suppress(ImportError, AttributeError):  # of a type that has moved since
                    return pickle.loads(data[_SEAL_BYTES:])
            path.unlink()
        return None

    def save(self, key: Any, value: Any) -> None:
        """Save a value for a key, as a whole or not at all.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        path, content = self._path(key), dumps(value)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            temporary.write_bytes(self._seal(key, content) + content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def flush(self) -> None:
        """Delete everything."""
        for path in self.paths():
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The files."""
        return list(self._base.parent.glob(f"{self._base.name}.*.nbc"))

    def _path(self, key: Any) -> Path:
        """File of a key: of its signature and processor. What else it holds is sealed."""
        number = hashlib.sha256(repr(key[:2]).encode()).hexdigest()[:16]
        return self._base.with_name(f"{self._base.name}.{number}.nbc")

    def _seal(self, key: Any, content: bytes) -> bytes:
        # The name of a named tuple's type says nothing about the order of its fields.
        fields = repr([getattr(kind, "fields", None) for kind in key[0]])
        known = numba.__version__, np.__version__, repr(key), fields, _named(self._options)
        parts = (*known, *_dependencies(self._function))
        return hashlib.sha256("\n".join(parts).encode() + content).digest()


def _dependencies(function: Any) -> list[str]:
    """The code of a kernel and of those that it calls, and the constants that they use."""
    parts: list[str] = []
    found = {function}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        parts += [*_described(one.__code__), repr(one.__defaults__)]
        for name in one.__code__.co_names:
            value = one.__globals__.get(name)
            callee = getattr(value, "py_func", None)
            if callee is not None and callee not in found:
                found.add(callee)
                waiting.append(callee)
                parts.append(_named(value.targetoptions))
            elif isinstance(value, int | float | str | tuple | np.generic):
                parts.append(f"{name}={value!r}")
            elif hasattr(value, "_fields"):  # a named tuple: which place a name stands for
                parts.append(f"{name}={value._fields!r}")
    return parts


def _named(options: Mapping[str, Any]) -> str:
    """How a kernel is compiled."""
    return repr(sorted(options.items()))


def _described(code: CodeType) -> list[str]:
    """What a code object does, whatever its place in the file."""
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for constant in code.co_consts:
        parts += _described(constant) if isinstance(constant, CodeType) else [repr(constant)]
    return parts
