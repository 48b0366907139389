"""dnnp-partition: split the graph into stages."""

from __future__ import annotations

import argparse

from dnnp.choices import RECOMPUTE, WEIGHT_SYNC
from dnnp.cmds.shell.arguments import count, device_options, factor, positive, seconds, share
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.methods import LATENCY, SPLITS, lines
from dnnp.core.model.errors import UsageError


class _Names(tuple[str, ...]):
    """Names, of which several may be given between commas."""

    def __contains__(self, value: object) -> bool:
        return all(map(super().__contains__, str(value).split(",")))


def _methods(text: str) -> str:
    """Names of methods between commas; the first that is none is named."""
    known = {**SPLITS, **LATENCY}
    for name in text.split(","):
        if name not in known:
            from dnnp.core.model.text import instead

            raise argparse.ArgumentTypeError(f"invalid choice: '{name}'{instead(name, known)}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    device_options(parser)
    how = parser.add_argument_group("method")
    what = how.add_mutually_exclusive_group()
    what.add_argument(
        "--method",
        type=_methods,
        choices=_Names({**SPLITS, **LATENCY}),
        default="auto",
        metavar="NAME[,NAME...]",
        help="how to split (default: auto); of several methods the best plan is kept, at ties "
        "that of the first, and all are in its record",
    )
    what.add_argument(
        "--eval",
        metavar="FILE",
        help="find nothing, price the split in FILE: JSON with fpgas and cpus, or a list of lists "
        "of node ids",
    )
    how.add_argument(
        "--validity",
        choices=("ordered", "convex", "free"),
        help="what to ask of the split: ordered: the stages form a pipeline; convex: each stage "
        "is contiguous; free: nothing (default: what the method makes; ordered for auto and ip)",
    )
    how.add_argument(
        "--objective",
        choices=("throughput", "gpipe", "latency"),
        default="throughput",
        help="throughput: the largest load (default); gpipe: for training, the largest forward "
        "load plus the largest backward load; latency: the time of one sample",
    )
    how.add_argument(
        "--max-replicas",
        type=positive,
        metavar="R",
        help="a stage may run on up to R devices that share the samples (default: 1)",
    )
    how.add_argument(
        "--allow-replicas",
        action="store_true",
        help="compare the whole model on one device, replicas of it, and pipelines without and "
        "with replicated stages, by prediction; the plan is the fastest that fits",
    )
    order = how.add_mutually_exclusive_group()
    order.add_argument(
        "--order",
        choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse", "published"),
        help="topological order to cut: breadth or depth first, from inputs or from outputs; "
        "best: the best of these four (default; kahn for the methods that cut one without search); "
        "published: that of the 2020 paper's programs as far as a stream tells it, by which greedy "
        "then fills; max-load takes the split that theirs returns",
    )
    order.add_argument(
        "--sequence",
        metavar="FILE",
        help="order to slice, or to fill greedily: a JSON list of the ids of all groups, or of all "
        "nodes where there are no groups",
    )
    order.add_argument(
        "--priorities",
        metavar="FILE",
        help="slice the order of Kahn's algorithm by these priorities: a JSON list of a number for "
        "each group or node",
    )
    how.add_argument(
        "--solver", choices=("cbc", "highs"), help="solver of integer programs (default: cbc)"
    )
    how.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="seconds after which to keep the best split found (default: none)",
    )
    how.add_argument(
        "--effort",
        type=factor,
        metavar="X",
        help="scale the work of searches that would not end (default: 1)",
    )
    how.add_argument("--seed", type=count, metavar="N", help="seed of random choices (default: 0)")
    _add_parallel_arguments(parser)
    orders = parser.add_argument_group("search over orders (random, brkga, mla, mla-weighted)")
    orders.add_argument(
        "--samples", type=positive, metavar="T", help="orders that random tries (default: 100)"
    )
    orders.add_argument(
        "--population", type=positive, metavar="P", help="orders of a generation (default: 100)"
    )
    orders.add_argument(
        "--generations", type=positive, metavar="G", help="generations (default: 100)"
    )
    orders.add_argument(
        "--elite", type=share, metavar="X", help="share of a generation that stays (default: 0.2)"
    )
    orders.add_argument(
        "--mutants",
        type=share,
        metavar="X",
        help="share of a generation that is drawn anew (default: 0.15)",
    )
    orders.add_argument(
        "--bias",
        type=share,
        metavar="X",
        help="probability that a priority comes from the parent of the elite (default: 0.7)",
    )
    _add_latency_arguments(parser)
    _add_learning_arguments(parser)
    _add_cost_arguments(parser)
    parser.add_argument_group("methods for throughput and gpipe", lines(SPLITS))
    parser.add_argument_group("methods for latency", lines(LATENCY))


