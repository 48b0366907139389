"""dnnp-partition: split the graph into stages."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import Listed
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.methods import LATENCY, SPLITS
from dnnp.core.model.errors import UsageError
from dnnp.options.split import SplitOptions


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, split its graph, write the stream with the plan."""
    from dnnp.splitting import split_stream

    for option in ("eval", "sequence", "priorities", "policy"):
        if getattr(args, option) == "-" and args.stream == "-":
            raise UsageError(f"--{option} and the stream cannot both be standard input")
    if args.sequence == "-" and {"slice", "greedy"} <= set(args.method.split(",")):
        raise UsageError("--sequence - is standard input: slice and greedy cannot both read it")
    if [args.stream, *(args.train_on or ())].count("-") > 1:
        raise UsageError("--train-on - is standard input: it cannot be read twice")
    if args.order == "published" and "max-load" in args.method.split(","):
        from dnnp.samples.papers.ties import published_split

        args.ties = published_split
    options = options_of(SplitOptions, args, context)
    stream = context.read(args.stream)
    with context.interruptible():
        split_stream(stream, options)
        context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-partition", "split a graph into pipeline stages", run, SplitOptions, Listed,
    methods={"methods for throughput and gpipe": SPLITS, "methods for latency": LATENCY},
    examples=(
        "dnnp-partition -k 4 --memory 16G priced.jsonl -o plan.jsonl",
        "dnnp-partition --devices a100:4,t4:4 --method exact,greedy < priced.jsonl",
    ),
)  # fmt: skip
main = COMMAND.main
