"""dnnp-bound: prove how good a plan is."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import count, device_options, factor, seconds
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.methods import BOUNDS, LATENCY_BOUNDS, lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    how = parser.add_argument_group("method")
    how.add_argument(
        "--method",
        choices=tuple(BOUNDS),
        default="auto",
        metavar="NAME",
        help="how to prove it (default: auto)",
    )
    how.add_argument(
        "--solver", choices=("cbc", "highs"), help="solver of integer programs (default: cbc)"
    )
    how.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="seconds after which to keep the best bound (default: none, but 60 for all integer "
        "programs together)",
    )
    how.add_argument(
        "--effort",
        type=factor,
        metavar="X",
        default=1.0,
        help="scale the work of searches that would not end (default: 1)",
    )
    how.add_argument(
        "--seed",
        type=count,
        metavar="N",
        default=0,
        help="seed of the search for a plan, where there is none (default: 0)",
    )
    device_options(parser, "devices, for a stream without a plan: it is made first")
    parser.add_argument_group("arguments for throughput and gpipe", lines(BOUNDS))
    parser.add_argument_group("arguments for latency", lines(LATENCY_BOUNDS))


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, bound the optimum of its plan, write the stream with the bound."""
    from dnnp.bounding import BoundOptions, bound_stream
    from dnnp.cmds.shell.context import options_of

    options = options_of(BoundOptions, args, context)
    stream = context.read(args.stream)
    with context.interruptible():
        bound_stream(stream, options)
        context.write(stream)
    return 0


COMMAND = Command("dnnp-bound", "prove how good a plan is", add_arguments, run)
main = COMMAND.main
