"""From records of phases to their costs, and the stream that a phase is by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Floats, Graph, Ints, totals
from dnnp.core.model.phases import Phases, Point
from dnnp.core.model.shards import Shards
from dnnp.formats.edited_costs import forget_old_costs
from dnnp.formats.stream import Record, Stream

UNKNOWN_SHAPE = [-1]
NEVER = -1
"""Time of what cannot run, and flop that are not known."""

COLUMNS = {"sizes": "tensor", "shapes": "tensor", "flop": "node", "bytes": "node"}
"""Column of a phase -> the records that it is about."""


ROTATED = ("GroupQueryAttention", "RotaryEmbedding")
"""Operators that read tables of rotary embeddings, their only parameters of two axes."""


def check_positions(stream: Stream, tokens: int, what: str) -> None:
    """Refuse a sequence that is longer than a table of rotary embeddings, a row a position.

    UsageError: the message names what is longer (`what`), and the table.
    """
    read = {i for node in stream.rows("node") if node["op"] in ROTATED for i in node["inputs"]}
    stored = [t for t in stream.rows("tensor") if t["kind"] in ("parameter", "constant")]
    for table in (t for t in stored if t["id"] in read and "float" in t.get("dtype", "")):
        shape = table.get("shape", ())
        if len(shape) == 2 and tokens > shape[0]:
            has = f"has {shape[0]} positions ('{table['name']}')"
            raise UsageError(f"{what}: {tokens} tokens; the model {has}")


def phases_of(stream: Stream, times: Mapping[str, Floats], sizes: Floats) -> Phases | None:
    """Costs of all phases of a stream; None: it has none.

    Parameters
    ----------
    times, sizes
        Those of the first phase: f64[n] by device class, and f64[m].

    FormatError: a phase lacks a column, has one of another length, or is not in its place.
    """
    records = stream.get("phase")
    if not records:
        return None
    for i, record in enumerate(records):
        _check_phase(stream, i, record, times)
    rest = records[1:]
    columns = {c: [_times(r["times"][c]) for r in rest] for c in times}
    return Phases(
        tuple(Point(r["name"], r["rows"], r["seq"], r["past"]) for r in records),
        {c: np.array([times[c], *columns[c]]) for c in times},
        np.array([sizes, *(r["sizes"] for r in rest)], dtype=np.float64),
        np.array([r.get("pass_s", 0.0) for r in records], dtype=np.float64),
    )


def _times(values: Sequence[float]) -> Floats:
    array = np.array(values, dtype=np.float64)
    return np.where(array < 0, np.inf, array)


def _check_phase(stream: Stream, i: int, record: Record, times: Mapping[str, Floats]) -> None:
    """Refuse a phase that does not fit the stream."""
    if record["id"] != i:
        raise stream.fault_at("phase", i, "id", f"{record['id']} stands in place {i}")
    named = [r for r in stream.get("phase")[:i] if r["name"] == record["name"]]
    before = [r for r in named if r["rows"] == record["rows"]]
    if record["name"] == "prompt" and len(before) < len(named):
        raise stream.fault_at("phase", i, "rows", "phases of prompts have as many rows")
    if len(before) > 1 or any((r["seq"] == record["seq"]) == (r["past"] == record["past"]) or
                              (r["seq"], r["past"]) > (record["seq"], record["past"])
                              for r in before):  # fmt: skip
        reason = "a phase has two ends at most, which differ in seq or in past"
        raise stream.fault_at("phase", i, "seq", reason)
    if i == 0:
        return
    for column, kind in COLUMNS.items():
        _check_length(stream, i, column, record.get(column), len(stream.rows(kind)), kind)
    if record.get("work", "") not in ("", _work_of(record)):
        reason = "flop or bytes were edited after they were priced; run dnnp-profile again"
        raise stream.fault_at("phase", i, "work", reason)
    for c in times:
        listed = record.get("times", {}).get(c)
        _check_length(stream, i, f"times.{c}", listed, len(stream.rows("node")), "node")


def _check_length(
    stream: Stream, i: int, name: str, values: Sequence[object] | None, count: int, kind: str
) -> None:
    if values is None:
        hint = "; price it by dnnp-profile" if name.startswith("times") else ""
        raise stream.fault_at("phase", i, name, f"missing{hint}")
    if len(values) != count:
        raise stream.fault_at("phase", i, name, f"{len(values)} values for {count} {kind} records")


def group_times(
    stream: Stream, graph: Graph, label: Ints, first: Mapping[str, Floats]
) -> dict[str, Floats] | None:
    """Times of groups at all points, f64[p, g] by device class; None: there are no phases.

    `first`: those of the first phase. FormatError: times of nodes were edited after groups were
    priced as units.
    """
    phases = graph.phases
    if phases is None:
        return None
    result: dict[str, Floats] = {}
    for c in first:
        rows = [first[c]]
        for i, record in enumerate(stream.get("phase")[1:], 1):
            stated = record.get("group_times", {}).get(c)
            if stated is None:
                rows.append(totals(label, phases.times[c][i], len(first[c])))
                continue
            _check_length(stream, i, f"group_times.{c}", stated, len(first[c]), "group")
            if record.get("basis") != basis_of(record):
                reason = "times were edited after groups were priced; run dnnp-profile again"
                raise stream.fault_at("phase", i, "basis", reason)
            rows.append(_times(stated))
        result[c] = np.array(rows)
    return result


def shard_times(stream: Stream, phases: Phases, shards: Shards) -> dict[str, Floats]:
    """Times of nodes at all points and degrees, f64[p, D, n] by device class."""
    result: dict[str, Floats] = {}
    for c, first in shards.plain.times.items():
        rows, count = [first], first[1:].size
        never = [NEVER] * count if np.isinf(first[1:]).all() else None
        for i, record in enumerate(stream.get("phase")[1:], 1):
            listed = record.get("shard_times", {}).get(c, never)
            _check_length(stream, i, f"shard_times.{c}", listed, count, "node")
            stated = _times(listed or ()).reshape(-1, first.shape[1])
            rows.append(np.concatenate([phases.times[c][i : i + 1], stated]))
        result[c] = np.array(rows)
    return result


def basis_of(record: Record) -> str:
    """Digest of the times of the nodes in a phase: SHA-256 of f64 by class, in order of names."""
    return _digest(record["times"])


def _work_of(record: Record) -> str:
    """Digest of the work of the nodes in a phase, likewise."""
    return _digest({name: record[name] for name in ("bytes", "flop")})


def _digest(columns: Mapping[str, Sequence[float]]) -> str:
    hasher = hashlib.sha256()
    for name, values in sorted(columns.items()):
        hasher.update(f"{name}:{len(values)};".encode())
        hasher.update(np.array(values, dtype="<f8").tobytes())
    return hasher.hexdigest()


def phase_view(stream: Stream, i: int) -> Stream:
    """The stream of one phase by itself, without costs, to be priced as any other."""
    record = stream.get("phase")[i]
    part = Stream({**stream.header, "phases": True}, name=stream.name)
    part.records = {kind: [dict(r) for r in stream.get(kind)] for kind in ("device", "group")}
    part.records["tensor"] = [
        _with_size(tensor, size, shape)
        for tensor, size, shape in zip(
            stream.get("tensor"), record["sizes"], record["shapes"], strict=True
        )
    ]
    partial = set(record.get("partial", ()))
    part.records["node"] = [
        _with_work(node, flop, moved, v in partial)
        for v, (node, flop, moved) in enumerate(
            zip(stream.get("node"), record["flop"], record["bytes"], strict=True)
        )
    ]
    for group in part.records["group"]:
        for name in ("time_s", "cost", "basis", "flop", "bytes"):
            group.pop(name, None)
    return part


def priced_view(stream: Stream, i: int) -> Stream:
    """The same with its costs; that of the first phase is the stream."""
    if not i:
        return stream
    part, record = phase_view(stream, i), stream.get("phase")[i]
    forget_old_costs(part, ())
    for kind, name in (("node", "times"), ("group", "group_times")):
        for c, column in record.get(name, {}).items():
            for one, seconds in zip(part.get(kind), column, strict=True):
                one["time_s"] = one.get("time_s", {}) | ({c: seconds} if seconds >= 0 else {})
    return part


def _with_size(tensor: Record, size: float, shape: list[int]) -> Record:
    """A tensor record with the size that it has in a phase."""
    found = {k: v for k, v in tensor.items() if k not in ("shape", "size_unknown", "memory_bytes")}
    if shape != UNKNOWN_SHAPE:
        found["shape"] = shape
    return {**found, "size_bytes": size}


def _with_work(node: Record, flop: float, moved: float, partial: bool) -> Record:
    """A node record with the work that it does in a phase."""
    out = ("flop", "bytes", "partial", "time_s", "spread", "base_s")
    found = {k: v for k, v in node.items() if k not in out}
    if flop >= 0:
        found["flop"] = flop
    if partial:
        found["partial"] = True
    return {**found, "bytes": moved}


def phase_record(point: Point, i: int, view: Stream | None) -> Record:
    """The record of a phase; `view`: its stream by itself, None: that of the whole stream."""
    record: Record = {"type": "phase", "id": i, **point._asdict()}
    if view is None:
        return record
    tensors, nodes = view.get("tensor"), view.get("node")
    record["sizes"] = [t["size_bytes"] for t in tensors]
    record["shapes"] = [list(t.get("shape", UNKNOWN_SHAPE)) for t in tensors]
    record["flop"] = [n.get("flop", NEVER) for n in nodes]
    record["bytes"] = [n.get("bytes", 0) for n in nodes]
    partial = [v for v, n in enumerate(nodes) if n.get("partial")]
    return {**record, "partial": partial} if partial else record


def put_times(record: Record, view: Stream) -> None:
    """Take over the times that a phase was given by itself."""
    classes = sorted({c for n in view.get("node") for c in n["time_s"]})
    record["times"] = {c: [n["time_s"].get(c, NEVER) for n in view.get("node")] for c in classes}
    for name in ("group_times", "shard_times", "basis", "work"):
        record.pop(name, None)
    if "work" in view.header:
        record["work"] = _work_of(record)
    groups = view.get("group")
    if groups:
        record["group_times"] = {c: [g["time_s"].get(c, NEVER) for g in groups] for c in classes}
        record["basis"] = basis_of(record)
