"""dnnp-coarsen: group operators into the units that a split moves."""

from __future__ import annotations

import argparse

from dnnp.choices import DEFAULT_RULES, DEFAULT_SHARE, PROVIDERS
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of dnnp-coarsen."""
    group = parser.add_argument_group(
        "what to group",
        f"Without any of these: --rules {DEFAULT_RULES} --chains --max-share {DEFAULT_SHARE}. "
        "Several are applied in this order. Groups that the stream already has are replaced.",
    )
    group.add_argument(
        "--rules",
        metavar="RULES",
        help="fuse operators by a rule file: ort-cpu or ort-cuda (what ONNX Runtime fuses on a CPU "
        "or with CUDA), cudnn or tensorrt (what their documents list), moirai (Table I of the "
        "paper), none, or the path of a rule file; ort: what ONNX Runtime itself makes of this "
        "very model",
    )
    group.add_argument(
        "--model",
        metavar="PATH",
        help="with --rules ort: the ONNX model, if it is not where the stream says",
    )
    group.add_argument(
        "--provider",
        choices=PROVIDERS,
        help="with --rules ort: execution provider to optimise for (default: cpu)",
    )
    group.add_argument(
        "--chains",
        action="store_true",
        help="contract series: join two groups when one is all that reads the other, which is "
        "all that it waits for",
    )
    group.add_argument(
        "--max-share",
        type=float,
        metavar="X",
        help="with --chains or --to: a group may hold this share of the model's work besides its "
        "heaviest part, so that a long series stays divisible (default: 1, no limit); work is "
        "time, or bytes read and written while there are no costs",
    )
    group.add_argument(
        "--layers",
        action="store_true",
        help="join what lies in the same layer, by the scopes in the names of the nodes",
    )
    group.add_argument(
        "--depth",
        type=int,
        metavar="N",
        help="with --layers: number of scope components that tell layers apart (default: up to "
        "the innermost numbered component whose instances follow one another)",
    )
    group.add_argument(
        "--to",
        type=int,
        metavar="N",
        help="join groups of about equal work along the largest tensors until there are N",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, coarsen it, write it with its groups."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.coarsening import CoarsenOptions, coarsen_stream

    options = options_of(CoarsenOptions, args, context)
    stream = context.read(args.stream)
    coarsen_stream(stream, options)
    context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-coarsen", "group operators into the units that a split moves", add_arguments, run
)
main = COMMAND.main
