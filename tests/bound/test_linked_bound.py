"""Bounds of plans with links: below all splits on all devices, and their certificates hold."""

from __future__ import annotations

import math

from dnnp.core.bound.claim import REFUSED
from dnnp.core.bound.known import Known
from dnnp.core.bound.linked import linked_bound
from dnnp.core.check.certificate import NOT_CHECKABLE, VERIFIED, check_certificate
from dnnp.core.check.wires import fastest_links
from dnnp.core.cost.plan import make_plan
from dnnp.core.methods import BOUNDS
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.portfolio.bounds import bound
from dnnp.core.portfolio.solve import solve
from support.linked_cases import least_over_links, linked_case

CHEAP = [name for name, argument in BOUNDS.items() if argument.where and not argument.share]


def test_no_bound_is_above_the_optimum():
    verified = 0
    for seed in range(25):
        problem = linked_case(seed)
        least = least_over_links(problem)
        try:
            plan = make_plan(problem, solve(problem, Asked("slice")).blocks)
        except InfeasibleError:
            continue
        blocks = problem.own(solve(problem, Asked("slice")).blocks)
        for method in ["auto", *CHEAP] if seed < 8 else CHEAP:
            try:
                proof = bound(problem, Known("ordered", blocks, plan.value), method)
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
            report = check_certificate(
                problem.graph, problem.units, fastest_links(plan), plan.options, record
            )
            assert report.verdict in (VERIFIED, NOT_CHECKABLE), (seed, method, report)
            verified += report.verdict == VERIFIED
    assert verified > 20


def test_the_argument_that_knows_links():
    problem = linked_case(2, training=False, objective="throughput")
    least = least_over_links(problem)
    claim = linked_bound(problem, Known("ordered"))
    assert 0 < claim.value <= least * (1 + 1e-9)
    assert linked_bound(problem.unlinked, Known("ordered")).status == REFUSED
    assert linked_bound(problem, Known("free")).status == REFUSED
    assert math.isfinite(claim.value)
