"""Folders of compiled kernels, and what they are compiled for."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

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
    if it is known whose and where that is.
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
    """Write a file, as a whole or not at all, in the first folder that takes it, if one does."""
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
