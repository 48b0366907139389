"""The plan that a command builds on: refused if it contradicts itself."""

from __future__ import annotations

from dnnp.core.check.claims import check_claims
from dnnp.core.check.stream import check_gap, check_made, check_unknown
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Plan
from dnnp.core.model.text import shown_bytes
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import Stream

FIELDS = ("value", "bound", "gap", "status")
"""Kinds of violation that are named after the field of the plan that they are about."""


def read_plan(stream: Stream, graph: Graph) -> Plan | None:
    """The plan of a stream, or None if it has none.

    Raises
    ------
    FormatError
        It was made from something else, or its numbers do not fit each other.
    """
    plan = plan_of(stream, graph)
    if plan is not None:
        refuse_contradictions(stream, plan)
    return plan


def refuse_infeasible(stream: Stream, plan: Plan) -> None:
    """Raise an InfeasibleError if a device lacks memory for its part of the plan of a stream."""
    if plan.status == "infeasible":
        raise InfeasibleError(
            f"{stream.name}: the plan is infeasible: a device needs "
            f"{shown_bytes(plan.excess_bytes)} more than it has (--memory-mode ignore)"
        )


def has_shards(plan: Plan) -> bool:
    """Tell whether a plan has stages that several devices hold together."""
    return any(stage.shards > 1 for stage in plan.stages)


def refuse_shards(stream: Stream, plan: Plan, reason: str) -> None:
    """Raise a UsageError if a plan has stages that several devices hold together."""
    if has_shards(plan):
        raise UsageError(
            f"{stream.name}: stages of the plan are held by several devices together, {reason}"
        )


def refuse_contradictions(stream: Stream, plan: Plan) -> None:
    """Raise a FormatError if the numbers of the plan of a stream do not fit each other."""
    record = stream.get("plan")[0]
    found = [*check_claims(plan), *check_gap(record)]
    found += check_made(stream.header, record, stream.get("device"))
    found += check_unknown(stream.header, stream.records, record)
    for violation in found:
        field = violation.kind if violation.kind in FIELDS else None
        raise stream.fault_at(
            "plan", 0, field, f"the plan contradicts itself: {violation}; dnnp-check says more"
        )
