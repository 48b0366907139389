"""What every command shares: options, messages, signals, reading and writing the stream.

Start-up time matters here: nothing heavier than argparse is imported at module level.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO

from dnnp.cmds.output import atomic_output, check_output, remove_unfinished
from dnnp.core.model.errors import (
    DnnpError,
    FormatError,
    InputFileError,
    UnavailableError,
    UsageError,
)
from dnnp.core.model.text import printable

if TYPE_CHECKING:
    from types import FrameType

    from dnnp.formats.stream import Stream

INTERRUPTED = 130


class Progress:
    """A progress bar on a terminal; silent elsewhere."""

    def __init__(self, label: str, total: int, console: TextIO | None) -> None:
        self._label = label
        self._total = max(total, 1)
        self._console = console
        self._shown = -1

    def update(self, done: int) -> None:
        """Show that `done` of the total steps are over."""
        percent = min(100, 100 * done // self._total)
        if self._console is None or percent == self._shown:
            return
        self._shown = percent
        bar = ("#" * (percent * 30 // 100)).ljust(30)
        self._console.write(f"\r{self._label} [{bar}] {percent:3d}%")
        self._console.flush()

    def close(self) -> None:
        """Clear the bar."""
        if self._console is not None and self._shown >= 0:
            self._console.write("\r\x1b[K")
            self._console.flush()
        self._console = None


class Context:
    """What a running command sees of the world: its streams, its messages, Ctrl-C."""

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
        self.quiet = False
        self.verbose = False
        self.timings = False
        self.interrupted = False
        """Set by the first Ctrl-C inside `interruptible()`."""
        self._holds_interrupt = False
        self._started = time.perf_counter()

    def configure(self, args: argparse.Namespace) -> None:
        """Take over the options that every command has."""
        self.output = getattr(args, "output", "-")
        self.quiet, self.verbose, self.timings = args.quiet, args.verbose, args.timings

    def warn(self, message: str) -> None:
        """Say something the user must know."""
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

    def _say(self, lines: Iterable[str]) -> None:
        """Every line of text that leaves the program, but for the usage, leaves it here."""
        self.console.write("".join(f"{printable(line)}\n" for line in lines))
        self.console.flush()

    def elapsed(self, what: str) -> None:
        """With --verbose, tell the time since the command started."""
        self.detail(f"{what} after {time.perf_counter() - self._started:.3f} s")

    def progress(self, label: str, total: int) -> Progress:
        """Start a progress bar."""
        shown = (
            not self.quiet and self.console.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        )
        return Progress(f"{self.tool}: {label}", total, self.console if shown else None)

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

    def on_interrupt(self, count: int, frame: FrameType | None) -> None:
        """React to Ctrl-C number `count`, which came while `frame` ran."""
        if count > 1 or (not self._holds_interrupt and _importing(frame)):
            # An exception inside the set-up of a native module may crash the process.
            remove_unfinished()
            os.write(2, f"{self.tool}: interrupted\n".encode())
            os._exit(INTERRUPTED)
        if not self._holds_interrupt:
            raise KeyboardInterrupt
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
            raise InputFileError(f"{name}: {error.strerror}") from None

    def read(self, path: str) -> Stream:
        """Read and check a stream. A first Ctrl-C while reading is for the commands before."""
        with self.interruptible():
            data = self.read_input(path)
            from dnnp.formats.stream import read_bytes

            stream = read_bytes(data, "<stdin>" if path == "-" else path)
        self._holds_interrupt = self.interrupted = False
        for message in stream.warnings:
            self.warn(message)
        self.elapsed("read the stream")
        return stream

    def write(self, stream: Stream) -> None:
        """Stamp the provenance and write the stream to -o or standard output."""
        from dnnp.formats.stream import write

        entry: dict[str, Any] = {
            "tool": self.tool,
            "version": version(),
            # Arguments that are not UTF-8 cannot stand in JSON as they are.
            "arguments": [a.encode(errors="backslashreplace").decode() for a in self.arguments],
        }
        if self.timings:
            entry["elapsed_s"] = time.perf_counter() - self._started
        stream.header = {**stream.header, "provenance": [*stream.header["provenance"], entry]}
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
        except OSError as error:
            name = "<stdout>" if self.output == "-" else self.output
            raise InputFileError(f"{name}: {error.strerror}") from None


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def counted(count: int, noun: str) -> str:
    """A number of things, for messages.

    >>> counted(1, "group"), counted(2, "group")
    ('1 group', '2 groups')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def version() -> str:
    """Version of the installed package."""
    from importlib.metadata import version as installed

    return installed("dnnp")


class _Version(argparse.Action):
    """`--version`, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        parser.exit(0, f"{parser.prog} {version()}\n")


class _Completion(argparse.Action):
    """`--print-completion SHELL`."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _option: Any = None
    ) -> NoReturn:
        try:
            import shtab
        except ImportError:
            raise UnavailableError(
                "--print-completion needs the package shtab: pip install 'dnnp[completion]'"
            ) from None
        parser.exit(0, shtab.complete(parser, shell=values) + "\n")


