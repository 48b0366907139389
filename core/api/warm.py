"""Compile all kernels: ``python -m dnnp.warm``.

Kernels are compiled when they are first needed, and kept in a file each. This makes them all at
once, so that later commands compile nothing: for containers, CI and wheels.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from time import monotonic

from dnnp.core.kernels.folders import BASELINES, folders, writable
from dnnp.core.model.errors import DnnpError, InputFileError, UnavailableError, UsageError
from dnnp.core.model.text import counted
from dnnp.warming.cases import cases
from dnnp.warming.worker import CLEAN, MARKER, SURVEY, Done, Survey

PROG = "python -m dnnp.warm"
INTERRUPTED = 130


class _Worker:
    """A process that does one case after the other.

    Raises
    ------
    InputFileError
        The system starts no process.
    """

    def __init__(self, env: dict[str, str]) -> None:
        ours, theirs = Pipe()
        words = [str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dnnp.warming.worker", *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=env,
                start_new_session=True,  # a Ctrl-C at the terminal is for the parent alone
            )
        except OSError as error:
            ours.close()
            raise InputFileError(f"cannot start a process: {error.strerror}") from None
        finally:
            theirs.close()
        self.pipe: Connection = ours
        self.case = ""
        """What it does."""

    def ask(self, request: str) -> None:
        """Give it something to do."""
        self.case = request
        with suppress(OSError):  # `answer` says why
            self.pipe.send(request)

    def answer(self) -> Done | Survey:
        """What it says, once it has done it.

        Raises
        ------
        InputFileError
            It is gone.
        """
        try:
            found: Done | Survey = self.pipe.recv()
        except (EOFError, OSError):
            status = self._process.wait()
            how = f"ended with status {status}"
            if status < 0:
                how = f"was ended by {signal.Signals(-status).name}"
            reason = (
                f"the process that compiled for '{self.case}' {how}; perhaps for want of memory"
            )
            raise InputFileError(reason) from None
        return found

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()


class _Tally:
    """What all processes say together."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.missing: dict[str, str] = {}
        self.kept = True

    def add(self, case: str, done: Done) -> None:
        """Count a case.

        Raises
        ------
        DnnpError
            It failed, which it should not.
        """
        if done.trouble and not done.missing:
            raise DnnpError(f"case '{case}': {done.trouble}")
        if done.missing:
            self.missing[case] = done.trouble
        self.written.update(done.written)
        self.kept = self.kept and done.kept


@contextmanager
def _workers(count: int, env: dict[str, str]) -> Iterator[list[_Worker]]:
    """So many processes, which do not outlive the block."""
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            workers.append(_Worker(env))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def do_cases(wanted: Sequence[str], jobs: int, env: dict[str, str], *, shown: bool) -> _Tally:
    """Do cases, in so many processes; `shown`: with a line about the progress on stderr.

    Cases that follow each other need the same kernels: half of the processes begin with the last
    ones, so that they do not compile what another one compiles at that moment.
    """
    tally = _Tally()
    names = deque(wanted)
    total = len(names)
    with _workers(min(jobs, total), env) as workers:
        take = {
            worker.pipe: names.pop if number % 2 else names.popleft
            for number, worker in enumerate(workers)
        }
        busy = {}
        for worker in workers:
            worker.ask(take[worker.pipe]())
            busy[worker.pipe] = worker
        while busy:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                done = worker.answer()
                if isinstance(done, Done):
                    tally.add(worker.case, done)
                if names:
                    worker.ask(take[worker.pipe]())
                else:
                    del busy[worker.pipe]
                if shown:
                    over = total - len(names) - len(busy)
                    _show(
                        f"\r\x1b[Kproblem {over} of {total}, {len(tally.written)} kernels compiled"
                    )
    if shown:
        _show("\r\x1b[K")
    return tally


def surveyed(env: dict[str, str], *, clean: bool = False) -> Survey:
    """Every kernel and its files; `clean`: after what has no use is deleted."""
    with _workers(1, env) as (worker,):
        worker.ask(CLEAN if clean else SURVEY)
        found = worker.answer()
    return found if isinstance(found, Survey) else Survey({}, "", "", 0)


def _read_marker(folder: Path, found: Survey) -> set[str]:
    """Cases that were done before, where all that they left is still there."""
    try:
        marker = json.loads((folder / found.home / MARKER).read_bytes())
        whole = marker["code"] == found.code and {*marker["files"]} <= {*_files(found)}
        return {*marker["cases"]} if whole else set()
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _write_marker(folder: Path, found: Survey, done: list[str]) -> None:
    """Keep what is done, if that can be written."""
    marker = {"code": found.code, "files": _files(found), "cases": done}
    with suppress(OSError):
        (folder / found.home).mkdir(parents=True, exist_ok=True)
        (folder / found.home / MARKER).write_text(json.dumps(marker))


def _files(found: Survey) -> list[str]:
    """Names of all files of kernels."""
    return [os.path.basename(name) for names in found.kernels.values() for name in names]


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


def _env(*, baseline: bool) -> dict[str, str]:
    """The environment to compile in.

    Raises
    ------
    UsageError
        There is no baseline for this machine.
    UnavailableError
        Nothing is compiled here.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UnavailableError("NUMBA_DISABLE_JIT is set: nothing is compiled")
    env = dict(os.environ)
    if baseline:
        if platform.machine() not in BASELINES:
            raise UsageError(f"--baseline: none is known for {platform.machine()}")
        env["NUMBA_CPU_NAME"], env["NUMBA_CPU_FEATURES"] = BASELINES[platform.machine()]
    return env


def _show(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _run(args: argparse.Namespace) -> None:
    env = _env(baseline=args.baseline)
    if args.list:
        for kernel, kept in surveyed(env).kernels.items():
            print(f"{len(kept)}\t{kernel}")
        return
    folder = writable()
    if folder is None:
        names = " or ".join(map(str, folders()))
        raise InputFileError(f"nothing can be kept in {names}: set NUMBA_CACHE_DIR")
    started = monotonic()
    shown = sys.stderr.isatty() and not args.quiet and env.get("TERM") != "dumb"
    found = surveyed(env, clean=args.clean)
    done = _read_marker(folder, found)
    tally = do_cases([name for name in cases() if name not in done], args.jobs, env, shown=shown)
    if not tally.kept:
        raise InputFileError(f"{folder}: not all kernels could be written")
    if tally.written or not done:
        deleted, found = found.deleted, surveyed(env)
        found = found._replace(deleted=deleted)
        _write_marker(folder, found, [name for name in cases() if name not in tally.missing])
    if args.quiet:
        return
    for reason in sorted({*tally.missing.values()}):
        _show(f"{PROG}: left out: {reason}\n")
    files = [Path(name) for names in found.kernels.values() for name in names]
    size = sum(file.stat().st_size for file in files)
    places = ", ".join(sorted({str(file.parent) for file in files}))
    there = f"{counted(len(found.kernels), 'kernel')} in {counted(len(files), 'file')}"
    print(f"{there}, {size / 1e6:.0f} MB: {places}")
    print(f"{len(tally.written)} compiled now, in {monotonic() - started:.0f} s")
    if args.clean:
        print(f"{counted(found.deleted, 'file')} without use deleted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.jobs is None:
        args.jobs = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
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
