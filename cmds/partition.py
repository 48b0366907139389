"""dnnp-partition: split the graph into stages."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import Counts, Listed
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.cmds.shell.overwrite import outputs_of
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.errors import UsageError
from dnnp.options.split import SplitOptions
from dnnp.options.table import Options, option


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, split its graph, write the stream with the plan."""
    several = isinstance(args.k, tuple)
    for name in ("eval", "sequence", "priorities", "policy", "workload", "rules"):
        if getattr(args, name) == "-" and several:
            raise UsageError(f"--{name} - is standard input: -k would read it several times")
    if args.sequence == "-" and {"slice", "greedy"} <= set(args.method.split(",")):
        raise UsageError("--sequence - is standard input: slice and greedy cannot both read it")
    outputs = dict(zip(args.k, outputs_of(args), strict=True)) if several else {}
    args.k = None if several else args.k
    options = options_of(SplitOptions, args, context)
    stream = context.read(args.stream)
    with context.interruptible():
        if not several:
            from dnnp.splitting import split_stream

            split_stream(stream, options)
            context.write(stream)
            return 0
        from dnnp.sweeping import sweep_stream

        for k, planned in sweep_stream(stream, outputs, options):
            context.output = outputs[k]
            context.write(planned)
    return 0


class Numbers(Options):
    """Option of numbers of devices, of which Python takes one."""

    # fmt: off
    k: Counts | None = option(
        least=0, metavar="N[,...]", group="devices", page=True,
        help="N identical devices of the priced class; 2,4,8 or 2..64: each of these numbers, its "
        "plan in the file that -o names with {k} in it")
    # fmt: on


COMMAND = Command(
    "dnnp-partition", "split a graph into pipeline stages", run, Numbers, SplitOptions, Listed,
    methods={"methods for throughput and gpipe": SPLITS, "methods for latency": LATENCY},
    examples=(
        "dnnp-partition -k 4 --memory 16G priced.dnnp -o plan.dnnp",
        "dnnp-partition --devices a100:4,t4:4 --method exact,greedy < priced.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
