"""Commands without the second that each takes to start: forks of one process that has started.

The folder `served() / "bin"` has programs `dnnp-NAME` like those of the installation, for PATH; one
of them is `program(NAME)`. They do the same: statuses, signals, outputs and the processes of a
command are what they are elsewhere. Only the locale, the limits of resources and the process group
are those of the server, and no measurement is too disturbed to count; where `PYTHON*` or `NUMBA_*`
variables differ, a command starts afresh.

Where starting itself is tested, or imports, memory, crashes, threads, or which process is whose,
tests run what `support.run.executable` names.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from support.project import command_names

HERE = Path(__file__).parent


class _Server:
    """The server of this process, and the folder of its programs."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dnnp-served-"))
        programs = self.folder / "bin"
        programs.mkdir()
        shim = programs / "shim"
        shim.write_text(f"#!{sys.executable} -IS\n{(HERE / 'shim.py').read_text()}")
        shim.chmod(0o755)
        for name in ("dnnp", *(f"dnnp-{name}" for name in command_names())):
            (programs / name).symlink_to(shim.name)
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        theirs, self._alive = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(programs / "socket"))
            listener.listen()
            handed = listener.fileno(), theirs
            self._process = subprocess.Popen(
                [sys.executable, "-P", HERE / "server.py", *map(str, handed)],
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        os.close(theirs)

    def end(self) -> None:
        """End it, with what it runs."""
        os.close(self._alive)
        self._process.wait()


_server = cache(_Server)


def served() -> Path:
    """The environment whose folder `bin` has programs of all commands, and Python."""
    return _server().folder


def program(name: str) -> Path:
    """The program that runs `dnnp-NAME`."""
    return served() / "bin" / f"dnnp-{name}"


def end_server() -> None:
    """End the server, if there is one."""
    if _server.cache_info().currsize:
        _server().end()
        _server.cache_clear()
