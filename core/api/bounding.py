"""Prove how good a plan is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from dnnp.callbacks import Callbacks, run_of, with_bar
from dnnp.core.bounds.lower_bound import BoundTask, LowerBound
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.plan import VALIDITIES, WITHIN, Plan, within_words
from dnnp.core.model.search_context import SearchContext
from dnnp.core.model.text import shown_time
from dnnp.formats.bounds import bound_record, is_closed, raise_bound
from dnnp.formats.plan import plan_records
from dnnp.formats.spread import mark_unknown, shown_gap, unknown_words
from dnnp.formats.stream import Stream
from dnnp.options.schedule import BoundOptions
from dnnp.options.table import step
from dnnp.workload import Workload, priced

if TYPE_CHECKING:
    from dnnp.core.bounds.auto import Proof


DEVICES = (
    "k", "cpus", "memory", "speed", "bandwidth", "cluster_size", "inner_bandwidth", "devices",
)  # fmt: skip
"""Options for a graph without a plan."""


def bound_stream(stream: Stream, options: BoundOptions) -> None:
    """Prove a lower bound for every split of the plan's validity, and the plan's gap to it.

    A graph without a plan is split first. A better split that is found on the way takes the plan's
    place.

    Raises
    ------
    UsageError
        Options that make no sense, or an argument that does not apply.
    FormatError
        The graph is malformed, or its plan contradicts itself.
    UnavailableError
        A solver is missing.
    """
    caller, started = options.caller, monotonic()
    with caller.interruptible():
        work = _planned(stream, options)
        plan = work.plan
        if plan is None:
            raise FormatError("the stream has no plan", stream.name)
        if plan.hybrid is not None:
            raise UsageError(
                f"{stream.name}: the plan is a parallel one, whose bound stands in it: dnnp-bound "
                "is for stages on a device each"
            )
        problem = work.problem_of_plan(plan)
        run = run_of(
            caller,
            effort=options.effort,
            seconds=options.time_limit,
            since=started,
            in_seconds=stream.in_seconds,
            max_gap=options.max_gap if options.method == "auto" else 0.0,
        )
        prove = _bound_latency if plan.objective == "latency" else _bound_throughput
        prove(stream, problem, plan, options, run)


bound = step("dnnp-bound", BoundOptions)(bound_stream)


def _bound_throughput(
    stream: Stream, problem: SplitProblem, plan: Plan, options: BoundOptions, run: SearchContext
) -> None:
    """Bound a plan of the objectives throughput and gpipe."""
    from dnnp.core.bounds.auto import bound
    from dnnp.core.cost.problem import given_plan

    try:
        blocks, value = given_plan(problem, plan)
        blocks = problem.searched.own(blocks)
    except FormatError as error:
        raise stream.fault_at("plan", 0, error.field, error.reason) from None
    options.caller.elapsed("recomputed the plan")
    validity = options.validity or plan.validity
    if VALIDITIES.index(validity) > VALIDITIES.index(plan.validity):
        raise UsageError(
            f"--validity {validity}: the plan is {plan.validity}, so that a bound of {validity} "
            "splits alone says nothing of it"
        )
    known = BoundTask(validity, blocks, value, solver=options.solver or "cbc")
    with with_bar(options.caller, run, "bounding") as shown:
        proof = bound(problem.searched, known, options.method, shown)
    better = _better_plan(stream, options.caller, problem, proof)
    found = (proof.method, proof.claim, proof.tried)
    _put(stream, options, *found, better, validity)


def _bound_latency(
    stream: Stream, problem: SplitProblem, plan: Plan, options: BoundOptions, run: SearchContext
) -> None:
    """Bound a plan of the objective latency."""
    from dnnp.core.cost.latency_plan import make_latency_plan
    from dnnp.core.latency.proof import given_split, latency_bound

    caller = options.caller
    if options.validity is not None:
        raise UsageError("--validity is for throughput and gpipe; this plan is one for latency")
    try:
        latency, split = given_split(problem.searched, plan)
    except FormatError as error:
        raise stream.fault_at("plan", 0, error.field, error.reason) from None
    solver = options.solver or "cbc"
    with with_bar(caller, run, "bounding") as shown:
        proof = latency_bound(latency, split, options.method, solver=solver, run=shown)
    better = None
    if proof.split is not None and not plan.rules:
        better = make_latency_plan(
            problem,
            latency,
            proof.split,
            method=f"bound-{proof.method}",
            bound=0.0,
            bound_method="",
            digest=plan.digest,
            interrupted=caller.interrupted,
        )
    claim = LowerBound(proof.value, "solved")
    found = (proof.method, claim, proof.tried)
    validity = (better or plan).validity  # the bound holds for all that the execution allows
    _put(stream, options, *found, better, validity)


def _planned(stream: Stream, options: BoundOptions) -> Workload:
    """The workload of a stream; one without a plan is split as dnnp-partition does by default."""
    devices = {name: getattr(options, name) for name in DEVICES}
    given = [name for name, value in devices.items() if value is not None]
    if stream.get("plan"):
        if given:
            flag = "-k" if given[0] == "k" else f"--{given[0].replace('_', '-')}"
            raise UsageError(f"{flag} is for streams without a plan; this one has a plan")
        return Workload(stream)
    if not given and not any("count" in r for r in stream.get("device")):
        _ = Workload(stream).graph  # a fault of the graph comes first
        raise UsageError("there is no plan in the stream: run dnnp-partition, or give -k N")
    from dnnp.options.split import SplitOptions
    from dnnp.problem import problem_of
    from dnnp.splitting import add_plan

    caller, limit = options.caller, options.time_limit
    half = None if limit is None else limit / 2
    split = SplitOptions(caller=caller, seed=options.seed, time_limit=half, **devices)
    with caller.held():
        caller.note("no plan in the stream: split as by dnnp-partition")
        work = priced(stream, caller)
        problem = problem_of(work, split)
    add_plan(work, problem, split)
    return work


def _put(
    stream: Stream,
    options: BoundOptions,
    method: str,
    claim: LowerBound,
    tried: Sequence[tuple[str, str, float | None, str, float]],
    better: Plan | None,
    validity: str,
) -> None:
    """Put the bound, and a better plan if there is one, into the stream; say what it is."""
    caller, stated = options.caller, float(stream.get("plan")[0]["bound"])
    old = {"bound"} if better is None else {"bound", *_replace_plan(stream, caller, better)}
    plan = raise_bound(stream.get("plan")[0], claim.value, method, options.max_gap)
    stream.records["plan"] = [plan]
    timed = ("method", "status", "value", "reason", "time_s")
    trials = [
        {
            name: value
            for name, value in zip(timed, trial, strict=True)
            if value not in (None, "") and (name != "time_s" or options.timings)
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
        interrupted=caller.interrupted,
    )
    dropped = [kind for kind in (*old, *stream.replace("bound", [record])) if kind != "bound"]
    if dropped:
        caller.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
    found = f"bound {shown_time(claim.value, stream.in_seconds)} by {method}"
    value = f"value {shown_time(plan['value'], stream.in_seconds)}"
    near = plan["status"] == WITHIN and record["gap"] <= options.max_gap
    gap = within_words(options.max_gap) if near else f"gap {shown_gap(plan, record['gap'])}"
    gap = "optimal" if record["status"] == "optimal" else gap
    claimed = stated > claim.value and not is_closed(stated, claim.value)
    more = (
        f" (the plan states {shown_time(stated, stream.in_seconds)})"
        if claimed and not closed
        else ""
    )
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    if "rules" in plan:
        validity += ", of plans without its rules too"
    caller.note(f"{found}{more}: {value}, {gap}, {validity}{unknown_words(plan)}{interrupted}")


def _better_plan(
    stream: Stream, caller: Callbacks, problem: SplitProblem, proof: Proof
) -> Plan | None:
    """The plan of the better split that the arguments found, if they did.

    None for sequences of prompts and tokens: a plan may have been made within limits that a split
    of a smaller load does not keep. None for a plan with rules, of which they do not know.
    """
    ruled = "rules" in stream.get("plan")[0]
    if proof.blocks is None or problem.options.workload is not None or ruled:
        return None
    from dnnp.core.bounds.auto import LINKED

    by_classes = bool(problem.links) and proof.found_by != LINKED
    return make_plan(
        problem,
        problem.own(proof.blocks),
        planned_by="classes" if by_classes else "",
        method=f"bound-{proof.found_by}",
        bound=0.0,
        digest=stream.get("plan")[0]["digest"],
        interrupted=caller.interrupted,
    )


def _replace_plan(stream: Stream, caller: Callbacks, plan: Plan) -> list[str]:
    """Put a better plan into the stream; returns what that dropped."""
    old = stream.get("plan")[0]
    shown = partial(shown_time, in_seconds=stream.in_seconds, digits=6)
    record, stages = plan_records(plan)
    mark_unknown(stream, record, stages)
    if old["bound"] <= plan.value:
        record = raise_bound(record, float(old["bound"]), old.get("bound_method", ""))
    else:
        caller.warn(
            f"the bound {shown(old['bound'])} that the plan states is wrong: there is a split of "
            f"{shown(plan.value)}"
        )
    caller.note(
        f"{plan.method.removeprefix('bound-')} found a better split: {shown(old['value'])} -> "
        f"{shown(plan.value)}; the plan and its stages are replaced"
    )
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    return dropped
