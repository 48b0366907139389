"""The objective latency of dnnp-partition: options, search, and splits made elsewhere."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnp.core.model.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dnnp.cmds.shell.context import Context
    from dnnp.core.cost.latency import LatencyProblem, Split
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.link import Link
    from dnnp.core.model.plan import CostOptions, Plan

OPTIONS = ("execution", "invocations", "transfers", "congestion")
"""Options that the objective latency alone has."""


def add_latency_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the objective latency."""
    from dnnp.cmds.shell.arguments import positive

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


def latency_options(
    args: argparse.Namespace,
    graph: Graph,
    devices: tuple[DeviceClass, ...],
    links: tuple[Link, ...],
) -> CostOptions:
    """The cost model that the options ask for.

    Raises
    ------
    UsageError
        Options that this objective does not have, or that do not go together.
    """
    import numpy as np

    from dnnp.core.model.plan import CostOptions

    if args.memory_model == "peak":
        raise UsageError("--objective latency adds memory up: no --memory-model peak")
    if args.memory_mode == "overflow":
        raise UsageError("--objective latency streams nothing: no --memory-mode overflow")
    if args.max_replicas not in (None, 1):
        raise UsageError("--objective latency runs every sample once: no --max-replicas")
    if args.validity is not None:
        raise UsageError("--objective latency: --execution says what a split may be, not validity")
    execution = args.execution or _execution(devices, links)
    cpus = [d.name for d in devices if d.is_cpu]
    if execution == "blocks":
        if len(cpus) > 1:
            raise UsageError(f"--execution blocks has one pool of CPUs, not {', '.join(cpus)}")
        if args.congestion is not None:
            raise UsageError("--congestion is for --execution operators")
    else:
        if args.invocations is not None:
            raise UsageError("--invocations is for --execution blocks")
        if args.charge_io:
            raise UsageError("--charge-io is for --execution blocks")
    if args.charge_io and args.transfers == "edge":
        raise UsageError("--charge-io needs --transfers tensor")
    stated_none = bool(np.isnan(graph.node_bytes).all())
    return CostOptions(
        memory_model=args.memory_model or ("weights" if stated_none else "sum"),
        charge_io=args.charge_io,
        objective="latency",
        execution=execution,
        invocations=args.invocations or 1,
        transfers=args.transfers or "tensor",
        congestion=args.congestion or "device",
    )


def _execution(devices: Sequence[DeviceClass], links: Sequence[Link]) -> str:
    """Blocks for the machines of the 2020 paper: accelerators, one class of CPUs, no links."""
    cpus = sum(d.is_cpu for d in devices)
    return "blocks" if cpus == 1 and len(devices) > 1 and not links else "operators"


def check_objective(args: argparse.Namespace, links: Sequence[Link], context: Context) -> None:
    """Say what has no effect on the other objectives.

    Raises
    ------
    UsageError
        Options or methods that only latency has.
    """
    from dnnp.core.methods import SPLITS

    for option in OPTIONS:
        if getattr(args, option) is not None:
            raise UsageError(f"--{option} is for --objective latency")
    if args.method not in SPLITS:
        raise UsageError(f"method {args.method} is for --objective latency")
    if links:
        context.note("links have no effect on the objective " + args.objective)


def latency_plan(
    args: argparse.Namespace,
    context: Context,
    problem: SplitProblem,
    given: bytes | None,
    digest: str,
) -> Plan:
    """Find a split for the latency of one sample, or price the one in --eval."""
    from dnnp.core.cost.latency import latency_problem
    from dnnp.core.cost.latency_plan import make_latency_plan

    if given is None:
        from dnnp.cmds.find_split import asked_of
        from dnnp.core.portfolio.latency import solve_latency

        with asked_of(args, context, problem) as (asked, run):
            found = solve_latency(problem, asked, run)
        split, method = found.split, found.method
        bound, argument = found.bound, found.bound_method
        latency = latency_problem(problem)
    else:
        from dnnp.core.latency.quick import quick, simple_bound
        from dnnp.core.model.run import Run

        latency, split = _given(args, context, problem, given)
        problem = problem.with_options(latency.options)
        method = "given"
        run = Run(interrupted=lambda: context.interrupted)
        bound, argument = simple_bound(latency, run=quick(run))
    return make_latency_plan(
        problem,
        latency,
        split,
        method=method,
        bound=bound,
        bound_method=argument,
        digest=digest,
        interrupted=context.interrupted,
    )


def _given(
    args: argparse.Namespace, context: Context, problem: SplitProblem, data: bytes
) -> tuple[LatencyProblem, Split]:
    """The split in --eval, invoked as often as its parts need unless --invocations is given.

    Raises
    ------
    InfeasibleError
        It does not fit the devices; the message has the latency that it would have.
    """
    import numpy as np

    from dnnp.cmds.given_split import given_split
    from dnnp.core.cost.invocations import Invocations
    from dnnp.core.cost.latency import latency_problem
    from dnnp.core.latency.homes import homes_of_blocks, split_of_homes

    blocks = given_split(data, args.eval, problem)
    context.release()
    latency = latency_problem(problem)
    home = homes_of_blocks(latency, problem.units.label, blocks)
    split = split_of_homes(latency, home)
    try:
        if not isinstance(split, Invocations):
            latency.value(split)
            return latency, split
        late = [bool(latency.tasks.backward[split.block == b][0]) for b in range(len(split.device))]
        often = max(np.unique(split.device * 2 + late, return_counts=True)[1].tolist(), default=1)
        if args.invocations is None:
            options = replace(problem.options, invocations=often)
            latency = replace(latency, options=options)
        latency.value(split)
    except InfeasibleError as error:
        value = latency.time(split)
        raise InfeasibleError(f"{error}; without this limit its latency is {value:.6g}") from None
    return latency, split
