"""The parent's side of the solver process.

Solvers run in a process of their own, so that a limit or an interrupt takes effect at once, a
crash is an answer like any other, and what they print is lost. A process is started at the first
solve and kept for the next ones; it is killed when it does not answer in time.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe

from dnnp.core.model.errors import UnavailableError
from dnnp.core.solver.program import Outcome
from dnnp.core.solver.scheduling_model import NEWS

POLL_S = 0.05
"""Interval between calls of `stop` while a solver runs."""

LAST_BREATH_S = 2.0
"""Longest time in which a process with a closed pipe ends."""


class SolverProcess:
    """A process that solves programs, one at a time.

    Raises UnavailableError: the system starts no process.
    """

    def __init__(self, kind: str = "mip") -> None:
        ours, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dnnp.core.solver.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A Ctrl-C at the terminal is for the parent alone.
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise UnavailableError(f"cannot start a solver: {error.strerror}") from None
        finally:
            theirs.close()
        self._pipe: Connection = ours
        self.owner = os.getpid()
        """The process that may use this one."""
        self.alive = True
        self.kind = kind
        """Requests that it takes: `mip`, `sparse`, `cpsat` or `metis`."""

    def ask(
        self,
        what: str,
        *arguments: object,
        patience: float | None = None,
        stop: Callable[[], bool],
        news: Callable[[Outcome], object] = lambda outcome: None,
    ) -> Outcome:
        """Have a function of `worker.py` run: `what` is its name among those that `main` answers.

        A process answers only requests of its kind. `news` is called with each outcome that a
        solver tells before its last one. It is killed after `patience` seconds, or as soon as
        `stop` says so, and the outcome is `limit`. A solver that crashes gives `failed`.
        """
        end = None if patience is None else time.monotonic() + patience
        try:
            self._pipe.send((what, *arguments))
            while True:
                if self._pipe.poll(POLL_S):
                    outcome: Outcome = self._pipe.recv()
                    if outcome.status != NEWS:
                        break
                    news(outcome)
                if stop() or (end is not None and time.monotonic() > end):
                    self.close()
                    return Outcome("limit")
        except (EOFError, OSError):
            return Outcome("failed", reason=self._end())
        except BaseException:
            self.close()
            raise
        if outcome.status == "failed":
            self.close()
        return outcome

    def usable(self) -> bool:
        """True if this program may give it work; not after a fork, nor if it has died."""
        return self.alive and self.owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the process at once."""
        self.alive = False
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def _end(self) -> str:
        """Describe how a process that went away ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_BREATH_S)
        self.close()
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit status {code}"


_idle: list[SolverProcess] = []


@contextmanager
def solver_process(kind: str = "mip") -> Iterator[SolverProcess]:
    """A process of one's own for a while, of a `kind`; the next user may get the same.

    Solvers of different kinds never share one: they bring versions of the same libraries.
    """
    process = None
    alike = [idle for idle in _idle if idle.kind == kind]
    while alike and (process is None or not process.usable()):
        process = alike.pop()
        _idle.remove(process)
    if process is None or not process.usable():
        process = SolverProcess(kind)
    try:
        yield process
    finally:
        if process.alive:
            _idle.append(process)


@atexit.register
def _close_idle() -> None:
    """End the processes that wait for work."""
    for process in _idle:
        if process.owner == os.getpid():
            process.close()
