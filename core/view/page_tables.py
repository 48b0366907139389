"""Tables of a page: what other programs get as CSV, with units in their heads."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import numpy as np

from dnnp.core.model.plan import status_words
from dnnp.core.model.text import counted, printable, shown_bytes, shown_share
from dnnp.core.view.facts import (
    GENERATES,
    Facts,
    generation_rows,
    layer_range,
    proof_lines,
    run_notes,
    way_rows,
)
from dnnp.core.view.tables import TIMED, Cell, Row, Table, cuts, runs, stages, tried

MOST_ROWS = 200
"""Rows of a table of stages or tensors."""
UNITS = {
    "_per_s": ((1.0, "1/s"),),
    "_s": ((1e6, "us"), (1e3, "ms"), (1.0, "s")),
    "_bytes": ((1.0, "B"), (1e-3, "kB"), (1e-6, "MB"), (1e-9, "GB"), (1e-12, "TB")),
    "_share": ((100.0, "%"),),
}
"""Ending of a column's name -> factors to its units; taken is that of the largest number."""
OF_STAGES = (
    "stage", "device", "layers", "nodes", "load_s", "compute_s", "memory_bytes", "capacity_bytes",
    "measured_s", "resident_bytes",
)  # fmt: skip
OF_METHODS = ("method", "value_s", "gap_share", "elapsed_s", "validity", "status", "reason")


def tables(facts: Facts) -> list[str]:
    """HTML of stages, methods, what moves, what is heavy, what was measured and is proven."""
    late = facts.plan is not None and facts.plan.objective == "latency"
    of_stages = [name for name in OF_STAGES if name != ("load_s" if late else "compute_s")]
    total = sum(cut.size_bytes for cut in facts.cuts)
    moving = [f"{counted(len(facts.cuts), 'tensor')}, {shown_bytes(total)}"] if facts.cuts else []
    ways = Table(("way", "value"), [*way_rows(facts)])
    said = [words for run in facts.runs for words in run_notes(run)]
    parts = [
        ("Stages", html_of(facts, stages(facts), of_stages), []),
        ("Methods", html_of(facts, _methods(facts), OF_METHODS), []),
        ("Ways to use the devices", html_of(facts, ways), []),
        ("What moves between stages", html_of(facts, cuts(facts)), moving),
        ("Heaviest", html_of(facts, _heaviest(facts)), []),
        ("Generating", html_of(facts, Table(GENERATES, [*generation_rows(facts)])), []),
        ("Measured", html_of(facts, runs(facts)), said),
    ]
    lines = []
    for title, table, said in parts:
        notes = (f"<p>{escape(printable(text))}</p>" for text in said)
        lines += [f"<h2>{title}</h2>", *table, *notes] if table else []
    if proof := "\n".join(map(escape, proof_lines(facts))):
        lines.append(f"<h2>Proven</h2><pre>{proof}</pre>")
    plan, made = facts.plan, " | ".join(step["tool"] for step in facts.stream.header["provenance"])
    said = [f"made by {made}"] if made else []
    if plan is not None:
        said.append(f"{plan.validity} plan for k = {plan.k}, {status_words(plan)}")
    return [*lines, f"<p>{escape(printable('; '.join(said)))}</p>"]


def _methods(facts: Facts) -> Table:
    """Plans that each method found, where several were tried."""
    found = tried(facts)
    compared = facts.plan is not None and facts.plan.tried
    header = tuple("gap_share" if name == "gap" else name for name in found.header)
    return Table(header, found.rows if compared else [])


def _heaviest(facts: Facts) -> Table:
    """The units that take the longest."""
    names = () if facts.units is None else facts.units.names
    rows: list[Row] = []
    for u, time, share in facts.heaviest(20):
        stage = int(facts.stage_of[u])
        rows.append((names[u], facts.layers[u], None if stage < 0 else stage, time, share))
    return Table(("name", "layer", "stage", "compute_s", "of_all_share"), rows)


def moved(facts: Facts, other: Facts) -> list[str]:
    """HTML of what is in another stage in the second plan of the same graph."""
    units, before, after = facts.units, facts.node_stages, other.node_stages
    if units is None:
        return []
    times = facts.unit_times[units.label] / np.bincount(units.label)[units.label]
    rows: list[Row] = []
    for a, b in sorted({*zip(before.tolist(), after.tolist(), strict=True)}):
        nodes = np.flatnonzero((before == a) & (after == b))
        layers = layer_range([facts.layers[u] for u in units.label[nodes].tolist()])
        if a != b:
            rows.append((a, b, len(nodes), layers, float(times[nodes].sum())))
    said = f"{shown_share(float((before != after).mean()))} of the operators are in a stage of "
    said += "another number in plan B; the graph shows them if coloured by what moved."
    table = Table(("stage_in_A", "stage_in_B", "operators", "layers", "compute_s"), rows)
    return [f"<p>{said}</p>", *html_of(facts, table)]


def html_of(facts: Facts, table: Table, wanted: Sequence[str] = ()) -> list[str]:
    """HTML of the columns in which something stands, of those `wanted`; empty: there are no rows.

    A click on a head sorts it.
    """
    rows, heads, bodies = table.rows[:MOST_ROWS], [], []
    for name in wanted or table.header:
        cells = [row[table.header.index(name)] for row in rows if name in table.header]
        if any(cell not in (None, "") for cell in cells):
            kind = ' class="left"' if any(isinstance(cell, str) for cell in cells) else ""
            head, texts = _in_one_unit(name, cells, facts.seconds)
            heads.append(f"<th{kind} scope=col>{escape(head)}</th>")
            bodies.append([_cell(t, c, kind) for t, c in zip(texts, cells, strict=True)])
    lines = [f"<tr>{''.join(row)}</tr>" for row in zip(*bodies, strict=True)]
    more = len(table.rows) > len(rows)
    return [
        '<div class="wide" tabindex="0"><table class="sorted">',  # the keyboard can scroll it
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>",
        *([f"<p>the first {MOST_ROWS} of {len(table.rows)}</p>"] if more else []),
    ] if lines else []  # fmt: skip


def _in_one_unit(name: str, cells: Sequence[Cell], seconds: bool) -> tuple[str, list[str]]:
    """Head and texts of a column.

    >>> _in_one_unit("load_s", [0.0015, 0.25, None], True)
    ('load (ms)', ['1.5', '250', '-'])
    >>> _in_one_unit("load_s", [3.0], False), _in_one_unit("op", ["Add"], True)
    (('load', ['3']), ('op', ['Add']))
    """
    ending = next((end for end in UNITS if name.endswith(end)), "")
    words = name.removesuffix(ending).replace("_", " ")
    if not ending or (name in TIMED and not seconds):
        return words, [_plain(cell) for cell in cells]
    numbers = [float(c) for c in cells if isinstance(c, int | float) and math.isfinite(c)]
    most, units = max(numbers, default=0.0), UNITS[ending]
    factor, unit = next((u for u in units if most * u[0] < 999.95), units[-1])
    scaled = [c * factor if isinstance(c, int | float) else c for c in cells]
    return f"{words} ({unit})", [_plain(cell) for cell in scaled]


def _plain(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else "-"
    return "-" if cell is None else str(cell)


def _cell(text: str, key: Cell, kind: str) -> str:
    value = f' data-value="{key!r}"' if isinstance(key, int | float) and math.isfinite(key) else ""
    # Long names may end a line after each of their parts.
    shown = re.sub("([/+_])", r"\1<wbr>", escape(printable(text)))
    return f"<td{kind}{value}>{shown if kind else escape(text)}</td>"
