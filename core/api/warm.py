"""Compile all kernels: ``python -m dnnp.warm``.

Kernels are compiled when they are first needed, and kept in a file each. This makes them all at
once, so that later commands compile nothing: for containers, CI and wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pkgutil
import platform
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.pool import ThreadPool
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from dnnp import warm_cases
from dnnp.core.kernels.folders import (
    BASELINES,
    folders,
    is_set,
    set_name,
    targets,
    writable,
)
from dnnp.core.model.errors import DnnpError, InputFileError, UnavailableError, UsageError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.core.kernels.cache import KernelCache

PROG = "python -m dnnp.warm"
INTERRUPTED = 130
MARKER = "complete.json"
"""File beside kernels that says which cases are done."""


class Survey(NamedTuple):
    """Kernels and their files."""

    kernels: dict[str, list[Path]]
    """Name -> files that serve this machine."""
    code: str
    """Digest of all kernels and cases."""
    deleted: int
    """Files that had no use."""

    @property
    def files(self) -> list[Path]:
        """All files."""
        return [path for paths in self.kernels.values() for path in paths]


def survey(*, clean: bool = False) -> Survey:
    """List every kernel of the package with its files.

    `clean`: first delete files of other code, and of other versions, settings and processors than
    are in use here.
    """
    caches = {cache.name: cache for cache in _caches()}
    deleted = _clean(caches) if clean else 0
    digest = hashlib.sha256(Path(warm_cases.__file__).read_bytes())
    for name in sorted(caches):
        digest.update(name.encode() + caches[name].code())
    files = {name: [*cache.paths()] for name, cache in caches.items()}
    return Survey(files, digest.hexdigest(), deleted)


def _caches() -> Iterator[KernelCache]:
    """The caches of all kernels."""
    from dnnp.core.kernels.cache import KernelCache

    path = import_module("dnnp.core").__path__
    for module in pkgutil.walk_packages(path, "dnnp.core."):
        for value in vars(import_module(module.name)).values():
            cache = getattr(getattr(value, "dispatcher", value), "_cache", None)
            if isinstance(cache, KernelCache):
                yield cache


def _clean(caches: dict[str, KernelCache]) -> int:
    """Delete files of kernels that are none of those known, or of other code; return how many."""
    served = {set_name(target) for target in targets()}
    deleted = 0
    for one in [path for folder in folders() for path in folder.glob("*") if is_set(path)]:
        for path in one.glob("*"):
            cache = caches.get(path.name.rsplit(".", 2)[0]) if one.name in served else None
            if path.suffix == ".nbc":
                useless = cache is None or cache.is_stale(path)
            else:
                useless = path.suffix == ".tmp" or (path.name == MARKER and one.name not in served)
            if useless:
                with suppress(OSError):
                    path.unlink()
                    deleted += 1
        with suppress(OSError):
            one.rmdir()  # if nothing is left
    return deleted


class _Worker:
    """A process that does one case after the other."""

    def __init__(self) -> None:
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dnnp.warm_cases", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a Ctrl-C at the terminal is for the parent alone
            )
        except OSError as error:
            raise InputFileError(f"cannot start a process: {error.strerror}") from None

    def do(self, case: str) -> str | None:
        """Do a case; return what it lacks, if something is not installed.

        Raises
        ------
        DnnpError
            The case failed.
        InputFileError
            The process is gone.
        """
        process = self.process
        answer = ""
        with suppress(OSError):
            process.stdin.write(f"{case}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            answer = process.stdout.readline()  # type: ignore[union-attr]
        if not answer:
            status = process.wait()
            how = f"ended with status {status}"
            if status < 0:
                how = f"was ended by {signal.Signals(-status).name}"
            reason = f"the process that compiled for '{case}' {how}; perhaps for want of memory"
            raise InputFileError(reason)
        trouble, missing = json.loads(answer)
        if trouble and not missing:
            raise DnnpError(f"case '{case}': {trouble}")
        return str(trouble) if missing else None


def do_cases(wanted: Sequence[str], jobs: int, tell: Callable[[str], None]) -> dict[str, str]:
    """Do cases in so many processes; return what could not be done, with what it lacks.

    Cases that follow each other need the same kernels: half of the processes begin with the last
    ones, so that they do not compile what another one compiles at that moment.
    """
    names, missing = deque(wanted), dict[str, str]()
    workers = list[_Worker]()

    def work(number: int) -> None:
        take = names.pop if number % 2 else names.popleft
        with suppress(IndexError):  # nothing is left
            while True:
                case = take()
                lacks = workers[number].do(case)
                if lacks is not None:
                    missing[case] = lacks
                tell(f"\r\x1b[Kproblem {len(wanted) - len(names)} of {len(wanted)}")

    try:
        for _ in range(min(jobs, len(wanted))):
            workers.append(_Worker())
        if workers:
            with ThreadPool(len(workers)) as pool:
                for _ in pool.imap_unordered(work, range(len(workers))):
                    pass
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    tell("\r\x1b[K")
    return missing


def _read_marker(path: Path, found: Survey) -> set[str]:
    """List cases that were done before, where all that they left is still there."""
    try:
        marker = json.loads(path.read_bytes())
        whole = marker["code"] == found.code
        whole = whole and {*marker["files"]} <= {file.name for file in found.files}
        return {*marker["cases"]} if whole else set()
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _write_marker(path: Path, found: Survey, done: list[str]) -> None:
    """Keep what is done, if that can be written."""
    marker = {"code": found.code, "files": [file.name for file in found.files], "cases": done}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(marker))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description="Compile all kernels now.")
    parser.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="processes at a time (default: one a core)"
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="compile for any processor of this kind and not only for this one: "
        + ", ".join(name for name, _ in BASELINES.values()),
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="first delete what is of no use: kernels of other versions, settings and processors",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list all kernels with their numbers of files, and compile nothing",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _set_target(*, baseline: bool) -> None:
    """Have numba, which is not loaded yet, compile for this machine or for many.

    Raises
    ------
    UsageError
        There is no baseline for this machine.
    UnavailableError
        Nothing is compiled here.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UnavailableError("NUMBA_DISABLE_JIT is set: nothing is compiled")
    if baseline:
        if platform.machine() not in BASELINES:
            raise UsageError(f"--baseline: none is known for {platform.machine()}")
        name, features = BASELINES[platform.machine()]
        os.environ |= {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}


