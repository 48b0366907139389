"""Rules by name of where nodes go, checked from the nodes that a plan says they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dnnp.core.check.graph import Tables
from dnnp.core.check.load import PlanCase
from dnnp.core.check.violation import Violation, shown
from dnnp.core.model.graph import INPUT, STATE
from dnnp.core.model.placing import Rule


def check_rules(case: PlanCase) -> Iterator[Violation]:
    """Check that the stages of a plan keep its rules."""
    place = {node: v for v, node in enumerate(case.tables.ids)}
    home = {v: s.device for s, b in zip(case.plan.stages, case.blocks, strict=True) for v in b}
    for rule in case.plan.rules:
        ids = {v for part in rule.parts for v in part}
        parts = [{place[v] for v in part if v in place} for part in rule.parts]
        parts = _sides(case.tables, *parts) if rule.rule == "cut-before" else parts
        homes = [{home[v] for v in part if v in home} for part in parts]
        wrong = [f"node {v} is not in the graph" for v in sorted(ids - place.keys())]
        for reason in (*wrong, *_faults(case, rule, homes)):
            yield Violation("rule", "plan", f"breaks {rule.words}: {reason}")


def _faults(case: PlanCase, rule: Rule, homes: list[set[str]]) -> Iterator[str]:
    """Reasons why the devices that hold each part break a rule."""
    stages = case.plan.stages
    if rule.stages and rule.stages != len(stages):
        yield f"there are {len(stages)} stages"
    if rule.rule in ("together", "layers-per-stage"):
        yield from (f"its nodes are on {shown(sorted(home))}" for home in homes if len(home) > 1)
    if rule.rule == "pin":
        classes = {d.name: (d.name, d.of) for d in case.plan.devices}
        names = {s.device: (s.device, *classes.get(s.device_class, ())) for s in stages}
        others = (x for x in sorted(set[str]().union(*homes)) if rule.device not in names[x])
        yield from (f"a node is on {x}" for x in others)
    if rule.by_stage:
        both = (x for i, home in enumerate(homes) for x in home & set[str]().union(*homes[:i]))
        yield from (f"{x} holds nodes of two sides" for x in sorted(both))


def _sides(tables: Tables, part: set[int]) -> list[set[int]]:
    """Nodes before a cut, and those that it is before."""

    def readers(v: int) -> Iterable[int]:
        return (u for t in tables.writes[v] for u in tables.users.get(t, ()))

    every = range(tables.n)
    given = {v for v in every if any(tables.kind[t] in (INPUT, STATE) for t in tables.reads[v])}
    fed = {v for v in _reached(given, readers, {*every}) if not tables.backward[v]}
    behind = _reached(part & fed, readers, fed)
    return [_reached(part & fed, tables.producers, fed) - behind, part & fed]


def _reached(first: set[int], after: Callable[[int], Iterable[int]], within: set[int]) -> set[int]:
    """Nodes that are reached from some, these included."""
    found, waiting = set(first), list(first)
    while waiting:
        new = within.intersection(after(waiting.pop())) - found
        found |= new
        waiting += new
    return found
