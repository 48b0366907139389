"""What the script of a page draws: the graph in boxes with their places, and when things run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import Graph
from dnnp.core.model.text import counted, printable
from dnnp.core.view.drawing import PALETTE
from dnnp.core.view.facts import Facts, working
from dnnp.core.view.gantt import COLORS, MARKS
from dnnp.core.view.layout import Box, boxes_of, edges_of, heaviest, lay_out, levels_of
from dnnp.formats.stream import Record

MOST_BOXES, MOST_EDGES, MOST_INSIDE = 240, 3000, 4000
"""Boxes of the graph at first, and lines between them; units of a box that have places of their
own."""
MOST_NODES, MOST_BLOCKS = 120_000, 20_000
"""Nodes, and blocks of a schedule, that a page holds."""
ACROSS = 7
"""Units of a box side by side, at least, of those that no edge joins to others in it."""
DIGITS = 6
"""Of times and sizes in the data."""


def page_data(facts: Facts) -> dict[str, Any]:
    """All of it; what is too large, or what the stream does not hold, is left out."""
    data: dict[str, Any] = {
        "seconds": facts.seconds,
        "palette": PALETTE,
        "stages": [part.stage.device for part in facts.parts],
        "layers": [],
        "nodes": {"name": [], "op": [], "unit": []},
    }
    graph, units, whole = facts.graph, facts.units, facts.unit_graph
    if graph is not None and units is not None and whole is not None and graph.n <= MOST_NODES:
        data |= _graph_data(facts, graph, units, whole)
    runs = _run_data(facts)
    return data | ({"runs": runs} if runs else {})


def _graph_data(facts: Facts, graph: Graph, units: Clustering, whole: Graph) -> dict[str, Any]:
    """Nodes, units, boxes of units and places of all, in columns; `whole` is the graph of units."""
    layers = list(dict.fromkeys(facts.layers))
    number = {name: i for i, name in enumerate(layers)}
    boxes, what = boxes_of(facts, MOST_BOXES)
    level = levels_of(whole)
    owner = np.full(whole.n, -1, dtype=np.int64)
    x, y = np.zeros(whole.n), np.zeros(whole.n, dtype=np.int64)
    for i, one in enumerate(boxes):
        owner[one.units] = i
        x[one.units], y[one.units] = _inside(whole, one, level.tolist())
    every = edges_of(whole, owner)
    edges = heaviest(every, MOST_EDGES)
    places = lay_out([float(level[one.units].mean()) for one in boxes], every)
    records = facts.stream.get("group") or facts.stream.get("node")
    columns: dict[str, Any] = {
        "time": [_number(t) for t in facts.unit_times.tolist()],
        "stage": facts.stage_of.tolist(),
        "layer": [number[name] for name in facts.layers],
        "box": owner.tolist(),
        "x": [_number(v) for v in x.tolist()],
        "y": y.tolist(),
    }
    if any("flop" in record or "bytes" in record for record in records):
        columns["flop"] = [_number(r.get("flop", math.nan)) for r in records]
        columns["bytes"] = [_number(r.get("bytes", 0.0)) for r in records]
    if facts.stream.get("group"):
        columns["name"] = [printable(name) for name in units.names]
    own = edges_of(whole, np.arange(whole.n))
    said = counted(whole.n, "unit")
    if what != "unit":
        said += f" in {len(boxes)} boxes, each a {what} of one stage; a click opens a box"
    if len(edges) < len(every):
        said += f"; the {len(edges)} of {len(every)} lines that carry the most"
    return {
        "layers": [printable(name) for name in layers],
        "nodes": {
            "name": [printable(name) for name in graph.node_names],
            "op": [printable(op) for op in graph.ops],
            "unit": units.label.tolist(),
        },
        "units": columns,
        "unit_edges": _columns(own),
        "boxes": {
            "name": [printable(one.name) for one in boxes],
            "units": [one.units for one in boxes],
            "stage": [one.stage for one in boxes],
            "time": [_number(one.time) for one in boxes],
            "x": [_number(v) for v in places.x],
            "y": places.y,
        },
        "edges": _columns(edges),
        "said": said,
    }


def _inside(whole: Graph, one: Box, level: list[int]) -> tuple[list[float], list[int]]:
    """Places of the units of a box, when it is open."""
    if len(one.units) == 1:
        return [0.0], [0]
    if len(one.units) > MOST_INSIDE:
        side = math.ceil(math.sqrt(len(one.units)))
        return (
            [float(i % side) for i in range(len(one.units))],
            [i // side for i in range(len(one.units))],
        )
    place = {u: i for i, u in enumerate(one.units)}
    edges = {
        (i, place[v]): 0.0
        for u, i in place.items()
        for t in whole.writes(u).tolist()
        for v in whole.readers(t).tolist()
        if v in place and v != u
    }
    joined = sorted({i for edge in edges for i in edge})
    number = {i: n for n, i in enumerate(joined)}
    found = lay_out(
        [float(level[one.units[i]]) for i in joined],
        {(number[a], number[b]): size for (a, b), size in edges.items()},
    )
    # What nothing leads to or from stands below the others, as many in a row as they need.
    across = max(math.ceil(found.columns), ACROSS)
    alone = [i for i in range(len(one.units)) if i not in number]
    places = dict(zip(joined, zip(found.x, found.y, strict=True), strict=True))
    places |= {i: (n % across, found.rows + n // across) for n, i in enumerate(alone)}
    xs, ys = zip(*(places[i] for i in range(len(one.units))), strict=True)
    return list(xs), list(ys)


def _columns(edges: dict[tuple[int, int], float]) -> list[list[Any]]:
    return [
        [a for a, _ in edges],
        [b for _, b in edges],
        [_number(size) for size in edges.values()],
    ]


def _run_data(facts: Facts) -> dict[str, Any]:
    """Blocks of the schedule; of a plan for latency what each stage computes."""
    rows: list[tuple[int, float, float, str, str, str]] = []
    record = facts.schedule
    if record is not None:
        for block in facts.stream.get("block")[:MOST_BLOCKS]:
            rows += _block_rows(record, block)
        names = [printable(unit["name"]) for unit in record["units"]]
    elif facts.plan is not None and facts.plan.objective == "latency":
        names = []
        for number, part in enumerate(facts.parts):
            names.append(f"{number}  {part.stage.device}")
            held = part.units.tolist() if part.stage.starts_s else []
            for i, (start, end) in enumerate(working(part)):
                name = facts.units.names[held[i]] if held and facts.units else part.layers
                fill = PALETTE[number % len(PALETTE)]
                rows.append((number, start, end, fill, printable(name), printable(name)))
    if not rows:
        return {}
    columns = ("row", "start", "end", "fill", "name", "said")
    return {"rows": names} | {c: [row[i] for row in rows] for i, c in enumerate(columns)}


def _block_rows(record: Record, block: Record) -> list[tuple[int, float, float, str, str, str]]:
    one = record["passes"][block["pass"]]
    name = f"{block['micro_batch']}{MARKS[one['kind']]}"
    said = f"{one['name']}, {one['kind']}, of micro-batch {block['micro_batch']}"
    return [
        (unit, block["start_s"], block["end_s"], COLORS[one["kind"]], name, printable(said))
        for unit in block["units"]
    ]


def _number(value: float) -> float | int | None:
    """A number of few digits; None: there is none."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
