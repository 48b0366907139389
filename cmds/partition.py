"""dnnp-partition: split the graph into stages."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dnnp.cmds.find_latency import add_latency_arguments
from dnnp.cmds.idle_options import name_idle_options
from dnnp.cmds.shell.arguments import count, device_options, factor, positive, seconds, share
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.methods import LATENCY, SPLITS, lines
from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Plan
    from dnnp.formats.stream import Stream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    device_options(parser)
    how = parser.add_argument_group("method")
    what = how.add_mutually_exclusive_group()
    what.add_argument(
        "--method",
        choices=tuple({**SPLITS, **LATENCY}),
        default="auto",
        metavar="NAME",
        help="how to split (default: auto)",
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
    order = how.add_mutually_exclusive_group()
    order.add_argument(
        "--order",
        choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse"),
        help="topological order to cut: breadth or depth first, from inputs or from outputs; "
        "best: the best of the four (default; kahn for the methods that cut one without search)",
    )
    order.add_argument(
        "--sequence",
        metavar="FILE",
        help="order to slice: a JSON list of the ids of all groups, or of all nodes where there "
        "are no groups",
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
    add_latency_arguments(parser)
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
        choices=("hard", "overflow"),
        default="hard",
        help="above capacity: infeasible, or streamed over the link (default: hard)",
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
    parser.add_argument_group("methods for throughput and gpipe", lines(SPLITS))
    parser.add_argument_group("methods for latency", lines(LATENCY))


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, split its graph, write the stream with the plan."""
    for option in ("eval", "sequence", "priorities"):
        if getattr(args, option) == "-" and args.stream == "-":
            raise UsageError(f"--{option} and the stream cannot both be standard input")
    if args.method != "slice" and (args.sequence or args.priorities):
        raise UsageError("--sequence and --priorities are for --method slice")
    from dnnp.cmds.find_split import evolution_of

    evolution_of(args).check()
    stream = context.read(args.stream)
    given = None if args.eval is None else context.read_input(args.eval)
    with context.interruptible(), context.held():
        problem = problem_of(stream, args, context)
        name_idle_options(args, context)
        context.elapsed("searching")
        add_plan(stream, problem, args, context, given)
        context.write(stream)
    return 0


def problem_of(stream: Stream, args: argparse.Namespace, context: Context) -> SplitProblem:
    """What is to be split: the graph, priced if it is not, the devices and the cost model."""
    from dnnp.cmds.find_latency import check_objective, latency_options
    from dnnp.cmds.shell.options import options_of
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.plan import CostOptions
    from dnnp.core.portfolio.methods import check_options
    from dnnp.costs import ensure_costs
    from dnnp.formats.graph import graph_of, units_of
    from dnnp.platform import DeviceOptions, platform_of

    with context.held():
        ensure_costs(stream, context, reprice=args.reprice)
        graph = graph_of(stream)
        units = units_of(stream, graph)
        devices, links = platform_of(stream, options_of(DeviceOptions, args, context))
        if args.objective == "latency":
            options = latency_options(args, graph, devices, links)
        else:
            check_objective(args, links, context)
            options = CostOptions(
                args.comm,
                _memory_model(args, graph),
                args.memory_mode,
                args.charge_io,
                args.objective,
                args.max_replicas or 1,
            )
        problem = SplitProblem(graph, units, devices, options, links)
        if args.objective != "latency":
            check_options(problem)
        _check_method(args, problem)
    if args.devices is None and len(units.times) > 1 and len(devices) == 1:
        others = ", ".join(name for name in units.times if name != devices[0].name)
        context.note(f"devices of class '{devices[0].name}'; the stream also prices {others}")
    return problem


def _check_method(args: argparse.Namespace, problem: SplitProblem) -> None:
    """Refuse a method that does not make what is asked for, before any search begins."""
    if args.eval is not None:
        return
    if args.objective == "latency":
        from dnnp.core.portfolio.latency import check_method

        check_method(args.method, problem.options.execution)
    else:
        from dnnp.core.portfolio.methods import method_asked

        method_asked(args.method, args.validity, clustered=problem.clustered)


def add_plan(
    stream: Stream,
    problem: SplitProblem,
    args: argparse.Namespace,
    context: Context,
    given: bytes | None = None,
) -> None:
    """Split a graph by the options, or take the split given, and put the plan into the stream."""
    from dnnp.formats.graph import digest_of, plan_records

    digest = digest_of(problem.graph, problem.units)
    if args.objective == "latency":
        from dnnp.cmds.find_latency import latency_plan

        plan = latency_plan(args, context, problem, given, digest)
    else:
        plan = _plan(args, context, problem, given, digest)
    record, stages = plan_records(plan)
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    if dropped:
        context.note(f"dropped what an earlier plan led to: {', '.join(dropped)} records")
    _report(context, plan, problem.units.g)


def _memory_model(args: argparse.Namespace, graph: Graph) -> str:
    """What --memory-model says, or what the graph's source suggests."""
    import numpy as np

    stated = not np.isnan(graph.node_bytes).all()
    summed = stated or bool(graph.backward.any())
    return args.memory_model or ("sum" if summed else "peak")


def _plan(
    args: argparse.Namespace,
    context: Context,
    problem: SplitProblem,
    given: bytes | None,
    digest: str,
) -> Plan:
    """Price the split in --eval, or find one."""
    from dnnp.core.bound.simple import simple_bound
    from dnnp.core.cost.plan import make_plan

    if given is not None:
        from dnnp.cmds.given_split import given_split, with_replicas

        blocks, method = given_split(given, args.eval, problem), "given"
        options = with_replicas(problem.options, blocks, args.max_replicas)
        problem = problem.with_options(options)
        context.release()
        if options.memory_model == "peak":
            from dnnp.cmds.find_split import note_compiling
            from dnnp.core.model.beside import beside
            from dnnp.core.model.run import Run
            from dnnp.core.peak.order import with_least_peak

            note_compiling(context)
            split, run = blocks, Run(interrupted=lambda: context.interrupted)
            blocks = beside(
                lambda: with_least_peak(problem.graph, split, keep=True, run=run),
                run.stop,
                lambda: split,
            )
        bound = simple_bound(problem)
    else:
        from dnnp.cmds.find_split import find_split

        found = find_split(args, context, problem)
        blocks, method, bound = found.blocks, found.method, found.bound
    return make_plan(
        problem,
        blocks,
        method=method,
        bound=bound,
        digest=digest,
        interrupted=context.interrupted,
    )


def _report(context: Context, plan: Plan, units: int) -> None:
    """One line on stderr about what was found."""
    stages, used = counted(len(plan.stages), "stage"), sum(s.replicas for s in plan.stages)
    if used > len(plan.stages):
        stages += f" on {used} devices"
    if plan.k > max(used, units):
        there = f"{'is' if units == 1 else 'are'} only {counted(units, 'unit')}"
        context.note(f"k = {plan.k}, but there {there}: {stages}")
    what = {"throughput": "largest load", "gpipe": "forward plus backward load"}.get(
        plan.objective, "latency"
    )
    found = f"{stages}, {plan.method}: {what} {plan.value:.6g}"
    by = f" ({plan.bound_method})" if plan.bound_method else ""
    proven = (
        "optimal"
        if plan.status == "optimal"
        else f"bound {plan.bound:.6g}{by}, gap {100 * plan.gap:.1f} %"
    )
    interrupted = ", interrupted" if plan.status == "interrupted" else ""
    context.note(f"{found}, {proven}, {plan.validity}{interrupted}")


COMMAND = Command("dnnp-partition", "split a graph into pipeline stages", add_arguments, run)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