def _show(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _run(args: argparse.Namespace) -> None:
    _set_target(baseline=args.baseline)
    if args.list:
        for kernel, kept in survey().kernels.items():
            print(f"{len(kept)}\t{kernel}")
        return
    folder = writable()
    if folder is None:
        names = " or ".join(map(str, folders()))
        raise InputFileError(f"nothing can be kept in {names}: set NUMBA_CACHE_DIR")
    began, started = time(), monotonic()
    shown = sys.stderr.isatty() and not args.quiet and os.environ.get("TERM") != "dumb"
    found = survey(clean=args.clean)
    deleted, marker = found.deleted, folder / set_name(targets()[0]) / MARKER
    done = _read_marker(marker, found)
    cases = warm_cases.cases()
    wanted = [name for name in cases if name not in done]
    missing = do_cases(wanted, args.jobs, _show if shown else lambda _: None)
    if wanted:
        found = survey()
        if not all(found.kernels.values()):
            raise InputFileError(f"{folder}: not all kernels could be written")
        _write_marker(marker, found, [name for name in cases if name not in missing])
    if args.quiet:
        return
    for reason in sorted({*missing.values()}):
        _show(f"{PROG}: left out: {reason}\n")
    facts = [file.stat() for file in found.files]
    made = sum(fact.st_mtime >= began for fact in facts)
    places = ", ".join(sorted({str(file.parent) for file in found.files}))
    there = f"{counted(len(found.kernels), 'kernel')} in {counted(len(facts), 'file')}"
    print(f"{there}, {sum(fact.st_size for fact in facts) / 1e6:.0f} MB: {places}")
    print(f"{made} compiled now, in {monotonic() - started:.0f} s")
    if args.clean:
        print(f"{counted(deleted, 'file')} without use deleted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.jobs is None:
        args.jobs = len(available_cores())
    if args.jobs < 1:
        parser.error("--jobs: must be at least 1")
    try:
        _run(args)
    except DnnpError as error:
        _show(f"{PROG}: {error}\n")
        return error.exit_status
    except KeyboardInterrupt:
        _show(f"{PROG}: interrupted; what is compiled is kept\n")
        return INTERRUPTED
    except OSError as error:
        _show(f"{PROG}: {error.filename or '<stdout>'}: {error.strerror or error}\n")
        return InputFileError.exit_status
    return 0


if __name__ == "__main__":
    if os.name == "posix":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
