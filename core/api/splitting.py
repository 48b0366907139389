"""Split a graph into stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dnnp.callbacks import Callbacks
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import (
    OBJECTIVES,
    WITHIN,
    Plan,
    Way,
    contiguous_words,
    status_words,
    with_contiguous,
    within,
)
from dnnp.core.model.search_context import MethodOptions, SearchContext, Training
from dnnp.core.model.text import counted, shown_bytes, shown_time
from dnnp.core.split.checks import resolved
from dnnp.core.split.curve import Curve
from dnnp.formats.graph import digest_of
from dnnp.formats.plan import plan_records
from dnnp.formats.spread import (
    NO_COSTS,
    has_costs,
    mark_unknown,
    plan_spread,
    shown_gap,
    unknown_words,
)
from dnnp.formats.stream import Record, Stream
from dnnp.options.split import PARALLEL, SplitOptions, usual_solver
from dnnp.plans.compare_methods import (
    name_faster_replicas,
    tried_in_words,
    try_methods,
    ways_in_words,
)
from dnnp.plans.idle import idle_words
from dnnp.plans.problem import problem_of
from dnnp.pricing.costs import unpriced
from dnnp.search_run import run_of, with_bar
from dnnp.step import json_in, step


def split_stream(stream: Stream, options: SplitOptions) -> None:
    """Split a graph into stages over devices; what has no costs is priced first.

    A plan that the graph already has is replaced, and what was made from it is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, do not go together or do not fit the graph.
    FormatError
        The graph is malformed.
    InfeasibleError
        No split meets the limits, such as the memory.
    LimitError
        The time was over before there was any split.
    UnavailableError
        A solver or a program is missing.
    """
    caller = options.caller
    given = None if options.eval is None else json_in(options.eval, "--eval", caller)
    with caller.interruptible(), caller.held():
        problem = problem_of(stream, options)
        name_idle_options(options)
        caller.elapsed("searching")
        add_plan(stream, problem, options, given)


split = step("dnnp-partition", SplitOptions)(split_stream)


def add_plan(
    stream: Stream,
    problem: SplitProblem,
    options: SplitOptions,
    given: tuple[bytes, str] | None = None,
    search: Callable[[SplitOptions], Plan] | None = None,
) -> None:
    """Split a graph, and put the plan into the stream; `given`: a split in a file, and its name.

    `search`: finds a plan by one method, for one of several numbers of devices.
    """
    if options.parallel:
        plan = _parallel(stream, problem, options)
    elif given is None:
        plan = try_methods(options, search or partial(found_by, problem))
    else:
        from dnnp.plans.given_split import given_plan

        plan = given_plan(problem, *given, options)
    plan = within(plan, options.max_gap)
    record, stages = plan_records(plan)
    spread = plan_spread(stream, record, stages)
    if spread is not None:
        record["spread"] = spread
    mark_unknown(stream, record, stages)
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    if dropped:
        options.caller.note(f"dropped what an earlier plan led to: {', '.join(dropped)} records")
    among = record.get("contiguous_bound", 0.0)
    plan = replace(plan, status=record["status"], contiguous_bound=among)
    _report(options.caller, plan, problem, record, one_of_many=search is not None)
    if search:
        return
    if stream.header.get("measured", {}).get("disturbed"):
        options.caller.note("its costs were measured beside other processes: they may be too high")
    if given is None and not options.parallel:
        if plan.objective != "latency" and (words := idle_words(problem, plan, options)):
            options.caller.note(words)
        name_faster_replicas(problem, plan, options)
    advise(stream, record, options.caller)


def advise(stream: Stream, plan: Record, caller: Callbacks) -> None:
    """Say what would make known what the costs of a plan leave out, where that is a tenth."""
    unknown = plan.get("unknown", {"time": 0.0, "sizes": 0})
    if unknown["sizes"]:
        caller.warn(
            f"{counted(unknown['sizes'], 'tensor')} of unknown size, counted as 0 bytes: nothing "
            "is optimal; dnnp-import --shapes run, --dim or --inputs make known what is missing"
        )
    if not has_costs(plan):
        caller.warn(NO_COSTS)
    elif unknown["time"] >= 0.1 and (names := unpriced(stream)):
        caller.warn(
            f"costs are unknown for {unknown['time']:.0%} of the time, as no formula covers "
            f"{names}: dnnp-profile --mode measure times the model"
        )


def _parallel(stream: Stream, problem: SplitProblem, options: SplitOptions) -> Plan:
    """Find a parallel plan: stages on several devices at once, and in several replicas."""
    from dnnp.core.model.parallel import HybridOptions
    from dnnp.core.parallel.plan import solve_hybrid

    caller = options.caller
    stated = {k: v for k, v in stream.header.items() if k == "micro_batches"}
    given = {name: getattr(options, name) for name in PARALLEL if getattr(options, name)}
    asked = HybridOptions(**stated | given)
    run = run_of(
        caller,
        seconds=options.time_limit,
        in_seconds=stream.in_seconds,
        max_gap=options.max_gap,
    )
    digest = digest_of(problem.graph, problem.units)
    with with_bar(caller, run) as shown:
        found = solve_hybrid(problem, asked, shown, digest)
    cut_short = caller.interrupted and found.status == "feasible"
    return replace(found, status="interrupted") if cut_short else found


def found_by(problem: SplitProblem, options: SplitOptions, curve: Curve | None = None) -> Plan:
    """Find a split by the one method that is asked for; `curve`: from other numbers of devices."""
    asked = _asked(options, problem)
    if curve is not None:
        asked = curve.asked(problem, asked)
    run = run_of(
        options.caller,
        seed=options.seed or 0,
        effort=1.0 if options.effort is None else options.effort,
        seconds=options.time_limit,
        in_seconds=problem.graph.in_seconds,
        max_gap=options.max_gap if options.methods == ("auto",) else 0.0,
    )
    if options.objective == "latency":
        return _for_latency(problem, asked, run, options)
    return _for_throughput(problem, asked, run, options, curve)


def _for_throughput(
    problem: SplitProblem,
    asked: MethodOptions,
    run: SearchContext,
    options: SplitOptions,
    curve: Curve | None,
) -> Plan:
    """Find a split for the objectives throughput and gpipe; with replicas, by every way."""
    from dnnp.core.split.auto import solve

    caller, ways = options.caller, tuple[Way, ...]()
    with with_bar(caller, run) as shown:
        if options.allow_replicas:
            from dnnp.core.split.ways import compare_ways

            found, ways = compare_ways(problem, asked, shown)
            found = replace(found, contiguous_bound=0.0)
        else:
            found = solve(problem.searched, asked, shown)
    if curve is not None and not options.allow_replicas:
        curve.take(problem, found)
    plan = make_plan(
        problem,
        problem.own(found.blocks),
        method=found.method,
        bound=found.bound,
        digest=digest_of(problem.graph, problem.units),
        interrupted=caller.interrupted,
        planned_by=found.planned_by,
    )
    return replace(with_contiguous(plan, found.contiguous_bound), ways=ways)


def _for_latency(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext, options: SplitOptions
) -> Plan:
    """Find a split for the latency of one sample; save the policy that made it, if asked to."""
    from dnnp.core.cost.latency import latency_problem
    from dnnp.core.cost.latency_plan import make_latency_plan
    from dnnp.core.latency.solve import solve_latency

    caller = options.caller
    with with_bar(caller, run) as shown:
        found = solve_latency(problem.searched, asked, shown)
    if options.save_policy is not None and asked.method == "placeto":
        from dnnp.fits.policies import save_policy

        save_policy(options.save_policy, found.learned, caller)
    return make_latency_plan(
        problem,
        latency_problem(problem.searched),
        found.split,
        method=found.method,
        bound=found.bound,
        bound_method=found.bound_method,
        digest=digest_of(problem.graph, problem.units),
        interrupted=caller.interrupted,
        learned=found.learned,
    )


def _asked(options: SplitOptions, problem: SplitProblem) -> MethodOptions:
    """Collect what is asked of the method."""
    (method,) = options.methods
    sequence, priorities = _order_files(options, problem, method)
    training = Training()
    if method == "placeto":
        from dnnp.fits.policies import training_of

        training = training_of(options, problem, problem_of)
    return MethodOptions(
        method=method,
        validity=options.validity,
        order=options.order or "best",
        sequence=sequence,
        ties=options.ties,
        priorities=priorities,
        samples=options.samples or MethodOptions.samples,
        evolution=options.evolution,
        training=training,
        solver=options.solver or usual_solver(options),
        least_peak=options.memory_model == "peak",
    )


def _order_files(
    options: SplitOptions, problem: SplitProblem, method: str
) -> tuple[Ints | None, Floats | None]:
    """Read what the options `sequence` and `priorities` hold, if they are for this method."""
    units, sequence, priorities = problem.units, None, None
    if options.sequence is not None and method in ("slice", "greedy"):
        from dnnp.core.split.slicing.decoder import given_order
        from dnnp.formats.inputs.orders import read_sequence

        data, name = json_in(options.sequence, "--sequence", options.caller)
        sequence = read_sequence(data, name, units.group_ids)
        try:
            given_order(problem, sequence)
        except FormatError as error:
            raise FormatError(str(error), name) from None
    if options.priorities is not None and method == "slice":
        from dnnp.formats.inputs.orders import read_priorities

        data, name = json_in(options.priorities, "--priorities", options.caller)
        priorities = read_priorities(data, name, units.g)
    return sequence, priorities


def _report(
    caller: Callbacks, plan: Plan, problem: SplitProblem, record: Record, *, one_of_many: bool
) -> None:
    """One line about what was found; `record` of the plan, with what is known of its costs."""
    lead = f"k = {plan.k}: " if one_of_many else ""
    units, in_seconds = problem.units.g, problem.graph.in_seconds
    stages, used = counted(len(plan.own), "stage"), sum(s.devices for s in plan.own)
    if used > len(plan.own):
        stages += f" on {used} devices"
    shared = len(plan.stages) - len(plan.own)
    if shared:
        stages += f" and {shared} shared by all {plan.k}"
    if plan.hybrid is None and plan.k > max(used, units) and not one_of_many:
        there = f"{'is' if units == 1 else 'are'} only {counted(units, 'unit')}"
        caller.note(f"k = {plan.k}, but there {there}: {stages}")
    what = OBJECTIVES[plan.objective]
    found = f"{stages}, {plan.method}: {what} {shown_time(plan.value, in_seconds)}"
    if "spread" in record:
        found += f" +- {record['spread']:.1%}"
    by = f" ({plan.bound_method})" if plan.bound_method else ""
    proven = f"bound {shown_time(plan.bound, in_seconds)}{by}, gap {shown_gap(record, plan.gap)}"
    if plan.status in ("optimal", WITHIN):
        proven = status_words(plan)
    interrupted = ", interrupted" if plan.status == "interrupted" else ""
    rough = unknown_words(record)
    proven += contiguous_words(plan, in_seconds)
    caller.note(f"{lead}{found}, {proven}, {plan.validity}{rough}{interrupted}")
    if plan.status == "infeasible":
        caller.warn(
            f"the split is infeasible: a device needs {shown_bytes(plan.excess_bytes)} more than "
            "it has (--memory-mode ignore)"
        )
    if plan.ways:
        caller.note(ways_in_words(plan, in_seconds))
    if plan.tried:
        caller.note(tried_in_words(plan, in_seconds))


OPTIONS = (
    "order", "solver", "effort", "seed", "samples", "population", "generations", "elite", "mutants",
    "bias", "max-replicas",
)  # fmt: skip
"""Options that not every method heeds."""


def name_idle_options(options: SplitOptions) -> None:
    """Say which of the options given the method makes no use of."""
    latency, given = options.objective == "latency", options.eval is not None
    heeded = {name for method in options.methods for name in _heeded(options, method)}
    idle = [
        name
        for name in OPTIONS
        if getattr(options, name.replace("-", "_")) is not None and name not in heeded
    ]
    if given and options.validity is not None and not latency:
        idle.append("validity")
    if latency and options.comm != "sum":
        idle.append("comm")
    several = "s" if len(options.methods) > 1 else ""
    user = "--eval" if given else f"method{several} {', '.join(options.methods)}"
    for name in idle:
        options.caller.note(f"--{name} has no effect with {user}")


def _heeded(options: SplitOptions, method: str) -> tuple[str, ...]:
    """List the options that a method heeds, or a given split."""
    latency = options.objective == "latency"
    if options.eval is not None:
        return () if latency else ("max-replicas",)
    if latency:
        return LATENCY[method].heeds
    return SPLITS[resolved(method, options.validity or "ordered")].heeds
