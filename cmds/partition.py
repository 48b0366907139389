"""dnnp-partition: split the graph into stages."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dnnp.cmds.arguments import count, factor, positive, seconds, size
from dnnp.cmds.cli import Command, Context, counted
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from dnnp.core.model.cluster import Clustering
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Block, CostOptions, Plan
    from dnnp.core.portfolio.solve import Solution

METHODS = (
    "auto", "exact", "slice", "dpl", "ip", "anneal", "greedy", "local-search", "pipedream",
    "scotch", "metis", "uniform", "params", "single",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "-k", type=count, metavar="N", help="N identical devices of the priced class"
    )
    devices.add_argument("--cpus", type=count, metavar="L", help="L CPUs beside them")
    devices.add_argument(
        "--memory", type=size, metavar="BYTES", help="capacity of a device (suffixes K, M, G, Ki..)"
    )
    devices.add_argument(
        "--bandwidth", type=size, metavar="BYTES/S", help="bandwidth of a device's link"
    )
    devices.add_argument(
        "--cluster-size", type=positive, metavar="N",
        help="every N accelerators form a cluster with faster links inside",
    )  # fmt: skip
    devices.add_argument(
        "--inner-bandwidth", type=size, metavar="BYTES/S",
        help="bandwidth of a link inside a cluster",
    )  # fmt: skip
    devices.add_argument("--devices", metavar="FILE", help="device records to use instead")
    how = parser.add_argument_group("method")
    how.add_argument(
        "--method", choices=METHODS, default="auto", metavar="NAME",
        help="auto (default): slicing, then the exact search; exact; slice: exact for a "
        "topological order; dpl: for a depth-first one; ip: integer program; anneal: splits "
        "without order; baselines: greedy, local-search, pipedream, scotch, metis, uniform, "
        "params (equal parameter bytes), single (one device)",
    )  # fmt: skip
    how.add_argument(
        "--validity", choices=("ordered", "convex", "free"), default="ordered",
        help="ordered: stages form a pipeline (default); convex: each stage is contiguous; free: "
        "any split",
    )  # fmt: skip
    how.add_argument(
        "--objective", choices=("throughput", "gpipe"), default="throughput",
        help="throughput: the largest load (default); gpipe: for training, the largest forward "
        "load plus the largest backward load",
    )  # fmt: skip
    how.add_argument(
        "--max-replicas", type=positive, default=1, metavar="R",
        help="a stage may run on up to R devices that share the samples (default: 1)",
    )  # fmt: skip
    how.add_argument(
        "--order",
        choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse"),
        default="best",
        help="topological order to slice: breadth or depth first, from inputs or from outputs; "
        "best: the best of the four (default)",
    )
    how.add_argument(
        "--solver", choices=("cbc", "highs"), default="cbc",
        help="solver of integer programs (default: cbc)",
    )  # fmt: skip
    how.add_argument(
        "--time-limit", type=seconds, metavar="S", help="seconds after which to keep the best"
    )
    how.add_argument(
        "--effort", type=factor, default=1.0, metavar="X",
        help="scale the work of searches that would not end (default: 1)",
    )  # fmt: skip
    how.add_argument(
        "--seed", type=count, default=0, metavar="N", help="seed of random choices (default: 0)"
    )
    how.add_argument(
        "--eval", metavar="FILE",
        help="price the split in FILE: JSON with fpgas and cpus, or a list of lists of node ids",
    )  # fmt: skip
    cost = parser.add_argument_group("cost model")
    cost.add_argument(
        "--comm", choices=("sum", "overlap", "duplex"), default="sum",
        help="transfers add to compute, overlap with it, or overlap in both directions "
        "(default: sum)",
    )  # fmt: skip
    cost.add_argument(
        "--memory-model", choices=("sum", "peak"),
        help="memory of a stage: node memory added up, or parameters plus peak activations "
        "(default: sum where nodes state memory or the graph has a backward pass, else peak)",
    )  # fmt: skip
    cost.add_argument(
        "--memory-mode", choices=("hard", "overflow"), default="hard",
        help="above capacity: infeasible, or streamed over the link (default: hard)",
    )  # fmt: skip
    cost.add_argument(
        "--charge-io", action="store_true", help="model inputs and outputs cost transfers too"
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, split its graph, write the stream with the plan."""
    if args.eval == "-" and args.stream == "-":
        raise UsageError("--eval and the stream cannot both be standard input")
    stream = context.read(args.stream)
    from dnnp.cmds.platform import platform_of
    from dnnp.cmds.pricing import ensure_costs
    from dnnp.core.model.plan import CostOptions
    from dnnp.formats.graph import digest_of, graph_of, plan_records, units_of

    ensure_costs(stream, context)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    devices = platform_of(stream, args)
    options = CostOptions(
        args.comm, _memory_model(args, graph), args.memory_mode, args.charge_io, args.objective,
        args.max_replicas,
    )  # fmt: skip
    if args.devices is None and len(units.times) > 1 and len(devices) == 1:
        others = ", ".join(name for name in units.times if name != devices[0].name)
        context.note(f"devices of class '{devices[0].name}'; the stream also prices {others}")
    plan = _plan(args, context, graph, units, devices, options, digest_of(graph, units))
    record, stages = plan_records(plan)
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    if dropped:
        context.note(f"dropped what an earlier plan led to: {', '.join(dropped)} records")
    _report(context, plan, units.g)
    context.write(stream)
    return 0


