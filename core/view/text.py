"""A stream as text: what a person wants to know of a plan, on a terminal."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from dnnp.core.model.graph import INPUT, PARAMETER
from dnnp.core.model.plan import OBJECTIVES, Stage, contiguous_words, status_words
from dnnp.core.model.text import counted, printable, shown_bytes, shown_share, shown_time, table
from dnnp.core.view.drawing import text_chart
from dnnp.core.view.facts import (
    GENERATES,
    LOADS,
    METHODS,
    OVERLAP,
    Facts,
    Page,
    Part,
    amount,
    bar_bound,
    generation_rows,
    lacking,
    longest_bar,
    method_rows,
    most_loaded,
    parts_overlap,
    plan_notes,
    proof_lines,
    run_notes,
    shared_words,
    shortened,
    used_loads,
    verdict_words,
    way_rows,
    working,
)
from dnnp.formats.spread import unknown_words
from dnnp.formats.stream import Record

FILLS = {"in": "░", "compute": "█", "overflow": "▓", "out": "▒", "sync": "≈"}
PLAIN_FILLS = {"in": "<", "compute": "#", "overflow": "!", "out": ">", "sync": "~"}
TIMES = {False: ("█", "─"), True: ("#", "-")}
"""Marks of computing, and of all else of a stage's time; with ASCII alone."""
TINTS = {"░": 36, "█": 34, "▓": 31, "▒": 33, "≈": 35, "─": 36}
"""Colours of marks on a terminal, by their numbers there."""
LEAST_BAR = 12
"""Columns of a bar, at least."""
LAYERS, FEWER = 36, 24
"""Most columns of layers, beside a bar, and beside a timeline or with caches."""


def load_lines(facts: Facts, page: Page) -> list[str]:
    """A line a stage, with a bar of what its load is made of."""
    if facts.plan is None or facts.plan.objective == "latency":
        return []
    fills = PLAIN_FILLS if page.plain else FILLS
    scale, bound = longest_bar(facts.parts), bar_bound(facts.plan, facts.parts)
    shown = most_loaded(facts.parts, page.most(len(facts.parts)))
    caches = any(part.cache_bytes for part in facts.parts)
    rows = []
    for number in shown:
        part = facts.parts[number]
        cells = _row(facts, number, part.stage.load_s, FEWER if caches else LAYERS)
        cache = [shown_bytes(part.cache_bytes)] * caches
        rows.append([*cells, part.memory_share, *cache])
    head = ["stage", "device", "layers", "load", "memory", "", *["cache"] * caches]
    lines = table(head, rows, left=(0, 1, 2))
    wide = max(map(len, lines))
    columns = max(page.width - wide - 3, LEAST_BAR)
    at = None if bound is None else min(round(columns * bound / scale), columns)
    bars = [_bar(facts.parts[number].stage, scale, columns, fills) for number in shown]
    if at is not None:
        bars = [f"{bar[:at].ljust(at)}|{bar[at:]}" for bar in bars]
    lines = [
        f"{line.ljust(wide)}  {bar}".rstrip() for line, bar in zip(lines, ["", *bars], strict=True)
    ]
    left_out = len(facts.parts) - len(shown)
    if left_out:
        lines.append(f"and {left_out} more with smaller loads (-v)")
    lines += [f"{words} on every device" for words in shared_words(facts)]
    legend = [f"{fills[name]} {name}" for name in used_loads(facts.parts)]
    lines.append("bars: " + "  ".join(legend if at is None else [*legend, "| bound"]))
    return [*lines, OVERLAP] if parts_overlap(facts.parts) else lines


def tinted(text: str) -> str:
    """Colour the bars of a text for a terminal; the marks alone say the same."""
    return re.sub(
        "|".join(f"{mark}+" for mark in TINTS),
        lambda match: f"\x1b[{TINTS[match[0][0]]}m{match[0]}\x1b[0m",
        text,
    )


def _row(facts: Facts, number: int, time: float, most: int) -> list[str]:
    """Cells of a stage: number, devices, layers in `most` columns, a time, memory."""
    part = facts.parts[number]
    layers = part.layers or counted(len(part.stage.nodes), "node")
    took, held = shown_time(time, facts.seconds), shown_bytes(part.stage.memory_bytes)
    return [str(number), part.stage.where, shortened(layers, most), took, held]


