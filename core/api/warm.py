"""Compile kernels before they are needed: ``python -m dnnp.warm``.

Kernels are compiled when they are first needed, and kept in a file each. This makes them all at
once, so that later commands compile nothing: for containers, CI, wheels, and at installation.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from dnnp import warm_cases
from dnnp.core.kernels.folders import folders, set_name, writable
from dnnp.core.model.errors import DnnpError, InputFileError, UnavailableError
from dnnp.core.model.processes import available_cores, die_with_parent
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.core.kernels.cache import KernelCache

PROG = "python -m dnnp.warm"
INTERRUPTED = 130


def caches() -> Iterator[KernelCache]:
    """The caches of all kernels of the package."""
    from dnnp.core.kernels.cache import KernelCache

    path = import_module("dnnp.core").__path__
    for module in pkgutil.walk_packages(path, "dnnp.core."):
        for value in vars(import_module(module.name)).values():
            cache = getattr(getattr(value, "dispatcher", value), "_cache", None)
            if isinstance(cache, KernelCache):
                yield cache


def _digest(names: Sequence[str]) -> str:
    """Digest of all kernels, and of the cases that are done."""
    digest = hashlib.sha256(repr(names).encode() + Path(warm_cases.__file__).read_bytes())
    for cache in sorted(caches(), key=lambda cache: cache.name):
        digest.update(cache.name.encode() + cache.code())
    return digest.hexdigest()


def _begin(parent: int) -> None:
    """Have a worker compile whatever it calls, print nothing, and end with its parent."""
    from dnnp.core.kernels.kernel import compile_always
    from dnnp.core.model.deadline import wait_always

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    compile_always()
    wait_always()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals wait while workers start: one that never hears what to do prints a traceback.

    By handlers, as another thread may get what this one blocks.
    """
    caught: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    numbers = [n for n in both if signal.getsignal(n) is not signal.SIG_IGN]
    before = [signal.signal(number, lambda got, _: caught.append(got)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


def do_cases(names: Sequence[str], jobs: int) -> list[str]:
    """Do cases in so many processes; return what was lacking, which left some of them out.

    Raises
    ------
    DnnpError
        A case failed.
    InputFileError
        A process ended.
    """
    spawn = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, spawn, _begin, (os.getpid(),)) as pool:
            try:
                with _signals_wait():
                    waiting = [pool.submit(warm_cases.do, name) for name in names]
                done = as_completed(waiting)
                return sorted({lacks for one in done if (lacks := one.result())})
            except BaseException:
                for process in multiprocessing.active_children():
                    process.kill()
                raise
    except (BrokenProcessPool, OSError):
        reason = "a process that compiled was ended, or none was started: for want of memory?"
        raise InputFileError(reason) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description="Compile all kernels now.")
    parser.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="processes at a time (default: one a core)"
    )
    parser.add_argument(
        "--defaults", action="store_true", help="compile only what the default methods need"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _run(args: argparse.Namespace) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UnavailableError("NUMBA_DISABLE_JIT is set: nothing is compiled")
    folder = writable()
    if folder is None:
        names = " or ".join(map(str, folders()))
        raise InputFileError(f"nothing can be kept in {names}: set NUMBA_CACHE_DIR")
    started, missing = monotonic(), list[str]()
    cases = [case for case in warm_cases.CASES if not args.defaults or case in warm_cases.DEFAULTS]
    digest = _digest(cases)
    # What was done before, where all files are still there, is not done again.
    done = folder / set_name() / f"{digest[:16]}.done"
    files = sorted(str(path) for cache in caches() for path in cache.paths())
    if not done.is_file() or done.read_text().split("\n") != files:
        missing = do_cases(cases, args.jobs)
        found = {cache.name: [str(path) for path in cache.paths()] for cache in caches()}
        files = sorted(path for paths in found.values() for path in paths)
        if not files or not (args.defaults or all(found.values())):
            raise InputFileError(f"{folder}: not all kernels could be written")
        done.write_text("\n".join(files))
    if not args.quiet:
        for reason in missing:
            print(f"{PROG}: left out: {reason}", file=sys.stderr)
        size = sum(os.stat(file).st_size for file in files) / 1e6
        places = ", ".join(sorted({os.path.dirname(file) for file in files}))
        print(f"{counted(len(files), 'kernel')}, {size:.0f} MB: {places}")
        print(f"done in {monotonic() - started:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.jobs is None:
        args.jobs = len(available_cores())
    if args.jobs < 1:
        parser.error("--jobs: must be at least 1")
    trouble, status = "", 0
    try:
        _run(args)
    except DnnpError as error:
        trouble, status = str(error), error.exit_status
    except KeyboardInterrupt:
        trouble, status = "interrupted; what is compiled is kept", INTERRUPTED
    except OSError as error:
        trouble = f"{error.filename or '<stdout>'}: {error.strerror or error}"
        status = InputFileError.exit_status
    if trouble:
        with suppress(OSError):
            print(f"{PROG}: {trouble}", file=sys.stderr)
    return status


if __name__ == "__main__":
    if os.name == "posix":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
