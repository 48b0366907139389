"""dnnp-view: show a plan, and what is known of it, to people and to other programs."""

from __future__ import annotations

import argparse
import os
import shutil

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.options.run import ViewOptions

WIDTH = 100
"""Columns of a text that goes elsewhere than to a terminal."""


def run(args: argparse.Namespace, context: Context) -> int:
    """Show streams."""
    from dnnp.viewing import view_bytes, view_of

    terminal = context.stdout.isatty() and args.output == "-"
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    args.as_ = args.as_ or view_of(args.output, args.plot)
    options = options_of(ViewOptions, args, context).replaced(
        width=max(columns, 40),
        plain=_is_plain(),
        color=terminal and not os.environ.get("NO_COLOR"),
    )
    data = view_bytes([context.read(path) for path in args.stream], options)
    with context.open_output() as file:
        file.write(data)
    return 0


def _is_plain() -> bool:
    """True if the locale, or a terminal that can do little, understands ASCII alone."""
    if os.environ.get("TERM") == "dumb":
        return True
    locale = next((os.environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(n)), "")
    return "utf" not in locale.lower() and locale not in ("", "C.utf8")


COMMAND = Command(
    "dnnp-view", "show a plan and what is known of it: text, pictures, pages, tables, graphs",
    run, ViewOptions, unsaid=("as_",), many_streams=True, writes_stream=False,
    examples=(
        "dnnp-view plan.dnnp",
        "dnnp-view --plot k plan-2.dnnp plan-4.dnnp -o plans.svg",
    ),
)  # fmt: skip
main = COMMAND.main