def _plan(
    args: argparse.Namespace,
    context: Context,
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    digest: str,
) -> Plan:
    """Price the split in --eval, or find one."""
    from dnnp.core.bound.simple import simple_bound
    from dnnp.core.cost.plan import make_plan

    if args.eval is not None:
        blocks, method = _given_split(args, context, graph, devices), "given"
        bound = simple_bound(graph, units, devices, options)
    else:
        found = _solve(args, context, graph, units, devices, options)
        blocks, method, bound = found.blocks, found.method, found.bound
    return make_plan(
        graph, units, blocks, devices, options,
        method=method, bound=bound, digest=digest, interrupted=context.interrupted,
    )  # fmt: skip


def _solve(
    args: argparse.Namespace,
    context: Context,
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
) -> Solution:
    """Run the method that was asked for, until it ends, the time is over, or Ctrl-C."""
    from time import monotonic

    from dnnp.core.portfolio.solve import Problem, Request, solve

    if args.method in ("auto", "exact", "slice", "dpl", "ip", "anneal"):
        from dnnp.core.cost.kernel import is_cold
        from dnnp.core.dp.blocks import decide
        from dnnp.core.dp.sweep import sweep_for

        sweep = sweep_for(devices, streamed=options.memory_mode == "overflow")
        if is_cold([sweep, *([] if args.method in ("slice", "dpl") else [decide])]):
            context.note("compiling kernels; this happens once and takes some seconds")
    end = None if args.time_limit is None else monotonic() + args.time_limit

    def stop() -> bool:
        return context.interrupted or (end is not None and monotonic() >= end)

    problem = Problem(graph, units, devices, options)
    if args.method == "scotch":
        from dnnp.cmds.external import scotch
        from dnnp.core.bound.simple import simple_bound
        from dnnp.core.portfolio.solve import Solution

        blocks = scotch(graph, units, devices, options, stop)
        return Solution(blocks, simple_bound(graph, units, devices, options), "scotch")
    bar = context.progress("searching", 100)
    request = Request(
        order=args.order, seed=args.seed, effort=args.effort, stop=stop, method=args.method,
        validity=args.validity, solver=args.solver, time_limit=args.time_limit,
        progress=lambda share: bar.update(int(100 * share)), tell=context.detail,
    )  # fmt: skip
    try:
        with context.interruptible():
            return solve(problem, request)
    finally:
        bar.close()


def _memory_model(args: argparse.Namespace, graph: Graph) -> str:
    """What --memory-model says, or what the graph's source suggests."""
    import numpy as np

    stated = not np.isnan(graph.node_bytes).all()
    training = bool(graph.backward.any())
    model: str = args.memory_model or ("sum" if stated or training else "peak")
    if model == "peak" and training:
        raise UsageError("--memory-model peak is not defined for a graph with a backward pass")
    return model


def _given_split(
    args: argparse.Namespace, context: Context, graph: Graph, devices: tuple[DeviceClass, ...]
) -> list[Block]:
    """Read --eval and put the nodes of each part into the graph's order."""
    import numpy as np

    from dnnp.core.model.errors import FormatError
    from dnnp.core.model.plan import Block
    from dnnp.formats.msr_split import read_split

    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    kinds = {d.kind: d for d in reversed(devices)}
    blocks: list[Block] = []
    for kind, ids in read_split(context.read_input(args.eval), args.eval):
        if not ids:
            continue
        unknown = next((i for i in ids if i not in position), None)
        if unknown is not None:
            raise FormatError(
                f"the split does not fit the graph: there is no node {unknown}", args.eval
            )
        if kind not in kinds:
            raise UsageError(
                f"{args.eval}: the split uses a device of kind {kind}; none is offered"
            )
        nodes = np.array([position[i] for i in ids], dtype=np.int64)
        blocks.append(Block(nodes[np.argsort(graph.rank[nodes])], kinds[kind]))
    return blocks


def _report(context: Context, plan: Plan, units: int) -> None:
    """One line on stderr about what was found."""
    stages = counted(len(plan.stages), "stage")
    if plan.k > len(plan.stages) and plan.k > units:
        there = f"{'is' if units == 1 else 'are'} only {counted(units, 'unit')}"
        context.note(f"k = {plan.k}, but there {there}: {stages}")
    what = "largest load" if plan.objective == "throughput" else "gpipe time"
    found = f"{stages}, {plan.method}: {what} {plan.value:.6g}"
    proven = (
        "optimal" if plan.status == "optimal"
        else f"bound {plan.bound:.6g}, gap {100 * plan.gap:.1f} %"
    )  # fmt: skip
    context.note(f"{found}, {proven}, {plan.validity}")


COMMAND = Command("dnnp-partition", "split a graph into pipeline stages", add_arguments, run)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
