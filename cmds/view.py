"""dnnp-view: show a plan, and what is known of it, to people and to other programs."""

from __future__ import annotations

import argparse
import os
import shutil

from dnnp.choices import VIEW_AXES, VIEW_PICTURES, VIEW_TABLES, VIEWS
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
        help="text: what a person wants to know, on a terminal; csv, tsv, md: a table; svg: "
        "pictures; html: a page with all of it; dot, graphml: the graph for other programs; trace: "
        "schedule or latency for Perfetto; onnx: the model with stages and costs, for Netron "
        "(default: by the ending of the file that -o names; if it has none, with --plot svg, else "
        "text)",
    )
    parser.add_argument(
        "--table",
        choices=VIEW_TABLES,
        help="with --as csv, tsv or md: which table (default: stages of one stream, plans of "
        "several)",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="with --as csv, tsv or md: texts as they are, also where a spreadsheet would take "
        "them for formulas, or Markdown for HTML and links",
    )
    parser.add_argument(
        "--picture",
        choices=VIEW_PICTURES,
        help="with --as svg: what loads are made of, the schedule, or the graph in the colours of "
        "its stages (default: all that there are, one below the other)",
    )
    parser.add_argument(
        "--plot",
        choices=VIEW_AXES,
        help="a chart of the values of plans, over the number of devices or over the methods, with "
        "a panel for each model",
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="with --as onnx: the model, if it is not where the stream says",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Show streams."""
    from dnnp.viewing import ViewOptions, view_bytes, view_of

    terminal = context.stdout.isatty() and args.output == "-"
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    options = ViewOptions(
        as_=args.as_ or view_of(args.output, args.plot),
        table=args.table,
        raw=args.raw,
        plot=args.plot,
        picture=args.picture,
        model=args.model,
        width=max(columns, 40),
        plain=_is_plain(),
        color=terminal and not os.environ.get("NO_COLOR"),
        verbose=args.verbose,
        caller=context,
    )
    options.check()
    data = view_bytes([context.read(path) for path in args.stream], options)
    with context.open_output() as file:
        file.write(data)
    return 0


def _is_plain() -> bool:
    """Whether more than ASCII would not be understood: by the locale, or a terminal that can do
    little."""
    if os.environ.get("TERM") == "dumb":
        return True
    locale = next((os.environ[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(n)), "")
    return "utf" not in locale.lower() and locale not in ("", "C.utf8")


COMMAND = Command(
    "dnnp-view", "show a plan and what is known of it: text, pictures, pages, tables, graphs",
    add_arguments, run, many_streams=True, writes_stream=False,
)  # fmt: skip
main = COMMAND.main
