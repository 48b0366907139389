"""Compile kernels before they are needed: ``python -m dnnp.warm``.

Kernels are compiled when they are first needed, and kept in a file each. This makes them all at
once, so that later commands compile nothing: for containers, CI, wheels, and at installation.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

from dnnp import warm_cases
from dnnp.core.kernels.folders import folders, set_name, writable
from dnnp.core.kernels.kernel import compile_always
from dnnp.core.model.deadline import wait_always
from dnnp.core.model.errors import DnnpError, InputFileError, UnavailableError
from dnnp.core.model.processes import available_cores, die_with_parent
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.core.kernels.cache import KernelCache

PROG = "python -m dnnp.warm"


def caches() -> Iterator[KernelCache]:
    """The caches of all kernels of the package."""
    from dnnp.core.kernels.cache import KernelCache

    path = import_module("dnnp.core").__path__
    for module in pkgutil.walk_packages(path, "dnnp.core."):
        for value in vars(import_module(module.name)).values():
            cache = getattr(getattr(value, "dispatcher", value), "_cache", None)
            if isinstance(cache, KernelCache):
                yield cache


def work(parent: int) -> None:
    """Do cases whose numbers come as bytes on standard input; say what is lacking on the output."""
    die_with_parent()
    if os.getppid() != parent:
        return
    compile_always()
    wait_always()
    said = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # solvers print
    while number := os.read(0, 1):
        os.write(said, warm_cases.do([*warm_cases.CASES][number[0]]).encode() + b"\n")


def do_cases(names: Sequence[str], jobs: int) -> list[str]:
    """Do cases in so many processes; return what was lacking, which left some of them out.

    Raises
    ------
    InputFileError
        A process ended, or was not started.
    """
    source, sink = os.pipe()  # whoever is free reads the next one
    os.write(sink, bytes(map([*warm_cases.CASES].index, names)))
    os.close(sink)
    command = [sys.executable, "-P", "-c", f"from dnnp.warm import work; work({os.getpid()})"]
    workers: list[subprocess.Popen[str]] = []
    failed = "a process that compiled was ended, or none was started: for want of memory?"
    try:
        for _ in range(jobs):  # a Ctrl-C at the terminal is for the parent alone
            workers.append(subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE,
                                            text=True, start_new_session=True))  # fmt: skip
        said = [worker.communicate()[0] for worker in workers]
    except OSError:
        raise InputFileError(failed) from None
    finally:
        os.close(source)
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise InputFileError(failed)
    return sorted({line for text in said for line in text.splitlines() if line})


def _run(args: argparse.Namespace) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UnavailableError("NUMBA_DISABLE_JIT is set: nothing is compiled")
    folder = writable()
    if folder is None:
        places = " or ".join(map(str, folders()))
        raise InputFileError(f"nothing can be kept in {places}: set NUMBA_CACHE_DIR")
    started, missing = monotonic(), list[str]()
    cases = [*(warm_cases.DEFAULTS if args.defaults else warm_cases.CASES)]
    if args.defaults or not all(cache.is_compiled() for cache in caches()):
        missing = do_cases(cases, args.jobs)
    files = [[*cache.paths()] for cache in caches()]
    if not any(files) or not (args.defaults or all(files)):
        raise InputFileError(f"{folder}: not all kernels could be written")
    if not args.quiet:
        for reason in missing:
            print(f"{PROG}: left out: {reason}", file=sys.stderr)
        sizes = [path.stat().st_size for paths in files for path in paths]
        print(f"{counted(len(sizes), 'kernel')}, {sum(sizes) / 1e6:.0f} MB: {folder / set_name()}")
        print(f"done in {monotonic() - started:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog=PROG, description="Compile all kernels now.")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", default=len(available_cores()),
                        help="processes at a time (default: one a core)")  # fmt: skip
    parser.add_argument(
        "--defaults", action="store_true", help="compile only what the default methods need"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error("--jobs: must be at least 1")
    trouble, status = "", 0
    try:
        _run(args)
    except DnnpError as error:
        trouble, status = str(error), error.exit_status
    except KeyboardInterrupt:
        trouble, status = "interrupted; what is compiled is kept", 130
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
