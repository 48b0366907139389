"""Common parts of the programs here: values on the command line, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from dnnp import DnnpError, InputFileError


def seconds(text: str) -> float:
    """A time above 0, of at most an hour."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0, of at most 3600")
    return value


def count(text: str) -> int:
    """A number of things, at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def status_of(prog: str, work: Callable[[], None]) -> int:
    """Do the work of a program: its exit status, as of the commands; one line says what fails."""
    try:
        work()
    except DnnpError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"{prog}: {error.strerror}", file=sys.stderr)
        return InputFileError.exit_status
    except KeyboardInterrupt:
        return 130
    return 0
