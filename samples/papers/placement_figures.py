"""Figures 8, 9 and 10 of the 2020 paper as tables with bars and strips of characters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dnnp.samples.papers.placement_runs import Found
from dnnp.samples.papers.tables import Table

BAR = 24
"""Characters of a bar of length 1."""

STRIP = 80
"""Nodes in a line of a strip."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Accelerators, in the order of their stages; a CPU is a dot."""


def bar(length: float) -> str:
    """A bar, longer than twice the unit cut off."""
    full = round(BAR * min(length, 2.0))
    return "#" * full + (">" if length > 2 else "")


def bars(name: str, title: str, ratios: Mapping[str, Mapping[str, float | None]]) -> Table:
    """A bar for each method of each workload."""
    rows = [
        (workload, method, f"{ratio:.2f}", bar(ratio).ljust(2 * BAR + 1))
        for workload, methods in ratios.items()
        for method, ratio in methods.items()
        if ratio is not None
    ]
    return Table(name, title, ("workload", "method", "throughput", "bar".ljust(2 * BAR + 1)), rows)


def side_by_side(name: str, what: str, contiguous: Found, free: Found) -> Iterator[Table]:
    """Loads of the devices of two splits, and the device of every node, in order of the first."""
    splits = {"contiguous": contiguous, "any": free}
    rows, letters = [], dict[str, dict[int, str]]()
    for split, found in splits.items():
        letters[split] = {}
        for number, stage in enumerate(_accelerators_first(found)):
            letter = "." if stage["class"] == "cpu" else LETTERS[number % len(LETTERS)]
            letters[split] |= dict.fromkeys(stage["nodes"], letter)
            count = f"{len(stage['nodes'])}"
            rows.append((split, letter, stage["device"], count, f"{stage['load_s']:.2f}"))
    title = f"Figure 9: the best splits of {what}, contiguous and not"
    yield Table(name, title, ("split", "letter", "device", "nodes", "load"), rows)
    order = [node for stage in contiguous.stages for node in stage["nodes"]]
    strips = []
    for first in range(0, len(order), STRIP):
        some = order[first : first + STRIP]
        for split in splits:
            drawn = "".join(letters[split].get(node, "?") for node in some)
            strips.append((f"{first}", split, drawn.ljust(STRIP)))
    header = ("from", "split", "nodes, in the order of the contiguous split".ljust(STRIP))
    yield Table(f"{name}-nodes", "The device of each node", header, strips)


def _accelerators_first(found: Found) -> list[dict[str, Any]]:
    return sorted(found.stages, key=lambda stage: stage["class"] == "cpu")


def cumulative(name: str, what: str, path: Path) -> Table:
    """Times of the layers up to each, forward and backward; a backward layer has the colour of its
    forward one."""
    document = json.loads(path.read_bytes())
    ahead = [node for node in document["nodes"] if not node.get("isBackwardNode")]
    back: dict[object, float] = {}
    for node in document["nodes"]:
        if node.get("isBackwardNode"):
            color = node.get("colorClass")
            back[color] = back.get(color, 0.0) + node["fpgaLatency"]
    total = [0.0, 0.0]
    rows = []
    for node in _in_order(ahead, document["edges"]):
        total[0] += node["fpgaLatency"]
        total[1] += back.pop(node.get("colorClass"), 0.0)
        rows.append((total[0], total[1]))
    most = max(max(row) for row in rows)
    lines = [
        (f"{i + 1}", f"{f:.2f}", f"{b:.2f}", _points(f / most, b / most))
        for i, (f, b) in enumerate(rows)
    ]
    title = f"Figure 10: time of the layers 1 to i of {what}, forward (f) and backward (b)"
    return Table(name, title, ("i", "forward", "backward", "f, b".ljust(2 * BAR)), lines)


def _points(forward: float, backward: float) -> str:
    """Two points in a line."""
    line = [" "] * (2 * BAR)
    line[min(int(2 * BAR * backward), 2 * BAR - 1)] = "b"
    line[min(int(2 * BAR * forward), 2 * BAR - 1)] = "f"
    return "".join(line)


def _in_order(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes after those that they read from; of several, in the order of the file."""
    left = {node["id"]: node for node in nodes}
    waits = dict.fromkeys(left, 0)
    after: dict[int, list[int]] = {}
    for edge in edges:
        if edge["sourceId"] in left and edge["destId"] in left:
            after.setdefault(edge["sourceId"], []).append(edge["destId"])
            waits[edge["destId"]] += 1
    ready = [v for v in left if not waits[v]]
    for v in ready:
        for w in after.get(v, ()):
            waits[w] -= 1
            if not waits[w]:
                ready.append(w)
    return [left[v] for v in ready]
