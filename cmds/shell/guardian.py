"""The process that watches over a command.

A command that is started becomes two processes. The child does the work; the parent, whose number
the shell knows, is this one: it waits for signals and for the child's end, and does nothing else.
So a second Ctrl-C, SIGTERM, and limits of time and memory take effect whatever native code does,
a crash of a library becomes a line and a status, and what the child leaves behind is removed.

    SIGINT    the first one is passed on to the child, as SIGURG, which kills no process
              without a handler; the second one ends it
    SIGTERM   and SIGHUP: end it, and die of the same
    SIGKILL   of the parent: the system sends the child SIGTERM, which then cleans up itself; or
              SIGKILL, while it makes a session and has nothing to clean up
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from dnnp.cmds.shell import CLEAR, is_able
from dnnp.core.model.errors import InputFileError, LimitError
from dnnp.core.model.processes import die_with_parent
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.limits import TaskBoard, held_bytes, install
from dnnp.formats import files

INTERRUPTED = 130

POLL_S = 0.05
"""Interval in which limits are looked at, seconds."""

WHOLE_S = 10.0
"""Most that the end of a command waits for what has to be done whole, seconds."""

_WHOLE = os.fsencode(files.WHOLE)
_FATAL = (signal.SIGTERM, signal.SIGHUP)
_QUIET = (*_FATAL, signal.SIGINT, signal.SIGPIPE)
"""Of these a command dies without a word."""

_DOCUMENTED = (*range(10), INTERRUPTED)
"""Statuses with which commands end."""

Listen = Callable[[Callable[[], None]], None]
"""Says what to do at the first Ctrl-C; none is lost that came before."""


def guard(name: str, work: Callable[[Listen], int]) -> int:
    """Have `work` done by a child, and end as it ends; returns its status in the child only.

    Where the system has no more processes, or cannot wait as we do, this process does it itself.

    Parameters
    ----------
    name
        Of the command, for messages.
    work
        What to do. It returns the exit status.
    """
    signals = {signal.SIGINT, signal.SIGURG, signal.SIGCHLD, *_FATAL}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        signals.discard(signal.SIGHUP)
    parent = os.getpid()
    child = -1
    if hasattr(signal, "sigtimedwait"):
        # Handlers would run between two instructions of Python only.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        with suppress(OSError):
            board, (ours, theirs) = TaskBoard(), os.pipe()
            child = os.fork()
    if child > 0:
        os.close(theirs)
        _Watch(name, child, board, ours, signals).run()

    def listen(interrupted: Callable[[], None]) -> None:
        number = signal.SIGINT
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
            number = signal.SIGURG
        signal.signal(number, lambda *_: interrupted())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *signals})

    for number in _FATAL:
        if number in signals:
            signal.signal(number, lambda n, _: files.when_whole(lambda: end_by(n)))
    if child == 0:
        os.close(ours)
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(INTERRUPTED)
        install(board)
        files.listen(lambda path, there: _tell(theirs, path, there))
    return work(listen)


def say(name: str, message: str) -> None:
    """Write a line to standard error, if that can be written."""
    with suppress(OSError):
        os.write(2, f"{name}: {message}\n".encode(errors="backslashreplace"))


def clear() -> None:
    """Clear the line of the terminal on which a bar may stand that is not cleared otherwise."""
    with suppress(OSError):
        if os.isatty(2) and is_able():
            os.write(2, CLEAR.encode())


def end_by(number: int) -> NoReturn:
    """Clean up, then die of a signal."""
    files.remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def quit_interrupted(name: str) -> NoReturn:
    """End at once after Ctrl-C.

    An exception instead could come inside a callback, where it is lost, or inside the set-up of a
    native module, which then crashes.
    """
    files.remove_unfinished()
    clear()
    say(name, "interrupted")
    os._exit(INTERRUPTED)


def _tell(pipe: int, path: str, there: bool) -> None:
    """Tell the parent that a path must be removed, or no more, if this process ends."""
    with suppress(OSError):
        os.write(pipe, (b"+" if there else b"-") + os.fsencode(path) + b"\0")


class _Watch:
    """Work of the parent."""

    def __init__(
        self, name: str, child: int, board: TaskBoard, pipe: int, signals: Iterable[int]
    ) -> None:
        self._name = name
        self._child = child
        self._board = board
        self._pipe = pipe
        self._signals = {*signals}
        self._rest = b""
        self._paths: dict[bytes, None] = {}

    def run(self) -> NoReturn:
        """Wait for the end of the child, and end likewise."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.set_blocking(self._pipe, False)
        # The other ends of pipes wait for the last process that has them open.
        os.closerange(0, 2)
        os.closerange(3, self._pipe)
        os.closerange(self._pipe + 1, os.sysconf("SC_OPEN_MAX"))
        presses = 0
        while True:
            got = signal.sigtimedwait(self._signals, POLL_S)
            self._read()
            number = 0 if got is None else got.si_signo
            if number == signal.SIGINT:
                presses += 1
                if presses > 1:
                    self._kill()
                    self._end(INTERRUPTED, "interrupted")
                os.kill(self._child, signal.SIGURG)
            elif number in _FATAL:
                self._kill()
                self._die(number)
            gone, status = os.waitpid(self._child, os.WNOHANG)
            if gone:
                self._follow(status)
            excess = self._excess()
            if excess:
                self._kill()
                self._end(LimitError.exit_status, excess)

    def _read(self) -> None:
        """Take note of what the child makes and finishes."""
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 65536):
                *words, self._rest = (self._rest + data).split(b"\0")
                for word in words:
                    if word[:1] == b"+":
                        self._paths[word[1:]] = None
                    else:
                        self._paths.pop(word[1:], None)

    def _excess(self) -> str:
        """Name the limit that is exceeded, if any."""
        now = time.monotonic()
        tasks = [*self._board.under_way()]
        for what, due, seconds in tasks:
            if now > due:
                return f"{what}: not done after {seconds:g} s (--stage-timeout)"
        limit = self._board.memory_bytes
        held = sum(map(held_bytes, (self._child, *self._board.others())))
        if limit < float("inf") and held > limit:
            what = f"{tasks[0][0]}: " if tasks else ""
            return f"{what}more than {shown_bytes(limit)} of memory are needed (--max-memory)"
        return ""

    def _kill(self) -> None:
        """End the child, after what it has to do whole."""
        deadline = time.monotonic() + WHOLE_S
        self._read()
        while _WHOLE in self._paths and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
            self._read()
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        clear()

    def _clean(self) -> None:
        self._read()
        for path in self._paths.keys() - {_WHOLE}:
            files.remove(os.fsdecode(path))

    def _follow(self, status: int) -> NoReturn:
        """End as the child did."""
        if os.WIFEXITED(status):
            ended = os.WEXITSTATUS(status)
            if ended in _DOCUMENTED:
                self._end(ended)
            clear()
            # The C library ends a process for which it has no memory with 127.
            self._end(
                InputFileError.exit_status,
                f"the process that did the work ended with status {ended}; perhaps for want of "
                "memory",
            )
        number = os.WTERMSIG(status)
        if number in _QUIET:
            self._die(number)
        clear()
        reason = "was killed" if number == signal.SIGKILL else "crashed"
        shown = signal.Signals(number).name if number in {*signal.Signals} else str(number)
        self._end(
            InputFileError.exit_status,
            f"the process that did the work {reason} ({shown}); perhaps for want of memory",
        )

    def _die(self, number: int) -> NoReturn:
        self._clean()
        end_by(number)

    def _end(self, status: int, message: str = "") -> NoReturn:
        self._clean()
        if message:
            say(self._name, message)
        os._exit(status)
