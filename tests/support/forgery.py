"""False numbers in valid streams: every number of results changed, one at a time.

Values that depend on it by definition (digests, gaps) are made to fit again, as a forger would do;
all else stays. A stream that `dnnp-check` still accepts is an undetected forgery.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from dnnp.core.cost.latency import latency_problem
from dnnp.core.cost.problem import SplitProblem, given_plan
from dnnp.core.model.errors import DnnpError
from dnnp.core.model.plan import Block
from dnnp.formats.bounds import bound_digest, gap_of
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.plan import plan_digest, plan_of
from dnnp.formats.stream import read_bytes
from support import seeds
from support.brute import brute_force
from support.latency_brute import brute_blocks, brute_operators
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
"""Changes of a number that is not whole by nature."""

WHOLE: dict[str, Callable[[int], int]] = {
    "one more": lambda x: x + 1,
    "one less": lambda x: max(x - 1, 0),
    "double": lambda x: 2 * x,
    "many": lambda x: 10**6,
    "most": lambda x: 2**53 - 1,
    "none": lambda x: 0,
}
"""Changes of counts, ids and positions."""

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
    ("plan", "max_gap"): (_higher, "a wider gap holds as well"),
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
    """The reason why that is no fault, if it is accepted; else empty."""


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


def accepts(records: Sequence[Record], *options: str) -> bool:
    """True if `dnnp-check` finds nothing wrong with a stream."""
    result = dnnp("check", "-q", *options, stdin=seeds.encode(list(records)))
    if "Traceback" in result.err:
        raise AssertionError(result.err)
    return result.status == 0


def records_in(stream: bytes) -> list[Record]:
    """The records of a stream without its end."""
    return [orjson.loads(line) for line in stream.splitlines()][:-1]


STRUCTURE: dict[str, str] = {
    "removed": "a field that is gone",
    "added": "a field of another plan, which this record does not have",
    "swapped": "the values of two fields, or of one field in two records",
    "taken": "the value that the field has in another plan of the same graph",
}
"""Changes of structure, by name."""

ORIGIN = (
    "method", "effort", "spread", "policy", "planned_by", "bound_method", "made_by", "reason",
    "time_s", "tried", "name", "fitted", "fast_memory_bytes",
)  # fmt: skip
"""Fields that say how something was found, or what it is called: nothing follows from them."""

CLAIMS = ("bound", "gap", "status", "bound_s", "rate_bound_s", "peak_bound_bytes", "certificate")
"""Fields that state a bound, which the checker calls a claim until it is verified."""

DEFAULTS: dict[str, Any] = {
    "replicas": 1, "shards": 1, "sync_s": 0.0, "collective_s": 0.0, "shared": False,
    "recomputed": [], "count": 0, "cluster_size": 0, "max_replicas": 1, "shared_stages": 0,
    "excess_bytes": 0.0, "memory_bytes": 0.0, "fixed_bytes": 0.0, "delay_s": 0.0, "link": False,
    "links": [], "larger_clusters": [], "execution": "operators", "invocations": 1,
    "transfers": "tensor", "congestion": "device", "receives": [],
}  # fmt: skip
"""Meaning of an absent field."""


def meaning(value: Any) -> Any:
    """A record without what is absent by default, what nothing follows from, and claims."""
    if isinstance(value, dict):
        return {
            name: meaning(inner)
            for name, inner in value.items()
            if name not in ORIGIN + CLAIMS and (name not in DEFAULTS or inner != DEFAULTS[name])
        }
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return [meaning(inner) for inner in value] if isinstance(value, list) else value


def restructured(
    records: Sequence[Record], others: Sequence[Sequence[Record]], rng: random.Random
) -> Iterator[tuple[str, str, str, list[Record]]]:
    """(kind, field, change, records) of every field of results, changed in each way.

    `others` are streams with other plans of the same graph. Digests and gaps are made to fit.
    """
    for position, record in enumerate(records):
        kind = record["type"]
        if kind not in KINDS:
            continue
        pool = [r for other in others for r in other if r["type"] == kind]
        mates = [r for i, r in enumerate(records) if r["type"] == kind and i != position]
        for path in objects(record):
            here = at(record, path)
            strangers = [at(r, path) for r in pool if at(r, path) is not None]
            where = ".".join("[]" if isinstance(s, int) else s for s in path)
            rows: list[tuple[str, str, Record]] = []
            for name, value in here.items():
                if name == "type" and not path:
                    continue
                rest = {k: v for k, v in here.items() if k != name}
                rows.append((name, "removed", rest))
                twins = [k for k in rest if k != "type" and type(rest[k]) is type(value)]
                for twin in rng.sample(twins, min(2, len(twins))):
                    rows.append((name, "swapped", {**here, name: here[twin], twin: value}))
                values = [s[name] for s in strangers if s.get(name, value) != value]
                for taken in rng.sample(values, min(2, len(values))):
                    rows.append((name, "taken", {**here, name: taken}))
                if not path and mates and name != "id":
                    mate = rng.choice(mates)
                    if mate.get(name, value) != value:
                        rows.append((name, "swapped", {**here, name: mate[name]}))
            for stranger in strangers:
                for name in stranger.keys() - here.keys():
                    rows.append((name, "added", {**here, name: stranger[name]}))
            for name, change, content in rows:
                field = f"{where}.{name}".replace(".[]", "[]").lstrip(".")
                result = list(records)
                result[position] = put(record, path, content)
                yield kind, field, change, result


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths to a record and the objects in it, the first two of each list."""
    if isinstance(value, dict):
        yield path
        for name, inner in value.items():
            yield from objects(inner, (*path, name))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:2]):
            yield from objects(inner, (*path, i))


