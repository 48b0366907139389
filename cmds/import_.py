"""dnnp-import: turn a model, a workload, a graph of your own or a random one into a stream."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dnnp.cmds.shell.arguments import Limits, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.model.errors import UsageError
from dnnp.options.graph import GenerateOptions, ImportOptions
from dnnp.options.run import ViewOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Import MODEL, or generate a graph, and write the stream."""
    from dnnp.loading import generate_stream, import_stream, kind_of

    _check_usage(args, context)
    context.progress("importing")
    if args.synthetic:
        stream = generate_stream(options_of(GenerateOptions, args, context))
    else:
        options = options_of(ImportOptions, args, context)
        if args.shapes == "run":
            set_limits(args)
        stream = import_stream(args.model, options)
        if (args.kind or kind_of(args.model)) == "onnx" and os.path.exists(args.output):
            from dnnp.callbacks import spare_model
            from dnnp.formats.onnx.load_model import load_with_hash

            spare_model(context, load_with_hash(args.model)[0], Path(args.model))
    for message in stream.warnings:
        context.warn(message)
    context.elapsed("imported the model")
    if context.stdout.isatty() and args.output == "-" and POURS.isdisjoint(context.arguments):
        import shutil

        from dnnp.viewing import view_bytes

        width = shutil.get_terminal_size().columns
        context.stdout.write(view_bytes([stream], ViewOptions(width=max(width, 40))))
        context.note("the stream goes to a pipe, or to a file with -o FILE; -o - shows it")
    else:
        context.write(stream)
    return 0


POURS = frozenset({"-o", "-o-", "--output", "--output=-"})
"""Arguments that ask for the stream, on a terminal too."""


def _check_usage(args: argparse.Namespace, context: Context) -> None:
    """One thing to import, and no option of the other."""
    if args.synthetic is None:
        if args.model is None:
            raise UsageError("nothing to import: give MODEL or --synthetic")
        for option in ("nodes", "seed", "ratio", "reading"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} is for --synthetic, not for a file")
        return
    if args.model is not None:
        raise UsageError(f"give MODEL or --synthetic, not both ('{args.model}' and a random graph)")
    words = options_of(ImportOptions, args, context).replaced(name=None).words()
    if words:
        raise UsageError(f"{words[0]} is for files, not for --synthetic")


COMMAND = Command(
    "dnnp-import",
    "turn an ONNX model, a published workload, a graph of your own or a random one into a stream",
    run, ImportOptions, Limits, GenerateOptions, unsaid=("synthetic",),
    model=("MODEL", "file to import; - is standard input, but not for ONNX"),
    examples=(
        "dnnp-import model.onnx --dim batch=8 -o model.dnnp",
        "dnnp-import --synthetic --nodes 100 --seed 1 -o random.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
