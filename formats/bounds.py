"""The bound record: what is proven about a plan, and what proves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dnnp.core.model.plan import CLOSED, WITHIN
from dnnp.formats.fields import MAX_ID
from dnnp.formats.plan import number_or_none, plan_digest
from dnnp.formats.records import RECORDS
from dnnp.formats.spread import is_blind, proven_status
from dnnp.formats.stream import Record


def bound_digest(plan: Record, stages: list[Record]) -> str:
    """Digest of what a bound depends on: the plan's digest, its devices and its cost model.

    SHA-256 of a JSON list in ASCII without spaces. Numbers that are not counts stand as floats,
    so that it does not matter how a tool writes them; what is absent is null.
    """
    devices = [
        [
            d["class"],
            d["kind"],
            d.get("count", 0),
            number_or_none(d, "memory_bytes"),
            number_or_none(d, "bandwidth_bytes_per_s"),
            d.get("cluster_size", 0),
            number_or_none(d, "inner_bandwidth_bytes_per_s"),
            *(
                [level["cluster_size"], float(level["bandwidth_bytes_per_s"])]
                for level in d.get("larger_clusters", ())
            ),
        ]
        for d in plan["devices"]
    ]
    fields = ("objective", "validity", "comm", "memory_model", "memory_mode", "charge_io")
    content = [
        plan_digest(plan, stages),
        *(plan[name] for name in fields),
        plan.get("max_replicas", 1),
        devices,
    ]
    if plan["objective"] == "latency":
        options = ("execution", "invocations", "transfers", "congestion")
        content += [plan.get(name) for name in options]
    if plan["objective"] == "latency" or plan.get("links"):
        content.append(
            [
                [x["from"], x["to"], float(x["bandwidth_bytes_per_s"]), float(x["latency_s"])]
                for x in plan.get("links", ())
            ]
        )
    if "in_flight" in plan or "max_length" in plan:
        content.append([plan.get("in_flight", 0), plan.get("max_length", 0)])
    if "workload" in plan:
        lengths = RECORDS["plan"]["workload"].fields
        content.append([float(plan["workload"].get(name, 0)) for name in lengths])
    if "parallel" in plan:
        content.append(
            [plan["parallel"].get(name, 0) for name in RECORDS["plan"]["parallel"].fields]
        )
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def is_closed(value: float, bound: float) -> bool:
    """Test whether a bound meets a value.

    >>> is_closed(5.0, 5.0), is_closed(5.0, 4.9)
    (True, False)
    """
    return bound >= value * (1 - CLOSED)


def gap_of(value: float, bound: float) -> float:
    """(value - bound) / value; 0 where they meet.

    >>> gap_of(5.0, 4.0)
    0.2
    """
    return 0.0 if is_closed(value, bound) else (value - bound) / value


def bound_record(
    plan: Record,
    stages: list[Record],
    *,
    method: str,
    value: float,
    validity: str,
    certificate: Mapping[str, Any] | None,
    tried: Sequence[Mapping[str, Any]],
    interrupted: bool = False,
) -> Record:
    """The record of a bound.

    Parameters
    ----------
    plan, stages
        Records of the plan it belongs to, as they stand in the stream.
    method
        The argument that proves it.
    value
        No split of this `validity` has a smaller objective.
    certificate
        With what another program verifies it.
    tried
        Every argument that was tried, in order.
    """
    best = float(plan["value"])
    status = "interrupted" if interrupted else "proven"
    record: Record = {
        "type": "bound",
        "method": method,
        "value": value,
        "gap": gap_of(best, value),
        "status": "optimal" if is_closed(best, value) and not is_blind(plan) else status,
        "validity": validity,
        "tried": [dict(entry) for entry in tried],
    }
    if certificate is not None:
        record["certificate"] = {name: storable(part) for name, part in certificate.items()}
    record["digest"] = bound_digest(plan, stages)
    return record


def storable(value: Any) -> Any:
    """A value in which every whole number that tools could round is text.

    >>> storable([1, 2**60, {"a": -(2**60)}])
    [1, '1152921504606846976', {'a': '-1152921504606846976'}]
    """
    if isinstance(value, Mapping):
        return {name: storable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [storable(part) for part in value]
    if isinstance(value, int) and abs(value) > MAX_ID:
        return str(value)
    return value


def raise_bound(plan: Record, value: float, method: str, max_gap: float = 0.0) -> Record:
    """The plan record with this bound, if it is better than the one it states.

    Plans of the objective latency say which argument proves it. `max_gap`: one that is enough.
    """
    best = float(plan["value"])
    if value <= float(plan["bound"]):
        return plan
    closed = is_closed(best, value) and plan["status"] != "infeasible"
    gap = gap_of(best, value)
    if gap <= max_gap and plan["status"] in ("feasible", "interrupted"):
        plan = {**plan, "status": WITHIN, "max_gap": max_gap}
    status = proven_status({**plan, "status": "optimal"} if closed else plan)
    by = {"bound_method": method} if plan["objective"] == "latency" and method else {}
    gone = {"max_gap"} if status != WITHIN else set[str]()
    if value >= float(plan.get("contiguous_bound", 0.0)):
        gone.add("contiguous_bound")  # it says no more than what holds for all
    plan = {name: part for name, part in plan.items() if name not in gone}
    return {**plan, "bound": min(value, best), "gap": gap, "status": status, **by}
