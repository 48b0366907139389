"""Certificates under every way to count memory: what verifies is below all splits of that way.

Each certificate is made under one way and judged under all of them, as one is whose options were
edited; those that state a number alone also state the optimum of every other way.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.certificates.certificate import ARGUMENTS, LINKED, VERIFIED, check_certificate
from dnnp.core.check.load import fastest_links
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import Plan
from dnnp.core.model.search_context import PLAIN
from support.brute import brute_force
from support.cases import accelerators_case, random_case
from support.linked_cases import least_over_links, linked_case

WAYS = list(product(("hard", "overflow", "ignore"), ("sum", "peak")))
VALIDITIES = ("ordered", "convex", "ordered", "free")
QUANTUM = 2.0**-10
CLOSE = 1 + 1e-9
Json = dict[str, object]


def ways_of(problem: SplitProblem, rng: random.Random) -> dict[tuple[str, str], SplitProblem]:
    """The same problem on devices of little memory, under each way that it has."""
    room = rng.choice((0.0, 10.0, 20.0, 40.0, 60.0, 100.0))
    devices = tuple(d if d.is_cpu else replace(d, memory_bytes=room) for d in problem.devices)
    # Peaks depend on the order of nodes, which brute force does not vary.
    summed = problem.graph.backward.any() or (problem.graph.color >= 0).any()
    found = {}
    for mode, model in WAYS:
        if model == "peak" and summed:
            continue
        if mode == "overflow" and problem.options.objective == "gpipe":
            continue
        options = replace(problem.options, memory_mode=mode, memory_model=model)
        found[mode, model] = SplitProblem(
            problem.graph, problem.units, devices, options, problem.links
        )
    return found


def record(value: float, validity: str, certificate: object) -> Json:
    return {
        "value": value, "validity": validity, "certificate": json.loads(json.dumps(certificate)),
    }  # fmt: skip


def claimed(problem: SplitProblem, known: BoundTask) -> Iterator[tuple[str, float, object]]:
    """Bounds of a problem by each method, as dnnp-bound calls it."""
    for name in ARGUMENTS:
        try:
            claim = BOUNDS[name].function()(problem.searched, known, PLAIN)
        except UsageError:
            continue
        yield name, claim.value, claim.certificate


def stated(optima: list[float], argument: str) -> Iterator[tuple[float, Json]]:
    """Certificates that are nothing but a number: each optimum, and just below it."""
    for least in optima:
        for units in (math.floor(least / QUANTUM), math.floor(least / QUANTUM) - 3):
            if units > 0:
                made = {"argument": argument, "quantum": QUANTUM, "units": units}
                yield units * QUANTUM, made


@pytest.mark.parametrize("first", range(0, 12, 6))
def test_what_verifies_is_below_all_splits(first: int) -> None:
    verified = Counter[str]()
    for seed in range(first, first + 6):
        rng, validity = random.Random(seed), VALIDITIES[seed // 2 % 4]
        comms = ("sum", "sum", "overlap", "duplex")
        case = accelerators_case(seed, 6, comms) if seed % 2 else random_case(seed, 6)
        ways = ways_of(case.problem, rng)
        least = {way: brute_force(problem, validity)[0] for way, problem in ways.items()}
        finite = sorted({value for value in least.values() if math.isfinite(value)})
        made = [record(v, validity, c) for v, c in stated(finite, "ideal")]
        for way, problem in ways.items():
            for name, value, certificate in claimed(problem, BoundTask(validity, value=least[way])):
                assert value <= least[way] * CLOSE, (seed, way, name)
                if certificate is not None:
                    made.append(record(value, validity, certificate))
        for (way, problem), one in product(ways.items(), made):
            graph, units = problem.graph, problem.units
            report = check_certificate(graph, units, problem.devices, problem.options, one)
            if report.verdict == VERIFIED:
                assert one["value"] <= least[way] * CLOSE, (seed, way, one)
                verified[f"{way[0]} {report.argument}"] += 1
    assert {f"{mode} ideal" for mode, _ in WAYS} <= set(verified), verified


def test_what_verifies_with_links_is_below_all_splits() -> None:
    verified = Counter[str]()
    for seed in range(12):
        validity = VALIDITIES[seed % 4]
        ways = ways_of(linked_case(seed, 4, limited=True), random.Random(seed))
        least = {way: least_over_links(problem, validity) for way, problem in ways.items()}
        finite = sorted({value for value in least.values() if math.isfinite(value)})
        made = [record(v, validity, c) for a in ("ideal", LINKED) for v, c in stated(finite, a)]
        for way, problem in ways.items():
            plan = Plan(
                (), 9, "x", validity, 1.0, 0.0, "feasible",
                problem.options, problem.devices, "", problem.links,
            )  # fmt: skip
            if math.isfinite(least[way]):
                claim = bound(problem, BoundTask(validity, None, least[way])).claim
                assert claim.value <= least[way] * CLOSE, (seed, way)
            for one in made:
                report = check_certificate(
                    problem.graph, problem.units, fastest_links(plan), plan.options, one, plan=plan
                )
                if report.verdict == VERIFIED:
                    assert one["value"] <= least[way] * CLOSE, (seed, way, one)
                    verified[f"{way[0]} {report.argument}"] += 1
    assert {f"{mode} {LINKED}" for mode, _ in WAYS} <= set(verified), verified