def _add_parallel_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what asks for a parallel plan."""
    parallel = parser.add_argument_group(
        "parallel plans, any of which asks for one: stages on several devices at once, in several "
        "replicas, that run forward passes again"
    )
    parallel.add_argument(
        "--tensor-parallel",
        type=positive,
        metavar="T",
        help="up to T devices hold a stage together, by what nodes state of that (dnnp-profile "
        "--tensor-parallel); default: 1",
    )
    parallel.add_argument(
        "--data-parallel",
        type=positive,
        metavar="D",
        help="up to D replicas of a stage share the micro-batches (default: 1)",
    )
    parallel.add_argument(
        "--micro-batches",
        type=positive,
        metavar="N",
        help="micro-batches in a batch, which replicas share equally and after which they "
        "synchronise weights (default: as the stream says, or 32)",
    )
    parallel.add_argument(
        "--recompute",
        choices=RECOMPUTE,
        help="stages that run their forward pass again in the backward pass, to hold less: none "
        "(default), all (full), or those that gain by it (auto)",
    )
    parallel.add_argument(
        "--weight-sync",
        choices=WEIGHT_SYNC,
        help="how replicas add up their gradients: around a ring (default), or by parameter "
        "servers among them, as Piper has it",
    )
    parallel.add_argument(
        "--overlap-sync", action="store_true", help="they do so while the stage computes"
    )
    parallel.add_argument(
        "--shared-stages",
        type=positive,
        metavar="S",
        help="up to S stages are shared: all devices hold them together, besides the stage that "
        "each has of its own, as embeddings over large vocabularies need it (default: none)",
    )


def _add_learning_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what says how a policy is trained, and where it is kept."""
    learned = parser.add_argument_group("learning (placeto)")
    learned.add_argument(
        "--policy",
        metavar="FILE",
        help="start from the policy in FILE; it is applied as it is, unless --train-on or "
        "--episodes asks for training (default: one that has learned nothing is trained)",
    )
    learned.add_argument(
        "--train-on",
        metavar="FILE",
        action="append",
        help="train on the graph of the stream in FILE, not on the one that is placed; repeatable",
    )
    learned.add_argument(
        "--episodes",
        type=count,
        metavar="N",
        help="episodes of training (default: by effort and size)",
    )
    learned.add_argument(
        "--save-policy", metavar="FILE", help="write the policy that placed the graph to FILE"
    )


def _add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a load is."""
    cost = parser.add_argument_group("cost model")
    cost.add_argument(
        "--comm",
        choices=("sum", "overlap", "duplex"),
        default="sum",
        help="transfers add to compute, overlap with it, or overlap in both directions "
        "(default: sum)",
    )
    cost.add_argument(
        "--memory-model",
        choices=("sum", "peak", "weights"),
        help="memory of a stage: node memory added up, or parameters plus peak activations "
        "(default: sum where nodes state memory or the graph has a backward pass, else peak); "
        "peak, if given, also orders the nodes of each stage for a small peak; weights, for "
        "latency, and its default where nodes state no memory: parameters alone",
    )
    cost.add_argument(
        "--memory-mode",
        choices=("hard", "overflow", "ignore"),
        default="hard",
        help="above capacity: infeasible (default: hard), or streamed over the link; ignore: no "
        "capacity counts, and a plan that exceeds one is priced and marked infeasible",
    )
    cost.add_argument(
        "--charge-io", action="store_true", help="model inputs and outputs cost transfers too"
    )
    cost.add_argument(
        "--reprice",
        action="store_true",
        help="groups whose cost no longer follows from their nodes, since costs were edited, cost "
        "the sum of their nodes (default: refuse them)",
    )


def _add_latency_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the objective latency."""
    latency = parser.add_argument_group("latency of one sample (--objective latency)")
    latency.add_argument(
        "--execution",
        choices=("blocks", "operators"),
        help="blocks: an accelerator is invoked for a contiguous block, through the memory of the "
        "host, beside a pool of CPUs; operators: every unit is placed by itself, devices send to "
        "each other (default: blocks where there are CPUs beside accelerators and no links)",
    )
    latency.add_argument(
        "--invocations",
        type=positive,
        metavar="Q",
        help="blocks: an accelerator may hold up to Q blocks, in each pass (default: 1)",
    )
    latency.add_argument(
        "--transfers",
        choices=("tensor", "edge"),
        help="what moves: a tensor, once to each device; or all that goes from one unit to "
        "another, for each pair by itself (default: tensor)",
    )
    latency.add_argument(
        "--congestion",
        choices=("device", "channel", "none"),
        help="operators: a device sends one thing at a time, and receives one (default); or "
        "transfers wait for others from and to the same devices; or for none",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, split its graph, write the stream with the plan."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.split_options import SplitOptions
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


COMMAND = Command("dnnp-partition", "split a graph into pipeline stages", add_arguments, run)
main = COMMAND.main
