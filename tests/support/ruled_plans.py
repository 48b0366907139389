"""Small graphs with parallel plans by rules at random, and all of their plans that keep them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.placing import with_rules
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.placing import Rule
from dnnp.core.model.search_context import PLAIN
from dnnp.core.parallel.plan import solve_hybrid
from support.hybrid_plans import AllPlans, Request, asked
from support.ruled import keeps, random_rule

SHARED = ("cut-before",)
"""Rules that plans with shared stages heed."""


def ruled(seed: int, most: int = 4, *, shared: bool = False) -> tuple[Request, tuple[Rule, ...]]:
    """A graph, its devices and what a plan may use, without rules; and one to three rules."""
    rng = random.Random(f"ruled plans {seed} {shared}")
    while True:
        what = asked(rng.randrange(10**6), most, shared=shared)
        problem = what.problem
        drawn = [random_rule(rng, problem.graph, problem.devices) for _ in range(rng.randint(1, 3))]
        if shared:
            drawn = [rule for rule in drawn if rule.rule in SHARED]
        elif problem.clustered:
            drawn = [rule for rule in drawn if "/" not in rule.device]
        if not drawn or sum(rule.stages > 0 for rule in drawn) > 1:
            continue
        if max(rule.stages for rule in drawn) <= problem.devices[0].count:
            return what, tuple(drawn)


class RuledPlans(AllPlans):
    """All plans of what is asked that keep rules."""

    def __init__(self, what: Request, rules: Sequence[Rule]) -> None:
        super().__init__(what)
        self.rules = rules

    def colored(self, blocks: list[list[int]], teams: Sequence[tuple[int, int, bool]]) -> bool:
        stages = [(self.device, block) for block in blocks]
        kept = (keeps(self.graph, rule, stages) for rule in self.rules if "/" not in rule.device)
        return all(kept) and self.numbered(blocks, teams) and super().colored(blocks, teams)

    def numbered(self, blocks: list[list[int]], teams: Sequence[tuple[int, int, bool]]) -> bool:
        """True if stages can take devices in a row so that each pin is on one of its stage's."""
        pins = [rule for rule in self.rules if "/" in rule.device]
        if not pins:
            return True
        ids = [{self.tables.ids[v] for v in block} for block in blocks]
        wanted = [
            {int(p.device.split("/")[1]) for p in pins if mine & {*p.parts[0]}} for mine in ids
        ]
        sizes = [t * d for t, d, _ in teams]
        for starts in product(range(self.device.count), repeat=len(blocks)):
            rows = [{*range(a, a + n)} for a, n in zip(starts, sizes, strict=True)]
            used = set[int]().union(*rows)
            apart = len(used) == sum(sizes) and max(used) < self.device.count
            if apart and all(want <= row for want, row in zip(wanted, rows, strict=True)):
                return True
        return False


def ruled_disagreement(seed: int, most: int = 4, *, shared: bool = False) -> tuple[str, str]:
    """Compare a plan with all plans that keep its rules; what became of it, and what is wrong."""
    what, rules = ruled(seed, most, shared=shared)
    given = what.problem
    graph, units = with_rules(given.graph, given.units, given.devices, rules)
    problem = replace(given, graph=graph, units=units, rules=rules)
    best = RuledPlans(what, rules).least()
    said = f"{seed}: {' '.join(rule.words for rule in rules)}"
    pinned = any("/" in rule.device for rule in rules)
    try:
        plan = solve_hybrid(problem, what.options, PLAIN)
    except UsageError as error:
        return "refused", "" if "nodes state nothing" in str(error) else f"{said}: {error}"
    except InfeasibleError as error:
        return "infeasible", "" if math.isinf(best) else f"{said}: {best} is possible, but {error}"
    except LimitError as error:
        return "numbers", "" if pinned and "these numbers" in str(error) else f"{said}: {error}"
    report = check_plan(given.graph, what.groups, replace(plan, digest=""))
    if report.violations:
        return plan.status, f"{said}: {'; '.join(map(str, report.violations))}"
    if plan.rules != rules:
        return plan.status, f"{said}: the plan states {plan.rules}"
    if plan.bound > best * (1 + 1e-9) or plan.value < best * (1 - 1e-9):
        return plan.status, f"{said}: {plan.value}, bound {plan.bound}, and {best} is possible"
    if plan.status == "feasible" and pinned:
        return "narrow", ""
    if plan.status == "feasible" or plan.value > best * (1 + 1e-8):
        return plan.status, f"{said}: {plan.value} is {plan.status}, and {best} is possible"
    free = solve_hybrid(given, what.options, PLAIN)
    return "optimal" if plan.value <= free.value * (1 + 1e-9) else "costs", ""
