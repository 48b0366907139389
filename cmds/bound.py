"""dnnp-bound: prove how good a plan is."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import Listed
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.options.schedule import BoundOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, bound the optimum of its plan, write the stream with the bound."""
    from dnnp.bounding import bound_stream

    options = options_of(BoundOptions, args, context)
    stream = context.read(args.stream)
    with context.interruptible():
        bound_stream(stream, options)
        context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-bound", "prove how good a plan is", run, BoundOptions, Listed,
    methods={
        "arguments for throughput and gpipe": BOUNDS, "arguments for latency": LATENCY_BOUNDS,
    },
    examples=(
        "dnnp-bound plan.dnnp -o bounded.dnnp",
        "dnnp-partition -k 4 priced.dnnp | dnnp-bound --time-limit 60 > bounded.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