def _bar(stage: Stage, scale: float, columns: int, fills: dict[str, str]) -> str:
    """A bar of parts as long as they take; what takes little is not shown longer than it is."""
    bar, done = "", 0.0
    for name in LOADS:
        done += amount(stage, name)
        end = round(columns * done / scale)
        bar += fills[name] * (end - len(bar))
    return bar


def timeline(facts: Facts, page: Page) -> list[str]:
    """For latency: when each stage works, from left to right."""
    plan = facts.plan
    if plan is None or plan.objective != "latency" or plan.value <= 0:
        return []
    shown = most_loaded(facts.parts, page.most(len(facts.parts)))
    rows = [_row(facts, n, facts.parts[n].stage.compute_s, FEWER) for n in shown]
    head, *lines = table(["stage", "device", "layers", "compute", "memory"], rows, left=(0, 1, 2))
    wide = max(map(len, [head, *lines]))
    columns = max(page.width - wide - 3, LEAST_BAR)
    cells = [_cells(facts.parts[number], plan.value, columns, page) for number in shown]
    lines = [f"{line.ljust(wide)} |{cell}|" for line, cell in zip(lines, cells, strict=True)]
    left_out = len(facts.parts) - len(shown)
    if left_out:
        lines.append(f"and {left_out} more with smaller loads (-v)")
    busy, waits = TIMES[page.plain]
    end = shown_time(plan.value, facts.seconds)
    return [head, *lines, f"from 0 to {end}: {busy} computes  {waits} receives, sends or waits"]


def _cells(part: Part, end: float, columns: int, page: Page) -> str:
    """Cells of a stage from 0 to `end`; what is short takes one column."""
    busy, waits = TIMES[page.plain]
    cells = [" "] * columns

    def fill(start: float, stop: float, mark: str) -> None:
        first = min(int(start / end * columns), columns - 1)
        last = min(max(math.ceil(stop / end * columns - 1e-9), first + 1), columns)
        cells[first:last] = [mark] * (last - first)

    stage = part.stage
    if stage.begin_s is not None and stage.end_s is not None:
        fill(stage.begin_s, stage.end_s, waits)
    for start, stop in working(part):
        fill(start, stop, busy)
    return "".join(cells)


NAME = 44
"""Most columns of a name."""


def draw(facts: Facts, page: Page) -> bytes:
    """The whole text, in paragraphs."""
    rows, rates = method_rows(facts), generation_rows(facts)
    paragraphs = [
        _model(facts),
        _plan(facts, page),
        [line.rstrip() for line in table(METHODS, rows, left=(0, 4, 5))] if rows else [],
        table(GENERATES, rates) if rates else [],
        load_lines(facts, page),
        timeline(facts, page),
        _cuts(facts, page),
        _heaviest(facts, page),
        _measured(facts, page),
        proof_lines(facts),
        _schedule(facts, page),
    ]
    return laid_out(paragraphs, page)


def laid_out(paragraphs: Sequence[Sequence[str]], page: Page) -> bytes:
    """Non-empty paragraphs, with an empty line between two."""
    text = "\n\n".join("\n".join(_fitting(lines, page)) for lines in paragraphs if lines)
    if page.color and not page.plain:
        text = tinted(text)
    return f"{text}\n".encode("ascii" if page.plain else "utf-8", "replace")


def _fitting(lines: Sequence[str], page: Page) -> Iterator[str]:
    """Lines on the width of the page."""
    dots = "..." if page.plain else "…"
    for line in lines:
        yield line if len(line) <= page.width else line[: page.width - len(dots)] + dots


def _sentence(text: str, page: Page, indent: str = "") -> list[str]:
    """A text of others on as many lines as it takes; those after the first are indented."""
    kept = textwrap.TextWrapper(page.width, indent, f"{indent}  ", break_on_hyphens=False)
    return kept.wrap(printable(text))


