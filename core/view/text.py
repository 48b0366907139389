"""A stream as text: what a person wants to know of a plan, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dnnp.core.model.graph import PARAMETER
from dnnp.core.model.plan import Stage
from dnnp.core.model.text import counted, printable, table
from dnnp.core.view.facts import Facts, Part
from dnnp.core.view.proof import proof_lines
from dnnp.core.view.words import (
    Page,
    shortened,
    shown_rate,
    shown_share,
    shown_size,
    shown_time,
)
from dnnp.formats.gantt import text_chart
from dnnp.formats.stream import Record

LOADS = ("in", "compute", "overflow", "out", "sync")
"""Parts of a load, in the order in which a bar shows them."""
FILLS = {"in": "░", "compute": "█", "overflow": "▓", "out": "▒", "sync": "≈"}
PLAIN_FILLS = {"in": "<", "compute": "#", "overflow": "!", "out": ">", "sync": "~"}
LEAST_BAR = 12
"""Columns of a bar, at least."""
LAYERS, NAME = 36, 44
"""Most columns of layers, and of a name."""


def draw(facts: Facts, page: Page) -> bytes:
    """The whole text, in paragraphs."""
    paragraphs = [
        _model(facts),
        _plan(facts),
        _stages(facts, page),
        _timeline(facts, page),
        _cuts(facts, page),
        _heaviest(facts, page),
        _measured(facts, page),
        proof_lines(facts),
        _schedule(facts, page),
    ]
    text = "\n\n".join("\n".join(_fitting(lines, page)) for lines in paragraphs if lines)
    return f"{text}\n".encode("ascii" if page.plain else "utf-8", "replace")


def _fitting(lines: Sequence[str], page: Page) -> Iterator[str]:
    """Lines on the width of the page."""
    dots = "..." if page.plain else "…"
    for line in lines:
        yield line if len(line) <= page.width else line[: page.width - len(dots)] + dots


def _model(facts: Facts) -> list[str]:
    """What the graph is, and which commands made the stream."""
    lines = [printable(facts.model)]
    graph, units = facts.graph, facts.units
    if graph is not None and units is not None:
        weights = graph.tensor_bytes[graph.tensor_kind == PARAMETER].sum()
        parts = [counted(graph.n, "node"), counted(graph.m, "tensor")]
        if facts.stream.get("group"):
            parts.append(counted(units.g, "group"))
        if weights:
            parts.append(f"{shown_size(float(weights))} of parameters")
        if graph.backward.any():
            parts.append(f"training, {int(graph.backward.sum())} of the nodes backward")
        lines.append(", ".join(parts))
        total = float(facts.unit_times.sum())
        if math.isfinite(total):
            what = "compute on the devices of the plan" if facts.parts else "compute"
            lines.append(f"{what}: {shown_time(total, facts.seconds)}")
        else:
            lines.append("not priced: dnnp-profile does that")
    steps = [step["tool"].removeprefix("dnnp-") for step in facts.stream.header["provenance"]]
    if steps:
        lines.append("made by " + " | ".join(steps))
    return lines


def _plan(facts: Facts) -> list[str]:
    plan = facts.plan
    if plan is None:
        return ["no plan: dnnp-partition makes one"] if facts.graph is not None else []
    what = {
        "throughput": "largest load",
        "gpipe": "largest forward plus largest backward load",
        "latency": "time of one sample",
    }[plan.objective]
    value = shown_time(plan.value, facts.seconds)
    rate = ""
    if plan.objective != "latency" and facts.seconds and plan.value > 0:
        rate = f", {shown_rate(plan.value)}"
    lines = [
        f"plan by {plan.method} for {counted(plan.k, 'accelerator')}: {what} {value}{rate}",
        f"{plan.status}, {plan.validity}: bound {shown_time(plan.bound, facts.seconds)}, "
        f"gap {shown_share(max(plan.gap, 0.0))}",
    ]
    if plan.excess_bytes:
        lines.append(f"infeasible: a device lacks {shown_size(plan.excess_bytes)} of memory")
    tried = facts.stream.get("plan")[0].get("ways", [])
    lines += [_way(facts, way) for way in tried]
    return lines


def _way(facts: Facts, way: Record) -> str:
    """A line about a way to use the devices."""
    found = way.get("reason") or shown_time(way.get("value"), facts.seconds)
    return f"  {way['way']}: {printable(found)}"


def _stages(facts: Facts, page: Page) -> list[str]:
    """A line a stage, with a bar of what its load is made of."""
    if facts.plan is None or facts.plan.objective == "latency":
        return []
    fills = PLAIN_FILLS if page.plain else FILLS
    scale = max((_parts_sum(part.stage) for part in facts.parts), default=0.0)
    shown = _most_loaded(facts.parts, page)
    rows = [_stage_row(facts, number, facts.parts[number]) for number in shown]
    lines = table(["stage", "device", "layers", "load", "memory", ""], rows, left=(0, 1, 2))
    wide = max(map(len, lines))
    columns = max(page.width - wide - 2, LEAST_BAR)
    bars = [_bar(facts.parts[number].stage, scale, columns, fills) for number in shown]
    lines = [
        f"{line.ljust(wide)}  {bar}".rstrip() for line, bar in zip(lines, ["", *bars], strict=True)
    ]
    left_out = len(facts.parts) - len(shown)
    if left_out:
        lines.append(f"and {left_out} more with smaller loads (-v)")
    used = [name for name in LOADS if any(_amount(p.stage, name) > 0 for p in facts.parts)]
    lines.append("bars: " + "  ".join(f"{fills[name]} {name}" for name in used))
    return lines


def _most_loaded(parts: Sequence[Part], page: Page) -> list[int]:
    """Numbers of the stages that are shown, in their order."""
    order = sorted(range(len(parts)), key=lambda i: (-parts[i].stage.load_s, i))
    return sorted(order[: page.most(len(parts))])


def _stage_row(facts: Facts, number: int, part: Part) -> list[str]:
    stage = part.stage
    device = stage.device if stage.replicas == 1 else f"{stage.device} x{stage.replicas}"
    layers = part.layers or counted(len(stage.nodes), "node")
    share = ""
    if math.isfinite(part.capacity_bytes) and part.capacity_bytes > 0:
        share = shown_share(stage.memory_bytes / part.capacity_bytes)
    return [
        str(number),
        device,
        shortened(layers, LAYERS),
        shown_time(stage.load_s, facts.seconds),
        shown_size(stage.memory_bytes),
        share,
    ]


def _amount(stage: Stage, name: str) -> float:
    """A part of a stage's load, for one sample, over its replicas."""
    found: float = getattr(stage, f"{name}_s")
    return found if name == "sync" else found / stage.replicas


