"""Data of a page: nodes, tensors and stages in columns, packed for its script."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import orjson

from dnnp.core.coarsen.layers import Path, scope_path
from dnnp.core.model.graph import Clustering, Floats, Graph, Ints, csr_rows, totals
from dnnp.core.model.text import printable, scope_of_name
from dnnp.core.view.drawing import COLORS, MARKS, PALETTE
from dnnp.core.view.facts import Facts, amount, bar_bound, shortened, working
from dnnp.core.view.page_answer import LOADS
from dnnp.formats.stream import Record

MOST_NODES, MOST_BLOCKS = 120_000, 20_000
"""Nodes, and blocks of a schedule, that a page holds."""
DIGITS, MOST_TEXT = 6, 90
"""Significant digits of times and sizes, and characters of an attribute, in the data."""


def packed(data: dict[str, Any]) -> str:
    """Data as text without marks of HTML: JSON, compressed, in base64."""
    return base64.b64encode(gzip.compress(orjson.dumps(data), 6, mtime=0)).decode()


def page_data(facts: Facts, other: Facts | None = None) -> dict[str, Any]:
    """Data of the page, without parts that are too large or absent.

    `other`: facts of a second plan of the same graph, whose stage of each node is added.
    """
    plan, source = facts.plan, facts.stream.header.get("source", {"kind": ""})
    data: dict[str, Any] = {
        "model": printable(facts.model),
        "source": source["kind"] == "onnx" and printable(source["path"].rpartition("/")[2]),
        "seconds": facts.seconds,
        "palette": PALETTE,
        "late": plan is not None and plan.objective == "latency",
        "bound": None if plan is None else bar_bound(plan, facts.parts),
        "stages": [_stage(facts, number) for number in range(len(facts.parts))],
    }
    graph, units, whole = facts.graph, facts.units, facts.unit_graph
    if graph is not None and units is not None and whole is not None and graph.n <= MOST_NODES:
        by_rank = whole.order
        order = csr_rows(units.member_ptr, units.member_idx, by_rank)[1]
        data |= _unit_data(facts, units, by_rank)
        data |= _node_data(facts, graph, units, order)
        data |= _tensor_data(facts, graph)
        if other is not None:
            names = [part.stage.where for part in other.parts]
            data["other"] = {"stage": other.node_stages[order].tolist(), "stages": names}
        if facts.attributes is not None:
            held = (facts.attributes.get(v, ()) for v in graph.node_ids[order].tolist())
            texts = ("\n".join(shortened(text, MOST_TEXT) for text in each) for each in held)
            data["attributes"], data["nodes"]["attributes"] = _numbered(texts)
    found = _run_data(facts)
    return data | ({"runs": found} if found else {})


def _stage(facts: Facts, number: int) -> dict[str, Any]:
    part = facts.parts[number]
    stage = part.stage
    numbers = {
        "load": stage.load_s,
        "memory": stage.memory_bytes,
        "capacity": part.capacity_bytes,
        "measured": part.measured_s,
        "resident": part.resident_bytes,
    }
    parts = {LOADS[name]: found for name in LOADS if (found := amount(stage, name)) > 0}
    names = {"device": stage.where, "layers": printable(part.layers)}
    return {**names, "parts": parts, **{name: _number(n) for name, n in numbers.items()}}


def _unit_data(facts: Facts, units: Clustering, by_rank: Ints) -> dict[str, Any]:
    """Units in topological order, and how many nodes each has."""
    nodes = facts.stream.get("node")
    scopes = [scope_path(r.get("scope") or scope_of_name(r["name"])) for r in nodes]
    paths: dict[Path, int] = {}
    of_unit = []
    for u in by_rank.tolist():
        inside = [scopes[v] for v in units.members(u).tolist()]
        path = _path(facts.layers[u], inside)
        of_unit.append(paths.setdefault(path, len(paths)))
    columns = {
        "count": np.diff(units.member_ptr)[by_rank].tolist(),
        "stage": facts.stage_of[by_rank].tolist(),
        "time": [_number(t) for t in facts.unit_times[by_rank].tolist()],
        "path": of_unit,
    }
    if facts.stream.get("group"):
        columns["name"] = [printable(units.names[u]) for u in by_rank.tolist()]
    return {"units": columns, "paths": [[printable(p) for p in path] for path in paths]}


def _path(layer: str, scopes: Sequence[Path]) -> Path:
    """Names of the boxes that a unit is in: its layer, then what its nodes' scopes share below."""
    first = scopes[0]
    for other in scopes[1:]:
        equal = (a == b for a, b in zip(first, other, strict=False))
        first = first[: next((i for i, same in enumerate(equal) if not same), len(other))]
    above = tuple(layer.split("/")) if layer else ()
    if first[: len(above)] == above:
        return ((layer,) if layer else ()) + first[len(above) :]
    return (layer,)