def _model(facts: Facts) -> list[str]:
    """Describe the graph, and the commands that made the stream."""
    lines = [printable(facts.model)]
    graph, units = facts.graph, facts.units
    if graph is not None and units is not None:
        weights = graph.tensor_bytes[graph.tensor_kind == PARAMETER].sum()
        parts = [counted(graph.n, "node"), counted(graph.m, "tensor")]
        if facts.stream.get("group"):
            parts.append(counted(units.g, "group"))
        if weights:
            parts.append(f"{shown_bytes(float(weights))} of parameters")
        parts.append(counted(int((graph.tensor_kind == INPUT).sum()), "input"))
        if graph.is_output.any():
            parts.append(counted(int(graph.is_output.sum()), "output"))
        if graph.states is not None:
            held = shown_bytes(float(graph.states.held_bytes().sum()))
            parts.append(f"{counted(len(graph.states.input), 'state')} of {held}")
        lines.append(", ".join(parts))
        if facts.plan is None:
            lines += _read(facts)
        if graph.backward.any():
            lines.append(f"training: {counted(int(graph.backward.sum()), 'node')} backward")
        total = float(facts.unit_times.sum())
        if math.isfinite(total):
            what = "compute on the devices of the plan" if facts.parts else "compute"
            unit = "" if facts.seconds else " (unit of time unknown)"
            lines.append(f"{what}: {shown_time(total, facts.seconds)}{unit}")
        else:
            lines.append("not priced: dnnp-profile does that")
    steps = [step["tool"].removeprefix("dnnp-") for step in facts.stream.header["provenance"]]
    if steps:
        lines.append("made by " + " | ".join(steps))
    return lines


MOST_READ = 6
"""Inputs, outputs and types of operators that are named."""


def _read(facts: Facts) -> Iterator[str]:
    """Name the inputs and outputs of a model, and its most frequent operators."""
    tensors = facts.stream.get("tensor")
    inputs = [t for t in tensors if t["kind"] == "input"]
    for what, found in (("inputs", inputs), ("outputs", [t for t in tensors if t.get("output")])):
        said = [f"{t['name']} {t.get('dtype', '')}{list(t.get('shape', ['?']))}" for t in found]
        if said:
            more = f" and {len(said) - MOST_READ} more" if len(said) > MOST_READ else ""
            yield f"{what}: {', '.join(map(printable, said[:MOST_READ]))}{more}"
    ops = Counter(node["op"] for node in facts.stream.get("node")).most_common()
    more = f" and {len(ops) - MOST_READ} more" if len(ops) > MOST_READ else ""
    yield "operators: " + ", ".join(f"{n} {printable(op)}" for op, n in ops[:MOST_READ]) + more


def _plan(facts: Facts, page: Page) -> list[str]:
    plan = facts.plan
    if plan is None:
        return ["no plan: dnnp-partition makes one"] if facts.graph is not None else []
    what = OBJECTIVES[plan.objective]
    value = shown_time(plan.value, facts.seconds)
    rate = f", {facts.rate}" if facts.rate and plan.value > 0 else ""
    rate = rate if plan.options.workload is None else f" a sequence{rate}"
    lines = [
        f"plan by {plan.method} for {counted(plan.k, 'accelerator')}: {what} {value}{rate}",
        f"{status_words(plan)}, {plan.validity}: bound {shown_time(plan.bound, facts.seconds)}, "
        f"gap {facts.shown_gap(plan.gap)}"
        f"{unknown_words(facts.stream.get('plan')[0])}",
    ]
    if among := contiguous_words(plan, facts.seconds):
        lines.append(f"stated, not checked: {among.removeprefix(', ')}")
    lines += [line for words in plan_notes(facts) for line in _sentence(words, page)]
    if plan.excess_bytes:
        lines.append(lacking(plan.excess_bytes))
    return lines + [f"  {way}: {printable(found)}" for way, found in way_rows(facts)]


