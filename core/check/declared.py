"""The scope of the checks: fields of results, values of their modes, and what goes together.

The declaration of the stream says of each field which part of the checks covers it; here stands
what a part covers of its modes. All else that a plan, stage, bound, schedule or block record says
is *not checkable*, never agreed to. Free are fields that begin with `x_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dnnp.core.check.violation import Record, Violation, printable

Tree = Mapping[str, Any]
"""Field -> what it holds: a `Tree`, of an object or of each in a list; the values that are
understood; or None, what checks compare or nothing follows from. `*`: any other name."""

Covered = Callable[[str, str], Tree]
"""Kind of record and part of the checks -> fields that this part covers."""

FREE = "x_"
"""First letters of names without a meaning here."""

Modes = Mapping[str, tuple[Any, ...]]
"""Field, those of objects after a dot -> values that are covered; none: the field is not."""


class Case(NamedTuple):
    """Values that one part of the checks covers together, where those are fewer than there are."""

    what: str
    part: str
    plan: Modes
    stage: Modes
    facts: Mapping[str, tuple[Any, str, str]]
    """Another condition, the field that depends on it, and where it is not covered: `training`,
    whether the graph has a backward pass; `limited`, whether an accelerator has a capacity;
    `classes`, the number of device classes."""


_SUM: Modes = {"objective": ("throughput", "sequence"), "memory_model": ("sum",)}
_PEAK: Modes = {"objective": ("throughput", "sequence"), "memory_model": ("peak",)}
_GPIPE: Modes = {"objective": ("gpipe",), "memory_model": ("sum",)}
_PASSES: Modes = {"peak_bytes": (), "peak_bound_bytes": ()}
_PEAKS: Modes = {"forward_s": (), "backward_s": ()}
_TRAINS = {"training": (True, "objective", " without a backward pass")}
_FORWARD = {"training": (False, "memory_model", " with a backward pass")}
_FREELY = {**_TRAINS, "limited": (False, "memory_mode", " with the objective gpipe")}
_STREAMS: Modes = {"memory_mode": ("hard", "overflow")}
_ALONE: Modes = {"ways": ()}

STAGES = [
    Case("", "stages", {**chosen, **memory}, stage, facts)
    for chosen, stage, facts, memories in (
        (_SUM, _PASSES, {}, (_STREAMS, _ALONE)),
        (_PEAK, _PEAKS, _FORWARD, (_STREAMS, _ALONE)),
        (_GPIPE, _PASSES, _FREELY, (_STREAMS, _ALONE)),
        (
            _GPIPE,
            _PASSES,
            _TRAINS,
            ({"memory_mode": ("hard",)}, {"memory_mode": ("hard", "ignore"), **_ALONE}),
        ),
    )
    for memory in memories
]
"""Of stages on devices of their own: `core.check.load` and `core.check.plan`."""

PARALLEL = [
    Case(
        " of a parallel plan",
        "parallel",
        {
            "objective": ("throughput",),
            "validity": ("ordered",),
            "memory_model": ("sum",),
            "memory_mode": ("hard", "ignore"),
            "charge_io": (False,),
            "devices.kind": ("accelerator",),
        },
        {},
        {"classes": (1, "devices", " of several classes")},
    )
]
"""`core.check.parallel`."""

_LATENCY: Modes = {
    "objective": ("latency",),
    "comm": ("sum",),
    "memory_mode": ("hard", "ignore"),
}
BLOCKS = [
    Case(
        " of a plan for the latency of blocks",
        "blocks",
        {
            **_LATENCY,
            "execution": ("blocks",),
            "transfers": transfers,
            "charge_io": charge_io,
            "congestion": ("device",),
        },
        {},
        {},
    )
    for transfers, charge_io in ((("tensor",), (False, True)), (("edge",), (False,)))
]
"""`core.check.latency`."""

OPERATORS = [
    Case(
        " of a plan for the latency of operators",
        "operators",
        {**_LATENCY, "execution": ("operators",), "invocations": (1,), "charge_io": (False,)},
        {},
        {},
    )
]
"""`core.check.latency`."""


def _fields(names: str) -> dict[str, Any]:
    """Fields of any value."""
    return dict.fromkeys(names.split())


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
    "packing": _fields("kind"),
    "links": {},
}
"""Argument -> fields of its certificate: `core.certificates.certificate`."""


def check_declared(
    records: Mapping[str, Sequence[Record]], covered: Covered, training: bool
) -> Iterator[Violation]:
    """Return what the records of a stream say that no check covers, each field once.

    `training`: the graph has a backward pass.
    """
    plans, stages = records.get("plan", ()), records.get("stage", ())
    found = _Found()
    for plan in plans:
        cases = (_beyond(case, plan, stages, training, covered) for case in cases_of(plan))
        found.places |= min(cases, key=lambda one: len(one.places)).places
    for kind in ("bound", "schedule", "block"):
        name = "block {}" if kind == "block" else kind
        rows = enumerate(records.get(kind, ()))
        found.add(
            kind, ((name.format(i), record) for i, record in rows), covered(kind, "stages"), {}
        )
    for bound in records.get("bound", ()):
        found.note("bound", "bound", beyond_certificate(bound.get("certificate")))
    late = sum(plan["objective"] == "latency" for plan in plans)
    for _ in records.get("schedule", ()):
        found.note("schedule", "schedule", [("digest", None)] * late, " of a plan for latency")
    return found.violations()


def cases_of(plan: Record) -> Sequence[Case]:
    """Cases covered by the part that prices a plan."""
    if "parallel" in plan:
        return PARALLEL
    if plan["objective"] != "latency":
        return [case for case in STAGES if plan["objective"] in case.plan["objective"]]
    return BLOCKS if plan.get("execution") == "blocks" else OPERATORS


def beyond(tree: Tree, record: Record, modes: Modes, within: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a record that are not in a tree, with None, and those with other values."""
    for name, value in record.items():
        if name.startswith(FREE):
            continue
        known = modes.get(within + name, tree.get(name, tree.get("*", ())))
        rows = value if isinstance(value, list) else [value]
        if known == ():
            yield within + name, None
        elif isinstance(known, Mapping):
            for row in rows:
                if isinstance(row, Mapping):
                    yield from beyond(known, row, modes, f"{within}{name}.")
        elif known is not None:
            yield from ((within + name, row) for row in rows if row not in known)


