"""dnnp-profile: learn what every operator costs, by formula or by measuring."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import Limits, Listed, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.options.graph import ProfileOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, price it, write it with its costs."""
    from dnnp.profiling import profile_stream

    options = options_of(ProfileOptions, args, context)
    stream = context.read(args.stream)
    if args.mode == "measure":
        set_limits(args)
    profile_stream(stream, options)
    context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-profile", "learn what every operator costs, by formula or by measuring", run,
    ProfileOptions, Limits, Listed,
    examples=(
        "dnnp-profile --device a100 --device cpu-core grouped.dnnp -o priced.dnnp",
        "dnnp-profile --mode measure --threads 4 grouped.dnnp -o priced.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
