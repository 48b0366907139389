"""The parser of every command: its errors are raised, name one word, and say what was meant."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

from dnnp.core.model.errors import UsageError


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
        """A line whose second column, after two blanks, is filled beside the first."""
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

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse; an option that does not exist is named before its value can be taken for a file.

        Raises
        ------
        UsageError
            The arguments make no sense.
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
        from dnnp.core.model.text import did_you_mean

        known = self._option_string_actions
        if word not in known:
            self.error(f"unknown option '{word}'{did_you_mean(word, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices."""
        choices: Iterable[str] | None = action.choices
        for word in value.split(",") if getattr(action, "several", False) else [value]:
            if choices is not None and word not in choices:
                from dnnp.core.model.text import instead

                fault = f"invalid choice: '{word}'{instead(word, choices)}"
                raise argparse.ArgumentError(action, fault)
