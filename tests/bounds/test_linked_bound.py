"""Bounds of plans with links: below all splits on all devices, and their certificates hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import REFUSED, BoundTask
from dnnp.core.bounds.searches import linked_bound
from dnnp.core.certificates.certificate import (
    NOT_CHECKABLE,
    REFUTED,
    VERIFIED,
    CertificateReport,
    check_certificate,
)
from dnnp.core.check.load import fastest_links
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.device import Link
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Plan
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from support.linked_cases import least_over_links, linked_case

CHEAP = [name for name, argument in BOUNDS.items() if argument.where and not argument.share]


def judged(plan: Plan, problem: SplitProblem, record: dict) -> CertificateReport:
    devices = fastest_links(plan)
    return check_certificate(problem.graph, problem.units, devices, plan.options, record, plan=plan)


def test_no_bound_is_above_the_optimum():
    verified = 0
    for seed in range(25):
        problem = linked_case(seed)
        least = least_over_links(problem)
        try:
            plan = make_plan(problem, solve(problem, MethodOptions("slice")).blocks)
        except InfeasibleError:
            continue
        blocks = problem.own(solve(problem, MethodOptions("slice")).blocks)
        for method in ["auto", *CHEAP] if seed < 8 else CHEAP:
            try:
                proof = bound(problem, BoundTask("ordered", blocks, plan.value), method)
            except UsageError:
                continue
            assert proof.claim.value <= least * (1 + 1e-9), (seed, method)
            assert proof.value >= least * (1 - 1e-9)
            if proof.claim.certificate is None:
                continue
            record = {
                "value": proof.claim.value,
                "validity": "ordered",
                "certificate": proof.claim.certificate,
            }
            report = judged(plan, problem, record)
            assert report.verdict in (VERIFIED, NOT_CHECKABLE), (seed, method, report)
            verified += report.verdict == VERIFIED
    assert verified > 20


def test_the_argument_that_knows_links():
    problem = linked_case(2, training=False, objective="throughput")
    least = least_over_links(problem)
    claim = linked_bound(problem, BoundTask("ordered"))
    assert 0 < claim.value <= least * (1 + 1e-9)
    assert linked_bound(problem.unlinked, BoundTask("ordered")).status == REFUSED
    assert linked_bound(problem, BoundTask("free")).status == REFUSED
    assert math.isfinite(claim.value)


def linked_claims(seeds: range) -> Iterator[tuple[SplitProblem, Plan, dict]]:
    """Problems, a plan of each, and the record of the bound."""
    for seed in seeds:
        problem = linked_case(seed, 6, training=False, objective="throughput")
        try:
            blocks = solve(problem, MethodOptions("slice")).blocks
        except InfeasibleError:
            continue
        plan = make_plan(problem, blocks)
        claim = linked_bound(problem, BoundTask("ordered", blocks, plan.value))
        if claim.certificate is not None:
            record = {"value": claim.value, "validity": "ordered"}
            yield problem, plan, record | {"certificate": claim.certificate}


def test_the_walk_over_ideals_verifies_just_what_was_found():
    """A millionth more is refuted; where links are fast, so is the value of some."""
    verified = refuted = 0
    for problem, plan, record in linked_claims(range(60)):
        assert judged(plan, problem, record).verdict == VERIFIED
        verified += 1
        units = int(record["certificate"]["units"] * 1.000001) + 1
        more = record | {"certificate": record["certificate"] | {"units": units}}
        assert judged(plan, problem, more).verdict == REFUTED
        fast = tuple(Link(x.source, x.target, 1e9, 0.0) for x in plan.links)
        refuted += judged(replace(plan, links=fast), problem, record).verdict == REFUTED
    assert verified > 50
    assert refuted > 5, refuted


def test_what_the_walk_is_not_for():
    problem, plan, record = next(linked_claims(range(60)))
    for other in (
        replace(plan, links=()),
        replace(plan, options=replace(plan.options, objective="gpipe")),
        replace(plan, options=replace(plan.options, max_replicas=2)),
    ):
        assert judged(other, problem, record).verdict == REFUTED
    assert judged(plan, problem, record | {"validity": "free"}).verdict == REFUTED
    missing = {key: x for key, x in record["certificate"].items() if key != "units"}
    assert judged(plan, problem, record | {"certificate": missing}).verdict == REFUTED


def test_too_many_ideals_are_not_checkable(monkeypatch):
    problem, plan, record = next(linked_claims(range(60)))
    monkeypatch.setattr("dnnp.core.certificates.linked.MOST_IDEALS", 1)
    assert judged(plan, problem, record).verdict == NOT_CHECKABLE
