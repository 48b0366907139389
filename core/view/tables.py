"""Tables of a stream for other programs: CSV, TSV, Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dnnp.core.model.device import own_times
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import Tried
from dnnp.core.model.text import did_you_mean, guarded, markdown, printable
from dnnp.core.view.facts import Facts, rule_words
from dnnp.formats.records import RECORDS

Cell = str | int | float | None
Row = Sequence[Cell]


class Table(NamedTuple):
    """Columns by name, and rows."""

    header: tuple[str, ...]
    rows: list[Row]


def plans(facts: Facts) -> Table:
    """The plan: what a comparison of methods is made of."""
    header = (
        "model", "nodes", "units", "objective", "k", "method", "validity", "status", "value_s",
        "bound_s", "time_unit", "gap", "elapsed_s", "stages", "balance", "cut_bytes",
        "memory_bytes", "memory_share", "measured_per_s", "tokens_per_s", "ttft_s", "tpot_s",
        "in_flight", "rules",
    )  # fmt: skip
    plan, graph, units = facts.plan, facts.graph, facts.units
    if plan is None or graph is None or units is None:
        return Table(header, [])
    row: Row = [
        facts.model, graph.n, units.g, plan.objective, plan.k, plan.method, plan.validity,
        plan.status, plan.value, plan.bound, facts.stream.header["units"]["time"],
        None if facts.blind else plan.gap,
        facts.solving_s, len(facts.parts), facts.balance,
        sum(cut.size_bytes * len(cut.targets) for cut in facts.cuts),
        max((part.stage.memory_bytes for part in facts.parts), default=0.0), facts.memory_share,
        facts.measured_per_s, plan.tokens_per_s, plan.ttft_s, plan.tpot_s, plan.options.in_flight,
        rule_words(facts),
    ]  # fmt: skip
    return Table(header, [row])


def tried(facts: Facts) -> Table:
    """A row for each method that was tried for the plan, or for its own."""
    header = (
        "model", "objective", "k", "method", "made_by", "validity", "status", "value_s", "bound_s",
        "time_unit", "gap", "elapsed_s", "reason", "rules",
    )  # fmt: skip
    plan = facts.plan
    if plan is None:
        return Table(header, [])
    found = plan.tried or (
        Tried(
            plan.method, plan.value, plan.bound, plan.gap, plan.validity, plan.status,
            time_s=facts.solving_s,
        ),
    )  # fmt: skip
    unit = facts.stream.header["units"]["time"]
    rows: list[Row] = []
    for one in found:
        proven = (None, None) if one.value is None else (one.bound, one.gap)
        gap = None if facts.blind else proven[1]
        rows.append([
            facts.model, plan.objective, plan.k, one.method, one.made_by, one.validity,
            one.status, one.value, proven[0], unit, gap, one.time_s, one.reason,
            rule_words(facts),
        ])  # fmt: skip
    return Table(header, rows)


def stages(facts: Facts) -> Table:
    """A row a stage."""
    header = (
        "stage", "device", "replicas", "nodes", "units", "layers", "load_s", "in_s", "compute_s",
        "overflow_s", "out_s", "sync_s", "forward_s", "backward_s", "begin_s", "end_s",
        "memory_bytes", "capacity_bytes", "measured_s", "shards", "recomputed", "in_flight",
        "begins_at", "shared", "resident_bytes", "cache_bytes",
    )  # fmt: skip
    rows: list[Row] = []
    for number, part in enumerate(facts.parts):
        stage = part.stage
        names = [facts.layers[u] for u in part.units if facts.layers[u]]
        limit = part.capacity_bytes if math.isfinite(part.capacity_bytes) else None
        rows.append([
            number, stage.device, stage.replicas, len(stage.nodes), len(part.units),
            part.layers, stage.load_s, stage.in_s, stage.compute_s, stage.overflow_s,
            stage.out_s, stage.sync_s, stage.forward_s, stage.backward_s, stage.begin_s,
            stage.end_s, stage.memory_bytes, limit, part.measured_s,
            stage.shards, len(stage.recomputed), stage.in_flight, names[0] if names else None,
            int(stage.shared), part.resident_bytes, part.cache_bytes,
        ])  # fmt: skip
    return Table(header, rows)


def nodes(facts: Facts) -> Table:
    """A row a node, with the unit and the stage that it is in."""
    header = (
        "node", "name", "op", "layer", "backward", "unit", "stage", "device", "flop", "bytes",
        "time_s", "memory_bytes",
    )  # fmt: skip
    graph, units = facts.graph, facts.units
    if graph is None or units is None:
        return Table(header, [])
    own = {} if facts.plan is None else own_times(facts.plan.devices)
    records, label, of = facts.stream.get("node"), units.label.tolist(), facts.stage_of.tolist()
    rows: list[Row] = []
    for v, record in enumerate(records):
        unit = label[v]
        part = facts.parts[of[unit]] if of[unit] >= 0 else None
        times = record.get("time_s", {})
        name = part.stage.device_class if part else next(iter(sorted(times)), "")
        name, speed = own.get(name, (name, 1.0))
        rows.append([
            record["id"], record["name"], record["op"], facts.layers[unit],
            int(record.get("backward", False)), int(units.group_ids[unit]),
            None if part is None else of[unit], None if part is None else part.stage.device,
            record.get("flop"), record.get("bytes"),
            times[name] / speed if name in times else None,
            record.get("memory_bytes"),
        ])  # fmt: skip
    return Table(header, rows)


def cuts(facts: Facts) -> Table:
    """A row a tensor that moves between stages."""
    header = ("tensor", "name", "from", "to", "size_bytes")
    graph = facts.graph
    if graph is None:
        return Table(header, [])
    ids, names = graph.tensor_ids.tolist(), graph.tensor_names
    rows: list[Row] = [
        (ids[c.tensor], names[c.tensor], c.source, " ".join(map(str, c.targets)), c.size_bytes)
        for c in facts.cuts
    ]
    return Table(header, rows)


def bounds(facts: Facts) -> Table:
    """A row an argument that was tried for the bound."""
    header = ("method", "status", "value_s", "gap", "elapsed_s", "reason")
    value = facts.plan.value if facts.plan else 0.0
    rows: list[Row] = []
    for entry in facts.bound["tried"] if facts.bound else ():
        found = entry.get("value")
        gap = None if found is None or not value > 0 else max(1 - found / value, 0.0)
        gap = None if facts.blind else gap
        rows.append(
            [entry["method"], entry["status"], found, gap, entry.get("time_s"), entry.get("reason")]
        )
    return Table(header, rows)


def runs(facts: Facts) -> Table:
    """A row a run; of a sweep, a row a rate."""
    header = (
        "run", "mode", "provider", "k", "samples", "rate_per_s", "throughput_per_s",
        "latency_p50_s", "latency_p99_s", "saturated", "bubble", "verified", "max_abs_error",
    )  # fmt: skip
    rows: list[Row] = []
    for number, run in enumerate(facts.runs):
        arrivals = run.get("sweep", {}).get("rates") or [run.get("arrivals", {})]
        for rate in arrivals:
            found = {**run, **rate, "run": number}
            rows.append([found.get(name) for name in header])
    return Table(header, rows)


def generation(facts: Facts) -> Table:
    """A row a run that generated."""
    header = tuple(name for name in RECORDS["generation"] if name != "digest")
    rows: list[Row] = [[r.get(n) for n in header] for r in facts.stream.get("generation")]
    return Table(header, rows)


def schedule(facts: Facts) -> Table:
    """A row a block of the schedule on each of its units."""
    header = ("unit", "pass", "kind", "stage", "micro_batch", "start_s", "end_s")
    record = facts.schedule
    if record is None:
        return Table(header, [])
    rows: list[Row] = []
    for block in facts.stream.get("block"):
        one = record["passes"][block["pass"]]
        what = one["name"], one["kind"], one.get("stage"), block["micro_batch"]
        times = block["start_s"], block["end_s"]
        rows += [(record["units"][unit]["name"], *what, *times) for unit in block["units"]]
    return Table(header, rows)


TIMED = frozenset(
    f"{name}_s"
    for name in (
        "load", "in", "compute", "overflow", "out", "sync", "forward", "backward", "begin", "start",
        "end", "time", "value", "bound",
    )
)  # fmt: skip
"""Columns in the unit of the stream's times; where that is not known, their names tell none."""

