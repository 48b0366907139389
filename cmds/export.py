"""dnnp-export: write a plan for others: stage models as ONNX, or in formats of other tools."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.model.errors import UsageError
from dnnp.options.run import ExportOptions
from dnnp.options.table import FOLDERS, Options, option


class _Output(Options):
    """Option of the output."""

    # fmt: off
    output: str = option(
        "-", short="-o", metavar="PATH", group="common options", page=True,
        help="folder to write, empty or from an earlier export; with --to subgraph, msr-split and "
        "torch-... the file to write (default: standard output)")
    # fmt: on


def run(args: argparse.Namespace, context: Context) -> int:
    """Export the plan of a stream."""
    if args.to in FOLDERS and args.output == "-":
        raise UsageError(f"--to {args.to} writes several files: name a folder with -o DIR")
    if args.to == "subgraph" and args.output == "-" and context.stdout.isatty():
        raise UsageError("--to subgraph writes an ONNX model: name a file with -o FILE")
    from dnnp.exporting import export_folder, file_bytes

    options = options_of(ExportOptions, args, context)
    stream = context.read(args.stream)
    if args.to in FOLDERS:
        export_folder(stream, args.output, options)
    else:
        data = file_bytes(stream, options)
        with context.open_output() as file:
            file.write(data)
    return 0


COMMAND = Command(
    "dnnp-export",
    "write the stages of a plan as ONNX models, or a plan in another tool's format",
    run, ExportOptions, _Output, writes_stream=False,
    examples=(
        "dnnp-export --to stages -o stages plan.dnnp",
        "dnnp-export --to torch-csv -o schedule.csv scheduled.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
