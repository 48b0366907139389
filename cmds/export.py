"""dnnp-export: write a plan for others: stage models as ONNX, or in formats of other tools."""

from __future__ import annotations

import argparse

from dnnp.choices import EXPORTS, FOLDERS
from dnnp.cmds.shell.arguments import count
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-export."""
    parser.add_argument(
        "--to",
        choices=EXPORTS,
        required=True,
        help="stages: a folder with an ONNX model for each stage, and a manifest; "
        "triton: the same as a model repository for Triton; "
        "ort-layers: the whole model, with stages as layers for ONNX Runtime; "
        "onnx-devices: with stages as device configurations of ONNX; "
        "msr-split: the split as JSON, in the format of the 2020 device-placement paper; "
        "torch-csv: the schedule, a row a rank, for torch.distributed.pipelining; "
        "torch-comms-csv: the same with what ranks send one another; "
        "torch-plan: a row a stage, modules to split before, and degrees",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="PATH",
        help="the folder to write (required), empty or from an earlier export; with --to msr-split "
        "and torch-... the file to write (default: standard output)",
    )
    parser.add_argument(
        "--model", metavar="PATH", help="the ONNX model, if it is not where the stream says"
    )
    parser.add_argument(
        "--max-batch-size",
        type=count,
        default=0,
        metavar="N",
        help="with --to triton: the largest batch, along the first dimension of every tensor, "
        "which must be free in all of them (default: 0, tensors are as in the model)",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Export the plan of a stream."""
    if args.to in FOLDERS and args.output == "-":
        raise UsageError(f"--to {args.to} writes several files: name a folder with -o DIR")
    from dnnp.cmds.shell.context import options_of
    from dnnp.exporting import ExportOptions, export_folder, file_bytes

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
    add_arguments,
    run,
    writes_file=False,
    writes_stream=False,
)
main = COMMAND.main
