"""No command overwrites what it reads, or one of its results with another.

The exception is a stream: it is read whole before anything is written, so that `-o` may name it.
"""

from __future__ import annotations

import argparse
import errno
import os
import stat
from typing import Any

from dnnp.core.model.errors import InputFileError, UsageError

WRITTEN = (
    "output", "outputs", "save_outputs", "trace", "calibrate", "svg", "save_policy", "tokens",
    "save_located",
)  # fmt: skip
"""Options, by the attribute they set, that name a file or folder to write."""

FOLDERS = ("output", "outputs")
"""Those that may name a folder."""

READ = (
    "stream", "model", "edges", "inputs", "devices", "device", "source", "against", "rules", "eval",
    "sequence", "priorities", "placement", "schedule", "costs", "from_run", "policy",
    "train_on", "workload", "prompts", "tokenizer",
)  # fmt: skip
"""Options that name a file to read. Where there is no file, it is the name of something else."""


class Outputs:
    """Files and folders that a command is going to write."""

    def __init__(self) -> None:
        self._known: list[tuple[str, str]] = []
        """(option, path) of each."""

    def add(self, option: str, path: str) -> None:
        """Note an output; raises `UsageError` if it is another one's file."""
        for other, known in self._known:
            if _same(path, known):
                raise UsageError(f"{other} and {option} name the same file: {path}")
        self._known.append((option, path))

    def spare(self, path: str | os.PathLike[str], what: str, but: str = "") -> None:
        """Make sure that a file which is read stays as it is; `but` is an option that may name it.

        Raises UsageError: an output is that file, by whatever name, or the folder of it.
        """
        path = os.fspath(path)
        if not os.path.exists(path):
            return
        for option, output in self._known:
            if option != but and (_same(path, output) or _inside(path, output)):
                raise UsageError(f"{option} {output} would overwrite {what}: {path}")

    def spare_entries(self, folder: str, what: str) -> None:
        """The same for what is in a folder, which may be very much."""
        # A folder for outputs may be among the inputs: nothing in it is read.
        known = [path for _, path in self._known if not os.path.isdir(path)]
        numbers = {os.stat(path).st_ino for path in known if os.path.exists(path)}
        for entry in os.scandir(folder):
            if entry.inode() in numbers or entry.is_symlink():
                self.spare(entry.path, what)


def declare(
    parser: argparse.ArgumentParser, args: argparse.Namespace, outputs: Outputs, *, in_place: bool,
    piped: bool,
) -> None:  # fmt: skip
    """Collect the outputs that the options name, and compare them with all files to read.

    `in_place`: the command writes the stream that it reads, so that `-o` may be the same file.
    `piped`: it reads that from standard input.

    Raises
    ------
    UsageError
        Two outputs are the same file, an output is a file to read, or two of these are standard
        input.
    InputFileError
        An output besides `-o` cannot be written.
    """
    names = {a.dest: (a.option_strings or [str(a.metavar)])[0] for a in parser._actions}
    held = ["the stream"] * piped
    held += [names[dest] for dest in READ[1:] for word in _words(args, dest) if word == "-"]
    if len(held) > 1:
        raise UsageError(f"{held[1]} and {held[0]} cannot both be standard input")
    for dest in WRITTEN:
        for path in _paths(args, dest):
            outputs.add(names[dest], path)
            if dest not in FOLDERS:
                check_output(path)
    for dest in READ:
        for path in _paths(args, dest):
            outputs.spare(path, names[dest], "-o" if in_place and dest == "stream" else "")
            if os.path.isdir(path):
                outputs.spare_entries(path, names[dest])


def outputs_of(args: argparse.Namespace) -> list[str]:
    """The files that `-o` names: one for each number of devices, if `-k` gives several."""
    output, counts = getattr(args, "output", "-"), getattr(args, "k", None)
    if not isinstance(counts, tuple):
        return [output]
    if "{k}" not in output:
        raise UsageError("-k gives several plans: -o must name a file with {k}, as plan-{k}.dnnp")
    return [output.replace("{k}", str(k)) for k in counts]


def _paths(args: argparse.Namespace, dest: str) -> list[str]:
    """The files that an option names, standard input and output apart."""
    return [path for path in _words(args, dest) if path not in ("", "-")]


def _words(args: argparse.Namespace, dest: str) -> list[str]:
    """The texts that an option has."""
    value: Any = outputs_of(args) if dest == "output" else getattr(args, dest, None)
    values = value if isinstance(value, list) else [value]
    return [word for word in values if isinstance(word, str)]


def _same(one: str, other: str) -> bool:
    """True if two names are one file, there or not; devices and pipes may be used twice."""
    try:
        found = os.stat(one), os.stat(other)
    except (OSError, ValueError):
        return os.path.realpath(one) == os.path.realpath(other)
    mode = found[0].st_mode
    return os.path.samestat(*found) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _inside(path: str, folder: str) -> bool:
    """True if a file lies in a folder."""
    return os.path.isdir(folder) and os.path.realpath(path).startswith(
        os.path.join(os.path.realpath(folder), "")
    )


def check_output(path: str) -> None:
    """Refuse an output that cannot be written before any work is done for it.

    Raises InputFileError: `path` is a folder, or its folder is missing or may not be written to.
    """
    folder = os.path.dirname(path) or "."
    reason = None
    if not path:
        reason = "an empty file name"
    elif os.path.isdir(path):
        reason = os.strerror(errno.EISDIR)
    elif not os.path.isdir(folder):
        reason = os.strerror(errno.ENOENT)
    elif not os.path.exists(path) and not os.access(folder, os.W_OK):
        reason = os.strerror(errno.EACCES)
    if reason is not None:
        raise InputFileError(f"{path}: {reason}")
