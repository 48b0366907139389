"""The server of commands: `python -P server.py LISTENER ALIVE`, two descriptors.

It has imported what commands need, which otherwise takes each of them much of a second; a command
is a fork of it. Requests of `shim.py` arrive at the socket
LISTENER. When the other end of the pipe ALIVE is closed it ends, with all commands that still run,
and removes the folder where the programs are.
It has one thread only: a fork has no others.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import math
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

SCRIPTS = sysconfig.get_path("scripts")
BEFORE = dict(os.environb)
OTHERS = ("onnx", "onnxruntime", "scipy.optimize", "scipy.sparse.csgraph", "sympy")
"""Modules that the package imports only when it needs them."""

READ_AGAIN = b"NUMBA_NUM_THREADS"
"""Numba has started no threads yet."""

MAINS: dict[str, Callable[[], object]] = {}
"""Entry points by the name of their command."""


def import_modules() -> None:
    """Import the package and what it needs, and find the commands."""
    for name in ("dnnp", "dnnp.cmds", "dnnp.core", "dnnp.formats"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.startswith("dnnp.samples."):
                importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    for entry in importlib.metadata.distribution("dnnp").entry_points:
        MAINS[entry.name] = entry.load()


def special(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Variables that an interpreter or numba reads only when it starts."""
    names = [n for n in environment if n.startswith((b"PYTHON", b"NUMBA_")) and n != READ_AGAIN]
    return {name: environment[name] for name in names}


class Server:
    """Forks commands, and reports their status to the clients."""

    def __init__(self, listener: socket.socket, alive: int) -> None:
        self._listener = listener
        self._alive = alive
        self._ends, ends = os.pipe()
        self._running: dict[int, socket.socket] = {}
        changed = os.environb.items() - BEFORE.items()
        self._added = dict(changed)  # by what was imported, which happens only once
        for end in (self._ends, ends):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(ends)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the client closes its end."""
        while True:
            ready, _, _ = select.select([self._listener, self._alive, self._ends], [], [])
            if self._ends in ready:
                os.read(self._ends, 65536)
                self._reap()
            if self._alive in ready:
                break
            if self._listener in ready:
                self._start()
        for process in self._running:
            os.kill(process, signal.SIGTERM)
        self._reap(0)

    def _start(self) -> None:
        connection, _ = self._listener.accept()
        process = os.fork()
        if process == 0:
            try:
                become(self._request(connection))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self._running[process] = connection
        _say(connection, process)

    def _reap(self, how: int = os.WNOHANG) -> None:
        for process in list(self._running):
            gone, status = os.waitpid(process, how)
            if gone:
                with self._running.pop(process) as connection:
                    _say(connection, status)

    def _request(self, connection: socket.socket) -> list[bytes]:
        """Take over what was sent along: descriptors, folder and environment; return the words."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 3)
        while more := connection.recv(65536):
            data += more
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for file in (connection, self._listener, *self._running.values()):
            file.detach()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        count, *rest = data.split(b"\0")
        words, (folder, *variables) = rest[: int(count)], rest[int(count) :]
        os.chdir(folder)
        os.environb.clear()
        os.environb.update(pair.split(b"=", 1) for pair in variables)
        for name, value in self._added.items():
            os.environb.setdefault(name, value)
        return words


def _say(connection: socket.socket, number: int) -> None:
    """Tell a shim a number, if it is still there."""
    with suppress(OSError):
        connection.sendall(number.to_bytes(4, "little"))


def become(words: list[bytes]) -> None:
    """Go on as the command of a name, with arguments, as the script of that name does."""
    name, *arguments = map(os.fsdecode, words)
    script = os.path.join(SCRIPTS, name)
    if special(dict(os.environb)) != special(BEFORE):
        os.execv(sys.executable, [sys.executable, script, *arguments])
    numba.config.reload_config()
    sys.argv = [script, *arguments]
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        setattr(sys, stream, _reopened(getattr(sys, stream), mode))
    MAINS[name]()


def _reopened(stream: Any, mode: str) -> Any:
    """A file of Python for the descriptor of another one, which may be something else now."""
    how = {"encoding": stream.encoding, "errors": stream.errors, "closefd": False}
    new: Any = os.fdopen(stream.fileno(), mode, **how)
    if mode == "w":
        new.reconfigure(line_buffering=stream.line_buffering, write_through=stream.write_through)
    return new


def main() -> None:
    """Get ready, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is for the commands
    listener, alive = map(int, sys.argv[1:])
    sys.path.insert(0, SCRIPTS)
    import_modules()
    sys.modules["dnnp.core.runtime.report.statistics"].MOST_TAKEN = math.inf  # type: ignore[attr-defined]
    sys.modules["dnnp.cmds.shell.context"].FIRST_S = 30.0  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()  # lest forks copy the pages where it counts
    server = socket.socket(fileno=listener)
    Server(server, alive).run()
    shutil.rmtree(Path(server.getsockname()).parents[1])


if __name__ == "__main__":
    main()
