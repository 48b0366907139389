"""Methods that results name, against the header and each other.

A method is one that dnnp has for results of that kind. Where the header says what made a result, it
is the method that was asked for there, or one that stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from dnnp.core.check.graph import STRENGTH
from dnnp.core.check.violation import Violation, above, printable

Record = Mapping[str, Any]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


ANSWERS = _names("slice, first-fit, exact, anneal, ip, random, brkga, links")
"""Methods whose plans a search may answer with."""

SEARCHES = _names("auto, exact, heuristic, random, brkga, mla, mla-weighted, ip, anneal, cpsat, ")
SEARCHES |= _names("max-load, placeto")
OTHERS = _names(
    "slice, dpl, greedy, local-search, pipedream, scotch, metis, uniform, params, single"
)
OTHERS |= _names(
    "heft, heft-congested, m-topo, m-etf, m-sct, getf, getf-milp, given, hybrid, whole"
)
TAILS = ("", "-packed", "-repaired", "-greedy", "-fluid", "-greedy-packed", "-fluid-packed")
"""Ends of names of methods that had to be helped."""

SPLITS = ANSWERS | {a + b for a, b in product(SEARCHES | OTHERS, TAILS)} | {"replicas"}
BOUNDS = _names(
    "simple, chain, zone-cut, node-cut, cpu-cut, ideal, halves, pairs, same-block, cover"
)
BOUNDS |= _names("cover-cut, links, no-dag, no-io, bottleneck, guess, exact")
PATHS = _names("critical path, critical path without transfers, path of blocks, ideals of blocks")
PATHS |= _names("area, memory path, windows, segments, simple, exact, cbc, highs, cpsat")
RECIPES = _names("sequential, gpipe, 1f1b, 1f1b+, interleaved-1f1b, chimera, zb-h1, zb-h2, zb-v")
RECIPES |= _names("v-half, v-min, dualpipe, dualpipev, inference")
SCHEDULES = RECIPES | _names("auto, optimal, tessel, tessel-fast, in-turn")
REPETENDS = _names("orders, list, sequential, tessel, tessel-fast")


def check_origin(header: Record, records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """Find methods that are none, or not those that the header asks for."""
    steps = header["provenance"]
    for plan in records.get("plan", ()):
        proofs = PATHS if plan["objective"] == "latency" else BOUNDS
        known = SPLITS | {f"bound-{name}" for name in proofs}
        rows = [plan, *plan.get("tried", ())]
        rows += [{"method": row["made_by"]} for row in rows if "made_by" in row]
        yield from _strange("plan", known, rows)
        yield from _strange("plan", PATHS, [{"method": plan.get("bound_method", "simple")}])
        yield from _made(plan, steps)
        for bound in records.get("bound", ()):
            yield from _strange("bound", proofs, [bound, *bound["tried"]])
            yield from _proof(bound)
    for schedule in records.get("schedule", ()):
        rows = [schedule["repetend"]] if "repetend" in schedule else []
        yield from _strange("schedule", SCHEDULES, [schedule])
        yield from _strange("schedule", REPETENDS, [*rows, *schedule.get("pareto", ())])
        asked = [_asked(step) for step in steps if step["tool"] == "dnnp-schedule"][-1:]
        for name, *_ in asked:
            if name in RECIPES and schedule["method"] not in (name, "sequential"):
                yield _other("schedule", schedule["method"], [name])


def _strange(subject: str, known: frozenset[str], rows: Sequence[Record]) -> Iterator[Violation]:
    for name in sorted({row["method"] for row in rows if "method" in row} - known):
        message = f"not checkable: there is no method {printable(name, 40)!r}"
        yield Violation("unchecked", subject, message, None, name)


def _other(subject: str, name: str, asked: Sequence[str]) -> Violation:
    message = f"says that it is by {printable(name, 80)}, but the header asks for "
    return Violation("provenance", subject, message + printable(", ".join(asked), 80), None, name)


def _asked(step: Record) -> list[str]:
    """Methods that a command was asked for."""
    words = [part for word in step["arguments"] for part in word.split("=", 1)]
    given = [names for word, names in pairwise(words) if word == "--method"]
    names = "given" if "--eval" in words else (given or ["auto"])[-1]
    return list(dict.fromkeys(names.split(",")))


def _made(plan: Record, steps: Sequence[Record]) -> Iterator[Violation]:
    """A plan is by the method that was asked for; several are all in `tried`."""
    makers = [step for step in steps if step["tool"] in ("dnnp-partition", "dnnp-bound")]
    if not any(step["tool"] == "dnnp-partition" for step in makers):
        return  # dnnp-bound may have found a plan that others made
    name, rows = plan["method"], plan.get("tried", ())
    splits = [_asked(step) for step in makers if step["tool"] == "dnnp-partition"]
    asked = ["hybrid"] if "parallel" in plan else splits[-1]
    bounded = makers[-1]["tool"] == "dnnp-bound"
    replaced = bounded and name.startswith("bound-")
    whole = "ways" in plan and name in ANSWERS | {"whole", "replicas"}
    if not replaced and not whole and not any(_answers(one, name) for one in asked):
        yield _other("plan", name, asked)
    if [x["method"] for x in rows] != (asked if len(asked) > 1 and not replaced else []):
        yield _other("plan", f"the best of {[x['method'] for x in rows]}", asked)
    if plan.get("bound_method") == "exact" and not bounded:
        yield _other("plan", "bounded by exact", asked)
    most = STRENGTH[plan["validity"]]
    proven = [x.get("bound", 0.0) for x in rows if STRENGTH.get(x.get("validity"), 9) <= most]
    if rows and not bounded and above(plan["bound"], max(proven, default=0.0)):
        message = f"the bound {plan['bound']!r} is proven by no method that was tried"
        yield Violation("bound", "plan", message, max(proven, default=0.0), plan["bound"])


def _answers(asked: str, name: str) -> bool:
    """Test whether a method may answer under a name."""
    helped = any(name == asked + tail for tail in TAILS)
    return helped or name in ("slice", "first-fit") or (asked in SEARCHES and name in ANSWERS)


def _proof(bound: Record) -> Iterator[Violation]:
    """A bound is by the argument of its certificate; those tried say what they prove, if any."""
    argument = bound.get("certificate", {}).get("argument", bound["method"])
    if argument != bound["method"] or not bound["tried"]:
        message = f"its method is {bound['method']}, which was not tried or its certificate is not"
        yield Violation("bound", "bound", printable(message, 200), str(argument), bound["method"])
    for entry in bound["tried"]:
        states = {"solved": (True,), "limit": (True,), "refused": (False,)}
        if ("value" in entry) not in states.get(entry["status"], (False, True)):
            message = f"{entry['method']}: {entry['status']}, with a value or without one"
            yield Violation("status", "bound", printable(message, 200), None, entry["status"])
