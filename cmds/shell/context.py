"""Streams, messages and interrupts of a running command."""

from __future__ import annotations

import argparse
import gc
import os
import time
from _thread import allocate_lock
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TextIO, TypeVar

from dnnp.callbacks import Bar, Callbacks
from dnnp.cmds.shell.console import ProgressBar, tell
from dnnp.cmds.shell.overwrite import Outputs
from dnnp.core.model.deadline import is_left_alone
from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.text import printable
from dnnp.formats.files import atomic_output

if TYPE_CHECKING:
    from dnnp.formats.stream import Stream
    from dnnp.options.table import Options


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
            from dnnp.formats.files import when_whole

            when_whole(lambda: quit_interrupted(self.tool))
        self.interrupted = True

    def read_input(self, path: str) -> bytes:
        """All bytes of a file, or of standard input for `-`."""
        try:
            if path != "-":
                with open(path, "rb") as file:
                    return file.read()
            if self.stdin is None:
                raise InputFileError("<stdin>: standard input is closed")
            return self.stdin.read()
        except OSError as error:
            name = "<stdin>" if path == "-" else path
            raise InputFileError(f"{name}: {reason_of(error)}") from None

    def standard_input(self, option: str) -> BinaryIO:
        """Standard input; the command sees to it that the stream is not there."""
        if self.stdin is None:
            raise InputFileError("<stdin>: standard input is closed")
        return self.stdin

    def read(self, path: str) -> Stream:
        """Read and check a stream. A first Ctrl-C while reading is for the commands before."""
        with self.interruptible():
            data = self.read_input(path)
            # To wait for the command before is no work.
            self.began, self._heard = time.monotonic(), self.clock()
            self.progress("reading the stream")
            from dnnp.formats.stream import read_bytes

            stream = read_bytes(data, "<stdin>" if path == "-" else path)
            gc.freeze()  # collections need not look at the records
        self._holds_interrupt = self.interrupted = False
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

    Raises
    ------
    UsageError
        They make no sense.
    """
    given = {name: value for name, value in vars(args).items() if name in kind.rows}
    options = kind(caller=context, **given)
    options.check()
    return options
