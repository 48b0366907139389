"""dnnp-run: run the split model on ONNX Runtime and measure it."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import Limits, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.options.run import RunOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the plan of a stream."""
    from dnnp.running import judge, run_stream, save_files

    set_limits(args)
    options = options_of(RunOptions, args, context)
    stream = context.read(args.stream)
    if options.generate is not None:
        from dnnp.generating import generate_stream

        generate_stream(stream, options)
        context.write(stream)
        return 0
    outcome = run_stream(stream, options)
    save_files(options, outcome, stream)
    context.show(outcome.lines())
    context.write(stream)
    judge(outcome, context)
    return 0


COMMAND = Command(
    "dnnp-run",
    "run the split on ONNX Runtime, measure it, and compare it with the whole model",
    run, RunOptions, Limits,
    examples=(
        "dnnp-run --verify --compare plan.dnnp -o ran.dnnp",
        "dnnp-run --provider cuda --rate 100 --duration 30 plan.dnnp -o ran.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
