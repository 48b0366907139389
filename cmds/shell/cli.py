"""Base of every command: its options, and the way from its start to its exit status.

Start-up time matters here: nothing heavier than argparse is imported at module level.

Commands under little memory: room for libraries that do not say that they lack it. OpenBLAS takes
memory while it is loaded, and asks for it again for ever where there is none; no signal handler of
ours runs meanwhile. So the modules that load it are imported only where there is room for it.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import mmap
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from textwrap import wrap
from typing import TYPE_CHECKING, NoReturn

from dnnp.cmds.shell.arguments import SHELLS, Parser, add_options, rows_of
from dnnp.cmds.shell.context import Context, reason_of
from dnnp.cmds.shell.overwrite import check_output, declare, outputs_of
from dnnp.core.model.errors import (
    DnnpError,
    FormatError,
    InputFileError,
    UnavailableError,
    UsageError,
)
from dnnp.options.table import Options, option

if TYPE_CHECKING:
    from dnnp.cmds.shell.guardian import Listen
    from dnnp.core.methods import Method


INTERRUPTED = 130


def version(tool: str) -> str:
    """Text of `--version`."""
    from dnnp.formats.header import __version__

    return f"{tool} {__version__}\n"


def _completion(parser: argparse.ArgumentParser, shell: str) -> str:
    from dnnp.cmds.shell.completion import script

    return script(parser, shell)


class Output(Options):
    """Option of the output."""

    # fmt: off
    output: str = option(
        "-", short="-o", metavar="FILE", group="common options", page=True,
        help="write to FILE (default: standard output); written atomically")
    # fmt: on


class Common(Options):
    """Options of every command."""

    # fmt: off
    quiet: bool = option(
        False, short="-q", apart="volume", group="common options", page=True,
        help="only warnings and errors")
    verbose: bool = option(False, short="-v", apart="volume", page=True, help="say more on stderr")
    timings: bool = option(False, help="put the time that this took into the header")
    help: bool = option(
        False, short="-h", show=lambda parser, _: parser.page(),
        help="show what is used most, and exit")
    help_all: bool = option(
        False, show=lambda parser, _: parser.format_help(), page=True,
        help="show all options, and exit")
    version: bool = option(
        False, show=lambda parser, _: version(parser.prog), help="print the version and exit")
    print_completion: str | None = option(
        choices=SHELLS, show=_completion, metavar="SHELL",
        help="print a completion script for bash, zsh, fish or tcsh and exit")
    # fmt: on


class Command:
    """One command: its name, its options and what it does.

    Parameters
    ----------
    name, summary
        Name of the program and one line about it.
    run
        Does the work and returns the exit status.
    tables
        The command's own options, in the order of its help.
    examples
        Two for the page of `--help`.
    methods
        Title -> methods that `--help-all` lists below it.
    unsaid
        Fields of which the command has another default than Python, which is None.
    model
        What it reads in place of a stream: metavar and help; None: a stream, of a file or of
        standard input.
    many_streams
        Whether it takes several.
    stream_unless
        Options that say what to work on instead of a stream.
    writes_stream
        Whether it writes the stream that it reads, so that `-o` may name the same file.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        run: Callable[[argparse.Namespace, Context], int],
        *tables: type[Options],
        examples: Sequence[str] = (),
        methods: Mapping[str, Mapping[str, Method]] | None = None,
        unsaid: Sequence[str] = (),
        model: tuple[str, str] | None = None,
        many_streams: bool = False,
        stream_unless: Sequence[str] = (),
        writes_stream: bool = True,
    ) -> None:
        self.name = name
        self.summary = summary
        self._run = run
        self._writes_file = not any("output" in table.rows for table in tables)
        self.tables = (*tables, *[Output] * self._writes_file, Common)
        self._examples = examples
        self._methods = methods or {}
        self._unsaid = unsaid
        self._model = model
        self._many_streams = many_streams
        self._stream_unless = stream_unless
        self._writes_stream = writes_stream

    @property
    def _reads_stream(self) -> bool:
        return self._model is None

    def parser(self) -> Parser:
        """The command's parser."""
        parser = Parser(self.name, self.summary, self.page)
        if self._model is not None:
            metavar, said = self._model
            parser.add_argument(metavar.lower(), nargs="?", metavar=metavar, help=said)
        elif self._many_streams:
            said = "streams to read; - is standard input (default)"
            parser.add_argument("stream", nargs="*", metavar="STREAM", help=said)
        else:
            said = "stream to read; - is standard input (default)"
            parser.add_argument("stream", nargs="?", default="-", metavar="STREAM", help=said)
        add_options(parser, self.tables)
        parser.set_defaults(**dict.fromkeys(self._unsaid))
        parser.methods = self._methods
        return parser

    def page(self) -> str:
        """Help on what is used most, and two examples; at most 40 lines."""
        what = "[MODEL]" if self._model else "[STREAM]..." if self._many_streams else "[STREAM]"
        said = wrap(f"{self.summary[0].upper()}{self.summary[1:]}.", 80)
        text = [f"Usage: {self.name} [OPTION]... {what}", *said, ""]
        shown: dict[str, list[str]] = {}
        for group, row in rows_of(self.tables):
            if row.page:
                value = "" if row.kind == "bool" else f" {row.metavar or 'NAME'}"
                brief = row.help.partition("; ")[0]
                flags = f"  {', '.join(row.flags)}{value}"
                shown.setdefault(group or "options", []).append(f"{flags:25} {brief}")
        for group, rows in shown.items():
            text += [f"{group[0].upper()}{group[1:]}:", *rows, ""]
        text += ["Examples:", *[f"  {example}" for example in self._examples], ""]
        return "\n".join([*text, f"Everything else: {self.name} --help-all; man {self.name}", ""])

    def invoke(self, arguments: Sequence[str], context: Context) -> int:
        """Run the command in this process; every error becomes a line and a status."""
        return _status_of(lambda: self._perform(self._parse(arguments, context), context), context)

    def main(self) -> NoReturn:
        """Entry point: run, and end the process."""
        leave(self._main())

    def _main(self) -> int:
        """Read the options, then do the work in a child that is watched over."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # Its threads take time and memory to start, and nothing here is large enough for them.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Much is made, and hardly any of it in circles: to look for these took a sixth of the time.
        gc.set_threshold(10_000, 10, 10)
        _fill_closed_descriptors()
        # C libraries print to fd 1; only the stream may reach the real standard output.
        if sys.stdout is not None:
            sys.stdout.flush()
        stdout = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        stdin = None if sys.stdin is None else sys.stdin.buffer
        context = Context(self.name, sys.argv[1:], stdin, stdout, sys.stderr)
        if self._reads_stream:
            context.hold_interrupts()
        read: list[argparse.Namespace] = []

        def parse() -> int:
            read.append(self._parse(sys.argv[1:], context))
            return 0

        status = _status_of(parse, context)
        if not read:
            return _close(context, status)
        from dnnp.cmds.shell.guardian import guard

        return guard(self.name, lambda listen: self._work(read[0], context, listen))

    def _work(self, args: argparse.Namespace, context: Context, listen: Listen) -> int:
        mind_memory()
        listen(context.on_interrupt)
        return _close(context, _status_of(lambda: self._perform(args, context), context))

    def _parse(self, arguments: Sequence[str], context: Context) -> argparse.Namespace:
        """Options, checked as far as they can be before any work."""
        if list(arguments) in (["-h"], ["--help"], ["--version"]):  # no parser is needed
            text = version(self.name) if "--version" in arguments else self.page()
            context.stdout.write(text.encode())
            raise SystemExit(0)
        parser = self.parser()
        parser.out = context.stdout
        args = parser.parse_args(list(arguments))
        Common(quiet=args.quiet, verbose=args.verbose).check()
        context.configure(args)
        if self._many_streams:
            args.stream = args.stream or ["-"]
            if args.stream.count("-") > 1:
                raise UsageError("standard input holds one stream: give - once")
        reads = self._reads_stream and args.stream in ("-", ["-"])
        reads = reads and all(getattr(args, o) is None for o in self._stream_unless)
        if reads and context.stdin is not None and context.stdin.isatty():
            context.show(parser.format_usage().splitlines())
            raise UsageError("nothing on standard input: give a stream file or a pipe")
        declare(parser, args, context.outputs, in_place=self._writes_stream, piped=reads)
        if self._writes_file and args.output != "-":
            for path in outputs_of(args):
                check_output(path)
        return args

    def _perform(self, args: argparse.Namespace, context: Context) -> int:
        try:
            status = self._run(args, context)
        finally:
            context.rest()
        return INTERRUPTED if context.interrupted and status == 0 else status


def _status_of(action: Callable[[], int], context: Context) -> int:
    """Do an action and return its status; every error becomes a line and a status."""
    try:
        return action()
    except DnnpError as error:
        context.warn(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        context.warn("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _end_like_sigpipe()
    except OSError as error:
        context.warn(_refusal(error))
        return InputFileError.exit_status
    except ModuleNotFoundError as error:
        missing = error.name or ""
        wanted = "dnnp" if missing.startswith("dnnp.") else missing
        context.warn(f"the package {missing} is not installed: pip install {wanted}")
        return UnavailableError.exit_status
    except ImportError as error:
        context.warn(f"a library cannot be loaded: {error}")
        return InputFileError.exit_status
    except RecursionError:
        context.warn("the input is nested too deeply")
        return FormatError.exit_status
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        context.warn("the system starts no more threads, perhaps for want of memory")
        return InputFileError.exit_status
    except (MemoryError, SystemError) as error:
        if not for_memory(error):
            raise
        # What the failed work holds goes first: a message takes some memory as well.
        error.__traceback__ = None
        context.warn("out of memory")
        return InputFileError.exit_status
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else UsageError.exit_status


def _refusal(error: OSError) -> str:
    """Say what the system refused, and why."""
    if error.errno == errno.ENOMEM:
        return f"{error.filename}: out of memory" if error.filename else "out of memory"
    if error.errno is not None:
        return f"{error.filename or '<stdout>'}: {reason_of(error)}"
    if "shared object" not in str(error):
        return reason_of(error)
    # llvmlite hides the reason behind advice.
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    return f"a library cannot be loaded: {cause}"


def _close(context: Context, status: int) -> int:
    """Close standard output; the status, or that of a failure to write what was left."""
    try:
        # The system closes the copy when it has taken back all memory: a reader that waits for the
        # end starts on idle processors.
        os.dup(context.stdout.fileno())
        context.stdout.close()
    except BrokenPipeError:
        _end_like_sigpipe()
    except OSError as error:
        if status == 0:
            context.warn(f"<stdout>: {reason_of(error)}")
        return status or InputFileError.exit_status
    return status


def _end_like_sigpipe() -> NoReturn:
    """End as programs do after their reader has closed the pipe.

    The signal itself is ignored: it would also come when the messages have no reader.
    """
    from dnnp.cmds.shell.guardian import end_by

    end_by(signal.SIGPIPE)


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


def leave(status: int) -> NoReturn:
    """End the process at once, with everything written.

    Taking down the interpreter, its compiler and the memory of both takes a processor for a good
    tenth of a second or more, on which the next command of a pipeline may be measuring by then.
    What has registered to be called at the end is called; threads are not waited for.
    """
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            with suppress(OSError, ValueError):
                file.flush()
    os._exit(status)


ROOM_BYTES = 100_000_000
"""More than each of the modules takes: 90 MB, of which OpenBLAS's buffer is a third."""

GREEDY = (
    "numpy._core._multiarray_umath",
    "numpy.core._multiarray_umath",  # up to numpy 1.26
    "scipy.linalg",
)
"""Modules that load a copy of OpenBLAS, each its own."""


class Room:
    """A finder that finds nothing, and looks whether there is room for what is imported."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        """Leave a module to the finders that follow.

        Raises MemoryError: there is no room for it.
        """
        if name in GREEDY:
            require(ROOM_BYTES)


def mind_memory() -> None:
    """From now on, look for room before imports that need much; one line is enough about it."""
    if Room not in sys.meta_path:
        sys.meta_path.insert(0, Room)
    sys.unraisablehook = _tell


def for_memory(error: BaseException | None) -> bool:
    """True if an error is one for want of memory.

    Python 3.11 has no memory for the frame of a call, and says that it knows no reason.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, SystemError) and "error return without exception set" in str(error)
    )


def _tell(event: sys.UnraisableHookArgs) -> None:
    """Show an error that cannot be caught, unless it comes again where it can."""
    if not for_memory(event.exc_value):
        sys.__unraisablehook__(event)


def require(size: int) -> None:
    """Raise MemoryError unless the system gives so many bytes, which are given back at once."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise MemoryError from None
