"""Validate what a plan says of the methods that were tried, of which it is the best.

What the others found is not in the stream, so that it cannot be priced again; but it is not better
than the plan, and its numbers fit each other.
"""

from __future__ import annotations

from dnnp.core.check.violation import Violation, above, same
from dnnp.core.model.plan import Plan, Tried

WITHOUT_VALUE = ("infeasible", "limit", "unavailable", "interrupted")
"""What may become of a method that finds nothing."""


def check_tried(plan: Plan) -> list[Violation]:
    """Return what does not hold about the methods that were tried for a plan."""
    found = []
    if len({entry.method for entry in plan.tried}) < len(plan.tried):
        found.append(Violation("value", "plan", "a method is listed twice among those tried"))
    for entry in plan.tried:
        found += _entry(plan, entry)
    mine = [e for e in plan.tried if e.value is not None and same(e.value, plan.value)]
    if plan.tried and not mine:
        message = f"no method that was tried has its value {plan.value!r}"
        found.append(Violation("value", "plan", message, plan.value))
    for entry in mine[:1]:
        kept = (entry.made_by or entry.method, entry.validity)
        if kept != (plan.method, plan.validity):
            message = f"is the first of the best, {kept[1]} by {kept[0]}, but the plan is "
            found.append(_wrong(entry, f"{message}{plan.validity} by {plan.method}"))
        if above(entry.bound, plan.bound):
            message = f"has the bound {entry.bound!r}, above that of the plan, {plan.bound!r}"
            found.append(_wrong(entry, message, plan.bound, entry.bound))
    return found


def _entry(plan: Plan, entry: Tried) -> list[Violation]:
    """What one method found, or why it found nothing."""
    if entry.value is None:
        if entry.status in WITHOUT_VALUE and entry.reason:
            return []
        return [_wrong(entry, "has neither a value nor a reason")]
    found = []
    if above(plan.value, entry.value):
        message = f"has the value {entry.value!r}, better than the plan's {plan.value!r}"
        found.append(_wrong(entry, message, plan.value, entry.value))
    if above(entry.bound, entry.value):
        message = f"has the bound {entry.bound!r}, above its value {entry.value!r}"
        found.append(_wrong(entry, message, entry.value, entry.bound))
    gap = (entry.value - entry.bound) / entry.value if entry.value > 0 else 0.0
    if not same(entry.gap, gap, 1.0):
        message = f"has the gap {entry.gap!r}, recomputed {gap!r}"
        found.append(_wrong(entry, message, gap, entry.gap))
    if entry.status == "optimal" and not same(entry.value, entry.bound):
        message = f"claims to be optimal, but value {entry.value!r} is above bound {entry.bound!r}"
        found.append(_wrong(entry, message, entry.value, entry.bound))
    if entry.status in ("limit", "unavailable"):
        found.append(_wrong(entry, f"has a value, but its status is {entry.status}"))
    return found


def _wrong(
    entry: Tried, message: str, expected: float | None = None, got: float | None = None
) -> Violation:
    return Violation("value", f"tried {entry.method}", message, expected, got)