class _Parser(argparse.ArgumentParser):
    """Help and version go to the stdout the command was given; errors are raised."""

    out: BinaryIO | None = None

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and self.out is not None:
            self.out.write(message.encode())
            self.out.flush()
        elif message:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class Command:
    """One command: its name, its options and what it does.

    Parameters
    ----------
    name, summary
        Name of the program and one line about it.
    add_arguments
        Adds the command's own options to a parser.
    run
        Does the work and returns the exit status.
    reads_stream
        Whether it takes a stream: a file name, or standard input.
    stream_unless
        Options that say what to work on instead of a stream.
    writes_file
        Whether `-o` names a file; otherwise the command defines its own output options.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        add_arguments: Callable[[argparse.ArgumentParser], None],
        run: Callable[[argparse.Namespace, Context], int],
        *,
        reads_stream: bool = True,
        stream_unless: Sequence[str] = (),
        writes_file: bool = True,
    ) -> None:
        self.name = name
        self.summary = summary
        self._add_arguments = add_arguments
        self._run = run
        self._reads_stream = reads_stream
        self._stream_unless = stream_unless
        self._writes_file = writes_file

    def parser(self) -> _Parser:
        """The command's parser."""
        parser = _Parser(prog=self.name, description=self.summary, allow_abbrev=False)
        if self._reads_stream:
            parser.add_argument(
                "stream", nargs="?", default="-", metavar="STREAM",
                help="stream to read; - is standard input (default)",
            )  # fmt: skip
        self._add_arguments(parser)
        common = parser.add_argument_group("common options")
        if self._writes_file:
            common.add_argument(
                "-o", "--output", default="-", metavar="FILE",
                help="write to FILE, as a whole or not at all (default: standard output)",
            )  # fmt: skip
        volume = common.add_mutually_exclusive_group()
        volume.add_argument("-q", "--quiet", action="store_true", help="only warnings and errors")
        volume.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
        common.add_argument(
            "--timings", action="store_true", help="put the time that this took into the header"
        )
        common.add_argument(
            "--version", action=_Version, nargs=0, help="print the version and exit"
        )
        common.add_argument(
            "--print-completion", action=_Completion, choices=("bash", "zsh", "tcsh"),
            metavar="SHELL", help="print a completion script for bash, zsh or tcsh and exit",
        )  # fmt: skip
        return parser

    def invoke(self, arguments: Sequence[str], context: Context) -> int:
        """Run the command in this process; every error becomes a line and a status."""
        try:
            parser = self.parser()
            parser.out = context.stdout
            args = parser.parse_args(list(arguments))
            context.configure(args)
            reads = self._reads_stream and args.stream == "-"
            reads = reads and all(getattr(args, o) is None for o in self._stream_unless)
            if reads and _is_terminal(context.stdin):
                context.console.write(parser.format_usage())
                raise UsageError("nothing on standard input: give a stream file or a pipe")
            if self._writes_file and args.output != "-":
                check_output(args.output)
            status = self._run(args, context)
        except DnnpError as error:
            context.warn(str(error))
            return error.exit_status
        except KeyboardInterrupt:
            context.warn("interrupted")
            return INTERRUPTED
        except OSError as error:
            context.warn(f"{error.filename or '<stdout>'}: {error.strerror}")
            return InputFileError.exit_status
        except RecursionError:
            context.warn("the input is nested too deeply")
            return FormatError.exit_status
        except MemoryError:
            context.warn("out of memory")
            return InputFileError.exit_status
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else UsageError.exit_status
        return INTERRUPTED if context.interrupted and status == 0 else status

    def main(self) -> int:
        """Entry point: guard fd 1, install signal handlers, run."""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        _fill_closed_descriptors()
        # C libraries print to fd 1; only the stream may reach the real standard output.
        if sys.stdout is not None:
            sys.stdout.flush()
        stdout = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        stdin = None if sys.stdin is None else sys.stdin.buffer
        context = Context(self.name, sys.argv[1:], stdin, stdout, sys.stderr)
        presses = itertools.count(1)
        if self._reads_stream:
            context.hold_interrupts()
        signal.signal(signal.SIGINT, lambda _, frame: context.on_interrupt(next(presses), frame))
        signal.signal(signal.SIGTERM, _terminate)
        status = self.invoke(sys.argv[1:], context)
        try:
            stdout.close()
        except OSError as error:
            if status == 0:
                context.warn(f"<stdout>: {error.strerror}")
            status = status or InputFileError.exit_status
        return status


def _fill_closed_descriptors() -> None:
    """Occupy what the caller closed, lest a file that is opened later gets its number.

    Reading from a stand-in of standard input, or writing to one of standard output, fails.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Clean up, then die of the signal."""
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _is_terminal(file: BinaryIO | None) -> bool:
    return file is not None and file.isatty()
