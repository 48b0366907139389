"""Streams, messages, progress and interrupts of a running command."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, TextIO, TypeVar

from dnnp.callbacks import Bar, Callbacks
from dnnp.cmds.shell import CLEAR, is_able
from dnnp.cmds.shell.overwrite import Outputs
from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.processes import is_left_alone
from dnnp.core.model.text import printable, shown_share, shown_time
from dnnp.formats.files import atomic_output, read_file, when_whole

if TYPE_CHECKING:
    from dnnp.core.model.search_context import Progress
    from dnnp.formats.stream import Stream
    from dnnp.options.table import Options


def tell(console: TextIO, text: str) -> None:
    """Write text, if it can be written; if not, nothing more is."""
    try:
        console.write(text)
        console.flush()
    except (OSError, ValueError):
        if console is sys.stderr:
            # What is left in its buffer would fail again when the interpreter ends.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 2)
            os.close(nothing)


TICK_S = 1.0
"""Interval in which a bar is drawn anew while nothing new is told, seconds."""

REDRAWN_S = 0.1
"""Least interval between two drawings, seconds."""

PATIENCE_S = 1.0
"""Time that work may take without a bar on a terminal, seconds."""

FIRST_S, LINE_S = 2.0, 30.0
"""Time before the first line where there is no terminal, and most time between two, which grows."""

BAR, WIDE = 20, 110
"""Characters of a bar, and of a line that has room for one."""


def draws(console: TextIO) -> bool:
    """True if bars can be drawn: on a terminal that can clear a line."""
    return console.isatty() and is_able()


class ProgressBar(Bar):
    """Progress of long work: one line, drawn again and again on a terminal; elsewhere a line now
    and then.

    Parameters
    ----------
    name
        Of the command.
    doing
        What it does, until it says that itself.
    console
        Where to write.
    writing
        Lock that is held while there is written.
    limit_s
        Seconds after which the work is over at the latest.
    since
        When the command last gave a sign of life, by the clock; None: now.
    clock
        The time, in seconds.
    """

    def __init__(
        self,
        name: str,
        doing: str,
        console: TextIO,
        writing: LockType,
        *,
        limit_s: float | None = None,
        since: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._console, self._writing = name, console, writing
        self._doing = doing
        self._standing: Progress | None = None
        self._limit_s, self._clock = limit_s, clock
        self._drawn = draws(console)
        self._begun = clock()
        self._due = self._begun if since is None else since
        self._due += PATIENCE_S if self._drawn else FIRST_S
        self.shown_at: float | None = None
        """Time of the last line, by the clock."""
        self._there = ""
        """Text that stands on the terminal now."""
        self._under_way = allocate_lock()
        self._under_way.acquire()
        self._closed = False
        # Where memory is short it does without: it is then drawn when something is told.
        with suppress(RuntimeError, MemoryError):
            start_new_thread(self._tick, ())

    def update(self, standing: Progress) -> None:
        """Show where the work stands, unless that was shown a moment ago."""
        self._standing = standing
        self._look()

    def _look(self) -> None:
        """Show the standing if it is time."""
        # A thread that cannot write, since another does, goes on with the work.
        if self._clock() >= self._due and self._writing.acquire(blocking=False):
            try:
                self._show()
            finally:
                self._writing.release()

    def close(self) -> None:
        """Clear the line."""
        with self._writing:
            self.hide()
            if not self._closed:
                self._closed = True
                self._under_way.release()

    def hide(self) -> None:
        """Clear the line while something else is written; the caller holds the lock."""
        if self._there:
            tell(self._console, CLEAR)
        self._there = ""

    def _tick(self) -> None:
        while not self._under_way.acquire(timeout=TICK_S):
            self._look()

    def _show(self) -> None:
        now = self._clock()
        if self._closed or now < self._due:
            return
        if not self._drawn:
            self.shown_at = now
            self._due = now + min(max(now - self._begun, FIRST_S), LINE_S)
            tell(self._console, printable(self._line(now - self._begun)) + "\n")
            return
        self._due = now + REDRAWN_S
        line = printable(self._line(now - self._begun, _columns(self._console) - 1))
        if line != self._there:
            tell(self._console, CLEAR + line)
            self._there = line

    def _line(self, elapsed_s: float, width: int = 0) -> str:
        """Line after some seconds, in `width` characters; 0: in as many as it takes."""
        from dnnp.core.model.search_context import Progress

        limit_s = self._limit_s
        standing = self._standing or Progress(self._doing)
        share, time = standing.share, f"{elapsed_s:.0f} s"
        if limit_s:
            share, time = elapsed_s / limit_s, f"{elapsed_s:.0f} of at most {limit_s:.3g} s"
        doing, bar = standing.doing, ""
        if share is not None:
            done = min(int(100 * share), 100)
            doing += f" {done} %"
            bar = f"[{'#' * (done * BAR // 100):{BAR}}] " if width >= WIDE else ""
        words = [doing, time]

        def shown(value: float) -> str:
            return shown_time(value, standing.in_seconds)

        if standing.value < inf:
            words.append(f"{standing.what or 'value'} {shown(standing.value)}")
        if standing.bound > 0:
            words.append(f"bound {shown(min(standing.bound, standing.value))}")
        if standing.gap is not None:
            words.append(f"gap {shown_share(standing.gap)}")
        line = f"{self._name}: {bar}{', '.join(words)}"
        return line if not width else line[:width]


def _columns(console: TextIO) -> int:
    """Characters that a line of the terminal has."""
    try:
        return os.get_terminal_size(console.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Context(Callbacks):
    """Streams, messages and interrupts of a running command."""

    def __init__(
        self,
        tool: str,
        arguments: Sequence[str],
        stdin: BinaryIO | None,
        stdout: BinaryIO,
        console: TextIO,
    ) -> None:
        self.tool = tool
        self.arguments = list(arguments)
        self.stdin = stdin
        self.stdout = stdout
        """The real standard output; for commands that write no stream."""
        self.console = console
        """Standard error, as text."""
        self.output = "-"
        self.outputs = Outputs()
        """Outputs of the command; it must spare what it reads."""
        self.quiet = False
        self.verbose = False
        self.timings = False
        self.interrupted = False
        """Set by the first Ctrl-C inside `interruptible()`."""
        self._holds_interrupt = False
        self._held: list[str] | None = None
        self._bar: ProgressBar | None = None
        self._writing = allocate_lock()
        self.clock = time.monotonic
        """For bars."""
        self._started = time.perf_counter()
        self.began = time.monotonic()
        self._heard: float | None = None
        """Last sign of life, by that clock."""

    def configure(self, args: argparse.Namespace) -> None:
        """Take over the options that every command has."""
        self.output = getattr(args, "output", "-")
        self.quiet, self.verbose, self.timings = args.quiet, args.verbose, args.timings

    def warn(self, message: str) -> None:
        """Say something the user must know."""
        if is_left_alone():
            return
        if self._held is not None:
            self._held.append(message)
            return
        self._say([f"{self.tool}: {' '.join(message.split())}"])

    def note(self, message: str) -> None:
        """Say something useful; silent with --quiet."""
        if not self.quiet:
            self.warn(message)

    def detail(self, message: str) -> None:
        """Say something only with --verbose."""
        if self.verbose:
            self.warn(message)

    def show(self, lines: Iterable[str]) -> None:
        """Show a table or a chart; silent with --quiet."""
        if not self.quiet:
            self._say(lines)

    def spare(self, path: str | os.PathLike[str], what: str) -> None:
        """Make sure that no output is this file or folder, which is read."""
        self.outputs.spare(path, what)

    def _say(self, lines: Iterable[str]) -> None:
        """Every line of text leaves here. That it cannot be written decides nothing."""
        self._heard = self.clock()
        with self._writing:
            if self._bar is not None:
                self._bar.hide()
            tell(self.console, "".join(f"{printable(line)}\n" for line in lines))

    def elapsed(self, what: str) -> None:
        """With --verbose, tell the time since the command started."""
        self.detail(f"{what} after {time.perf_counter() - self._started:.3f} s")

    def progress(self, doing: str, limit_s: float | None = None) -> Bar:
        """Show where long work stands, in place of what was shown; silent with --quiet."""
        if self.quiet:
            return Bar()
        self.rest()
        since, told = self._heard, (self.console, self._writing)
        self._bar = ProgressBar(
            self.tool, doing, *told, limit_s=limit_s, since=since, clock=self.clock
        )
        return self._bar

    def rest(self) -> None:
        """Show nothing any more of where work stands."""
        if self._bar is not None:
            self._bar.close()
            self._heard = self._bar.shown_at or self._heard

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep messages until the block is over, or `release`; where it fails before, the error
        stands alone."""
        if self._held is not None:
            yield
            return
        self._held = []
        try:
            yield
        except DnnpError:
            self._held = None
            raise
        finally:
            self.release()

    def release(self) -> None:
        """Say what is held, as nothing that was given can be wrong any more."""
        messages, self._held = self._held or (), None
        for message in messages:
            self.warn(message)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Hold Ctrl-C: inside, the first one only sets `interrupted`."""
        before = self._holds_interrupt
        self._holds_interrupt = True
        try:
            yield
        finally:
            self._holds_interrupt = before

    def hold_interrupts(self) -> None:
        """Hold Ctrl-C from now on; `read` ends this."""
        self._holds_interrupt = True

    def on_interrupt(self) -> None:
        """React to Ctrl-C; `guardian` sees to the second one."""
        if self.interrupted or not self._holds_interrupt:
            from dnnp.cmds.shell.guardian import quit_interrupted

            when_whole(lambda: quit_interrupted(self.tool))
        self.interrupted = True

    def read_input(self, path: str) -> bytes:
        """All bytes of a file, or of standard input for `-`."""
        if path != "-":
            return read_file(path)
        try:
            return self.standard_input(path).read()
        except OSError as error:
            raise InputFileError(f"<stdin>: {reason_of(error)}") from None

    def standard_input(self, option: str) -> BinaryIO:
        """Standard input; the command sees to it that the stream is not there."""
        if self.stdin is None:
            raise InputFileError("<stdin>: standard input is closed")
        return self.stdin

    def read(self, path: str) -> Stream:
        """Read and check a stream; an interrupt that no command before has heeded ends it."""
        data = b""
        try:
            with self.interruptible():
                data = self.read_input(path)
                # To wait for the command before is no work.
                self.began, self._heard = time.monotonic(), self.clock()
                self.progress("reading the stream")
                from dnnp.formats.stream import read_bytes

                stream = read_bytes(data, "<stdin>" if path == "-" else path)
                gc.freeze()  # collections need not look at the records
        finally:
            self._holds_interrupt = False
            if self.interrupted and b'"interrupted"' not in data:
                raise KeyboardInterrupt
        self.interrupted = False
        for message in stream.warnings:
            self.warn(message)
        self.elapsed("read the stream")
        self.progress("working")
        return stream

    def write(self, stream: Stream) -> None:
        """Stamp the provenance and write the stream to -o or standard output."""
        from dnnp.formats.header import stamped
        from dnnp.formats.stream import write

        self.progress("writing the stream")
        elapsed_s = time.perf_counter() - self._started if self.timings else None
        stream.header = stamped(stream.header, self.tool, self.arguments, elapsed_s)
        with self.open_output() as file:
            write(stream, file)
        self.elapsed("wrote the stream")

    @contextmanager
    def open_output(self) -> Iterator[BinaryIO]:
        """Open -o FILE, replaced as a whole when complete, or standard output."""
        try:
            if self.output == "-":
                yield self.stdout
                self.stdout.flush()
            else:
                with atomic_output(self.output) as file:
                    yield file
        except BrokenPipeError:
            raise
        except OSError as error:
            name = "<stdout>" if self.output == "-" else self.output
            raise InputFileError(f"{name}: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """Say why the system refused something."""
    return error.strerror or str(error) or type(error).__name__


O = TypeVar("O", bound="Options")  # noqa: E741


def options_of(kind: type[O], args: argparse.Namespace, context: Context) -> O:
    """The options of a step, checked.

    Raises UsageError: they make no sense.
    """
    given = {name: value for name, value in vars(args).items() if name in kind.rows}
    options = kind(caller=context, **given)
    options.check()
    return options
