"""The scope of the checks: fields of results, values of their modes, and what goes together.

Whatever a plan, stage, bound, schedule or block record says beyond this no check looks at, so it is
*not checkable*, never agreed to. Free are fields that begin with `x_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dnnp.core.check.violation import Violation, printable

Record = Mapping[str, Any]

Tree = Mapping[str, Any]
"""Field -> what it holds: a `Tree`, of an object or of each in a list; the values that are
understood; or None, what checks compare or nothing follows from. `*`: any other name."""

FREE = "x_"
"""Begin of names that mean nothing to anybody here."""


def _fields(names: str) -> dict[str, Any]:
    """Fields of any value."""
    return dict.fromkeys(names.split())


BOOL = (False, True)
VALIDITY = ("ordered", "convex", "free")
CLUSTERS: dict[str, Any] = {
    **_fields("cluster_size inner_bandwidth_bytes_per_s"),
    "larger_clusters": _fields("cluster_size bandwidth_bytes_per_s"),
}

ORIGIN = {
    **_fields("method spread"),
    "policy": _fields("digest trained episodes asked graphs hops groups colors rounds"),
    "tried": {
        **_fields("method value bound gap made_by reason time_s"),
        "validity": VALIDITY,
        "status": ("optimal", "feasible", "interrupted", "infeasible", "limit", "unavailable"),
    },
}
"""How a plan was found, of which nothing follows but that it is the best of what was tried."""

PLAN: dict[str, Any] = {
    **ORIGIN,
    **_fields("type id k value bound gap max_gap excess_bytes digest"),
    "unknown": _fields("time sizes"),
    "validity": VALIDITY,
    "status": ("optimal", "within_gap", "feasible", "interrupted", "infeasible"),
    "memory_mode": ("hard", "overflow", "ignore"),
    "devices": {
        **_fields("class name count fitted memory_bytes overhead_bytes fast_memory_bytes"),
        **_fields("bandwidth_bytes_per_s"),
        "kind": ("accelerator", "cpu"),
        **CLUSTERS,
    },
}
"""Of every plan."""

STAGE = _fields(
    "type id device class nodes load_s in_s compute_s overflow_s out_s memory_bytes replicas sync_s"
)
"""Of every stage."""

COMM = ("sum", "overlap", "duplex")
LINKS: dict[str, Any] = {
    "links": _fields("from to bandwidth_bytes_per_s latency_s"),
    "planned_by": ("classes",),
}


class Case(NamedTuple):
    """Fields and values that one part of the checks covers together."""

    what: str
    plan: Tree
    stage: Tree
    facts: Mapping[str, tuple[Any, str, str]] = {}
    """What else must be so, the field that depends on it, and where it is not covered: `training`,
    whether the graph has a backward pass; `limited`, whether an accelerator has a capacity;
    `classes`, the number of device classes."""


WAYS: dict[str, Any] = {
    "ways": {
        **_fields("value stages devices class reason"),
        "way": ("whole", "replicas", "pipeline", "replicated-pipeline"),
    }
}
_OWN = {**PLAN, **LINKS, "comm": COMM, "charge_io": BOOL}
_OWN |= _fields("max_replicas contiguous_bound")
_PASSES = {**STAGE, **_fields("forward_s backward_s")}
_PEAKS = {**STAGE, **_fields("peak_bytes peak_bound_bytes")}
_SUM = {"objective": ("throughput",), "memory_model": ("sum",)}
_PEAK = {"objective": ("throughput",), "memory_model": ("peak",)}
_GPIPE = {"objective": ("gpipe",), "memory_model": ("sum",)}
_TRAINS = {"training": (True, "objective", " without a backward pass")}
_FORWARD = {"training": (False, "memory_model", " with a backward pass")}
_FREELY = {**_TRAINS, "limited": (False, "memory_mode", " with the objective gpipe")}
_STREAMS: dict[str, Any] = {"memory_mode": ("hard", "overflow"), **WAYS}

STAGES = [
    Case("", _OWN | chosen | memory, stage, facts)
    for chosen, stage, facts, memories in (
        (_SUM, _PASSES, {}, (_STREAMS, {})),
        (_PEAK, _PEAKS, _FORWARD, (_STREAMS, {})),
        (_GPIPE, _PASSES, _FREELY, (_STREAMS, {})),
        (
            _GPIPE,
            _PASSES,
            _TRAINS,
            ({"memory_mode": ("hard",), **WAYS}, {"memory_mode": ("hard", "ignore")}),
        ),
    )
    for memory in memories
]
"""Of stages on devices of their own: `core.check.load` and `core.check.plan`."""

PARALLEL = [
    Case(
        " of a parallel plan",
        {
            **PLAN,
            "objective": ("throughput",),
            "validity": ("ordered",),
            "comm": COMM,
            "memory_model": ("sum",),
            "memory_mode": ("hard", "ignore"),
            "charge_io": (False,),
            "devices": {**PLAN["devices"], "kind": ("accelerator",)},
            "parallel": {
                **_fields("tensor_parallel data_parallel micro_batches shared_stages"),
                "recompute": ("none", "full", "auto"),
                "weight_sync": ("ring", "server"),
                "overlap_sync": BOOL,
            },
        },
        {**STAGE, **_fields("shards collective_s recomputed in_flight"), "shared": BOOL},
        {"classes": (1, "devices", " of several classes")},
    )
]
"""`core.check.parallel`."""

_LATENCY = {
    **PLAN,
    **_fields("bound_method"),
    "objective": ("latency",),
    "comm": ("sum",),
    "memory_model": ("sum", "weights", "peak"),
    "memory_mode": ("hard", "ignore"),
}
_SPAN = {**STAGE, **_fields("begin_s end_s peak_bytes")}
BLOCKS = [
    Case(
        " of a plan for the latency of blocks",
        {
            **_LATENCY,
            "execution": ("blocks",),
            "invocations": None,
            "transfers": transfers,
            "charge_io": charge_io,
            "congestion": ("device",),
        },
        _SPAN,
    )
    for transfers, charge_io in ((("tensor",), BOOL), (("edge",), (False,)))
]
"""`core.check.latency`."""

OPERATORS = [
    Case(
        " of a plan for the latency of operators",
        {
            **_LATENCY,
            **LINKS,
            "execution": ("operators",),
            "invocations": (1,),
            "transfers": ("tensor", "edge"),
            "charge_io": (False,),
            "congestion": ("device", "channel", "none"),
        },
        {**_SPAN, "starts_s": None, "receives": _fields("tensors from start_s end_s")},
    )
]
"""`core.check.latency`."""

_CUTS = {"cuts": _fields("items flows memory")}
_CLASSES = {"classes": {"*": _fields("mix flows share tree")}}
_CUT: Tree = {"item": None, **_CLASSES}
CERTIFICATES: dict[str, Tree] = {
    "simple": {"parts": _fields("pass kind weights item units")},
    "node-cut": _CUT,
    "cpu-cut": {"items": _CUT},
    "pairs": {"cliques": None, **_CUTS},
    "chain": _fields("path weights"),
    "zone-cut": _fields("path span rates joined parted"),
    "same-block": {**_fields("target scale rows"), **_CUTS},
    "cover": _fields("prices"),
    "cover-cut": {"prices": None, **_CLASSES},
    "halves": _fields("tree"),
    "ideal": {},
    "links": {},
}
"""Argument -> fields of its certificate: `core.certificates.certificate`."""

BOUND: Tree = {
    **_fields("type method value gap digest certificate"),
    "status": ("optimal", "proven", "interrupted"),
    "validity": VALIDITY,
    "tried": {
        **_fields("method value reason time_s"),
        "status": ("solved", "limit", "refused", "failed"),
    },
}
"""`core.check.stream`."""

_STATUS = ("optimal", "feasible", "interrupted")
_PASS = {
    **_fields("name stage nodes homes time_s memory_bytes"),
    "kind": ("forward", "backward", "weight", "transfer"),
    "after": _fields("pass delay_s"),
}
SCHEDULE: Tree = {
    **_fields("type method micro_batches makespan_s bound_s bubble rate_s rate_bound_s digest"),
    "status": _STATUS,
    "units": {**_fields("name memory_bytes fixed_bytes peak_bytes busy_s"), "link": BOOL},
    "passes": _PASS,
    "repetend": {
        **_fields("unroll period_s period_bound_s memory_bytes memory_bound_bytes span_s"),
        **_fields("span_bound_s method starts_s"),
        "status": _STATUS,
    },
    "pareto": _fields("memory_bytes unroll period_s period_bound_s method starts_s"),
}
"""`core.check.schedule` and, where there is a plan, `core.check.passes`."""

BLOCK = _fields("type pass micro_batch units start_s end_s")
"""`core.check.schedule`."""


def check_declared(records: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """Return what the records of a stream say that no check covers, each field once."""
    plans, stages = records.get("plan", ()), records.get("stage", ())
    training = any(node.get("backward", False) for node in records.get("node", ()))
    found = _Found()
    for plan in plans:
        cases = (_beyond(case, plan, stages, training) for case in cases_of(plan))
        found.places |= min(cases, key=lambda one: len(one.places)).places
    for bound in records.get("bound", ()):
        found.add("bound", "bound", beyond(BOUND, bound))
        found.add("bound", "bound", beyond_certificate(bound.get("certificate")))
    for schedule in records.get("schedule", ()):
        found.add("schedule", "schedule", beyond(SCHEDULE, schedule))
        late = [plan for plan in plans if plan["objective"] == "latency"]
        found.add("schedule", "schedule", [("digest", None)] * len(late), " of a plan for latency")
    for number, block in enumerate(records.get("block", ())):
        if not block.keys() <= BLOCK.keys():
            found.add("block", f"block {number}", beyond(BLOCK, block))
    return found.violations()


def cases_of(plan: Record) -> Sequence[Case]:
    """Cases covered by the part that prices a plan."""
    if "parallel" in plan:
        return PARALLEL
    if plan["objective"] != "latency":
        return [case for case in STAGES if plan["objective"] in case.plan["objective"]]
    return BLOCKS if plan.get("execution") == "blocks" else OPERATORS


def beyond(tree: Tree, record: Record, within: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a record that are not in a tree, with None, and those with other values."""
    for name, value in record.items():
        if name.startswith(FREE):
            continue
        if name in tree or "*" in tree:
            known = tree.get(name, tree.get("*"))
            rows = value if isinstance(value, list) else [value]
            if isinstance(known, Mapping):
                for row in rows:
                    if isinstance(row, Mapping):
                        yield from beyond(known, row, f"{within}{name}.")
            elif known is not None:
                yield from ((within + name, row) for row in rows if row not in known)
        else:
            yield within + name, None


