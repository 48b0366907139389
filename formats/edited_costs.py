"""Costs that were edited where it would have no effect: refused, or summed again.

People edit streams. A group has a cost of its own, which was summed from its nodes or found for it
as a unit, and hides theirs; times of nodes were made from their work, and hide that. What was made
from what is remembered by digests.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Sequence

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.rows import CHUNK, Rows, columns, has
from dnnp.formats.stream import Record, Stream

SAME = 1e-9
"""Relative difference up to which a stated sum is the sum."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def basis_of(members: Sequence[Record]) -> str:
    """Digest of the times of some nodes, beside which their group was priced as a unit.

    SHA-256 of a JSON list in ASCII without spaces, for each node the sorted pairs of class and
    time. Numbers stand as floats.
    """
    return _digest([sorted((c, float(t)) for c, t in r.get("time_s", {}).items()) for r in members])


def work_of(nodes: list[Record] | Rows) -> str:
    """Digest of the work of all nodes, which their times were made from.

    SHA-256 of a JSON list in ASCII without spaces, for each node `flop` and `bytes` as floats;
    what is absent is null.
    """
    found = columns(nodes, {"flop": None, "bytes": None})
    rows = [[None if x is None else float(x) for x in found[name]] for name in found]
    hasher, between = hashlib.sha256(b"["), ""
    for at in range(0, len(nodes), CHUNK):
        pairs = zip(*(column[at : at + CHUNK] for column in rows), strict=True)
        hasher.update((between + _ENCODER.encode(list(pairs))[1:-1]).encode())
        between = ","
    hasher.update(b"]")
    return hasher.hexdigest()


def _digest(content: list[object]) -> str:
    return hashlib.sha256(_ENCODER.encode(content).encode()).hexdigest()


def summed_times(members: Sequence[Record]) -> dict[str, float]:
    """Sum of the times of some nodes, for each class that can run them all."""
    first = members[0].get("time_s", {})
    return {
        name: min(math.fsum(r["time_s"][name] for r in members), MAX_NUMBER)
        for name in first
        if all(name in r.get("time_s", {}) for r in members)
    }


def check_costs(stream: Stream) -> None:
    """Refuse costs that do not follow from what they were made from.

    Raises
    ------
    FormatError
        A group's time is not the sum of its nodes' although it says so, times of its nodes were
        edited after it was priced as a unit, or the work of nodes after these were priced.
    """
    if stream.header.get("work", "") not in ("", work_of(stream.rows("node"))):
        reason = "flop or bytes of nodes were edited after they were priced; run dnnp-profile again"
        raise FormatError(reason, stream.name, 1, "work")
    for position, _, field, reason in _stale(stream):
        hint = "dnnp-partition --reprice takes the sum"
        raise stream.fault_at("group", position, field, f"{reason}; {hint}")


def reprice_groups(stream: Stream) -> int:
    """Give groups that `check_costs` refuses the sum of their nodes; returns how many."""
    stale = list(_stale(stream))
    for position, members, _, _ in stale:
        group = stream.get("group")[position]
        forget_of_records([group])
        group |= {"time_s": summed_times(members), "cost": "summed"}
        for name in ("flop", "bytes"):
            group.pop(name, None)
            if all(name in r for r in members):
                group[name] = min(sum(r[name] for r in members), MAX_NUMBER)
    return len(stale)


def _stale(stream: Stream) -> Iterator[tuple[int, list[Record], str, str]]:
    """Position, nodes, field and fault of every group whose cost is not that of its nodes."""
    if not has(stream.rows("group"), "time_s"):
        return
    node = {record["id"]: record for record in stream.get("node")}
    for position, group in enumerate(stream.get("group")):
        if "time_s" not in group:
            continue
        members = [node[number] for number in group["nodes"]]
        cost = group.get("cost")
        if cost == "summed":
            reason = _unlike(group["time_s"], summed_times(members))
            if reason:
                yield position, members, "time_s", f"group {group['id']} {reason}"
        elif "basis" in group and group["basis"] != basis_of(members):
            reason = f"times of the nodes of group {group['id']} were edited after it was priced"
            yield position, members, "basis", reason + (f" ({cost})" if cost else "")


def _unlike(stated: dict[str, float], summed: dict[str, float]) -> str:
    """Difference of the stated times from the sums; empty if there is none."""
    for name in sorted({*stated, *summed}):
        if name not in summed:
            return f"is priced for {shown(name)}, but not all of its nodes are"
        if name not in stated:
            return f"is not priced for {shown(name)}, but all of its nodes are"
        a, b = float(stated[name]), summed[name]
        if abs(a - b) > SAME * max(a, b):
            return f"takes {a!r} on {shown(name)}, but its nodes add up to {b!r}: one was edited"
    return ""


OF_HEADER = ("work", "costs", "measured", "calibration")
"""Fields of the header: what costs were made from, and how."""

OF_RECORDS = ("basis", "spread", "base_s")
"""Fields of nodes and groups, besides the costs themselves."""

OF_DEVICES = ("fitted",)
"""Fields of device records, of the classes whose costs are replaced."""


def forget_old_costs(
    stream: Stream, classes: Collection[str], *, keep: Collection[str] = ()
) -> None:
    """Drop everything that is said about the costs of a stream; the costs themselves stay.

    Whatever replaces costs calls this, then says what holds of the new ones.

    Parameters
    ----------
    classes
        Device classes whose costs are replaced.
    keep
        Fields of the header that hold on.
    """
    gone = set(OF_HEADER).difference(keep)
    stream.header = {name: v for name, v in stream.header.items() if name not in gone}
    for kind in ("node", "group"):
        stream.drop(kind, OF_RECORDS)
    for device in stream.get("device"):
        if device["class"] in classes:
            _drop(device, OF_DEVICES)


def forget_of_records(records: Sequence[Record]) -> None:
    """The same for some nodes or groups alone."""
    for record in records:
        _drop(record, OF_RECORDS)


def _drop(record: Record, names: Sequence[str]) -> None:
    for name in names:
        record.pop(name, None)
