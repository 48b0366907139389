"""A plan as one page for browsers, which needs nothing but itself.

Summary and tables are plain HTML; a script draws the graph and the schedule from data in the page.
Its policy for contents forbids everything that would come from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import orjson

from dnnp.core.model.graph import PARAMETER, Clustering, Graph
from dnnp.core.model.plan import OBJECTIVES, status_words
from dnnp.core.model.text import counted, printable, shown_bytes, shown_share, shown_time
from dnnp.core.view.drawing import COLORS, MARKS, PALETTE, schedule_words
from dnnp.core.view.facts import (
    LOADS,
    METHODS,
    OVERLAP,
    Facts,
    Part,
    advice,
    amount,
    bar_bound,
    lacking,
    longest_bar,
    method_rows,
    parts_overlap,
    proof_lines,
    shared_words,
    shown_rate,
    used_loads,
    way_rows,
    working,
)
from dnnp.core.view.layout import Box, boxes_of, edges_of, heaviest, lay_out, levels_of
from dnnp.core.view.svg import FILLS
from dnnp.core.view.tables import runs
from dnnp.formats.stream import Record

MOST_BOXES, MOST_EDGES, MOST_INSIDE = 240, 3000, 4000
"""Boxes of the graph at first, and lines between them; units of a box that have places of their
own."""
MOST_NODES, MOST_BLOCKS = 120_000, 20_000
"""Nodes, and blocks of a schedule, that a page holds."""
ACROSS = 7
"""Fewest isolated units of a box side by side."""
DIGITS = 6
"""Significant digits of times and sizes in the data."""


def page_data(facts: Facts) -> dict[str, Any]:
    """Data of the page, without parts that are too large or absent."""
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


FILES = ("board.js", "page.js", "page.css")
"""Files of a page besides data, beside this file: scripts in their order, and the style."""
MOST_ROWS = 200
"""Rows of a table of stages or tensors."""


def draw(facts: Facts, script: str, style: str) -> bytes:
    """The page.

    `script, style`: what `FILES` hold.
    """
    data = page_data(facts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    # A name in the data must not end the element that it is in.
    held = orjson.dumps(data).decode().replace("<", "\\u003c")
    title = escape(printable(facts.model))
    body = [
        f"<header><h1>{title}</h1><button id=theme type=button>dark or light</button></header>",
        *_summary(facts),
        *_compared(facts),
        *_stages(facts),
        *_graph(facts, data),
        *_runs(facts, data),
        *_tables(facts),
    ]
    page = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{style}</style></head><body>",
        *body,
        '<div id="tip" role="presentation"></div>',
        '<div id="said" class="hidden" aria-live="polite"></div>',
        f'<script type="application/json" id="data">{held}</script>',
        f"<script>{script}</script></body></html>\n",
    ]
    return "\n".join(page).encode()


def _summary(facts: Facts) -> list[str]:
    """Summarise graph and plan in a few numbers."""
    pairs: list[tuple[str, str]] = []
    graph, plan = facts.graph, facts.plan
    if plan is not None:
        pairs.append((OBJECTIVES[plan.objective], shown_time(plan.value, facts.seconds)))
        if facts.seconds and plan.objective != "latency":
            pairs.append(("rate", shown_rate(plan.value)))
        pairs += [
            ("bound", shown_time(plan.bound, facts.seconds)),
            ("gap", facts.shown_gap(plan.gap)),
            ("status", status_words(plan)),
            ("validity", plan.validity),
            ("method", plan.method),
            ("stages", str(len(facts.parts))),
            ("accelerators (k)", str(plan.k)),
        ]
        if facts.measured_per_s is not None:
            pairs.append(("measured", f"{facts.measured_per_s:.4g}/s"))
    if graph is not None and facts.units is not None:
        pairs.append(("nodes", str(graph.n)))
        if facts.units.g != graph.n:
            pairs.append(("groups", str(facts.units.g)))
        weights = float(graph.tensor_bytes[graph.tensor_kind == PARAMETER].sum())
        pairs.append(("parameters", shown_bytes(weights)))
    rows = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(printable(value))}</dd></div>"
        for name, value in pairs
    ]
    lines = ["<dl>", *rows, "</dl>"]
    lines += [f"<p>{escape(words)} on every device</p>" for words in shared_words(facts)]
    if plan is not None and plan.excess_bytes:
        lines.append(f'<p class="fault">{escape(lacking(plan.excess_bytes))}</p>')
    made = " | ".join(step["tool"] for step in facts.stream.header["provenance"])
    return [*lines, f"<p>made by {escape(printable(made))}</p>"] if made else lines


def _compared(facts: Facts) -> list[str]:
    """Other methods, and other ways to use the devices."""
    lines: list[str] = []
    methods, ways = method_rows(facts), way_rows(facts)
    if methods:
        header, left = [*METHODS[:-2], "status", "reason"], (0, 4, 5)
        if not any(row[-1] for row in methods):
            header, methods = header[:-1], [row[:-1] for row in methods]
        lines += ["<h2>Methods</h2>", *_table(header, [_row(row, left) for row in methods], left)]
    if ways:
        rows = [_row(row, (0,)) for row in ways]
        lines += ["<h2>Ways to use the devices</h2>", *_table(("way", "value"), rows, (0,))]
    return lines


def _stages(facts: Facts) -> list[str]:
    """A row a stage, with a bar of its load."""
    plan = facts.plan
    if plan is None:
        return []
    late = plan.objective == "latency"
    scale, bound = longest_bar(facts.parts), bar_bound(plan, facts.parts)
    header = ["stage", "device", "layers", "nodes", "compute" if late else "load"]
    header += [] if late else [""]
    header += ["memory", "of its device"]
    ran = any(part.measured_s is not None for part in facts.parts)
    header += ["measured", "ratio", "resident"] if ran else []
    rows = []
    for number, part in enumerate(facts.parts[:MOST_ROWS]):
        stage = part.stage
        time = stage.compute_s if late else stage.load_s
        share = stage.memory_bytes / part.capacity_bytes if part.capacity_bytes > 0 else math.inf
        cells = [
            _cell(str(number), number, left=True),
            _cell(stage.where, left=True),
            _cell(part.layers or "-", left=True),
            _cell(str(len(stage.nodes)), len(stage.nodes)),
            _cell(shown_time(time, facts.seconds), time),
        ]
        if not late:
            cells.append(f"<td>{_bar(facts, part, scale, bound)}</td>")
        cells += [
            _cell(shown_bytes(stage.memory_bytes), stage.memory_bytes),
            _cell(shown_share(share) if math.isfinite(part.capacity_bytes) else "-", share),
        ]
        cells += _ratio(part) if ran else []
        rows.append(f"<tr>{''.join(cells)}</tr>")
    lines = ["<h2>Stages</h2>", *_table(header, rows, range(3), sortable=True)]
    if len(facts.parts) > MOST_ROWS:
        lines.append(f"<p>the first {MOST_ROWS} of {len(facts.parts)} stages</p>")
    if not late:
        notes = ["the dashed line is the proven bound"] if bound is not None else []
        notes += [OVERLAP] if parts_overlap(facts.parts) else []
        keys = _keys({name: FILLS[name] for name in used_loads(facts.parts)})
        lines.append(f"<p>{keys} {'; '.join(notes)}</p>")
    return lines


def _keys(colors: Mapping[str, str]) -> str:
    """Legend of colours."""
    return " ".join(
        f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )


def _ratio(part: Part) -> list[str]:
    """Cells of a stage's measured time, ratio to the predicted one, and memory."""
    found, load = part.measured_s, part.stage.load_s
    if found is None:
        return [_cell("-", 0.0)] * 3
    ratio, held = found / load if load > 0 else math.inf, part.resident_bytes
    text = f"{ratio:.2f}" if math.isfinite(ratio) else "-"
    cells = [_cell(shown_time(found, True), found), _cell(text, ratio)]
    return [*cells, _cell("-", 0.0) if held is None else _cell(shown_bytes(held), held)]