def _cuts(facts: Facts, page: Page) -> list[str]:
    """Tensors that move between stages."""
    if len(facts.parts) < 2 or facts.graph is None:
        return []
    if not facts.cuts:
        return ["nothing moves between stages"]
    most = page.most(len(facts.cuts)) if page.more else min(len(facts.cuts), page.rows // 2)
    rows = [
        [
            shortened(facts.graph.tensor_names[cut.tensor], NAME),
            f"{cut.source} -> {', '.join(map(str, cut.targets[:4]))}"
            + (", ..." if len(cut.targets) > 4 else ""),
            shown_bytes(cut.size_bytes),
        ]
        for cut in facts.cuts[:most]
    ]
    lines = table(["moves between stages", "", "size"], rows)
    rest = facts.cuts[most:]
    if rest:
        size = sum(cut.size_bytes for cut in rest)
        lines.append(f"and {len(rest)} more, {shown_bytes(size)} together (-v)")
    return lines


def _heaviest(facts: Facts, page: Page) -> list[str]:
    """Table of the units that take the longest."""
    units = facts.units
    if units is None:
        return []
    rows = [
        [
            shortened(units.names[u], NAME),
            shortened(facts.layers[u], 24),
            "" if facts.stage_of[u] < 0 else str(facts.stage_of[u]),
            shown_time(time, facts.seconds),
            shown_share(share),
        ]
        for u, time, share in facts.heaviest(page.most(units.g) if page.more else 5)
    ]
    head = ["heaviest", "layer", "stage", "compute", "share"]
    return table(head, rows, left=(0, 1)) if rows else []


def _measured(facts: Facts, page: Page) -> list[str]:
    """Table of what runs measured, beside what was predicted."""
    lines: list[str] = []
    for run in facts.runs:
        found = [f"ran: {run['mode']}, {counted(run['samples'], 'sample')} by {run['provider']}"]
        if "throughput_per_s" in run:
            found.append(f"{run['throughput_per_s']:.4g} samples/s")
        if "latency_p50_s" in run:
            found.append(f"latency {shown_time(run['latency_p50_s'], True)} in the median")
        if "verified" in run:
            wrong = f"NOT VERIFIED: {verdict_words(run)}"
            found.append("verified" if run["verified"] else wrong)
        if run.get("interrupted"):
            found.append("interrupted")
        lines += _sentence(", ".join(found), page)
        lines += _arrivals(run)
        lines += [line for words in run_notes(run) for line in _sentence(words, page, "  ")]
    seen = [(i, p) for i, p in enumerate(facts.parts) if p.measured_s is not None]
    if seen:
        rows = []
        for i, part in seen[: page.most(len(seen))]:
            measured, load = part.measured_s or 0.0, part.stage.load_s
            ratio = f"{measured / load:.2f}" if load > 0 else "-"
            times = [shown_time(load, facts.seconds), shown_time(measured, True), ratio]
            held = "-" if part.resident_bytes is None else shown_bytes(part.resident_bytes)
            rows.append([str(i), *times, shown_bytes(part.stage.memory_bytes), held])
        head = ["stage", "predicted", "measured", "ratio", "memory", "resident"]
        lines += table(head, rows)
    return lines


def _arrivals(run: Record) -> list[str]:
    """Describe latencies of samples that arrived at their own pace."""
    lines = [
        f"  at {one['rate_per_s']:.4g} samples/s: "
        f"latency {shown_time(one['latency_p50_s'], True)} in the median, "
        f"{shown_time(one['latency_p99_s'], True)} at 99 %"
        + (", more than it can take" if one["saturated"] else "")
        for one in run.get("sweep", {}).get("rates") or [run.get("arrivals")]
        if one
    ]
    if "sweep" in run:
        known = [(name, run["sweep"].get(f"{name}_per_s")) for name in ("capacity", "sustained")]
        rates = (f"{name} {rate:.4g} samples/s" for name, rate in known if rate)
        lines.append(f"  {', '.join(rates)}")
    return lines


def _schedule(facts: Facts, page: Page) -> list[str]:
    """The schedule, as a chart of its beginning."""
    record = facts.schedule
    if record is None:
        return []
    one = record["micro_batches"] == 1
    lines = [
        f"schedule by {record['method']} of {record['micro_batches']} micro-batch"
        f"{'' if one else 'es'}: {shown_time(record['makespan_s'], facts.seconds)}, bound "
        f"{shown_time(record['bound_s'], facts.seconds)}, bubble {shown_share(record['bubble'])}"
    ]
    names = max((len(unit["name"]) for unit in record["units"]), default=0)
    columns = max(page.width - names - 2, 20)
    return lines + text_chart(record, facts.stream.get("block"), facts.seconds, columns)
