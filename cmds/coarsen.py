"""dnnp-coarsen: group operators into the units that a split moves."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.options.graph import CoarsenOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, coarsen it, write it with its groups."""
    from dnnp.coarsening import coarsen_stream

    options = options_of(CoarsenOptions, args, context)
    stream = context.read(args.stream)
    coarsen_stream(stream, options)
    context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-coarsen", "group operators into the units that a split moves", run, CoarsenOptions,
    examples=(
        "dnnp-coarsen model.dnnp -o grouped.dnnp",
        "dnnp-import m.onnx | dnnp-coarsen --rules ort-cuda --to 100 > grouped.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
