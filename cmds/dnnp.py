"""dnnp: all commands by one name; `dnnp import` is dnnp-import, in the same process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from dnnp.cmds.shell.arguments import SHELLS, Parser, add_options
from dnnp.cmds.shell.cli import Command, version
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import UsageError
from dnnp.options.table import Options, option

HELP = "help"
"""Word in place of a command, for its help or the list of all."""


def _completion(_: object, shell: str) -> str:
    from dnnp.cmds.shell.completion import front_script

    return front_script(shell, summaries())


class _Front(Options):
    """Options of `dnnp` where no command is named."""

    # fmt: off
    help: bool = option(
        False, short="-h", show=lambda parser, _: parser.format_help(),
        help="show this help message and exit")
    version: bool = option(
        False, show=lambda parser, _: version(parser.prog), help="print the version and exit")
    print_completion: str | None = option(
        choices=SHELLS, show=_completion, metavar="SHELL",
        help="print a completion script for bash, zsh, fish or tcsh and exit")
    # fmt: on


class _FrontCommand(Command):
    """`dnnp` where no command is named: help, and what is wrong."""

    def parser(self) -> Parser:
        """Its own options, and the list of commands."""
        parser = Parser(self.name, self.summary, self.page)
        parser.add_argument(
            "command",
            metavar="COMMAND",
            nargs="?",
            choices=(*COMMANDS, HELP),
            help="one of those below: dnnp COMMAND is dnnp-COMMAND; help: this list, or with a "
            "command its options",
        )
        parser.add_argument(
            "arguments", metavar="ARGUMENT", nargs="*", help="what the command takes"
        )
        add_options(parser, [_Front])
        width = max(map(len, COMMANDS)) + 2
        rows = [f"{name:{width}}{summary}" for name, summary in summaries().items()]
        parser.add_argument_group("commands", "\n".join(rows))
        return parser

    def _parse(self, arguments: Sequence[str], context: Context) -> argparse.Namespace:
        """Show help, or say what is wrong."""
        words = list(arguments)
        if words[:1] == [HELP]:
            words = words[1:] or ["--help"]
        parser = self.parser()
        parser.out = context.stdout
        if not words:
            context.show(parser.format_help().splitlines())
            raise UsageError("give a command")
        if not words[0].startswith("-"):
            from dnnp.core.model.text import instead

            name = words[0].removeprefix("dnnp-")
            raise UsageError(
                f"unknown command '{words[0]}'{instead(name, COMMANDS)} (see dnnp help)"
            )
        parser.parse_args(words)
        raise UsageError("give a command (see dnnp help)")


COMMAND = _FrontCommand(
    "dnnp", "split neural networks over several devices: all commands by one name",
    lambda _args, _context: 0, model=("COMMAND", ""),
)  # fmt: skip


def chosen(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The command that words after `dnnp` name, and its arguments; None: none.

    >>> chosen(["import", "m.onnx"]), chosen(["help", "run"]), chosen(["help"]), chosen(["imp"])
    (('import', ['m.onnx']), ('run', ['--help']), None, None)
    """
    asked = list(words)
    if asked[:1] == [HELP] and len(asked) == 2:
        asked = [asked[1].removeprefix("dnnp-"), "--help"]
    return (asked[0], asked[1:]) if asked and asked[0] in COMMANDS else None


def main() -> NoReturn:
    """Entry point: go on as the command that is named."""
    found = chosen(sys.argv[1:])
    if found is None:
        COMMAND.main()
    name, words = found
    sys.argv = [os.path.join(os.path.dirname(sys.argv[0]), f"dnnp-{name}"), *words]
    command(name).main()


COMMANDS = {
    "import": "import_",
    "profile": "profile",
    "coarsen": "coarsen",
    "partition": "partition",
    "bound": "bound",
    "export": "export",
    "schedule": "schedule",
    "run": "run",
    "view": "view",
    "check": "check",
}
"""Every command without `dnnp-`, in the order in which they are listed -> its module in `cmds`."""


def command(name: str) -> Command:
    """The command `dnnp-NAME`; its module is imported now."""
    found: Command = import_module(f"dnnp.cmds.{COMMANDS[name]}").COMMAND
    return found


def summaries() -> dict[str, str]:
    """Name of every command -> one line about it. All of them are imported."""
    return {name: command(name).summary for name in COMMANDS}