def beyond_certificate(
    certificate: Any, arguments: Iterable[str] = CERTIFICATES
) -> Iterator[tuple[str, Any]]:
    """The same of a certificate of some arguments, unless it does not claim to be a proof."""
    if isinstance(certificate, Mapping) and certificate.get("checkable") is not False:
        tree = _fields("argument checkable quantum units")
        for argument in arguments:
            tree |= CERTIFICATES[argument]
        yield from beyond(tree, certificate, {}, "certificate.")


class _Found:
    """Fields that nothing covers."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str, str], tuple[str, int]] = {}
        """(kind of record, field, of what value and plan) -> the first record, and how many."""

    def add(
        self,
        kind: str,
        records: Iterable[tuple[str, Record]],
        tree: Tree,
        modes: Modes,
        what: str = "",
    ) -> None:
        """Note what a tree and modes do not cover of records with their names."""
        plain = {name for name, known in tree.items() if known is None and name not in modes}
        for subject, record in records:
            if not record.keys() <= plain:
                self.note(kind, subject, beyond(tree, record, modes), what)

    def note(
        self, kind: str, subject: str, rows: Iterable[tuple[str, Any]], what: str = ""
    ) -> None:
        """Note fields of a record, with values that are not covered, or None."""
        for field, value in rows:
            key = kind, field, what if value is None else f" with the value {value!r:.60}{what}"
            first, count = self.places.get(key, (subject, 0))
            self.places[key] = first, count + 1

    def violations(self) -> Iterator[Violation]:
        """One for each field, whatever the number of records."""
        for (kind, field, what), (subject, count) in self.places.items():
            message = f"not checkable: no check covers the field '{printable(field, 80)}'{what}"
            message += f" ({count} {kind} records)" * (count > 1)
            yield Violation("unchecked", subject, message, None, field)


def _beyond(
    case: Case, plan: Record, stages: Sequence[Record], training: bool, covered: Covered
) -> _Found:
    """Collect what a case does not cover of a plan and its stages."""
    found = _Found()
    found.add("plan", [("plan", plan)], covered("plan", case.part), case.plan, case.what)
    facts = {
        "training": training,
        "limited": any("memory_bytes" in d for d in plan["devices"] if d["kind"] != "cpu"),
        "classes": len(plan["devices"]),
    }
    for name, (wanted, field, where) in case.facts.items():
        if facts[name] != wanted:
            value = plan[field] if isinstance(plan[field], str) else None
            found.note("plan", "plan", [(field, value)], where + case.what)
    named = ((f"stage {stage['id']}", stage) for stage in stages)
    found.add("stage", named, covered("stage", case.part), case.stage, case.what)
    return found
