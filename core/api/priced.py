"""What a graph costs, in a few lines: the total and the heaviest operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnnp.core.model.text import counted, operator_name

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.formats.stream import Record, Stream

HEAVIEST = 4
"""Types of operators that are named."""

NODES = 10
"""Nodes that are named to who looks closely."""


def describe_costs(stream: Stream, caller: Caller) -> None:
    """Say what the graph takes on each class, and what takes most on the first one."""
    from dnnp.core.model.text import shown_seconds

    nodes, groups = stream.get("node"), stream.get("group")
    classes = list(dict.fromkeys(name for record in nodes for name in record.get("time_s", ())))
    if not classes or not stream.in_seconds:
        return
    units = counted(len(nodes), "node") + (f" in {counted(len(groups), 'group')}" if groups else "")
    totals = (f"{shown_seconds(_total(groups or nodes, name))} on {name}" for name in classes)
    caller.note(f"{units}, one after the other: {', '.join(totals)}")
    name = classes[0]
    whole = _total(nodes, name)
    if whole == 0:
        return
    caller.note(f"heaviest on {name}: {_heaviest_types(nodes, name, whole)}")
    for record in sorted(nodes, key=lambda record: -_time(record, name))[:NODES]:
        time = _time(record, name)
        caller.detail(
            f"{record['name']} ({operator_of(record)}): {shown_seconds(time)}, {time / whole:.1%}"
        )


def _heaviest_types(nodes: Sequence[Record], name: str, whole: float) -> str:
    """Types of operators with their shares of the whole and their numbers."""
    times: dict[str, list[float]] = {}
    for record in nodes:
        times.setdefault(operator_of(record), []).append(_time(record, name))
    total = Counter({kind: math.fsum(each) for kind, each in times.items()})
    rows = [
        f"{kind} {time / whole:.1%} ({len(times[kind])})"
        for kind, time in total.most_common(HEAVIEST)
    ]
    more = f" and {len(times) - len(rows)} more" if len(times) > len(rows) else ""
    return ", ".join(rows) + more


def operator_of(record: Record) -> str:
    """Type of the operator of a node record."""
    return operator_name(record["op"], record.get("domain", ""))


def _time(record: Record, name: str) -> float:
    """Seconds on a class; 0 where it cannot run there."""
    return float(record.get("time_s", {}).get(name) or 0.0)


def _total(records: Sequence[Record], name: str) -> float:
    return math.fsum(_time(record, name) for record in records)