TABLES: dict[str, Callable[[Facts], Table]] = {
    "stages": stages,
    "nodes": nodes,
    "cuts": cuts,
    "bounds": bounds,
    "runs": runs,
    "generation": generation,
    "schedule": schedule,
    "plans": plans,
    "tried": tried,
}
"""Tables by name."""


def table_of(
    streams: Sequence[Facts],
    name: str,
    columns: Sequence[str] | None = None,
    digits: int | None = None,
) -> Table:
    """A table; with several streams each row begins with the file.

    Parameters
    ----------
    columns
        Those to show; None: all.
    digits
        Significant digits to which numbers are rounded; None: exact.

    Raises UsageError: a column that the table does not have.
    """
    found = [TABLES[name](facts) for facts in streams]
    header, rows = found[0].header, [row for table in found for row in table.rows]
    if not all(facts.seconds for facts in streams):
        header = tuple(name.removesuffix("_s") if name in TIMED else name for name in header)
    if len(streams) > 1:
        header = ("file", *header)
        rows = [
            [facts.stream.name, *row]
            for facts, table in zip(streams, found, strict=True)
            for row in table.rows
        ]
    for column in columns or ():
        if column not in header:
            hint = did_you_mean(column, header) or f"; there are {', '.join(header)}"
            raise UsageError(f"--columns {column}: no column of {name}{hint}")
    if columns is not None:
        at = [header.index(column) for column in columns]
        header, rows = tuple(columns), [[row[i] for i in at] for row in rows]
    if digits is not None:
        rows = [[_rounded(cell, digits) for cell in row] for row in rows]
    return Table(header, rows)


