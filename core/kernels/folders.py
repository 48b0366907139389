"""Folders of compiled kernels, and the targets that they are compiled for."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

Target = tuple[str, str, str]
"""Target of machine code: triple, name of the processor, its features as `+avx,-fma`."""

OWN = Path(__file__).resolve().parent / "kernels.d"
"""The folder that comes with the package, empty unless the package was built with kernels."""

LONG = "interpreted"
"""Folder of empty files, named like kernels, in a folder of kernels."""

BASELINES = {
    "x86_64": (
        "x86-64-v3",
        "+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,"
        "+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    )
}
"""Kind of machine -> a processor, and its features, that machine code for many is compiled for.

Results are the same. On a Zen 4 (medians of processor time, code for itself first) a heuristic
split takes 0.55 s and 0.52 s, a schedule 0.048 s and 0.047 s, but annealing for latency 3.7 s and
6.1 s: so no wheel brings such kernels unless it is asked to. Nothing was measured on 64-bit ARM.
"""

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


def has_files(function: Callable[..., Any]) -> bool:
    """Tell whether a kernel has files, for whatever machine and versions, without asking numba."""
    return name_of(function) in known_files(tuple(folders()))


@cache
def known_files(places: tuple[Path, ...]) -> frozenset[str]:
    """Names of the kernels that have files, until the cache writes another."""
    files = (file for folder in places for file in folder.glob("*/*.nbc"))
    return frozenset(file.name.rsplit(".", 2)[0] for file in files)


def note_long(function: Callable[..., Any]) -> None:
    """Note for later runs, if that can be, that a kernel was interpreted for long."""
    for folder in folders():
        with suppress(OSError):
            (folder / LONG).mkdir(parents=True, exist_ok=True)
            (folder / LONG / name_of(function)).touch()
            return


@cache
def known_long(places: tuple[Path, ...]) -> frozenset[str]:
    """Names of the kernels that earlier runs interpreted for long."""
    return frozenset(path.name for folder in places for path in (folder / LONG).glob("*"))


def writable() -> Path | None:
    """The folder that kernels are written to; None: there is none."""
    from tempfile import TemporaryFile

    for folder in folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                return folder
    return None


@cache
def targets() -> tuple[Target, ...]:
    """Targets that this machine runs: itself, and a baseline that it reaches."""
    from numba.core.registry import cpu_target

    own: Target = cpu_target.target_context.codegen().magic_tuple()
    if platform.machine() in BASELINES:
        name, features = BASELINES[platform.machine()]
        if {*features.split(",")} <= {*own[2].split(",")} and own[1:] != (name, features):
            return own, (own[0], name, features)
    return (own,)


@cache
def set_name(target: Target) -> str:
    """Name of the subfolder for all kernels compiled for a target, by these versions and settings.

    It begins with what tells people which set it is; the number stands for the rest.
    """
    import numba

    number = hashlib.sha256(repr(made_by(target)).encode()).hexdigest()[:8]
    return f"{sys.implementation.cache_tag}-numba-{numba.__version__}-{target[1]}-{number}"


@cache
def made_by(target: Target) -> tuple[Any, ...]:
    """All but the code of a kernel and its types that decides what it is compiled to."""
    import llvmlite
    import numba
    import numpy as np

    versions = numba.__version__, llvmlite.__version__, np.__version__
    python = sys.implementation.cache_tag, getattr(sys, "abiflags", "")
    settings = [(name, repr(getattr(numba.config, name, None))) for name in _SETTINGS]
    return versions, python, target, settings
