"""Bounds of parallel plans, proven again by the checker, against all plans of small graphs."""

from __future__ import annotations

import math
import re
from collections import Counter

import orjson

from dnnp.core.certificates.exact import Budget, UncheckedError, UnprovenError
from dnnp.core.certificates.parallel import prove_parallel
from dnnp.core.check.load import PlanCase
from dnnp.core.model.errors import DnnpError
from dnnp.core.model.search_context import PLAIN
from dnnp.core.parallel.plan import solve_hybrid
from support import forgery, seeds
from support.hybrid_plans import AllPlans, asked
from support.run import dnnp


def verdict(case: PlanCase, claim: float) -> tuple[str, float]:
    """The argument, `refuted` or `not checkable`; and the value that refutes it."""
    try:
        return prove_parallel(case, claim, Budget()), math.nan
    except UnprovenError as reason:
        return "refuted", float(re.findall(r"value (\S+)$", str(reason))[0])
    except UncheckedError:
        return "not checkable", math.nan


def test_the_least_value_is_verified_and_no_more():
    counted = Counter[str]()
    for seed in range(240):
        what = asked(seed, 4, shared=False)
        try:
            plan = solve_hybrid(what.problem, what.options, PLAIN)
        except DnnpError:
            continue
        case = PlanCase.of(what.problem.graph, what.groups, plan)
        if verdict(case, plan.value / 2)[0] == "not checkable":
            counted["not checkable"] += 1
            continue
        least = AllPlans(what).least()
        for claim in (least / 2, least * (1 - 1e-6), least):
            argument, _ = verdict(case, claim)
            assert argument in ("work", "search"), (seed, claim, least)
            counted[argument] += 1
        for claim in (least * (1 + 1e-6), least * 1.1, least + 1):
            argument, found = verdict(case, claim)
            assert argument == "refuted", (seed, claim, least)
            assert least * (1 - 1e-9) <= found < claim, seed
            counted[argument] += 1
        trained = case.tables.training
        counted[f"{what.options.recompute} {trained}"] += 1
    assert counted["refuted"] > 250
    assert counted["search"] > 80
    assert counted["work"] > 80
    assert counted["not checkable"] > 20
    assert min(counted[f"{kind} True"] for kind in ("none", "full", "auto")) > 5


def test_a_parallel_plan_is_verified_by_the_command():
    """The bound stands in the plan; one that is raised to a worse plan's value is refuted."""
    graph = dnnp("import", "--synthetic", "erdos-renyi", "--nodes", 7, "--seed", 2).out
    wide = ("partition", "-k", 3, "--bandwidth", 10, "--data-parallel", 2, "--micro-batches", 4)
    plan = dnnp(*wide, stdin=graph).out
    result = dnnp("check", "--certificate", "--json", stdin=plan)
    assert result.status == 0, result.err
    assert orjson.loads(result.out)["certificates"][0]["verdict"] == "verified"
    assert "bound verified (search)" in result.err
    records = forgery.records_in(dnnp(*wide, "-k", 1, stdin=graph).out)
    for record in records:
        if record["type"] == "plan":
            record["devices"][0]["count"] = record["k"] = 3
            record |= {"bound": record["value"], "status": "optimal"}
    forged = seeds.encode(forgery.resealed(records))
    result = dnnp("check", "--certificate", "--json", stdin=forged)
    assert orjson.loads(result.out)["certificates"][0]["verdict"] == "refuted", result.err
