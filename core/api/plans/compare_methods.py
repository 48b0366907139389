"""Compare plans: of several methods, of the whole model, of replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import (
    DnnpError,
    InfeasibleError,
    LimitError,
    UnavailableError,
)
from dnnp.core.model.plan import CLOSED, Plan, Tried
from dnnp.core.model.text import counted, shown_time
from dnnp.options.split import SplitOptions

WORTH_SAYING = 1.1
"""Least predicted speed-up by replicas at which they are named."""


def ways_in_words(plan: Plan, in_seconds: bool) -> str:
    """Say which way was chosen, how the others compare, and what cannot be."""
    from dnnp.core.split.ways import SPOKEN

    devices = sum(stage.replicas for stage in plan.stages)
    parts, missing = list[str](), dict[str, list[str]]()
    for way in sorted(plan.ways, key=lambda way: way.value or 0.0):
        if way.value is None:
            missing.setdefault(way.reason, []).append(SPOKEN[way.name])
        elif (way.stages, way.devices) == (len(plan.stages), devices):
            used = f" on {counted(way.devices, 'device')}" if way.devices > 1 else ""
            parts.insert(
                0, f"chosen: {SPOKEN[way.name]}{used}, {shown_time(way.value, in_seconds)}"
            )
        else:
            longer = f" ({way.value / plan.value:.3g} times as long)" if plan.value > 0 else ""
            parts.append(f"{SPOKEN[way.name]} {shown_time(way.value, in_seconds)}{longer}")
    parts += [f"no {' or '.join(names)}: {reason}" for reason, names in missing.items()]
    return "; ".join(parts)


def name_faster_replicas(problem: SplitProblem, plan: Plan, options: SplitOptions) -> None:
    """Say where plain replicas of the whole model fit and are faster than a plan without them."""
    compared = options.allow_replicas or options.max_replicas is not None
    if compared or options.objective != "throughput" or options.memory_mode == "ignore":
        return
    if problem.clustered or not plan.stages or plan.status == "interrupted":
        return
    from dnnp.core.split.ways import faster_replicas

    found = faster_replicas(problem, plan.value / WORTH_SAYING)
    if found is not None:
        value, copies = found
        faster = f"{plan.value / value:.2f} times as fast" if value else "to take no time"
        options.caller.note(
            f"{copies} replicas of the whole model fit and are predicted {faster}: "
            f"{shown_time(value, problem.graph.in_seconds)} (--allow-replicas compares them)"
        )


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

    Raises
    ------
    InfeasibleError, LimitError, UnavailableError
        Every method failed.
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


def tried_in_words(plan: Plan, in_seconds: bool) -> str:
    """Say what became of each method, the best first."""
    said = []
    for entry in sorted(plan.tried, key=lambda e: float("inf") if e.value is None else e.value):
        found = f"{entry.status}: {entry.reason}"
        if entry.value is not None:
            found = shown_time(entry.value, in_seconds)
        said.append(f"{entry.method} {found}")
    return f"tried: {'; '.join(said)}"


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
