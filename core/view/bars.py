"""Stages as bars: what their loads are made of; for latency, when they work."""

from __future__ import annotations

import math
import re

from dnnp.core.model.plan import Stage
from dnnp.core.model.text import counted, shown_bytes, shown_time, table
from dnnp.core.view.facts import (
    LOADS,
    OVERLAP,
    Facts,
    Part,
    amount,
    bar_bound,
    longest_bar,
    most_loaded,
    parts_overlap,
    shared_words,
    working,
)
from dnnp.core.view.words import Page, shortened, shown_share

FILLS = {"in": "░", "compute": "█", "overflow": "▓", "out": "▒", "sync": "≈"}
PLAIN_FILLS = {"in": "<", "compute": "#", "overflow": "!", "out": ">", "sync": "~"}
TIMES = {False: ("█", "─"), True: ("#", "-")}
"""What stands for computing, and for all else of a stage's time; with ASCII alone."""
TINTS = {"░": 36, "█": 34, "▓": 31, "▒": 33, "≈": 35, "─": 36}
"""Colours of marks on a terminal, by their numbers there."""
LEAST_BAR = 12
"""Columns of a bar, at least."""
LAYERS, FEWER = 36, 24
"""Most columns of layers, beside a bar and beside a timeline."""


def load_lines(facts: Facts, page: Page) -> list[str]:
    """A line a stage, with a bar of what its load is made of."""
    if facts.plan is None or facts.plan.objective == "latency":
        return []
    fills = PLAIN_FILLS if page.plain else FILLS
    scale, bound = longest_bar(facts.parts), bar_bound(facts.plan, facts.parts)
    shown = most_loaded(facts.parts, page.most(len(facts.parts)))
    rows = [_stage_row(facts, number, facts.parts[number]) for number in shown]
    lines = table(["stage", "device", "layers", "load", "memory", ""], rows, left=(0, 1, 2))
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
    used = [name for name in LOADS if any(amount(p.stage, name) > 0 for p in facts.parts)]
    legend = [f"{fills[name]} {name}" for name in used]
    lines.append("bars: " + "  ".join(legend if at is None else [*legend, "| bound"]))
    return [*lines, OVERLAP] if parts_overlap(facts.parts) else lines


def tinted(text: str) -> str:
    """A text whose bars have the colours of a terminal; the marks alone say the same."""
    return re.sub(
        "|".join(f"{mark}+" for mark in TINTS),
        lambda match: f"\x1b[{TINTS[match[0][0]]}m{match[0]}\x1b[0m",
        text,
    )


def _stage_row(facts: Facts, number: int, part: Part) -> list[str]:
    stage = part.stage
    layers = part.layers or counted(len(stage.nodes), "node")
    share = ""
    if math.isfinite(part.capacity_bytes) and part.capacity_bytes > 0:
        share = shown_share(stage.memory_bytes / part.capacity_bytes)
    return [
        str(number),
        stage.where,
        shortened(layers, LAYERS),
        shown_time(stage.load_s, facts.seconds),
        shown_bytes(stage.memory_bytes),
        share,
    ]


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
    rows = [_timeline_row(facts, number, facts.parts[number]) for number in shown]
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


def _timeline_row(facts: Facts, number: int, part: Part) -> list[str]:
    stage = part.stage
    return [
        str(number),
        stage.device,
        shortened(part.layers or counted(len(stage.nodes), "node"), FEWER),
        shown_time(stage.compute_s, facts.seconds),
        shown_bytes(stage.memory_bytes),
    ]


def _cells(part: Part, end: float, columns: int, page: Page) -> str:
    """What a stage does from 0 to `end`; what is short takes one column."""
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
