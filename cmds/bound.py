"""dnnp-bound: prove how good a plan is."""

from __future__ import annotations

import argparse
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from dnnp.cmds.shell.arguments import count, device_options, factor, seconds
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.methods import BOUNDS, LATENCY_BOUNDS, lines
from dnnp.core.model.errors import FormatError, UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dnnp.core.bound.claim import Claim
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.plan import Plan
    from dnnp.core.model.run import Run
    from dnnp.core.portfolio.bounds import Proof
    from dnnp.formats.stream import Stream

DEVICES = ("k", "cpus", "memory", "bandwidth", "cluster_size", "inner_bandwidth", "devices")
"""Options for a stream without a plan."""


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
    if args.solver == "highs":
        _check_highs()
    stream = context.read(args.stream)
    started = monotonic()
    with context.interruptible():
        _check_plan(stream, args, context)
        from dnnp.core.cost.problem import SplitProblem
        from dnnp.formats.graph import graph_of, units_of
        from dnnp.read_plan import read_plan

        graph = graph_of(stream)
        units = units_of(stream, graph)
        plan = read_plan(stream, graph)
        if plan is None:
            raise FormatError("the stream has no plan", stream.name)
        problem = SplitProblem(graph, units, plan.devices, plan.options, plan.links)
        if plan.objective == "latency":
            _bound_latency(stream, context, problem, plan, args, started)
            context.write(stream)
            return 0
        from dnnp.core.bound.known import Known
        from dnnp.core.portfolio.bounds import bound
        from dnnp.core.portfolio.given import given_plan

        try:
            blocks, value = given_plan(problem, plan)
        except FormatError as error:
            raise stream.fault_at("plan", 0, error.field, error.reason) from None
        context.elapsed("recomputed the plan")
        known = Known(plan.validity, blocks, value, solver=args.solver or "cbc")
        proof = bound(problem, known, args.method, _run_of(args, context, started))
        better = _better_plan(stream, context, problem, proof)
        _put(stream, context, proof.method, proof.claim, proof.tried, better, plan.validity)
        context.write(stream)
    return 0


def _bound_latency(
    stream: Stream,
    context: Context,
    problem: SplitProblem,
    plan: Plan,
    args: argparse.Namespace,
    started: float,
) -> None:
    """Bound a plan of the objective latency."""
    from dnnp.core.bound.claim import Claim
    from dnnp.core.cost.latency_plan import make_latency_plan
    from dnnp.core.portfolio.latency_bounds import given_split, latency_bound

    try:
        latency, split = given_split(problem, plan)
    except FormatError as error:
        raise stream.fault_at("plan", 0, error.field, error.reason) from None
    proof = latency_bound(
        latency,
        split,
        args.method,
        solver=args.solver or "cbc",
        run=_run_of(args, context, started),
    )
    better = None
    if proof.split is not None:
        better = make_latency_plan(
            problem,
            latency,
            proof.split,
            method=f"bound-{proof.method}",
            bound=0.0,
            bound_method="",
            digest=plan.digest,
            interrupted=context.interrupted,
        )
    claim = Claim(proof.value, "solved")
    _put(stream, context, proof.method, claim, proof.tried, better, plan.validity)


def _check_highs() -> None:
    """Fail early where HiGHS is asked for and is not there."""
    import os
    from importlib.util import find_spec

    if "PMIP_HIGHS_LIBRARY" not in os.environ and not any(map(find_spec, ("highspy", "highsbox"))):
        raise UnavailableError("the solver HiGHS is not installed: pip install 'dnnp[highs]'")


def _check_plan(stream: Stream, args: argparse.Namespace, context: Context) -> None:
    """Make the plan of a stream that has none, as dnnp-partition does by default."""
    given = [name for name in DEVICES if getattr(args, name) is not None]
    if stream.get("plan"):
        if given:
            option = "-k" if given[0] == "k" else f"--{given[0].replace('_', '-')}"
            raise UsageError(f"{option} is for streams without a plan; this one has a plan")
        return
    if not given and not any("count" in r for r in stream.get("device")):
        from dnnp.formats.graph import graph_of

        graph_of(stream)
        raise UsageError("there is no plan in the stream: run dnnp-partition, or give -k N")
    from dnnp.cmds import partition

    split = partition.COMMAND.parser().parse_args([])
    for name in DEVICES:
        setattr(split, name, getattr(args, name))
    split.seed = args.seed
    split.time_limit = None if args.time_limit is None else args.time_limit / 2
    with context.held():
        context.note("no plan in the stream: split as by dnnp-partition")
        problem = partition.problem_of(stream, split, context)
    partition.add_plan(stream, problem, split, context)


