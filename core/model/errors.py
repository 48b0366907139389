"""Errors that a command turns into one line on stderr and an exit status."""

from __future__ import annotations


class DnnpError(Exception):
    """Base of every error a user can cause. `exit_status` is what the command ends with."""

    exit_status = 1


class InputFileError(DnnpError):
    """A file is missing or cannot be read or written, or ONNX Runtime cannot load it."""

    exit_status = 1


class UsageError(DnnpError):
    """Options that make no sense: a bad k, an unknown device name, an unset dimension."""

    exit_status = 2


class FormatError(DnnpError):
    """A stream, model, plan or tensor file is malformed, or does not match its partner.

    Parameters
    ----------
    reason
        What is wrong, naming the value and what was expected.
    file, line, field
        Where: file name (or `<stdin>`), 1-based line number, and the name of the field.
    """

    exit_status = 3

    def __init__(
        self,
        reason: str,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.reason = reason
        self.file = file
        self.line = line
        self.field = field
        where = file or ""
        if line is not None:
            where = f"{where}:{line}" if where else f"line {line}"
        parts = [where] if where else []
        if field is not None:
            parts.append(f"field '{field}'")
        super().__init__(": ".join([*parts, reason]))


class InfeasibleError(DnnpError):
    """No split meets the limits, such as a memory capacity."""

    exit_status = 4


class LimitError(DnnpError):
    """A limit was reached before there was anything to show, or anything that tells."""

    exit_status = 5


class VerificationError(DnnpError):
    """The split model does not compute what the whole model computes."""

    exit_status = 6


class UnavailableError(DnnpError):
    """A device, execution provider, solver or optional package is missing."""

    exit_status = 7


class GateError(DnnpError):
    """A plan, its schedule or a run is worse than a gate allows."""

    exit_status = 8


class UncheckableError(LimitError):
    """A stream says something that no check covers, or that is too much to be checked."""

    exit_status = 9
