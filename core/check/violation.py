"""Violations that validators report, and comparison of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-9
"""Relative difference up to which two recomputed numbers count as equal."""

MEMORY = 1e-12
"""Share of a capacity by which memory may exceed it and fit: what the order of additions is worth,
as the search has it (`core.cost.load_formula`)."""

ROUNDING = 2.0**-48
"""Relative rounding error of sums of times since the first start."""

STRENGTH = {"free": 0, "convex": 1, "ordered": 2}
"""Validities of a split, the weakest first."""

Fact = str | int | float | bool | None
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """One thing that does not hold. A validator returns all of them, never the first only."""

    kind: str
    """Rule that is broken; one of `KINDS`."""
    subject: str
    """Subject: `plan`, `stage 2`, `node 17`, `header`."""
    message: str
    """One sentence without the subject, naming the value and what was expected."""
    expected: Fact = None
    got: Fact = None

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}"


KINDS = {
    "graph": "the graph is not acyclic, or its tensors and nodes disagree",
    "group": "the groups do not partition the nodes, or a plan cuts one",
    "node": "a node is in no stage, in several, or unknown",
    "order": "a stage runs a node before what it reads, or comes before what feeds it",
    "color": "nodes of one colour are on different devices",
    "rule": "a plan breaks a rule by name that it says it keeps",
    "device": "a stage's device is unknown, shared, or beyond the count",
    "parallel": "a parallel plan states what such plans do not know",
    "replicas": "a stage has more replicas than the plan allows, or none",
    "stages": "more accelerators in use than k, or stage ids that are not 0, 1, ...",
    "support": "a device class does not support a node",
    "validity": "the split is weaker than it claims, or a bound holds for fewer splits",
    "capacity": "a stage needs more memory than its device has",
    "shards": "what a node or tensor takes on several devices is not what its layout makes",
    "load": "a part of a stage's load differs from the recomputed one",
    "value": "the objective differs from the recomputed one",
    "bound": "a bound exceeds the value, or the peak of live activations",
    "gap": "the gap does not follow from value and bound",
    "status": "the status claims more than value and bound prove, or more or less than fits",
    "certificate": "a certificate does not prove the bound that it comes with",
    "unchecked": "a record says something that no check covers",
    "unknown": "a plan does not say what its costs leave out, or says something else",
    "unverified": "a plan or a bound claims more than a certificate that can be checked proves",
    "digest": "a record was computed from something else than this stream holds",
    "records": "a kind of record is present without what it depends on",
    "block": "a pass of a micro-batch does not run once, or not on its units, or names nothing",
    "overlap": "a unit runs two blocks at a time",
    "wait": "a block starts before what it waits for, or passes wait for each other in a circle",
    "provenance": "a result is older than a command that should have dropped it",
}
"""Kinds of violation and their meaning."""


def same(a: float, b: float, scale: float = 0.0) -> bool:
    """True if `a` and `b` agree to `TOLERANCE` of the larger of both and `scale`.

    `scale` is the size of the terms that were subtracted to get them, if any.
    """
    if math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b), abs(scale))


def above(a: float, b: float) -> bool:
    """True if `a` exceeds `b` by more than `TOLERANCE`."""
    return a > b and not same(a, b)


def fits(memory: float, capacity: float) -> bool:
    """True if `memory` bytes fit into `capacity`."""
    return memory <= capacity * (1 + MEMORY)


def early(start: float, ready: float, length: float) -> bool:
    """True if `start` is before `ready` by more than rounding and `TOLERANCE` of `length`.

    `length` is how long that takes which ends at `ready`. Both times count from the first start:
    the origin of a plan does not bear on how exact it is.
    """
    return ready - start > TOLERANCE * length + ROUNDING * ready


def differs(
    kind: str, subject: str, name: str, stated: float, expected: float, scale: float = 0.0
) -> Iterator[Violation]:
    """Compare a stated figure with the recomputed one; `scale` as in `same`."""
    if not same(stated, expected, scale):
        message = f"{name} is {stated!r}, recomputed {expected!r}"
        yield Violation(kind, subject, message, expected, stated)


def printable(text: str, limit: int) -> str:
    """Text of others for a message: one line, at most `limit` characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


def shown(items: Sequence[object], limit: int = 8) -> str:
    """List `items`, at most `limit` of them, for a message."""
    listed = ", ".join(str(item) for item in items[:limit])
    return listed if len(items) <= limit else f"{listed}, ... ({len(items)} in all)"