def _rounded(cell: Cell, digits: int) -> Cell:
    """A number with some significant digits; what is none stays."""
    return float(f"{cell:.{digits}g}") if isinstance(cell, float) else cell


def draw(table: Table, form: str, raw: bool = False) -> bytes:
    """A table as `csv`, `tsv` or `md`.

    `raw`: texts that would be formulas, HTML or links where the table is opened stay as they are.
    """
    safe = _SAFE[form, raw]
    rows = [[_shown(cell, safe) for cell in row] for row in table.rows]
    return WRITERS[form](table.header, rows).encode()


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """RFC 4180, with line feeds."""
    lines = [header, *(map(_quoted, row) for row in rows)]
    return "".join(",".join(line) + "\n" for line in lines)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text


def _tsv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(line) + "\n" for line in (header, *rows))


def _md(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


WRITERS = {"csv": _csv, "tsv": _tsv, "md": _md}
_SAFE: dict[tuple[str, bool], Callable[[str], str]] = {
    ("csv", False): guarded, ("tsv", False): guarded, ("md", False): markdown,
    ("csv", True): str, ("tsv", True): str, ("md", True): lambda text: text.replace("|", "\\|"),
}  # fmt: skip
"""Functions that make a text harmless where a table is opened; for raw texts, keep the columns."""


def _shown(cell: Cell, safe: Callable[[str], str]) -> str:
    """Text without control characters, and safe; numbers so that they are read as they are."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(int(cell))
    return safe(printable(cell)) if isinstance(cell, str) else repr(cell)
