"""False numbers in valid streams: every number of results changed, one at a time.

What depends on a number by definition (digests, gaps) is made to fit again, as who forges it
would; all else stays. What `dnnp-check` still accepts is a forgery that nobody notices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from dnnp.formats.bounds import bound_digest, gap_of
from dnnp.formats.plan import plan_digest
from support import seeds
from support.run import dnnp

Record = dict[str, Any]
Path = tuple[str | int, ...]

KINDS = ("plan", "stage", "bound", "schedule", "block")
"""Types of records whose numbers are changed."""

MUTATIONS: dict[str, Callable[[float], float]] = {
    "a little up": lambda x: x * (1 + 1e-6),
    "a little down": lambda x: x * (1 - 1e-6),
    "up": lambda x: x * 1.001,
    "down": lambda x: x * 0.999,
    "double": lambda x: x * 2,
    "half": lambda x: x / 2,
    "later": lambda x: x + 1e-3 * (abs(x) or 1.0),
    "offset": lambda x: x + 1e11,
    "huge": lambda x: 1e90,
    "none": lambda x: 0.0,
}
"""How a number that is not whole by nature is changed."""

WHOLE: dict[str, Callable[[int], int]] = {
    "one more": lambda x: x + 1,
    "one less": lambda x: max(x - 1, 0),
    "double": lambda x: 2 * x,
    "many": lambda x: 10**6,
    "most": lambda x: 2**53 - 1,
    "none": lambda x: 0,
}
"""How counts, ids and positions are changed."""

COUNTS = (
    "id", "k", "count", "cluster_size", "max_replicas", "invocations", "replicas", "nodes",
    "stage", "homes", "pass", "unroll", "micro_batches", "micro_batch", "units", "samples",
    "tensors", "stages", "devices",
)  # fmt: skip
"""Fields that hold whole numbers."""

Rule = Callable[[Record, float, float], bool]
"""Record, number before and after -> whether the change makes nothing false that is stated."""


def _higher(_: Record, before: float, after: float) -> bool:
    return after > before


def _close(_: Record, before: float, after: float) -> bool:
    return abs(after - before) <= 1e-9


def _any(_: Record, before: float, after: float) -> bool:
    return True


def _tiny(_: Record, before: float, after: float) -> bool:
    return abs(after - before) < 1e-9


def _searched(record: Record, before: float, after: float) -> bool:
    """A pipeline that is not the plan, and not better; the plan is the fastest of its ways."""
    values = sorted(way["value"] for way in record["ways"] if "value" in way)
    slower = [way for way in record["ways"] if way.get("value", 0.0) > record["value"]]
    pipes = [way for way in slower if "pipeline" in way["way"]]
    return values[0] >= record["value"] * (1 - 1e-9) and any(
        after in (way["value"], way["stages"], way["devices"]) for way in pipes
    )


def _no_replicas(record: Record, before: float, after: float) -> bool:
    return int(record["parallel"]["data_parallel"]) == 1


UNPROVEN = (
    _any,
    "a bound without a certificate: the checker compares it with what is reached, no more",
)
TRIED = (
    _any,
    "of a method that was tried; the plan states its own, of which a certificate decides",
)
OFFERED = (_any, "what may be used; no number of the plan depends on it")
SEARCHED = (
    _searched,
    "the best pipeline that a search found, slower than the plan: its stages are not listed",
)
PROBLEM = (_any, "a part of the problem that the schedule states and solves")

HARMLESS: dict[tuple[str, str], tuple[Rule, str]] = {
    ("plan", "bound"): (_any, "up to the value, with its gap; its proof is what a certificate is"),
    ("plan", "gap"): (_tiny, "a difference of less than 1e-9"),
    ("bound", "gap"): (_tiny, "a difference of less than 1e-9"),
    ("stage", "starts_s[]"): (_higher, "a later start that nothing waits for"),
    ("plan", "devices[].count"): OFFERED,
    ("plan", "devices[].bandwidth_bytes_per_s"): OFFERED,
    ("plan", "devices[].memory_bytes"): OFFERED,
    ("plan", "links[].bandwidth_bytes_per_s"): OFFERED,
    ("plan", "links[].latency_s"): OFFERED,
    ("plan", "max_replicas"): OFFERED,
    ("plan", "parallel.tensor_parallel"): OFFERED,
    ("plan", "parallel.data_parallel"): OFFERED,
    ("plan", "parallel.shared_stages"): OFFERED,
    ("plan", "parallel.micro_batches"): (_no_replicas, "what replicas share; there are none"),
    ("plan", "ways[].value"): SEARCHED,
    ("plan", "ways[].stages"): SEARCHED,
    ("plan", "ways[].devices"): SEARCHED,
    ("plan", "invocations"): OFFERED,
    ("stage", "peak_bound_bytes"): UNPROVEN,
    ("plan", "tried[].bound"): TRIED,
    ("plan", "tried[].gap"): TRIED,
    ("plan", "tried[].value"): TRIED,
    ("bound", "tried[].value"): (_any, "of another argument, up to the bound that is proven"),
    ("schedule", "bubble"): (_close, "within the tolerance: it is what is left of 1"),
    ("schedule", "bound_s"): UNPROVEN,
    ("schedule", "rate_bound_s"): UNPROVEN,
    ("schedule", "repetend.period_bound_s"): UNPROVEN,
    ("schedule", "repetend.memory_bound_bytes"): UNPROVEN,
    ("schedule", "repetend.span_bound_s"): UNPROVEN,
    ("schedule", "pareto[].period_bound_s"): UNPROVEN,
    ("schedule", "rate_s"): (
        _any,
        "of a recipe without a repetend: compared with the load of units and its bound only",
    ),
    ("schedule", "pareto[].period_s"): (_higher, "a period that is longer holds as well"),
    ("schedule", "pareto[].starts_s[][]"): (_any, "another repetend with the same figures"),
    ("schedule", "repetend.starts_s[][]"): (_any, "another repetend with the same figures"),
    ("schedule", "repetend.period_s"): (_higher, "a period that is longer holds as well"),
    ("schedule", "units[].memory_bytes"): PROBLEM,
    ("schedule", "passes[].memory_bytes"): PROBLEM,
    ("schedule", "passes[].after[].pass"): PROBLEM,
    ("schedule", "passes[].after[].delay_s"): PROBLEM,
}
"""Type and field -> which changes are not false, or cannot be found out, and why."""


class Leaf(NamedTuple):
    """A number in a stream."""

    position: int
    """Of its record."""
    path: Path
    field: str
    """The path with [] for positions in lists."""


@dataclass(frozen=True)
class Forgery:
    """A change that was made, and what the checker said."""

    stream: str
    kind: str
    field: str
    mutation: str
    before: float
    after: float
    accepted: bool
    reason: str
    """Why that is no fault, if it is accepted; else empty."""


def leaves(records: Sequence[Record], kinds: Sequence[str]) -> list[Leaf]:
    """All numbers in records of these types; certificates have a check of their own."""
    found = []
    for position, record in enumerate(records):
        if record["type"] in kinds:
            for path in _paths(record):
                if path[0] != "certificate":
                    field = ".".join("[]" if isinstance(step, int) else step for step in path)
                    found.append(Leaf(position, path, field.replace(".[]", "[]")))
    return found


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, (*path, name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _paths(inner, (*path, i))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changes(leaf: Leaf, value: float) -> Iterator[tuple[str, float]]:
    """Names of mutations that change a number, and what they make of it."""
    name = next(step for step in reversed(leaf.path) if isinstance(step, str))
    seen = {value}
    table: dict[str, Callable[[Any], Any]] = {**WHOLE} if name in COUNTS else {**MUTATIONS}
    for mutation, change in table.items():
        after = change(value)
        if after not in seen:
            seen.add(after)
            yield mutation, after


def number_at(records: Sequence[Record], leaf: Leaf) -> float:
    """The number that a leaf is."""
    place: Any = records[leaf.position]
    for step in leaf.path:
        place = place[step]
    return place


def forged(records: Sequence[Record], leaf: Leaf, value: float) -> list[Record]:
    """The records with another number, and digests and gaps that fit it."""
    result = list(records)
    result[leaf.position] = copy.deepcopy(result[leaf.position])
    place: Any = result[leaf.position]
    for step in leaf.path[:-1]:
        place = place[step]
    place[leaf.path[-1]] = value
    plans = [i for i, r in enumerate(result) if r["type"] == "plan"]
    if not plans or leaf.path[-1] == "gap":
        return result
    plan, stages = result[plans[0]], [r for r in result if r["type"] == "stage"]
    digest = plan_digest(plan, stages)
    for i, record in enumerate(result):
        if record["type"] == "plan":
            result[i] = record | {"gap": gap_of(record["value"], record["bound"])}
        elif record["type"] == "bound":
            gap = gap_of(plan["value"], record["value"])
            result[i] = record | {"gap": gap, "digest": bound_digest(plan, stages)}
        elif record["type"] in ("schedule", "run") and "digest" in record:
            result[i] = record | {"digest": digest}
    return result


def forge(
    name: str, records: Sequence[Record], most: int = 10**9, kinds: Sequence[str] = KINDS
) -> Iterator[Forgery]:
    """Change numbers of a stream one by one, at most so many of each field, spread over it."""
    by_field: dict[tuple[str, str], list[Leaf]] = {}
    for leaf in leaves(records, kinds):
        by_field.setdefault((records[leaf.position]["type"], leaf.field), []).append(leaf)
    for (kind, field), found in by_field.items():
        step = max(len(found) / most, 1.0)
        for i in range(min(most, len(found))):
            leaf = found[int(i * step)]
            value = number_at(records, leaf)
            for mutation, after in changes(leaf, value):
                content = forged(records, leaf, after)
                accepted = accepts(content)
                rule, reason = HARMLESS.get((kind, field), (None, ""))
                if rule is None or not rule(content[leaf.position], value, after):
                    reason = ""
                yield Forgery(name, kind, field, mutation, value, after, accepted, reason)


def accepts(records: Sequence[Record]) -> bool:
    """Whether `dnnp-check` finds nothing wrong with a stream."""
    result = dnnp("check", "-q", stdin=seeds.encode(list(records)))
    if "Traceback" in result.err:
        raise AssertionError(result.err)
    return result.status == 0


def records_in(stream: bytes) -> list[Record]:
    """The records of a stream without its end."""
    return [orjson.loads(line) for line in stream.splitlines()][:-1]
