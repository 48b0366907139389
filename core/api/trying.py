"""Several methods on one graph: the best of their plans, and what became of each."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from dnnp.core.model.errors import DnnpError, InfeasibleError, LimitError, UnavailableError
from dnnp.core.model.plan import CLOSED, Plan, Tried
from dnnp.core.model.text import shown_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dnnp.split_options import SplitOptions

STRENGTH = ("free", "convex", "ordered")
"""Validities: a bound for one holds for those after it, whose splits are fewer."""

FAILURES = {InfeasibleError: "infeasible", LimitError: "limit", UnavailableError: "unavailable"}
"""What a method may fail of, beside others that do not -> its status."""


class Found(NamedTuple):
    """A plan, and how it was searched for."""

    plan: Plan
    effort: float | None = None
    """Where it was reduced."""


def try_methods(options: SplitOptions, search: Callable[[SplitOptions], Found]) -> Found:
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
    found: dict[str, Found] = {}
    failures: dict[str, DnnpError] = {}
    for name in options.methods:
        if caller.interrupted:
            entries.append(Tried(name, status="interrupted", reason="was not begun"))
            continue
        spent = monotonic() - began
        alone = replace(options, method=name)
        if options.time_limit is not None:
            # It counts from when the input was there.
            alone = replace(alone, time_limit=options.time_limit + spent)
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
    best = _best(list(found.values()))
    plan = _proven(best.plan, [each.plan for each in found.values()])
    if caller.interrupted and plan.status == "feasible":
        plan = replace(plan, status="interrupted")
    return best._replace(plan=replace(plan, tried=tuple(entries)))


def tried_in_words(plan: Plan, in_seconds: bool) -> str:
    """What became of each method, the best first."""
    said = []
    for entry in sorted(plan.tried, key=lambda e: float("inf") if e.value is None else e.value):
        found = f"{entry.status}: {entry.reason}"
        if entry.value is not None:
            found = shown_time(entry.value, in_seconds)
        said.append(f"{entry.method} {found}")
    return f"tried: {'; '.join(said)}"


def _entry(name: str, found: Found) -> Tried:
    plan = found.plan
    return Tried(
        name,
        value=plan.value,
        bound=plan.bound,
        gap=plan.gap,
        validity=plan.validity,
        status=plan.status,
        made_by="" if plan.method == name else plan.method,
        effort=found.effort,
    )


def _best(found: Sequence[Found]) -> Found:
    """That of the least value, at ties the first."""
    least = min(each.plan.value for each in found)
    return next(each for each in found if each.plan.value <= least * (1 + CLOSED))


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
