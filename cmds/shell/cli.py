"""What every command shares: its options, and the way from its start to its exit status.

Start-up time matters here: nothing heavier than argparse is imported at module level.

Commands under little memory: room for libraries that do not say that they lack it. OpenBLAS takes
memory while it is loaded, and asks for it again for ever where there is none; no signal handler of
ours runs meanwhile. So the modules that load it are imported only where there is room for it.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import mmap
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from dnnp.cmds.shell.context import Context, reason_of
from dnnp.cmds.shell.overwrite import check_output, declare
from dnnp.cmds.shell.parser import Help, Parser
from dnnp.core.model.errors import (
    DnnpError,
    FormatError,
    InputFileError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from dnnp.cmds.shell.guardian import Listen


INTERRUPTED = 130


class Version(argparse.Action):
    """`--version`, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        from dnnp.formats.header import RELEASE

        parser.exit(0, f"{parser.prog} {RELEASE}\n")


class _Completion(argparse.Action):
    """`--print-completion SHELL`."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _option: Any = None
    ) -> NoReturn:
        from dnnp.cmds.shell.completion import script

        parser.exit(0, script(parser, values))


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
    many_streams
        Whether it takes several.
    stream_unless
        Options that say what to work on instead of a stream.
    writes_file
        Whether `-o` names a file; otherwise the command defines its own output options.
    writes_stream
        Whether it writes the stream that it reads, so that `-o` may name the same file.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        add_arguments: Callable[[argparse.ArgumentParser], None],
        run: Callable[[argparse.Namespace, Context], int],
        *,
        reads_stream: bool = True,
        many_streams: bool = False,
        stream_unless: Sequence[str] = (),
        writes_file: bool = True,
        writes_stream: bool = True,
    ) -> None:
        self.name = name
        self.summary = summary
        self._add_arguments = add_arguments
        self._run = run
        self._reads_stream = reads_stream
        self._many_streams = many_streams
        self._stream_unless = stream_unless
        self._writes_file = writes_file
        self._writes_stream = writes_stream

    def parser(self) -> Parser:
        """The command's parser."""
        parser = Parser(
            prog=self.name,
            description=self.summary,
            formatter_class=Help,
            allow_abbrev=False,
        )
        if self._many_streams:
            parser.add_argument(
                "stream",
                nargs="*",
                metavar="STREAM",
                help="streams to read; - is standard input (default)",
            )
        elif self._reads_stream:
            parser.add_argument(
                "stream",
                nargs="?",
                default="-",
                metavar="STREAM",
                help="stream to read; - is standard input (default)",
            )
        self._add_arguments(parser)
        common = parser.add_argument_group("common options")
        if self._writes_file:
            common.add_argument(
                "-o",
                "--output",
                default="-",
                metavar="FILE",
                help="write to FILE, as a whole or not at all (default: standard output)",
            )
        volume = common.add_mutually_exclusive_group()
        volume.add_argument("-q", "--quiet", action="store_true", help="only warnings and errors")
        volume.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
        common.add_argument(
            "--timings", action="store_true", help="put the time that this took into the header"
        )
        common.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
        common.add_argument(
            "--print-completion",
            action=_Completion,
            choices=("bash", "zsh", "fish", "tcsh"),
            metavar="SHELL",
            help="print a completion script for bash, zsh, fish or tcsh and exit",
        )
        return parser

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
        parser = self.parser()
        parser.out = context.stdout
        args = parser.parse_args(list(arguments))
        context.configure(args)
        if self._many_streams:
            args.stream = args.stream or ["-"]
            if args.stream.count("-") > 1:
                raise UsageError("standard input holds one stream: give - once")
        reads = self._reads_stream and args.stream in ("-", ["-"])
        reads = reads and all(getattr(args, o) is None for o in self._stream_unless)
        if reads and _is_terminal(context.stdin):
            context.show(parser.format_usage().splitlines())
            raise UsageError("nothing on standard input: give a stream file or a pipe")
        declare(parser, args, context.outputs, in_place=self._writes_stream)
        if self._writes_file and args.output != "-":
            check_output(args.output)
        return args

    def _perform(self, args: argparse.Namespace, context: Context) -> int:
        status = self._run(args, context)
        return INTERRUPTED if context.interrupted and status == 0 else status


def _status_of(action: Callable[[], int], context: Context) -> int:
    """What an action returns; every error becomes a line and a status."""
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
        context.warn(f"the package {error.name} is not installed: pip install {error.name}")
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
    """What the system refused, and why."""
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
        # The system closes the copy when it has taken back all memory: whoever reads until the
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
    """End as programs do whose reader went away.

    The signal itself is ignored: it would also come when nobody reads the messages.
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


def _is_terminal(file: BinaryIO | None) -> bool:
    return file is not None and file.isatty()


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

        Raises
        ------
        MemoryError
            There is no room for it.
        """
        if name in GREEDY:
            require(ROOM_BYTES)


def mind_memory() -> None:
    """From now on, look for room before imports that need much; one line is enough about it."""
    if Room not in sys.meta_path:
        sys.meta_path.insert(0, Room)
    sys.unraisablehook = _tell


def for_memory(error: BaseException | None) -> bool:
    """Whether an error is one for want of memory.

    Python 3.11 has no memory for the frame of a call, and says that it knows no reason.
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, SystemError) and "error return without exception set" in str(error)
    )


def _tell(event: sys.UnraisableHookArgs) -> None:
    """Show an error that nobody can catch, unless it will come again where somebody does."""
    if not for_memory(event.exc_value):
        sys.__unraisablehook__(event)


def require(size: int) -> None:
    """Raise MemoryError unless the system gives so many bytes, which are given back at once."""
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise MemoryError from None