def beyond_certificate(
    certificate: Any, arguments: Iterable[str] = CERTIFICATES
) -> Iterator[tuple[str, Any]]:
    """The same of a certificate of some arguments, unless it does not claim to be a proof."""
    if isinstance(certificate, Mapping) and certificate.get("checkable") is not False:
        tree = _fields("argument checkable quantum units")
        for argument in arguments:
            tree |= CERTIFICATES[argument]
        yield from beyond(tree, certificate, "certificate.")


class _Found:
    """Fields that nothing covers."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str, str], tuple[str, int]] = {}
        """(kind of record, field, of what value and plan) -> the first record, and how many."""

    def add(self, kind: str, subject: str, rows: Iterable[tuple[str, Any]], what: str = "") -> None:
        """Note fields of a record, with values that are not covered, or None."""
        for field, value in rows:
            key = kind, field, what if value is None else f" with the value {value!r:.60}{what}"
            first, count = self.places.get(key, (subject, 0))
            self.places[key] = first, count + 1

    def violations(self) -> list[Violation]:
        """One for each field, whatever the number of records."""
        found = []
        for (kind, field, what), (subject, count) in self.places.items():
            message = f"not checkable: no check covers the field '{printable(field, 80)}'{what}"
            message += f" ({count} {kind} records)" * (count > 1)
            found.append(Violation("unchecked", subject, message, None, field))
        return found


def _beyond(case: Case, plan: Record, stages: Sequence[Record], training: bool) -> _Found:
    """Collect what a case does not cover of a plan and its stages."""
    found = _Found()
    found.add("plan", "plan", beyond(case.plan, plan), case.what)
    facts = {
        "training": training,
        "limited": any("memory_bytes" in d for d in plan["devices"] if d["kind"] != "cpu"),
        "classes": len(plan["devices"]),
    }
    for name, (wanted, field, where) in case.facts.items():
        if facts[name] != wanted:
            value = plan[field] if isinstance(plan[field], str) else None
            found.add("plan", "plan", [(field, value)], where + case.what)
    for stage in stages:
        if not stage.keys() <= STAGE.keys():
            found.add("stage", f"stage {stage['id']}", beyond(case.stage, stage), case.what)
    return found
