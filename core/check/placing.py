"""Rules by name of where nodes go, checked from the nodes that a plan says they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dnnp.core.check.claims import number_of, split_name
from dnnp.core.check.graph import Tables
from dnnp.core.check.load import PlanCase
from dnnp.core.check.violation import Violation, shown
from dnnp.core.model.graph import INPUT, STATE
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import Plan, Stage


def check_rules(case: PlanCase) -> Iterator[Violation]:
    """Check that the stages of a plan keep its rules."""
    place = {node: v for v, node in enumerate(case.tables.ids)}
    named = [f"shared stage {i}" if s.shared else s.device for i, s in enumerate(case.plan.stages)]
    home = {v: name for name, block in zip(named, case.blocks, strict=True) for v in block}
    at = dict(zip(named, case.plan.stages, strict=True))
    for rule in case.plan.rules:
        ids = {v for part in rule.parts for v in part}
        parts = [{place[v] for v in part if v in place} for part in rule.parts]
        parts = _sides(case.tables, *parts) if rule.rule == "cut-before" else parts
        homes = [{home[v] for v in part if v in home} for part in parts]
        wrong = [f"node {v} is not in the graph" for v in sorted(ids - place.keys())]
        for reason in (*wrong, *_faults(case.plan, rule, homes, at)):
            yield Violation("rule", "plan", f"breaks {rule.words}: {reason}")


def _faults(plan: Plan, rule: Rule, homes: list[set[str]], at: dict[str, Stage]) -> Iterator[str]:
    """Reasons why the devices that hold each part break a rule."""
    if rule.stages and rule.stages != len(at):
        yield f"there are {len(at)} stages"
    if rule.rule in ("together", "layers-per-stage"):
        yield from (f"its nodes are on {shown(sorted(home))}" for home in homes if len(home) > 1)
    if rule.rule == "pin":
        classes = {d.name: (d.name, d.of) for d in plan.devices}
        for x in sorted(set[str]().union(*homes)):
            stage, (owner, number) = at[x], split_name(rule.device)
            inside = number is not None and number - (number_of(stage) or 0) in range(stage.devices)
            names = stage.device, *classes.get(stage.device_class, ())
            if rule.device not in names and not (inside and owner == stage.device_class):
                yield f"a node is on {x}"
    if rule.by_stage:
        both = (x for i, home in enumerate(homes) for x in home & set[str]().union(*homes[:i]))
        yield from (f"{x} holds nodes of two sides" for x in sorted(both))


def _sides(tables: Tables, part: set[int]) -> list[set[int]]:
    """Nodes before a cut, and those that it is before."""

    def readers(v: int) -> Iterable[int]:
        return (u for t in tables.writes[v] for u in tables.users.get(t, ()))

    every = range(tables.n)
    given = {v for v in every if any(tables.kind[t] in (INPUT, STATE) for t in tables.reads[v])}
    fed = {v for v in reached(given, readers, {*every}) if not tables.backward[v]}
    behind = reached(part & fed, readers, fed)
    return [reached(part & fed, tables.producers, fed) - behind, part & fed]


def reached(first: set[int], after: Callable[[int], Iterable[int]], within: set[int]) -> set[int]:
    """Nodes that are reached from some, these included."""
    found, waiting = set(first), list(first)
    while waiting:
        new = within.intersection(after(waiting.pop())) - found
        found |= new
        waiting += new
    return found
