"""A process that does cases of warm_cases: `python -P -m dnnp.warming.worker FD`.

It answers requests that come over the socket FD until the other end is closed.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dnnp.warming import cases

if TYPE_CHECKING:
    from dnnp.core.kernels.cache import KernelCache

SURVEY, CLEAN = "survey", "clean"
"""Requests that are answered by a `Survey`, after everything of no use is deleted or as it is; any
other names a case, and is answered by `Done`."""


MARKER = "complete.json"
"""File beside kernels that says which cases are done."""


class Done(NamedTuple):
    """What came of a case."""

    trouble: str
    """Why it could not be done; empty: it was."""
    missing: bool
    """Whether that is only because something is not installed."""
    written: list[str]
    """Files that the process made, in all cases so far."""
    kept: bool
    """Whether all that it compiled is in a file."""


class Survey(NamedTuple):
    """What there is."""

    kernels: dict[str, list[str]]
    """Name -> files that serve this machine."""
    home: str
    """Name of the folder for what this machine compiles."""
    code: str
    """A digest of all kernels and cases."""
    deleted: int
    """Files that had no use."""


def main() -> None:
    """Answer until nobody asks any more."""
    from dnnp.core.model.processes import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    parent = int(sys.argv[2])
    die_with_parent()
    if os.getppid() != parent:
        return
    with Connection(int(sys.argv[1])) as pipe:
        try:
            while True:
                request = pipe.recv()
                if request in (SURVEY, CLEAN):
                    pipe.send(survey(clean=request == CLEAN))
                else:
                    pipe.send(_done(request))
        except (EOFError, OSError):
            return


def _done(name: str) -> Done:
    from dnnp.core.kernels import cache as kernel_cache
    from dnnp.core.kernels.kernel import compile_always
    from dnnp.core.model.deadline import wait_always
    from dnnp.core.model.errors import DnnpError, UnavailableError

    compile_always()
    wait_always()
    trouble, missing = "", False
    try:
        cases.run(cases.cases()[name])
    except DnnpError as error:
        trouble, missing = str(error), isinstance(error, UnavailableError)
    except ModuleNotFoundError as error:
        trouble, missing = str(error), True
    written = [*map(str, kernel_cache.written)]
    return Done(trouble, missing, written, not kernel_cache.lost)


def survey(*, clean: bool) -> Survey:
    """Every kernel of the package, with its files.

    `clean`: first delete those of other code, and of other versions, settings and processors than
    are in use here.
    """
    from dnnp.core.kernels.folders import folders, is_set, set_name, targets

    caches = dict(_caches())
    deleted = 0
    if clean:
        served = {set_name(target) for target in targets()}
        for folder in folders():
            for one in [path for path in _listed(folder) if is_set(path)]:
                known = caches if one.name in served else {}
                useless = [path for path in _listed(one) if _is_useless(path, known)]
                deleted += sum(map(_deleted, useless))
                with suppress(OSError):
                    one.rmdir()  # if nothing is left
    files = {name: [*map(str, cache.paths())] for name, cache in caches.items()}
    return Survey(files, set_name(targets()[0]), _code(caches), deleted)


def _code(caches: Mapping[str, KernelCache]) -> str:
    """A digest of what cases compile."""
    digest = hashlib.sha256(Path(cases.__file__).read_bytes())
    for name in sorted(caches):
        digest.update(name.encode() + caches[name].code())
    return digest.hexdigest()


def _caches() -> Iterator[tuple[str, KernelCache]]:
    """The caches of all kernels, by the names that their files begin with."""
    from dnnp.core.kernels.cache import KernelCache

    path = importlib.import_module("dnnp.core").__path__
    for module in pkgutil.walk_packages(path, "dnnp.core."):
        for value in vars(importlib.import_module(module.name)).values():
            cache = getattr(getattr(value, "dispatcher", value), "_cache", None)
            if isinstance(cache, KernelCache):
                yield cache.name, cache


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _is_useless(path: Path, known: Mapping[str, KernelCache]) -> bool:
    """Whether a file in a subfolder of kernels is none of those known, or of other code."""
    if path.suffix != ".nbc":
        return path.suffix == ".tmp" or (path.name == MARKER and not known)
    cache = known.get(path.name.rsplit(".", 2)[0])
    return cache is None or cache.is_stale(path)


def _deleted(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False


if __name__ == "__main__":
    from dnnp.warming import worker  # so that its answers are of the types that the parent knows

    worker.main()
