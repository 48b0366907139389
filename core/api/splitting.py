"""Split a graph into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from dnnp.callbacks import Callbacks, read_json, run_of, with_bar
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.problem import SplitProblem, make_plan, planned_blocks
from dnnp.core.model.errors import (
    DnnpError,
    FormatError,
    InfeasibleError,
    LimitError,
    UnavailableError,
)
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.phases import PROMPT, TOKEN, passes_of, rows_of
from dnnp.core.model.plan import CLOSED, Plan, Tried, Way, generation_words, with_contiguous, within
from dnnp.core.model.search_context import MethodOptions, SearchContext, Training
from dnnp.core.model.text import counted, shown_time
from dnnp.formats.plan import plan_records
from dnnp.formats.spread import mark_unknown, plan_spread
from dnnp.formats.stream import Stream
from dnnp.options.split import PARALLEL, SplitOptions, usual_solver
from dnnp.options.table import step
from dnnp.placing import split_by_ids
from dnnp.problem import problem_of
from dnnp.reporting import (
    advise,
    idle_words,
    name_faster_replicas,
    name_idle_options,
    report,
)
from dnnp.workload import Workload, priced

if TYPE_CHECKING:
    from dnnp.core.split.ways import Curve

Search = Callable[[SplitProblem, SplitOptions], Plan]  # by the one method of the options


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
    given = None if options.eval is None else read_json(caller, options.eval, "--eval")
    with caller.interruptible(), caller.held():
        work = priced(stream, caller, reprice=options.reprice)
        problem = problem_of(work, options)
        name_idle_options(options)
        caller.elapsed("searching")
        add_plan(work, problem, options, given)


split = step("dnnp-partition", SplitOptions)(split_stream)


def add_plan(
    work: Workload,
    problem: SplitProblem,
    options: SplitOptions,
    given: tuple[bytes, str] | None = None,
    search: Search | None = None,
) -> None:
    """Split a graph, and put the plan into its stream; `given`: a split in a file, and its name.

    `search`: finds a plan by one method, for one of several numbers of devices.
    """
    stream = work.stream
    if options.parallel and options.micro_batches is None and "micro_batches" in stream.header:
        options = options.replaced(micro_batches=stream.header["micro_batches"])
    if given is None:
        problem, plan = _of_best_rows(work, problem, options, search or found_by)
    else:
        from dnnp.given_split import given_plan

        priced_by = partial(given_plan, split_by_ids(stream, work.graph, *given), given[1])
        problem, plan = _of_best_rows(work, problem, options, priced_by)
    plan = replace(within(plan, options.max_gap), digest=work.digest)
    record, stages = plan_records(plan)
    spread = plan_spread(stream, record, stages)
    if spread is not None:
        record["spread"] = spread
    mark_unknown(stream, record, stages)
    idle = ""
    if given is None and not search and not options.parallel and options.objective != "latency":
        idle = idle_words(problem, plan, options)
        record |= {"idle": idle} if idle else {}
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    if dropped:
        options.caller.note(f"dropped what an earlier plan led to: {', '.join(dropped)} records")
    among = record.get("contiguous_bound", 0.0)
    plan = replace(plan, status=record["status"], contiguous_bound=among)
    report(options.caller, plan, problem, record, one_of_many=search is not None)
    if given is None and not search:
        _note_fewer(problem, options)
    _note_idle(plan, stream, options.caller)
    if search:
        return
    if stream.header.get("measured", {}).get("disturbed"):
        options.caller.note("its costs were measured beside other processes: they may be too high")
    if given is None and not options.parallel:
        if idle:
            options.caller.note(idle)
        name_faster_replicas(problem, plan, options)
    advise(stream, record, options.caller)


def _note_fewer(problem: SplitProblem, options: SplitOptions) -> None:
    """Say what a stage fewer than `exactly` so many would cost."""
    fewer = sum(rule.stages for rule in problem.rules if rule.rule == "exactly") - 1
    if fewer < 1 or options.caller.interrupted:
        return
    rules = tuple(r._replace(stages=fewer) if r.rule == "exactly" else r for r in problem.rules)
    try:
        found = found_by(replace(problem, rules=rules), options.replaced(method=options.methods[0]))
        cost = shown_time(found.value, problem.graph.in_seconds)
    except (InfeasibleError, LimitError):
        cost = "none was found that fits"
    options.caller.note(f"with {counted(fewer, 'stage')}: {cost}")


def _of_best_rows(
    work: Workload, problem: SplitProblem, options: SplitOptions, search: Search
) -> tuple[SplitProblem, Plan]:
    """Find a plan; of several numbers of rows of a pass over tokens, with most tokens per second.

    InfeasibleError, LimitError: none fits, or is in time, with any of them.
    """
    workload, phases = problem.options.workload, work.graph.phases
    choices = [] if phases is None or workload is None else rows_of(phases.points)
    apart = _rows_apart(work.stream)
    choices = [1] if apart and 1 in choices else choices
    if workload is None or choices == [workload.rows]:
        return _timely(work, problem, options, search)
    best: tuple[SplitProblem, Plan] | None = None
    failure: BaseException | None = None
    for rows in sorted(choices):  # what does not fit is told of the fewest
        if options.in_flight is not None and options.in_flight < rows:
            continue
        most = problem.options.in_flight
        if options.in_flight is None and most is not None:
            most = most // workload.rows * rows
        cost = replace(problem.options, in_flight=most, workload=workload._replace(rows=rows))
        other = work.problem(problem.devices, cost, problem.links, problem.rules)
        try:
            other, plan = _timely(work, other, options, search)
        except (InfeasibleError, LimitError, KeyboardInterrupt) as error:
            failure = failure if failure and isinstance(error, InfeasibleError) else error
            continue
        if best is None or (plan.tokens_per_s or 0.0) > (best[1].tokens_per_s or 0.0):
            best = other, plan
    if best is None:
        raise failure or InfeasibleError("infeasible: fewer sequences than rows of any pass")
    chosen = best[1].options.workload
    many = counted(chosen.rows if chosen else 1, "sequence")
    options.caller.note(f"{many} a pass over tokens{': rows cannot be padded' * apart}")
    return best


def _rows_apart(stream: Stream) -> bool:
    """True if rows of different lengths share no pass when the model of a stream generates."""
    return not all(s.get("shared") or s.get("padded") for s in stream.get("state"))


def _timely(
    work: Workload, problem: SplitProblem, options: SplitOptions, search: Search
) -> tuple[SplitProblem, Plan]:
    """Find a plan that fits, with its rates, if it is for sequences, within the times of tokens."""
    problem, plan = _that_fits(work, problem, options, search)
    if plan.options.workload is not None:
        plan = generating(work, problem, plan, options)
        problem, plan = _all_busy(work, problem, options, search, plan)
    return problem, _in_time(work, problem, options, plan) if _is_late(plan, options) else plan


def _all_busy(
    work: Workload, problem: SplitProblem, options: SplitOptions, search: Search, plan: Plan
) -> tuple[SplitProblem, Plan]:
    """The plan for as many devices as passes keep busy, if it gives more tokens per second."""
    workload, in_flight = plan.options.workload, plan.options.in_flight
    passes = in_flight // workload.rows if workload and in_flight else 0
    told = problem.rules or problem.links or plan.hybrid is not None or search is not found_by
    if told or len(problem.devices) > 1 or not 0 < passes < len(plan.stages):
        return problem, plan
    kept = replace(problem.devices[0], count=passes, members=problem.devices[0].members[:passes])
    fewer = work.problem((kept,), problem.options)
    try:
        fewer, other = _that_fits(work, fewer, options, search)
    except (InfeasibleError, LimitError):
        return problem, plan
    other = generating(work, fewer, other, options)
    if (other.tokens_per_s or 0.0) <= (plan.tokens_per_s or 0.0):
        return problem, plan
    options.caller.note(
        f"{counted(passes, 'pass')} under way: planned for so many devices, as with "
        f"{len(plan.stages)} stages it is {plan.tokens_per_s:.4g} tokens/s"
    )
    return fewer, other


def _that_fits(
    work: Workload, problem: SplitProblem, options: SplitOptions, search: Search
) -> tuple[SplitProblem, Plan]:
    """Find a plan, for fewer sequences under way where those that keep all devices busy do not fit.

    InfeasibleError: not even those of one pass fit.
    """
    most = problem.options.in_flight
    if work.graph.phases is None or most is None or options.in_flight is not None:
        return problem, try_methods(options, partial(search, problem))
    workload = problem.options.workload
    rows = 1 if workload is None else workload.rows

    def found(passes: int) -> tuple[SplitProblem, Plan] | None:
        cost = replace(problem.options, in_flight=passes * rows)
        smaller = work.problem(problem.devices, cost, problem.links, problem.rules)
        try:
            return smaller, try_methods(options, partial(search, smaller))
        except InfeasibleError:
            if passes == 1:
                raise
            return None

    best, low, high = found(most // rows), 0, most // rows
    while best is None or 0 < low < high - 1:
        middle = max(1, (low + high) // 2)
        tried = found(middle)
        best, low, high = (best, low, middle) if tried is None else (tried, middle, high)
    return best


def _note_idle(plan: Plan, stream: Stream, caller: Callbacks) -> None:
    """Say where sequences under way keep few stages busy, or rows share no pass."""
    workload, in_flight = plan.options.workload, plan.options.in_flight
    if workload is None or in_flight is None:
        return
    passes = in_flight // workload.rows
    if passes < len(plan.stages) and sum(s.load_s for s in plan.stages) > plan.value * passes:
        caller.note(
            f"{counted(in_flight, 'sequence')} in passes of {workload.rows} keep {passes} of "
            f"{len(plan.stages)} stages busy"
        )
    if workload.rows > 1 and _rows_apart(stream):
        caller.note("rows cannot be padded: dnnp-run --generate has one sequence a pass")


def generating(work: Workload, problem: SplitProblem, plan: Plan, options: SplitOptions) -> Plan:
    """State how many sequences fit beside a plan, unless that was asked for, and the rates."""
    from dnnp.core.cost.rates import most_in_flight, with_rates

    if plan.hybrid is not None:
        from dnnp.core.parallel.problem import loads_alone

        return with_rates(plan, *work.priced_on(plan.devices), loads_alone)
    count = most_in_flight(plan, problem)
    if options.in_flight is None and plan.options.in_flight is not None and plan.stages:
        cost = replace(plan.options, in_flight=count)
        larger = work.problem(plan.devices, cost, plan.links, plan.rules)
        blocks = planned_blocks(plan, larger.graph)
        made = make_plan(larger, blocks, method=plan.method, bound=plan.bound)
        plan = replace(plan, stages=made.stages, options=cost, excess_bytes=made.excess_bytes)
    return with_rates(plan, *work.priced_on(plan.devices))


def _is_late(plan: Plan, options: SplitOptions) -> bool:
    """True if a plan takes longer to the first, or to each later token than it may."""
    pairs = ((plan.ttft_s, options.max_ttft), (plan.tpot_s, options.max_tpot))
    return any(
        time is not None and limit is not None and time > float(limit) for time, limit in pairs
    )


def _refuse_slow(work: Workload, plan: Plan, options: SplitOptions) -> None:
    """Raise an InfeasibleError if no plan over these devices is within the times of tokens."""
    from dnnp.core.cost.rates import least_alone

    workload, phases = plan.options.workload, work.graph.phases
    if workload is None or phases is None:
        return
    ends = passes_of(phases.points, workload)
    for name, phase, limit, count in (
        ("to the first", PROMPT, options.max_ttft, 1.0),
        ("for each later", TOKEN, options.max_tpot, max(workload.tokens - 1, 1.0)),
    ):
        least = least_alone(*work.priced_on(plan.devices), plan, phase, ends) / count
        if limit is not None and least > float(limit) * (1 + CLOSED):
            raise InfeasibleError(
                f"infeasible: without transfers it takes {shown_time(least, in_seconds=True)} "
                f"{name} token, above {shown_time(float(limit), in_seconds=True)}"
            )


def _in_time(work: Workload, problem: SplitProblem, options: SplitOptions, plan: Plan) -> Plan:
    """A plan with fewer stages, between which less moves, so that no token takes too long.

    Its bound is that of plans without such limits, and of as many sequences under way.

    Raises
    ------
    InfeasibleError
        Compute alone takes too long, or the split that was given does.
    LimitError
        No such plan was found, down to one device.
    """

    def on_all(fewer: SplitProblem, options: SplitOptions) -> Plan:
        """A plan for fewer devices, as one for all of them."""
        found, cut_short = found_by(fewer, options), options.caller.interrupted
        whole = work.problem(problem.devices, found.options, problem.links, problem.rules)
        alike = found.options == problem.options and found.validity == plan.validity
        bound = plan.bound if alike else simple_bound(whole.searched)
        blocks = planned_blocks(found, whole.graph)
        made = make_plan(whole, blocks, method=found.method, bound=bound, interrupted=cut_short)
        return generating(work, whole, made, options)

    _refuse_slow(work, plan, options)
    devices, given = problem.devices, options.eval is not None
    slow = {d.name: float(problem.units.times[d.name].sum()) for d in devices if not given}
    while (spare := [d for d in devices if d.name in slow]) and sum(d.count for d in devices) > 1:
        most = max(spare, key=lambda d: (d.count, slow[d.name]))
        rest = (replace(d, count=d.count - (d is most)) for d in devices)
        offered = tuple(d for d in rest if d.count)
        fewer = work.problem(offered, problem.options, (), problem.rules)
        try:
            _, made = _that_fits(work, fewer, options, on_all)
        except InfeasibleError:
            del slow[most.name]  # it is needed
            continue
        devices = offered
        if not _is_late(made, options):
            return made
    limits = [
        f"--max-{name} {shown_time(float(limit), in_seconds=True)}"
        for name, limit in (("ttft", options.max_ttft), ("tpot", options.max_tpot))
        if limit is not None
    ]
    words = f"within {' and '.join(limits)}: {generation_words(plan)}"
    if given:
        raise InfeasibleError(f"infeasible: the split is not {words}")
    raise LimitError(f"no plan was found {words}")


def _parallel(problem: SplitProblem, options: SplitOptions) -> Plan:
    """Find a parallel plan: stages on several devices at once, and in several replicas.

    One for sequences may have as many stages as there are devices.
    """
    from dnnp.core.model.plan import HybridOptions
    from dnnp.core.parallel.plan import solve_hybrid

    caller = options.caller
    given = {name: getattr(options, name) for name in PARALLEL if getattr(options, name)}
    if problem.graph.states is not None or problem.graph.phases is not None:
        given["micro_batches"] = max(1, sum(device.count for device in problem.devices))
    asked = HybridOptions(**given)
    run = run_of(
        caller,
        seconds=options.time_limit,
        units=problem.units.g,
        in_seconds=problem.graph.in_seconds,
        max_gap=options.max_gap,
    )
    with with_bar(caller, run) as shown:
        found = solve_hybrid(problem, asked, shown)
    cut_short = caller.interrupted and found.status == "feasible"
    return replace(found, status="interrupted") if cut_short else found


def found_by(problem: SplitProblem, options: SplitOptions, curve: Curve | None = None) -> Plan:
    """Find a split by the one method that is asked for; `curve`: from other numbers of devices."""
    if options.parallel:
        return _parallel(problem, options)
    asked = _asked(options, problem)
    if curve is not None:
        asked = curve.asked(problem, asked)
    run = run_of(
        options.caller,
        seed=options.seed or 0,
        effort=1.0 if options.effort is None else options.effort,
        seconds=options.time_limit,
        units=problem.units.g,
        in_seconds=problem.graph.in_seconds,
        max_gap=options.max_gap if options.methods == ("auto",) else 0.0,
    )
    if problem.options.objective == "latency":
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

    caller, latency = options.caller, latency_problem(problem.searched)
    with with_bar(caller, run) as shown:
        found = solve_latency(latency, asked, shown)
    if options.save_policy is not None and asked.method == "placeto":
        from dnnp.fits.policies import save_policy

        save_policy(options.save_policy, found.learned, caller)
    return make_latency_plan(
        problem,
        latency,
        found.split,
        method=found.method,
        bound=found.bound,
        bound_method=found.bound_method,
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

        training = training_of(options, problem)
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

        data, name = read_json(options.caller, options.sequence, "--sequence")
        sequence = read_sequence(data, name, units.group_ids)
        try:
            given_order(problem, sequence)
        except FormatError as error:
            raise FormatError(str(error), name) from None
    if options.priorities is not None and method == "slice":
        from dnnp.formats.inputs.orders import read_priorities

        data, name = read_json(options.caller, options.priorities, "--priorities")
        priorities = read_priorities(data, name, units.g)
    return sequence, priorities


STRENGTH = ("free", "convex", "ordered")
"""Validities: a bound for one holds for those after it, whose splits are fewer."""


FAILURES = {InfeasibleError: "infeasible", LimitError: "limit", UnavailableError: "unavailable"}
"""Error of a method that fails beside others that do not -> its status."""


def try_methods(options: SplitOptions, search: Callable[[SplitOptions], Plan]) -> Plan:
    """The best plan of all methods, at ties that of the first; more than one are listed in it.

    Parameters
    ----------
    options
        Each method is searched with as if it were alone: a limit of time is for each.
    search
        Finds a plan by the one method of its options.

    Raises InfeasibleError, LimitError, UnavailableError: every method failed.
    """
    if len(options.methods) == 1:
        return search(options)
    caller, began, entries = options.caller, monotonic(), list[Tried]()
    found: dict[str, Plan] = {}
    failures: dict[str, DnnpError] = {}
    for name in options.methods:
        if caller.interrupted:
            entries.append(Tried(name, status="interrupted", reason="was not begun"))
            continue
        spent = monotonic() - began
        alone = options.replaced(method=name)
        if options.time_limit is not None:
            # It counts from when the input was there.
            alone = alone.replaced(time_limit=options.time_limit + spent)
        caller.detail(f"method {name}")
        try:
            found[name] = search(alone)
        except KeyboardInterrupt:
            if not found:
                raise
            entry = Tried(name, status="interrupted", reason="had found nothing")
        except ModuleNotFoundError as error:
            failures[name] = UnavailableError(f"the package {error.name} is not installed")
            entry = Tried(name, status="unavailable", reason=str(failures[name]))
        except tuple(FAILURES) as error:
            failures[name] = error
            reason = str(error).removeprefix("infeasible: ")
            entry = Tried(name, status=FAILURES[type(error)], reason=reason)
        else:
            entry = _entry(name, found[name])
        took = monotonic() - began - spent if options.timings else None
        entries.append(entry._replace(time_s=took))
    if not found:
        said = "; ".join(f"{name}: {error}" for name, error in failures.items())
        raise type(next(iter(failures.values())))(said)
    least = min(each.value for each in found.values())
    best = next(each for each in found.values() if each.value <= least * (1 + CLOSED))
    plan = _proven(best, list(found.values()))
    if caller.interrupted and plan.status == "feasible":
        plan = replace(plan, status="interrupted")
    return replace(plan, tried=tuple(entries))


def _entry(name: str, plan: Plan) -> Tried:
    return Tried(
        name,
        value=plan.value,
        bound=plan.bound,
        gap=plan.gap,
        validity=plan.validity,
        status=plan.status,
        made_by="" if plan.method == name else plan.method,
    )


def _proven(plan: Plan, others: Sequence[Plan]) -> Plan:
    """The plan with the best bound that any method proved of its validity, or of a weaker one."""
    mine = STRENGTH.index(plan.validity)
    proofs = [each for each in others if STRENGTH.index(each.validity) <= mine]
    best = max(proofs, key=lambda each: each.bound)
    if best.bound <= plan.bound:
        return plan
    closed = plan.value <= best.bound * (1 + CLOSED) and plan.status != "infeasible"
    return replace(
        plan,
        bound=min(best.bound, plan.value),
        bound_method=best.bound_method,
        status="optimal" if closed else plan.status,
    )
