"""Validate the passes of a pipeline schedule against the plan that they are passes of.

Works on plain records, as decoded from JSON and already checked one by one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from dnnp.core.check.claims import split_name
from dnnp.core.check.violation import TOLERANCE, Record, Violation, above, same, shown

NODE_KINDS = ("forward", "backward", "weight")
"""Kinds of pass that run nodes."""

MOST_TAILS = 4096
"""Passes in one bit mask."""


def check_passes(schedule: Record, records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """Return what does not hold between a schedule and the plan of its stream.

    Every stage runs, on its own devices, all of its nodes, and no pass starts before another one
    that makes what it reads. Transfers may be blocks, parts of blocks, or times between blocks:
    what remains of a pass is at least its computation. Of `records`, those of the plan, its stages
    and nodes are looked at.
    """
    stages = {stage["id"]: stage for stage in records.get("stage", ())}
    owned: dict[int, list[int]] = {number: [] for number in stages}
    for number, row in enumerate(schedule["passes"]):
        subject, stage = f"pass {row['name']}", row.get("stage")
        if stage is not None and stage not in stages:
            message = f"there is no stage {stage}; there are {len(stages)}"
            yield Violation("stages", subject, message, None, stage)
        elif row["kind"] == "transfer":
            if stage is not None:
                yield from _places(schedule["units"], row, stages[stage], subject)
        elif stage is None:
            yield Violation("stages", subject, "is of no stage of the plan")
        else:
            owned[stage].append(number)
            yield from _places(schedule["units"], row, stages[stage], subject)
    backward = {node["id"] for node in records.get("node", ()) if node.get("backward", False)}
    training = any(row["kind"] not in ("forward", "transfer") for row in schedule["passes"])
    makers: dict[int, list[int]] = {}
    for number, stage in sorted(stages.items()):
        mine = [(p, schedule["passes"][p]) for p in owned[number]]
        yield from _covered(stage, mine, backward, training=training)
        for p, row in mine:
            late = row["kind"] != "forward"
            for node in _nodes(row, stage):
                if late == (node in backward) and (training or not late):
                    makers.setdefault(node, []).append(p)
        if all(plan["objective"] != "latency" for plan in records["plan"]):
            yield from _times(stage, [row for _, row in mine], backward, training=training)
    yield from _plan_memory(schedule, records["plan"][0], list(stages.values()))
    yield from _reads(schedule, records.get("node", ()), makers)


def _nodes(row: Record, stage: Record) -> Sequence[int]:
    """Ids of the nodes of a pass; if it names none, all of its stage, of both directions.

    What a weight pass does without naming nodes is a part of the backward pass before it.
    """
    nodes: Sequence[int] = row.get("nodes", () if row["kind"] == "weight" else stage["nodes"])
    return nodes


def _places(
    units: Sequence[Record], row: Record, stage: Record, subject: str
) -> Iterator[Violation]:
    """Check that passes run on devices of their stage, transfers on links named after one."""
    owner, first = split_name(stage["device"])
    last = -1 if first is None else first + _record_width(stage) - 1

    def is_own(device: str) -> bool:
        held, number = split_name(device)
        within = first is not None and number is not None and first <= number <= last
        return within and held == owner

    wrong = {}
    for home in row["homes"]:
        for unit in home:
            name = units[unit]["name"] if unit < len(units) else f"unit {unit}"
            ends = [name]
            if row["kind"] == "transfer":
                ends = name.split(">") if ">" in name else [name.rpartition(" ")[0]]
            if not any(is_own(device) for device in ends):
                wrong[name] = True
    if not wrong:
        return
    message = f"runs on {shown(list(wrong))}, but stage {stage['id']} is on {stage['device']}"
    if _record_width(stage) > 1:
        message += f" and the {_record_width(stage) - 1} devices after it"
    yield Violation("device", subject, message, stage["device"], next(iter(wrong)))


def _record_width(stage: Record) -> int:
    """Devices of a stage, from its first one on."""
    replicas, shards = stage.get("replicas", 1), stage.get("shards", 1)
    return int(replicas * shards)


def _covered(
    stage: Record, mine: Sequence[tuple[int, Record]], backward: set[int], *, training: bool
) -> Iterator[Violation]:
    """Check that the passes of a stage cover its nodes; in training its backward nodes too."""
    subject = f"stage {stage['id']}"
    held = set(stage["nodes"])
    count: dict[str, Counter[int]] = {kind: Counter() for kind in NODE_KINDS}
    for _, row in mine:
        strange = [node for node in row.get("nodes", ()) if node not in held]
        if strange:
            message = f"runs nodes {shown(strange)}, which are not in {subject}"
            yield Violation("node", f"pass {row['name']}", message)
        count[row["kind"]].update(_nodes(row, stage))
    for late in (False, True) if training else (False,):
        kinds = ("backward", "weight") if late else ("forward",)
        wanted = [node for node in stage["nodes"] if (node in backward) == late]
        if wanted and not count[kinds[0]]:
            yield Violation("stages", subject, f"has no {kinds[0]} pass")
            continue
        missing = [node for node in wanted if not any(count[kind][node] for kind in kinds)]
        twice = [node for node in wanted if any(count[kind][node] > 1 for kind in kinds)]
        for nodes, text, number in ((missing, "no", 0), (twice, "several", 2)):
            if nodes:
                message = f"nodes {shown(nodes)} are in {text} {kinds[0]} passes"
                yield Violation("node", subject, message, 1, number)


def _times(
    stage: Record, mine: Sequence[Record], backward: set[int], *, training: bool
) -> Iterator[Violation]:
    """Check that the passes of a stage take at least as long as its nodes."""
    if not training and not backward.isdisjoint(stage["nodes"]):
        return
    # A pass on several devices at once has a part of its nodes' work on each of them, save where
    # the stage has shards, whose compute_s is that of one of them.
    several = 1 / stage.get("shards", 1)
    total = math.fsum(
        row["time_s"] * several * max(map(len, row["homes"]), default=0) for row in mine
    )
    least = most = stage["compute_s"]
    most += stage["in_s"] + stage["overflow_s"] + stage["out_s"]
    most += stage.get("sync_s", 0.0) * stage.get("replicas", 1)
    if mine and above(least, total):
        message = f"its passes take {total!r}, less than its compute_s {least!r}"
        yield Violation("load", f"stage {stage['id']}", message, least, total)
        return
    if mine and above(total, most):
        message = f"its passes take {total!r}, more than all parts of its load, {most!r}"
        yield Violation("load", f"stage {stage['id']}", message, most, total)
        return


def _plan_memory(schedule: Record, plan: Record, stages: Sequence[Record]) -> Iterator[Violation]:
    """Check the memory of devices by their stages, and that passes release what they take."""
    taken: dict[int, list[float]] = {stage["id"]: [] for stage in stages}
    for row in schedule["passes"]:
        if row["kind"] != "transfer" and row.get("stage") in taken:
            taken[row["stage"]].append(float(row.get("memory_bytes", 0.0)))
    needed: dict[str, float] = {}
    owners: dict[str, str] = {}
    for stage in stages:
        moved = taken[stage["id"]]
        if abs(math.fsum(moved)) > TOLERANCE * math.fsum(map(abs, moved)):
            message = f"its passes leave {math.fsum(moved)!r} bytes behind"
            yield Violation("load", f"stage {stage['id']}", message, 0.0, math.fsum(moved))
        # What lies between its passes is a part of what the plan says that it needs: of one
        # micro-batch, or of all that a parallel plan has under way.
        between = math.fsum(m for m in moved if m > 0) * stage.get("in_flight", 1)
        owner, first = split_name(stage["device"])
        for j in range(min(_record_width(stage), len(schedule["units"]))):
            name = f"{owner}/{(first or 0) + j}"
            owners[name] = stage["class"]
            needed[name] = needed.get(name, 0.0) + max(stage["memory_bytes"] - between, 0.0)
    sizes = {
        device["class"]: float(device["memory_bytes"])
        for device in plan["devices"]
        if plan["memory_mode"] == "hard" and device["kind"] != "cpu" and "memory_bytes" in device
    }
    for unit in schedule["units"]:
        if unit["name"] not in needed:
            continue
        subject, stated = f"unit {unit['name']}", float(unit.get("fixed_bytes", 0.0))
        expected, size = needed[unit["name"]], sizes.get(owners[unit["name"]], math.inf)
        if not same(stated, expected):
            message = f"fixed_bytes is {stated!r}, its stages always hold {expected!r}"
            yield Violation("load", subject, message, expected, stated)
        if above(float(unit["peak_bytes"]), size):
            message = f"holds {unit['peak_bytes']!r} bytes, the device has {size!r}"
            yield Violation("capacity", subject, message, size, unit["peak_bytes"])


def _reads(
    schedule: Record, nodes: Sequence[Record], makers: Mapping[int, Sequence[int]]
) -> Iterator[Violation]:
    """Check that passes wait for the makers of their inputs, perhaps through others.

    Nodes that several passes may run, such as the two halves of a backward pass, prove nothing.
    """
    only = {node: passes[0] for node, passes in makers.items() if len(passes) == 1}
    needed: dict[tuple[int, int], tuple[int, int]] = {}
    writer = {tensor: node["id"] for node in nodes for tensor in node["outputs"]}
    for node in nodes:
        head = only.get(node["id"])
        for tensor in node["inputs"]:
            tail = only.get(writer.get(tensor, -1))
            if tail is not None and head is not None and tail != head:
                needed.setdefault((tail, head), (writer[tensor], node["id"]))
    passes = schedule["passes"]
    waits = {
        p: {wait["pass"] for wait in row["after"] if wait["pass"] < len(passes)}
        for p, row in enumerate(passes)
    }
    try:
        order = list(TopologicalSorter(waits).static_order())
    except CycleError:
        return
    missing = [pair for pair in sorted(needed) if pair[0] not in waits[pair[1]]]
    tails = list(dict.fromkeys(tail for tail, _ in missing))
    after: set[tuple[int, int]] = set()
    for first in range(0, len(tails), MOST_TAILS):
        bit = {tail: 1 << i for i, tail in enumerate(tails[first : first + MOST_TAILS])}
        # Of before[q] the bits of the passes that pass q starts after.
        before: dict[int, int] = {}
        for q in order:
            before[q] = 0
            for p in waits[q]:
                before[q] |= before[p] | bit.get(p, 0)
        after.update(pair for pair in missing if before[pair[1]] & bit.get(pair[0], 0))
    for tail, head in missing:
        if (tail, head) not in after:
            maker, reader = needed[tail, head]
            message = f"does not wait for pass {passes[tail]['name']}, but its node {reader} reads"
            message += f" what node {maker} makes"
            yield Violation("wait", f"pass {passes[head]['name']}", message)