def _run_of(args: argparse.Namespace, context: Context, started: float) -> Run:
    """How the arguments are to go about it, by the options."""
    from dnnp.cmds.find_split import note_compiling
    from dnnp.core.model.run import Run

    note_compiling(context)
    end = inf if args.time_limit is None else started + args.time_limit
    return Run(
        effort=args.effort,
        interrupted=lambda: context.interrupted,
        end=end,
        tell=context.detail,
        warn=context.warn,
    )


def _put(
    stream: Stream,
    context: Context,
    method: str,
    claim: Claim,
    tried: Sequence[tuple[str, str, float | None, str, float]],
    better: Plan | None,
    validity: str,
) -> None:
    """Put the bound, and a better plan if there is one, into the stream; say what it is."""
    from dnnp.formats.bounds import bound_record, is_closed, raise_bound

    stated = float(stream.get("plan")[0]["bound"])
    old = {"bound"} if better is None else {"bound", *_replace_plan(stream, context, better)}
    validity = validity if better is None else better.validity
    plan = raise_bound(stream.get("plan")[0], claim.value, method)
    stream.records["plan"] = [plan]
    timed = ("method", "status", "value", "reason", "time_s")
    trials = [
        {
            name: value
            for name, value in zip(timed, trial, strict=True)
            if value not in (None, "") and (name != "time_s" or context.timings)
        }
        for trial in tried
    ]
    closed = is_closed(plan["value"], claim.value)
    record = bound_record(
        plan,
        stream.get("stage"),
        method=method,
        value=claim.value,
        validity=validity,
        certificate=claim.certificate,
        tried=trials,
        interrupted=context.interrupted,
    )
    dropped = [kind for kind in (*old, *stream.replace("bound", [record])) if kind != "bound"]
    if dropped:
        context.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
    found = f"bound {claim.value:.6g} by {method}"
    value = f"value {plan['value']:.6g}"
    gap = "optimal" if closed else f"gap {100 * record['gap']:.2g} %"
    claimed = stated > claim.value and not is_closed(stated, claim.value)
    more = f" (the plan states {stated:.6g})" if claimed and not closed else ""
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    context.note(f"{found}{more}: {value}, {gap}, {validity}{interrupted}")


def _better_plan(
    stream: Stream, context: Context, problem: SplitProblem, proof: Proof
) -> Plan | None:
    """The plan of the better split that the arguments found, if they did."""
    if proof.blocks is None:
        return None
    from dnnp.core.cost.plan import make_plan

    return make_plan(
        problem,
        proof.blocks,
        method=f"bound-{proof.found_by}",
        bound=0.0,
        digest=stream.get("plan")[0]["digest"],
        interrupted=context.interrupted,
    )


def _replace_plan(stream: Stream, context: Context, plan: Plan) -> list[str]:
    """Put a better plan into the stream; returns what that dropped."""
    from dnnp.formats.bounds import raise_bound
    from dnnp.formats.graph import plan_records

    old = stream.get("plan")[0]
    record, stages = plan_records(plan)
    if old["bound"] <= plan.value:
        record = raise_bound(record, float(old["bound"]), old.get("bound_method", ""))
    else:
        context.warn(
            f"the bound {old['bound']:.6g} that the plan states is wrong: there is a split of "
            f"{plan.value:.6g}"
        )
    context.note(
        f"{plan.method.removeprefix('bound-')} found a better split: {old['value']:.6g} -> "
        f"{plan.value:.6g}; the plan and its stages are replaced"
    )
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    return dropped


COMMAND = Command("dnnp-bound", "prove how good a plan is", add_arguments, run)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