def _node_data(facts: Facts, graph: Graph, units: Clustering, order: Ints) -> dict[str, Any]:
    """Nodes, those of a unit one after another."""
    records = facts.stream.get("node")
    turn = order.tolist()
    ops, op = _numbered(printable(graph.ops[v]) for v in turn)
    columns: dict[str, Any] = {
        "id": graph.node_ids[order].tolist(),
        "name": [printable(graph.node_names[v]) for v in turn],
        "op": op,
        "time": [_number(t) for t in _node_times(facts, graph, units)[order].tolist()],
    }
    for field in ("flop", "bytes"):
        if any(field in record for record in records):
            columns[field] = [_number(records[v].get(field, math.nan)) for v in turn]
    for field, (ptr, idx) in (
        ("reads", csr_rows(graph.in_ptr, graph.in_idx, order)),
        ("writes", csr_rows(graph.out_ptr, graph.out_idx, order)),
    ):
        columns[field] = {"count": np.diff(ptr).tolist(), "tensor": idx.tolist()}
    return {"nodes": columns, "ops": ops}


def _node_times(facts: Facts, graph: Graph, units: Clustering) -> Floats:
    """Compute of each node, f64[n]: a share of its group's by its own time; nan: not priced."""
    stage, label = facts.node_stages, units.label
    whole = [times for times in graph.times.values() if np.isfinite(times).all()]
    own = whole[0].copy() if whole else np.ones(graph.n)
    for number, part in enumerate(facts.parts):
        inside = stage == number
        own[inside] = graph.times.get(part.stage.device_class, own)[inside]
    sums = totals(label, own, units.g)[label]
    share = np.divide(own, sums, out=1.0 / np.bincount(label)[label], where=sums > 0)
    return facts.unit_times[label] * share


def _tensor_data(facts: Facts, graph: Graph) -> dict[str, Any]:
    records = facts.stream.get("tensor")
    types, of = _numbered(_type(record) for record in records)
    return {
        "tensors": {
            "name": [printable(name) for name in graph.tensor_names],
            "kind": graph.tensor_kind.tolist(),
            "size": [_number(size) for size in graph.tensor_bytes.tolist()],
            "type": of,
        },
        "types": types,
    }


def _type(record: Record) -> str:
    """Element type and dimensions of a tensor, as far as they are known."""
    shape = record.get("shape")
    dims = "" if shape is None else " x ".join(map(str, shape)) or "scalar"
    return " ".join(filter(None, (record.get("dtype", ""), dims)))


def _numbered(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """Different texts in order of first use, and the number of each."""
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), of


def _run_data(facts: Facts) -> dict[str, Any]:
    """Blocks of the schedule; of a plan for latency what each stage computes.

    `batch` is the micro-batch of a block, of a plan for latency the number of the stage.
    """
    rows: list[tuple[int, float, float, str, int, str, str]] = []
    record, names = facts.schedule, []
    passes = [] if record is None else record["passes"]
    for block in facts.stream.get("block")[:MOST_BLOCKS] if passes else ():
        one, batch = passes[block["pass"]], block["micro_batch"]
        fill, name = COLORS[one["kind"]], f"{batch}{MARKS[one['kind']]}"
        said = printable(f"{one['name']}, {one['kind']}, of micro-batch {batch}")
        times = block["start_s"], block["end_s"]
        rows += [(unit, *times, fill, batch, name, said) for unit in block["units"]]
    if record is not None:
        names = [printable(unit["name"]) for unit in record["units"]]
    elif facts.plan is not None and facts.plan.objective == "latency":
        for number, part in enumerate(facts.parts):
            names.append(f"stage {number} on {part.stage.device}")
            held = part.units.tolist() if part.stage.starts_s else []
            for i, (start, end) in enumerate(working(part)):
                name = facts.units.names[held[i]] if held and facts.units else part.layers
                fill, name = PALETTE[number % len(PALETTE)], printable(name)
                rows.append((number, start, end, fill, number, name, name))
    if not rows:
        return {}
    columns = ("row", "start", "end", "fill", "batch", "name", "said")
    data: dict[str, Any] = {c: [row[i] for row in rows] for i, c in enumerate(columns)}
    return data | {"rows": names, "scheduled": record is not None}


def _number(value: float | None) -> float | int | None:
    """A number of few digits; None: there is none."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
