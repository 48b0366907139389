"""How strong the order of a split is: `ordered`, `convex` or `free`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnnp.core.check.graph import Tables, on_a_cycle, shown
from dnnp.core.check.violation import Violation

STRENGTH = {"free": 0, "convex": 1, "ordered": 2}

AT_A_TIME = 4096
"""Blocks whose paths are followed together."""


def validity_of(tables: Tables, blocks: Sequence[Sequence[int]]) -> tuple[str, dict[str, str]]:
    """Return the strongest validity of a split and why stronger ones do not hold.

    `ordered`: the blocks can be lined up so that every forward edge points the same way, and
    every backward edge points the other way, or every one of them that way too. Edges from one
    pass into the other do not matter. `convex`: no path inside a pass leaves a block and comes
    back (Definition 3.1 and Section 5.3 of the 2020 paper).

    Parameters
    ----------
    blocks
        Node positions of every stage.
    """
    reasons: dict[str, str] = {}
    block_of = {node: b for b, block in enumerate(blocks) for node in block}
    quotients = []
    for name, wanted in (("forward", False), ("backward", True)):
        part = [v for v in range(tables.n) if tables.backward[v] is wanted]
        inside = set(part)
        where = f" of the {name} part" if tables.training else ""
        before = {v: [u for u in tables.producers(v) if u in inside] for v in part}
        quotients.append(_quotient(before, block_of))
        cycle = _cycle(quotients[-1])
        if not cycle:
            continue
        reasons.setdefault("ordered", f"stages {shown(cycle)}{where} form a cycle")
        number = _first_left(before, block_of, len(blocks))
        if number is not None:
            pair = _leaves_and_returns(blocks[number], before)
            if pair is not None:
                u, v = (tables.ids[node] for node in pair)
                reason = f"a path from node {u} to node {v} leaves stage {number}{where}"
                reasons.setdefault("convex", reason)
    if not reasons:
        against = _cycle([*quotients[0], *((b, a) for a, b in quotients[1])])
        along = _cycle([*quotients[0], *quotients[1]])
        if against and along:
            reasons["ordered"] = (
                f"no order suits both passes: stages {shown(against)} form a cycle if the "
                f"backward part runs against the forward part, stages {shown(along)} if along it"
            )
    if "convex" in reasons:
        return "free", reasons
    return ("convex" if reasons else "ordered"), reasons


def _quotient(
    before: Mapping[int, Sequence[int]], block_of: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Distinct pairs of blocks with an edge from the first to the second, sorted."""
    pairs = {
        (block_of[u], block_of[v])
        for v, producers in before.items()
        for u in producers
        if u in block_of and v in block_of
    }
    return sorted((a, b) for a, b in pairs if a != b)


def _cycle(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A cycle of the pairs, or []."""
    successors: dict[int, list[int]] = {}
    for a, b in pairs:
        successors.setdefault(a, []).append(b)
    return on_a_cycle(successors)


def _first_left(
    before: Mapping[int, Sequence[int]], block_of: Mapping[int, int], count: int
) -> int | None:
    """The first block that a path leaves and comes back to.

    Along the edges each node learns, as a bit mask, which blocks the paths to it have left; for
    some blocks at a time, so that masks stay short.
    """
    order = _in_order(before)
    for base in range(0, count, AT_A_TIME):
        left: dict[int, int] = {}
        returned = 0
        for v in order:
            mine = block_of.get(v, -1) - base
            mask = 0
            for u in before[v]:
                mask |= left[u]
                b = block_of.get(u, -1) - base
                if b != mine and 0 <= b < AT_A_TIME:
                    mask |= 1 << b
            left[v] = mask
            if 0 <= mine < AT_A_TIME:
                returned |= mask & (1 << mine)
        if returned:
            return base + (returned & -returned).bit_length() - 1
    return None


def _in_order(before: Mapping[int, Sequence[int]]) -> list[int]:
    """Nodes after all of their producers; those on a cycle, and behind one, are left out."""
    after: dict[int, list[int]] = {v: [] for v in before}
    missing = {v: len(producers) for v, producers in before.items()}
    for v, producers in before.items():
        for u in producers:
            after[u].append(v)
    order = [v for v, count in missing.items() if not count]
    for v in order:
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                order.append(w)
    return order


def _leaves_and_returns(
    block: Sequence[int], before: Mapping[int, Sequence[int]]
) -> tuple[int, int] | None:
    """Ends of a path that starts and ends in the block with nodes outside between, or None.

    Walks up from the producers outside the block through nodes outside it: meeting the block
    again is such a path. A node walked once need not be walked again; linear in the graph.
    """
    inside = {v for v in block if v in before}
    walked: set[int] = set()
    for target in sorted(inside):
        pending = [u for u in before[target] if u not in inside and u not in walked]
        walked.update(pending)
        while pending:
            for u in before[pending.pop()]:
                if u in inside:
                    return u, target
                if u not in walked:
                    walked.add(u)
                    pending.append(u)
    return None


def check_validity(
    tables: Tables, blocks: Sequence[Sequence[int]], claimed: str
) -> tuple[str, list[Violation]]:
    """Return the strongest validity, and a violation if it is weaker than claimed."""
    actual, reasons = validity_of(tables, blocks)
    if claimed in STRENGTH and STRENGTH[claimed] <= STRENGTH[actual]:
        return actual, []
    message = f"claims to be '{claimed}' but is '{actual}'"
    if claimed in reasons:
        message += f": {reasons[claimed]}"
    return actual, [Violation("validity", "plan", message, claimed, actual)]