def at(record: Any, path: Path) -> Any:
    """The object at a path; None: there is none."""
    for step in path:
        known = isinstance(record, dict) and step in record
        known |= isinstance(record, list) and isinstance(step, int) and step < len(record)
        record = record[step] if known else None
    return record if isinstance(record, dict) else None


def put(record: Any, path: Path, content: Record) -> Any:
    """The record with another object at a path."""
    if not path:
        return content
    copied = record.copy()
    copied[path[0]] = put(record[path[0]], path[1:], content)
    return copied


def resealed(records: Sequence[Record]) -> list[Record]:
    """The records with digests and gaps that fit them, as far as they are sound."""
    result = list(records)
    plan = next((r for r in result if r["type"] == "plan"), None)
    if plan is None:
        return result
    try:
        return forged(result, Leaf(result.index(plan), ("id",), "id"), 0)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return result


def why_true(before: Sequence[Record], after: Sequence[Record]) -> str:
    """The reason why an accepted stream states nothing false; empty: nothing shows that.

    It means the same; or the search's own cost model, which shares no code with the checker, comes
    to all numbers of its plan, and no bound with a certificate is above the best split of all.
    """
    kinds = [r for r in KINDS if meaning(_of(before, r)) != meaning(_of(after, r))]
    if not kinds:
        return "it means the same"
    if kinds == ["bound"]:
        return proven(after)
    return priced(after) or allowed(before, after) if set(kinds) <= {"plan", "stage"} else ""


