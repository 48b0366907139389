"""Which plans are alike enough to be held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnnp.core.cost.validity import VALIDITIES
from dnnp.core.model.plan import Plan
from dnnp.core.view.facts import Facts

LACKING = ("infeasible",)
"""Status of plans that cannot run, so that none of them is the best."""


def families(streams: Sequence[Facts]) -> list[list[Facts]]:
    """Streams whose values mean the same: of one model, objective and unit of time."""
    found: dict[tuple[str, str, bool], list[Facts]] = {}
    for facts in streams:
        if facts.plan is not None:
            found.setdefault((facts.model, facts.plan.objective, facts.seconds), []).append(facts)
    return list(found.values())


def outcomes(plan: Plan) -> list[Plan]:
    """What each method found that was tried for a plan, as a plan without stages, or the plan."""
    return [
        replace(
            plan, stages=(), tried=(), method=one.method, value=one.value, bound=one.bound,
            validity=one.validity, status=one.status,
        )
        for one in plan.tried
        if one.value is not None
    ] or [plan]  # fmt: skip


def is_best(plan: Plan, rivals: Sequence[Plan]) -> bool:
    """Whether none of the rivals with as many devices that promises as much has a smaller value.

    A plan whose stages form a pipeline is also one that promises less: a free plan has to be
    better than it, not the other way round.
    """
    return plan.status not in LACKING and not any(
        rival.value < plan.value
        for rival in rivals
        if rival.status not in LACKING and rival.k == plan.k and _promises(rival) >= _promises(plan)
    )


def shared_bound(plans: Sequence[Plan], known: Sequence[Plan]) -> float:
    """The best bound that holds for each of some plans, of all that are known.

    A bound holds for plans of the same graph, costs, devices and cost model that promise as much
    as the plan that it was proven for.
    """
    return min(max(q.bound for q in known if _holds_for(q, plan)) for plan in plans)


def _holds_for(known: Plan, plan: Plan) -> bool:
    """Whether the bound of a plan also holds for another."""
    return _promises(known) <= _promises(plan) and _asked(known) == _asked(plan)


def _asked(plan: Plan) -> tuple[object, ...]:
    """What a plan was to be found for."""
    return plan.digest, plan.k, plan.options, plan.devices, plan.links


def _promises(plan: Plan) -> int:
    """How much a plan promises: more is stronger."""
    return VALIDITIES.index(plan.validity)
