"""dnnp-view: show a plan, and what is known of it, to people and to other programs."""

from __future__ import annotations

import argparse
import shutil

from dnnp.choices import VIEWS
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context

WIDTH = 100
"""Columns of a text that goes elsewhere than to a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-view."""
    parser.add_argument(
        "--as",
        dest="as_",
        choices=tuple(VIEWS),
        help="text: tables and charts for a terminal "
        "(default: by the ending of the file that -o names, else text)",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Show streams."""
    from dnnp.viewing import ViewOptions, view_bytes, view_of

    columns = shutil.get_terminal_size((WIDTH, 24)).columns if context.stdout.isatty() else WIDTH
    asked = args.as_ or view_of(args.output)
    options = ViewOptions(as_=asked, width=max(columns, 40), caller=context)
    options.check()
    data = view_bytes([context.read(path) for path in args.stream], options)
    with context.open_output() as file:
        file.write(data)
    return 0


COMMAND = Command(
    "dnnp-view", "show a plan and what is known of it: text, pictures, pages, tables, graphs",
    add_arguments, run, many_streams=True, writes_stream=False,
)  # fmt: skip


def main() -> int:
    """Entry point."""
    return COMMAND.main()