def allowed(before: Sequence[Record], after: Sequence[Record]) -> str:
    """True if a plan that the checker knows alone states the same stages as before, but for the
    numbers of devices and the order of nodes, and allows what they use: they fit, and replicas
    have nothing to synchronise.
    """
    (old,), (new,) = _of(before, "plan"), _of(after, "plan")
    own = [
        [{**s, "device": s["class"], "nodes": sorted(s["nodes"])} for s in _of(rows, "stage")]
        for rows in (before, after)
    ]
    free = {"memory_mode", "devices", "parallel", "invocations"}
    if not any(s[name] for s in own[1] for name in ("in_s", "overflow_s", "out_s")):
        free.add("comm")
    differ = {
        name for name in old.keys() | new.keys() if meaning(old.get(name)) != meaning(new.get(name))
    }
    if meaning(own[0]) != meaning(own[1]) or not differ <= free | {*ORIGIN, *CLAIMS}:
        return ""
    size = {d["class"]: d.get("memory_bytes", float("inf")) for d in new["devices"]}
    fits = all(s["memory_bytes"] <= size.get(s["class"], 0.0) for s in own[1])
    parallel = new.get("parallel", {})
    alone_on = [s for s in own[1] if not s.get("shared")]
    used = [max(s.get(name, 1) for s in alone_on) for name in ("replicas", "shards")]
    most = [parallel.get(f"{name}_parallel", 1) for name in ("data", "tensor")]
    enough = not parallel or (used[0] <= most[0] and used[1] <= most[1])
    alone = "parallel" not in differ or used[0] == 1 or not any(s.get("sync_s") for s in own[1])
    again = parallel.get("recompute") != "none" or not any(s.get("recomputed") for s in own[1])
    return "it may use what it uses" if fits and enough and alone and again else ""


LESS = ("repetend", "pareto", "pareto[].starts_s", "passes[].stage", "ways", "tried", "rate_s")
"""Statements that may be left out; the stage of a pass only of a transfer."""


def _of(records: Sequence[Record], kind: str) -> list[Record]:
    """Records of a kind without digests; passes name all nodes that they run."""
    return [
        {k: _named(v, records) if k == "passes" else v for k, v in r.items() if k != "digest"}
        for r in records
        if r["type"] == kind
    ]


def _named(passes: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """Passes with the nodes of their stages of their direction, where they name none."""
    late = {r["id"] for r in records if r["type"] == "node" and r.get("backward")}
    nodes = {r["id"]: r["nodes"] for r in records if r["type"] == "stage"}
    found = []
    for row in passes:
        mine = row.get("nodes", ())
        if not mine and row.get("stage") in nodes and row.get("kind") in ("forward", "backward"):
            back = row["kind"] == "backward"
            mine = [v for v in nodes[row["stage"]] if (v in late) == back]
        found.append({**row, "nodes": sorted(mine)})
    return found


def proven(records: Sequence[Record]) -> str:
    """True if no split is better than a bound says, of all that there are."""
    stream = read_bytes(seeds.encode(list(records)))
    graph = graph_of(stream)
    plan = plan_of(stream, graph, check_digest=False)
    assert plan is not None
    problem = SplitProblem(graph, units_of(stream, graph), plan.devices, plan.options)
    (bound,) = stream.get("bound")
    if plan.links or graph.n > 9:
        return ""
    if plan.objective == "latency":
        least = brute_blocks if plan.options.execution == "blocks" else brute_operators
        best = least(latency_problem(problem))[0]
    else:
        best = brute_force(problem, bound["validity"])[0]
    return "no split is better" if bound["value"] <= best * (1 + 1e-9) else ""


def priced(records: Sequence[Record]) -> str:
    """True if the cost model of the searches gives all numbers of a plan."""
    stream = read_bytes(seeds.encode(list(records)))
    graph = graph_of(stream)
    plan = plan_of(stream, graph, check_digest=False)
    assert plan is not None
    if plan.hybrid is not None or plan.objective == "latency":
        return ""
    problem = SplitProblem(graph, units_of(stream, graph), plan.devices, plan.options, plan.links)
    try:
        given_plan(problem, plan)
    except DnnpError:
        return ""
    position = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    devices = {d.name: d for d in plan.devices}
    blocks = [
        Block(
            np.array([position[n] for n in s.nodes], dtype=np.int64),
            devices[s.device_class],
            s.replicas,
            int(s.device.rpartition("/")[2]),
        )
        for s in plan.stages
    ]
    again = {stage.nodes: stage for stage in problem.plan(blocks).stages}
    for stage in plan.stages:
        for name in ("load_s", "in_s", "compute_s", "overflow_s", "out_s", "memory_bytes"):
            mine, stated = getattr(again[stage.nodes], name), getattr(stage, name)
            if abs(mine - stated) > 2e-9 * max(abs(mine), abs(stated)):
                return ""
    return "the search prices it alike"