def _parts_sum(stage: Stage) -> float:
    return sum(_amount(stage, name) for name in LOADS)


def _bar(stage: Stage, scale: float, columns: int, fills: dict[str, str]) -> str:
    """A bar of parts as long as they take; what takes little is not shown longer than it is."""
    bar, done = "", 0.0
    for name in LOADS:
        done += _amount(stage, name)
        end = round(columns * done / scale) if scale > 0 else 0
        bar += fills[name] * (end - len(bar))
    return bar


def _timeline(facts: Facts, page: Page) -> list[str]:
    """For latency: when each stage works, from left to right."""
    plan = facts.plan
    if plan is None or plan.objective != "latency" or plan.value <= 0:
        return []
    rows, lines = [], []
    columns = max(page.width - 62, 20)
    busy, sent = ("#", "-") if page.plain else ("█", "─")
    for number in _most_loaded(facts.parts, page):
        part = facts.parts[number]
        stage = part.stage
        cells = [" "] * columns
        for start, end in _working(part):
            first = min(int(start / plan.value * columns), columns - 1)
            last = min(max(math.ceil(end / plan.value * columns), first + 1), columns)
            cells[first:last] = [busy] * (last - first)
        if not stage.starts_s and stage.begin_s is not None and stage.end_s is not None:
            first = min(int(stage.begin_s / plan.value * columns), columns - 1)
            last = min(max(math.ceil(stage.end_s / plan.value * columns), first + 1), columns)
            cells[first:last] = [busy if c == busy else sent for c in cells[first:last]]
        lines.append("".join(cells))
        rows.append(
            [
                str(number),
                stage.device,
                shortened(part.layers or counted(len(stage.nodes), "node"), 24),
                shown_time(stage.compute_s, facts.seconds),
                shown_size(stage.memory_bytes),
            ]
        )
    head = table(["stage", "device", "layers", "compute", "memory"], rows, left=(0, 1, 2))
    wide = max(map(len, head))
    made = [f"{h.ljust(wide)} |{line}|" for h, line in zip(head[1:], lines, strict=True)]
    return [head[0], *made, f"from left to right: {shown_time(plan.value, facts.seconds)}"]


