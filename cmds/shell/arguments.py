"""Parsers of commands, from tables of options; and the rows that commands alone have.

Errors of a parser are raised, name one word, and say what was meant.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import did_you_mean, instead
from dnnp.options.table import Option, Options, option

if TYPE_CHECKING:
    from dnnp.core.methods import Method


class Help(argparse.HelpFormatter):
    """Keeps the lines of a text that has several, such as a list of methods in two columns."""

    def __init__(self, prog: str) -> None:
        # Made for every argument. Without a width it would import shutil to ask for one.
        super().__init__(prog, width=_columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(self._row(line, width, indent) for line in text.splitlines())

    def _row(self, line: str, width: int, indent: str) -> str:
        """Wrap a line of two columns: further lines are indented to the second column."""
        import textwrap

        first = re.match(r"\S+ {2,}", line)
        hanging = indent + " " * len(first[0] if first else "")
        return textwrap.fill(
            line, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
        )


def _columns() -> int:
    """Width of the terminal, or what the environment says."""
    with suppress(KeyError, ValueError):
        said = int(os.environ["COLUMNS"])
        if said > 0:
            return said
    # There may be no standard output, or none that is a terminal.
    with suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    return 80


class Parser(argparse.ArgumentParser):
    """Help and version go to the stdout the command was given; errors are raised."""

    out: BinaryIO | None = None
    methods: Mapping[str, Mapping[str, Method]] = MappingProxyType({})
    """Title -> methods that the full help lists below it."""

    def __init__(self, name: str, summary: str, page: Callable[[], str]) -> None:
        super().__init__(
            name, description=summary, formatter_class=Help, allow_abbrev=False, add_help=False
        )
        self.page = page

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and self.out is not None:
            self.out.write(message.encode())
            self.out.flush()
        elif message:
            super()._print_message(message, file)

    def format_help(self) -> str:
        """The full help, with the lists of methods."""
        from dnnp.core.methods import lines

        shown, self.methods = self.methods, {}
        for title, methods in shown.items():
            self.add_argument_group(title, lines(methods))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse; an option that does not exist is named before its value can be taken for a file.

        Raises UsageError: the arguments make no sense.
        """
        words = list(args or ())
        for word in words:
            if word == "--":
                break
            if word.startswith("--") and " " not in word:
                self._check_option(word.partition("=")[0])
        parsed, extra = self.parse_known_args(words, namespace)
        for word in extra:
            if word.startswith("-") and word != "-":
                self._check_option(word)
        if extra:
            self.error(f"unexpected argument '{extra[0]}'")
        return parsed

    def _check_option(self, word: str) -> None:
        known = self._option_string_actions
        if word not in known:
            self.error(f"unknown option '{word}'{did_you_mean(word, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices."""
        choices: Iterable[str] | None = action.choices
        for word in value.split(",") if getattr(action, "several", False) else [value]:
            if choices is not None and word not in choices:
                fault = f"invalid choice: '{word}'{instead(word, choices)}"
                raise argparse.ArgumentError(action, fault)


SHELLS = ("bash", "zsh", "fish", "tcsh")
"""Shells that a completion script is written for."""

MOST = 1e9
"""The largest number that an option takes, unless its row says otherwise."""


def add_options(parser: argparse.ArgumentParser, kinds: Iterable[type[Options]]) -> None:
    """Declare the rows of tables, each in its group; what is there already is passed over."""
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    tuning: dict[str, Option] = {}
    for group, row in rows_of(kinds):
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        action = groups[group].add_argument(*row.flags, dest=row.name, **_about(row))
        action.several = row.several  # type: ignore[attr-defined]
        if row.tuning:
            tuning[row.key] = row
    if tuning:
        parser.add_argument_group("tuning parameters of methods").add_argument(
            "--set", action=_Set, metavar="KEY=VALUE", const=tuning, default=argparse.SUPPRESS,
            help=f"{', '.join(tuning)}; see dnnp-methods(7); repeatable",
        )  # fmt: skip


def rows_of(kinds: Iterable[type[Options]]) -> Iterable[tuple[str, Option]]:
    """All rows that a command has, each once, and the groups that they are in."""
    known = set[str]()
    for kind in kinds:
        group = ""
        for name, row in kind.rows.items():
            group = group if row.group is None else row.group
            if row.flag and name not in known:
                known.add(name)
                yield group, row


def _about(row: Option) -> dict[str, Any]:
    """Arguments of `add_argument` for a row."""
    about: dict[str, Any] = {
        "help": argparse.SUPPRESS if row.tuning else row.help.replace("%", "%%")
    }
    if row.show is not None:
        about |= {"action": _Show, "const": row.show, "nargs": 0 if row.kind == "bool" else None}
    elif row.kind == "bool":
        return {**about, "action": "store_true"}
    elif row.kind == "Sequence":
        about |= {"action": "append", "default": None if row.default is None else []}
    else:
        about |= {"default": row.default, "type": _reader(row)}
        about |= {"action": _Joined} if row.each else {}
    if row.const is not None:
        about |= {"nargs": "?", "const": row.const}
    return {**about, "choices": row.choices or None, "metavar": row.metavar}


class _Show(argparse.Action):
    """Print a text, and end."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, values: Any, option: Any = None
    ) -> NoReturn:
        parser.exit(0, self.const(parser, values))


class _Joined(argparse.Action):
    """Values of an option that may be given again, between commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        before = getattr(namespace, self.dest)
        both = f"{before},{values}"  # of two numbers for all devices the last one counts
        setattr(namespace, self.dest, both if before is not None and "=" in both else values)


class _Set(argparse.Action):
    """`--set KEY=VALUE`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        key, _, text = values.partition("=")
        row = self.const.get(key)
        if row is None:
            raise argparse.ArgumentError(
                self, f"no tuning parameter is called '{key}'{instead(key, self.const)}"
            )
        try:
            setattr(namespace, row.name, _reader(row)(text))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, f"{key}: {error}") from None


def _reader(row: Option) -> Callable[[str], Any]:
    """Reads the value of a row from text; what it refuses it says in a few words."""

    def read(text: str) -> Any:
        if row.unit:
            try:
                return row.amount(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(str(error)) from None
        return text if text in row.words else READERS.get(row.kind, _text)(text, row)

    return read


def _text(text: str, _: Option) -> str:
    return text


def _truth(text: str, _: Option) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return text == "true"


def _whole(text: str, row: Option) -> int:
    from dnnp.formats.fields import MAX_ID

    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    least, most = row.least or 0, MAX_ID if row.most is None else row.most
    if value > most:
        large = "is too large" if row.most is None else f"is above {row.most:.0f}"
        raise argparse.ArgumentTypeError(f"{text} {large}")
    if value < least:
        small = "is below 0" if value < 0 else f"is too small; at least {least:.0f}"
        raise argparse.ArgumentTypeError(f"{text} {small}")
    return value


Counts = int | tuple[int, ...]
"""A number, or several in ascending order."""

MOST_COUNTS = 1_000


def _counts(text: str, row: Option) -> Counts:
    """One number; or several: a list, with ranges such as 2..64."""
    if "," not in text and ".." not in text:
        return _whole(text, row)
    found = set[int]()
    for part in text.split(","):
        first, several, last = part.partition("..")
        low, high = _whole(first, row), _whole(last if several else first, row)
        if low > high:
            raise argparse.ArgumentTypeError(f"'{part}' holds no number")
        if high - low >= MOST_COUNTS - len(found):
            raise argparse.ArgumentTypeError(f"'{text}' holds more than {MOST_COUNTS} numbers")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _number(text: str, row: Option) -> float:
    most = MOST if row.most is None else row.most
    limit = "1e9" if most == MOST else f"{most:g}"
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if value == 0 and row.above == 0:
        raise argparse.ArgumentTypeError("0 is too small; above 0")
    if not (row.least or 0) <= value <= most:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to {limit}")
    return value


READERS: dict[str, Callable[[str, Option], Any]] = {
    "bool": _truth, "int": _whole, "float": _number, "Counts": _counts,
}  # fmt: skip
"""First type of a row -> what reads it."""


def _devices(*_: Any) -> str:
    from dnnp.formats.inputs.devices import listed_devices

    return "".join(f"{line}\n" for line in listed_devices())


class Listed(Options):
    """Prints what comes with the package."""

    # fmt: off
    list_devices: bool = option(
        False, group="devices", show=_devices, page=True,
        help="print the devices that come with the package; name, kind, memory, bandwidth of the "
        "link")
    # fmt: on


class Limits(Options):
    """Limits of this process, which `set_limits` puts into force."""

    # fmt: off
    stage_timeout: float | None = option(
        least=0, metavar="SECONDS", group="limits",
        help="end with status 5 when one run of a stage, or of the model, or the making of its "
        "session takes longer; 0: never (default: 600)")
    max_memory: float | None = option(
        unit="size", metavar="BYTES",
        help="end with status 5 when more memory is needed (suffixes K, M, G, Ki..; default: 90 % "
        "of what is free)")
    # fmt: on


def set_limits(args: argparse.Namespace) -> None:
    """Limit this process from now on."""
    from dnnp.core.runtime import limits

    limits.set_limits(args.stage_timeout, args.max_memory)
