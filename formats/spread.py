"""How sure the value of a plan is, where its costs were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnnp.formats.stream import Record, Stream


def plan_spread(stream: Stream, plan: Record, stages: Sequence[Record]) -> float | None:
    """Relative spread of the times that a plan's value is made of; None: not known.

    That of the stage with the largest load, for latency of all stages; none where stages are
    shared. It is the mean over its groups (or nodes, without groups), weighted by time, as if all
    errors pointed the same way. Transfers count as exact.
    """
    if "measured" not in stream.header or not stages or any(r.get("shared") for r in stages):
        return None
    widest = stages if plan["objective"] == "latency" else [max(stages, key=lambda r: r["load_s"])]
    nodes = {v: stage["class"] for stage in widest for v in stage["nodes"]}
    node = {record["id"]: record for record in stream.get("node")}
    weighted, total = [], []
    for unit in stream.get("group") or stream.get("node"):
        members = unit["nodes"] if "nodes" in unit else [unit["id"]]
        if members[0] not in nodes:
            continue
        name = nodes[members[0]]
        # Groups that were made later cost the sum of their nodes.
        for part in [unit] if "spread" in unit else [node[v] for v in members]:
            time_s = part["time_s"].get(name, 0.0)
            if time_s > 0 and "spread" not in part:
                return None
            weighted.append(time_s * part.get("spread", 0.0))
            total.append(time_s)
    return math.fsum(weighted) / math.fsum(total) if math.fsum(total) > 0 else None
