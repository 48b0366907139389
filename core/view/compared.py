"""What a plan was compared with, in words: other methods, other ways, what to deploy."""

from __future__ import annotations

from dnnp.core.model.text import shown_time
from dnnp.core.view.facts import Facts
from dnnp.core.view.words import shown_share
from dnnp.formats.stream import Record

METHODS = ("method", "value", "gap", "time", "", "")
"""What the columns of `method_rows` are; the last two are status and reason."""


def method_rows(facts: Facts) -> list[list[str]]:
    """What each method found, where several were tried."""
    if facts.plan is None:
        return []
    return [
        [
            one.method,
            shown_time(one.value, facts.seconds),
            "-" if one.value is None else shown_share(max(one.gap, 0.0)),
            "-" if one.time_s is None else shown_time(one.time_s, True),
            ", ".join(part for part in (one.validity, one.status) if part),
            one.reason,
        ]
        for one in facts.plan.tried
    ]


def way_rows(facts: Facts) -> list[list[str]]:
    """Each way to use the devices, and its value or why it has none, where ways were compared."""
    if facts.plan is None:
        return []
    return [
        [way.name, way.reason or shown_time(way.value, facts.seconds)] for way in facts.plan.ways
    ]


def advice(run: Record) -> str:
    """What a run that compared the plan with others says is to be deployed; empty: it did not."""
    found = run.get("choice")
    return f"to deploy: {found['mode']}, {found['reason']}" if found else ""