def _bar(facts: Facts, part: Part, scale: float, bound: float | None) -> str:
    """Bar of the parts of a stage's load."""
    pieces, said = [], []
    for name in LOADS:
        found = amount(part.stage, name)
        if found > 0:
            said.append(f"{name} {shown_time(found, facts.seconds)}")
            wide = 100 * found / scale
            pieces.append(f'<i style="width:{wide:.3f}%;background:{FILLS[name]}"></i>')
    if bound is not None:
        pieces.append(f'<b style="left:{min(100 * bound / scale, 100.0):.3f}%"></b>')
    text = escape(", ".join(said))
    return f'<div class="bar" role="img" aria-label="{text}" title="{text}">{"".join(pieces)}</div>'


def _graph(facts: Facts, data: dict[str, Any]) -> list[str]:
    """HTML of the graph."""
    if "boxes" not in data:
        if facts.graph is None:
            return []
        return [f"<p>the graph is too large for a page: {facts.graph.n} nodes</p>"]
    return [
        "<h2>Graph</h2>",
        '<div class="tools"><input id="search" type="search" placeholder="node or operator" '
        'aria-label="search for a node by name or operator">'
        f"{_buttons('graph')}<button id=back type=button hidden>back to the whole</button></div>",
        '<div id="found" role="list" aria-label="nodes found"></div>',
        '<p id="where" aria-live="polite"></p>',
        '<canvas id="graph" role="img" aria-label="the graph: arrows move it, + and - enlarge it, '
        'n and p go from box to box, Enter opens one, Escape closes it"></canvas>',
        "<p>Colours and numbers are stages; the width of a line is what moves. Drag to move; click "
        "on a box to open it; the wheel enlarges after a click, or with Ctrl.</p>",
    ]