def _working(part: Part) -> Iterator[tuple[float, float]]:
    """When a stage of a plan for latency computes."""
    stage = part.stage
    if stage.starts_s:
        for start, time in zip(stage.starts_s, part.times.tolist(), strict=False):
            yield start, start + time
    elif stage.begin_s is not None:
        yield stage.begin_s + stage.in_s, stage.begin_s + stage.in_s + stage.compute_s


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
            shown_size(cut.size_bytes),
        ]
        for cut in facts.cuts[:most]
    ]
    lines = table(["moves between stages", "", "size"], rows)
    rest = facts.cuts[most:]
    if rest:
        size = sum(cut.size_bytes for cut in rest)
        lines.append(f"and {len(rest)} more, {shown_size(size)} together (-v)")
    return lines


def _heaviest(facts: Facts, page: Page) -> list[str]:
    """What takes the longest."""
    units, times = facts.units, facts.unit_times
    total = float(times.sum())
    if units is None or not total > 0 or not math.isfinite(total):
        return []
    most = page.most(units.g) if page.more else 5
    order = sorted(range(units.g), key=lambda u: (-times[u], u))[:most]
    rows = []
    for u in order:
        stage = facts.stage_of[u]
        rows.append(
            [
                shortened(units.names[u], NAME),
                shortened(facts.layers[u], 24),
                "" if stage < 0 else str(stage),
                shown_time(float(times[u]), facts.seconds),
                shown_share(float(times[u]) / total),
            ]
        )
    return table(["heaviest", "layer", "stage", "compute", "share"], rows, left=(0, 1))


def _measured(facts: Facts, page: Page) -> list[str]:
    """What the runs of the stream measured, beside what was predicted."""
    lines: list[str] = []
    for run in facts.runs:
        found = [f"ran: {run['mode']}, {counted(run['samples'], 'sample')} by {run['provider']}"]
        if "throughput_per_s" in run:
            found.append(f"{run['throughput_per_s']:.4g} samples/s")
        if "latency_p50_s" in run:
            found.append(f"latency {shown_time(run['latency_p50_s'], True)} in the median")
        if "verified" in run:
            found.append("verified" if run["verified"] else "NOT VERIFIED")
        if run.get("interrupted"):
            found.append("interrupted")
        lines.append(printable(", ".join(found)))
    seen = [(i, p) for i, p in enumerate(facts.parts) if p.measured_s is not None]
    if seen:
        rows = []
        for i, part in seen[: page.most(len(seen))]:
            measured, load = part.measured_s or 0.0, part.stage.load_s
            ratio = f"{measured / load:.2f}" if load > 0 else "-"
            rows.append(
                [str(i), shown_time(load, facts.seconds), shown_time(measured, True), ratio]
            )
        lines += table(["stage", "predicted", "measured", "ratio"], rows)
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
    return lines + text_chart(record, facts.stream.get("block"), max(page.width - names - 2, 20))
