"""What is not in the paper of Tessel: its authors' other cases, and recipes without bubbles."""

from __future__ import annotations

from typing import Any

from dnnp.samples.papers.tables import Table
from dnnp.samples.papers.tessel_runs import NONE, Answer, Runs, load

CASES = ("NN-eager", "multi-modal", "fine-tuning", "AlphaFold")
"""Placements of the authors' program that the paper does not show."""

SEARCHES = ("tessel", "tessel-fast", "auto")

SPLIT = ("--backward-time", "2", "--split-backward", "0.5")
"""Every block takes 1."""


def cases(runs: Runs) -> Table:
    """Periods, memories and spans of the authors' further cases."""
    rows = []
    for name in CASES:
        cells: list[str] = []
        for method in SEARCHES:
            (found,) = runs.repetends(name, method, [()])
            cells += numbers(found)
        rows.append((name, *cells))
    columns = ("period", "memory", "span")
    header = ("placement", *(f"{way} {c}" for way in ("Tessel", "fast", "ours") for c in columns))
    title = "Not in the paper: further cases of its authors, memory without a limit"
    return Table("cases", title, header, rows)


def numbers(found: Answer) -> tuple[str, str, str]:
    """Period, memory and span of a repetend."""
    repetend = found.repetend
    if repetend is None:
        return NONE, NONE, NONE
    period, memory, span = (f"{repetend[k]:g}" for k in ("period_s", "memory_bytes", "span_s"))
    return period, memory, span


def published(method: str, devices: int, count: int) -> tuple[float, float]:
    """Time and memory of N micro-batches as the papers' formulas have them, unit blocks.

    ZB-H1: (D - 1)(F + B - W) above the load, D activations. ZB-V: no bubble but the way to the last
    device, 2 D halves. DualPipe: (D / 2 - 1)(F&B + B - 3 W), D + 1, with F&B = F + B and B with its
    weights.
    """
    if method == "zb-h1":
        return 3 * count + devices - 1, devices
    if method == "zb-v":
        return 6 * count + devices - 1, 2 * devices
    return 6 * count + 2 * (devices // 2 - 1), devices + 1


def zero_bubble(runs: Runs) -> Table:
    """Recipes for split backward passes, their formulas, and this project's search."""
    rows = []
    sizes = (4, 8) if runs.full else (runs.devices,)
    for method, name in (("zb-h1", "V"), ("zb-v", "VV"), ("dualpipe", "X")):
        for devices in sizes:
            count = 3 * devices
            fixed = ["--shape", name, "--devices", str(devices), *SPLIT, "-n", str(count)]
            limit = ["--time-limit", f"{runs.seconds:g}"]
            if method == "dualpipe" and devices % 2:
                continue
            found = runs.all([*fixed, *limit, "--method", way] for way in (method, "auto"))
            formula = published(method, devices, count)
            cells = [f"{formula[0]:g}", f"{formula[1]:g}"]
            for one in found:
                whole = None if one.record is None else _whole(one.record)
                cells += [NONE] * 3 if whole is None else [f"{value:g}" for value in whole]
            rows.append((f"{method}, {name}, D = {devices}, N = {count}", *cells))
    each = ("makespan", "memory", "bubble")
    header = ("recipe", "formula makespan", "memory", *each, *(f"ours {c}" for c in each))
    title = "Not in the paper: recipes with split backward passes; all blocks take 1"
    return Table("zero-bubble", title, header, rows)


def _whole(record: dict[str, Any]) -> tuple[float, float, float]:
    """Makespan, largest memory, and what the makespan is above the load."""
    makespan = record["makespan_s"]
    memory = max(unit["peak_bytes"] for unit in record["units"])
    return makespan, memory, makespan - load(record) * record["micro_batches"]