def _buttons(of: str) -> str:
    names = (("in", "+", "enlarge"), ("out", "-", "make smaller"), ("fit", "fit", "show all"))
    return "".join(
        f'<button type=button data-zoom="{how}" data-of="{of}" aria-label="{said}">{text}</button>'
        for how, text, said in names
    )


def _runs(facts: Facts, data: dict[str, Any]) -> list[str]:
    """HTML of the timeline."""
    if "runs" not in data:
        return []
    record = facts.schedule
    title, text = "When stages work", "one sample, from left to right"
    keys = ""
    if record is not None:
        title = "Schedule"
        text = schedule_words(record, facts.seconds)
        if len(facts.stream.get("block")) > MOST_BLOCKS:
            text += f"; the first {MOST_BLOCKS} blocks"
        held = {one["kind"] for one in record["passes"]}
        keys = _keys({kind: color for kind, color in COLORS.items() if kind in held})
    high = 44 * len(data["runs"]["rows"]) + 24
    return [
        f"<h2>{title}</h2><p>{escape(printable(text))} {keys}</p>",
        f'<div class="tools">{_buttons("runs")}</div>',
        f'<canvas id="runs" role="img" style="height:min({high}px,75vh)" '
        f'aria-label="{escape(title)}: {escape(printable(text))}"></canvas>',
    ]


def _tables(facts: Facts) -> list[str]:
    """Tables of what moves, what is heavy, what was measured and what is proven."""
    lines: list[str] = []
    graph, units = facts.graph, facts.units
    if graph is not None and facts.cuts:
        rows = [
            f"<tr>{_cell(graph.tensor_names[cut.tensor], left=True)}"
            f"{_cell(str(cut.source), cut.source)}{_cell(', '.join(map(str, cut.targets)))}"
            f"{_cell(shown_bytes(cut.size_bytes), cut.size_bytes)}</tr>"
            for cut in facts.cuts[:MOST_ROWS]
        ]
        total = sum(cut.size_bytes for cut in facts.cuts)
        text = f"{counted(len(facts.cuts), 'tensor')}, {shown_bytes(total)}"
        text += f"; the {MOST_ROWS} largest" if len(facts.cuts) > MOST_ROWS else ""
        lines += ["<h2>What moves between stages</h2>", f"<p>{text}</p>"]
        lines += _table(["tensor", "from", "to", "size"], rows, (0,), sortable=True)
    if units is not None and (heaviest := facts.heaviest(20)):
        rows = [
            f"<tr>{_cell(units.names[u], left=True)}{_cell(facts.layers[u], left=True)}"
            f"{_cell('' if facts.stage_of[u] < 0 else str(facts.stage_of[u]))}"
            f"{_cell(shown_time(time, facts.seconds), time)}{_cell(shown_share(share), time)}</tr>"
            for u, time, share in heaviest
        ]
        lines += ["<h2>Heaviest</h2>"]
        lines += _table(["unit", "layer", "stage", "compute", "share"], rows, (0, 1), sortable=True)
    if facts.runs:
        lines += ["<h2>Measured</h2>", *_measured(facts)]
    proof = proof_lines(facts)
    if proof:
        shown = "\n".join(escape(line) for line in proof)
        lines += ["<h2>Proven</h2>", f"<pre>{shown}</pre>"]
    return lines


def _measured(facts: Facts) -> list[str]:
    """A row a run, and a rate of a sweep; only columns in which something stands."""
    header, rows = runs(facts)
    shown = [i for i in range(len(header)) if any(row[i] is not None for row in rows)]
    cells = [_row([_plain(row[i]) for i in shown], range(3)) for row in rows]
    lines = _table([header[i] for i in shown], cells, range(3))
    said = filter(None, map(advice, facts.runs))
    return lines + [f"<p>{escape(printable(text))}</p>" for text in said]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _row(texts: Sequence[str], left: Collection[int]) -> str:
    """A row of a table."""
    return f"<tr>{''.join(_cell(text, left=i in left) for i, text in enumerate(texts))}</tr>"


def _cell(text: str, key: float | None = None, left: bool = False) -> str:
    value = "" if key is None or not math.isfinite(key) else f' data-value="{key!r}"'
    shown = escape(printable(text))
    if not left:
        return f"<td{value}>{shown}</td>"
    parts = _PARTS.sub(r"\1<wbr>", shown)
    return f'<td class="left"{value}>{parts}</td>'


_PARTS = re.compile("([/+_])")
"""Ends of parts of names, where lines may end."""


def _table(
    header: Sequence[str], rows: Sequence[str], left: Collection[int], sortable: bool = False
) -> list[str]:
    """A table; its columns `left` are texts."""
    heads = [
        f"<th{' class=left' if i in left else ''} scope=col>{escape(name)}</th>"
        for i, name in enumerate(header)
    ]
    kind = ' class="sorted"' if sortable else ""
    return [
        f'<div class="wide" tabindex="0"><table{kind}>',  # the keyboard alone can scroll it, too
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>",
        *rows,
        "</tbody></table></div>",
    ]
