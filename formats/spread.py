"""Uncertainty of the value of a plan: errors of measured costs, and what costs leave out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnnp.core.model.plan import WITHIN
from dnnp.core.model.text import counted, shown_share
from dnnp.formats.rows import has
from dnnp.formats.stream import Record, Stream


def plan_spread(stream: Stream, plan: Record, stages: Sequence[Record]) -> float | None:
    """Relative spread of the times that a plan's value is made of; None: not known.

    That of the stage with the largest load, for latency of all stages; none where stages are
    shared. It is the mean over its groups (or nodes, without groups), weighted by time, as if all
    errors pointed the same way. Transfers count as exact.
    """
    if "measured" not in stream.header or not stages or any(r.get("shared") for r in stages):
        return None
    late = plan["objective"] in ("latency", "sequence")
    widest = stages if late else [max(stages, key=lambda r: r["load_s"])]
    nodes = _classes(plan, widest)
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


def _classes(plan: Record, stages: Sequence[Record]) -> dict[int, str]:
    """Class of each node of some stages, whose times it has there, but for a speed."""
    own = {device["class"]: device["of"] for device in plan.get("devices", ()) if "of" in device}
    return {
        v: own.get(stage["class"]) or stage["class"] for stage in stages for v in stage["nodes"]
    }


def mark_unknown(stream: Stream, plan: Record, stages: Sequence[Record]) -> None:
    """Put into a plan record what its costs leave out; without costs or sizes nothing is optimal.

    `time`: the share of the time of its nodes that formulas do not cover, or only in part, or that
    were made from unknown sizes, 1 where nothing takes time; `sizes`: tensors of unknown size,
    which count as 0 bytes.
    """
    tensors = stream.rows("tensor")
    unsized = has(tensors, "size_unknown")
    vague = {r["id"] for r in tensors if r.get("size_unknown")} if unsized else set[int]()
    by_formula = "work" in stream.header
    home = _classes(plan, stages)
    total, unknown = [0.0], [0.0]
    for record in stream.rows("node"):
        if record["id"] in home:
            time_s = record.get("time_s", {}).get(home[record["id"]], 0.0)
            total.append(time_s)
            rough = "flop" not in record or record.get("partial", False)
            if by_formula and (rough or not vague.isdisjoint(record["inputs"] + record["outputs"])):
                unknown.append(time_s)
    grouped = [(r.get("time_s", {}), home.get(r["nodes"][0])) for r in stream.rows("group")]
    share = float(bool(home) and not any(times.get(name) for times, name in grouped))
    if any(total):
        share = math.fsum(unknown) / math.fsum(total)
    if share > 0 or vague:
        plan["unknown"] = {"time": share, "sizes": len(vague)}
    if is_blind(plan):
        plan["status"] = proven_status(plan)
        for name in ("max_gap", "contiguous_bound"):
            plan.pop(name, None)
        for entry in plan.get("tried", ()):
            entry["status"] = proven_status({**plan, "status": entry["status"]})


NO_COSTS = (
    "no costs are known, so nothing is optimal: give nodes (blocks) a time, or flop and bytes, "
    "before dnnp-import; dnnp-profile --mode measure times an ONNX model"
)
"""Advice for a plan of which no time is known."""


def has_costs(plan: Record) -> bool:
    """Test whether the time of some node of a plan is known."""
    return bool(plan.get("unknown", {}).get("time", 0.0) < 1)


def is_blind(plan: Record) -> bool:
    """Test whether no gap is known: no time of a plan, or not all sizes."""
    return not has_costs(plan) or plan.get("unknown", {}).get("sizes", 0) > 0


def proven_status(plan: Record) -> str:
    """The status of a plan; where no gap is known nothing is optimal."""
    claimed = plan["status"] in ("optimal", WITHIN)
    return "feasible" if is_blind(plan) and claimed else str(plan["status"])


def shown_gap(plan: Record, gap: float) -> str:
    """A gap to the value of a plan."""
    return "unknown" if is_blind(plan) else shown_share(max(gap, 0.0))


def unknown_words(plan: Record) -> str:
    """Words on what the costs of a plan leave out, to follow its value; empty: nothing."""
    found = plan.get("unknown", {"time": 0.0, "sizes": 0})
    words = f", costs unknown for {found['time']:.0%} of the time" if found["time"] > 0 else ""
    words = words if has_costs(plan) else ", no costs known"
    return words + (f", {counted(found['sizes'], 'size')} unknown" if found["sizes"] else "")
