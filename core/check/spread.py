"""Validate how sure a plan says that its value is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.check.violation import Violation, above, same

Record = Mapping[str, Any]


def check_spread(header: Record, records: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """The spread of a plan follows from the times and spreads of what it places.

    For latency of all, otherwise of a stage whose load no other exceeds.
    """
    found: list[Violation] = []
    stages = records.get("stage", ())
    for plan in records.get("plan", ()):
        if "spread" not in plan:
            continue
        stated = plan["spread"]
        if "measured" not in header:
            message = f"says {stated!r}, but nothing was measured"
            found.append(Violation("spread", "plan", message, 0.0, stated))
            continue
        largest = max((stage["load_s"] for stage in stages), default=0.0)
        chosen = [[s] for s in stages if not above(largest, s["load_s"])]
        if plan["objective"] == "latency":
            chosen = [list(stages)]
        ways = [_mean(list(_terms(some, records))) for some in chosen]
        if not any(way is not None and same(way, stated, 1.0) for way in ways):
            recomputed = next((way for way in ways if way is not None), 0.0)
            message = f"says {stated!r}, recomputed {recomputed!r}"
            found.append(Violation("spread", "plan", message, recomputed, stated))
    return found


def _terms(
    stages: Sequence[Record], records: Mapping[str, Sequence[Record]]
) -> Iterator[tuple[float, float]]:
    """Time and spread of each group, or of the nodes in it or without any."""
    group_of = {v: group for group in records.get("group", ()) for v in group["nodes"]}
    node_of: dict[int, Record] = {node["id"]: node for node in records.get("node", ())}
    for stage in stages:
        for v in stage["nodes"]:
            group = group_of.get(v)
            record = group if group is not None and "spread" in group else node_of.get(v, {})
            if record is not group or v == group["nodes"][0]:
                time_s = record.get("time_s", {}).get(stage["class"], 0.0)
                yield time_s, record.get("spread", 0.0)


def _mean(terms: Sequence[tuple[float, float]]) -> float | None:
    """Mean spread, weighted by time; None where nothing takes any."""
    total = math.fsum(time_s for time_s, _ in terms)
    return math.fsum(time_s * spread for time_s, spread in terms) / total if total > 0 else None
