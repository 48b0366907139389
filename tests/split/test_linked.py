"""Splits over links: every method, and the search of `auto`, against all splits on all devices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import MethodOptions, SearchContext, Solution
from dnnp.core.split.annealing.linked import heed_links
from dnnp.core.split.auto import solve
from support.linked_cases import least_over_links, linked_case

METHODS = ("exact", "slice", "dpl", "anneal", "uniform", "greedy", "single")


def found(problem: SplitProblem, asked: MethodOptions, least: float) -> Solution | None:
    """The solution of a method, checked; None: nothing fits."""
    try:
        solution = solve(problem, asked, SearchContext(effort=0.1))
    except InfeasibleError:
        return None
    plan = make_plan(problem, solution.blocks, bound=solution.bound)
    assert not check_plan(problem.graph, problem.units, plan).violations
    assert solution.bound <= least * (1 + 1e-9)
    assert plan.value >= least * (1 - 1e-9)
    return solution


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_no_bound_is_above_the_best_split(seed):
    problem = linked_case(seed)
    least = least_over_links(problem)
    solution = found(problem, MethodOptions(), least)
    assert (solution is None) == math.isinf(least)
    assert solution is None or solution.planned_by == ""


def test_hosts_that_no_link_names():
    """Splits that use them and splits that do not are found and judged like others."""
    used = 0
    for seed in range(150):
        problem = linked_case(seed, 4, hosts=False)
        cpus = {d.name for d in problem.devices if d.is_cpu}
        if not cpus or sum(d.count for d in problem.devices if not d.is_cpu) < 2:
            continue
        for device in problem.devices:
            bands = {x.bandwidth_bytes_per_s for x in problem.links if _between(x, device, cpus)}
            assert device.is_cpu or bands >= {device.bandwidth_bytes_per_s}
        solution = found(problem, MethodOptions(), least_over_links(problem))
        used += solution is not None and any(b.device.is_cpu for b in solution.blocks)
    assert used > 3


def _between(link: Link, device: DeviceClass, cpus: set[str]) -> bool:
    """True if a link joins a device of the class with one of the CPUs."""
    ends = {link.source.rpartition("/")[0], link.target.rpartition("/")[0]}
    return device.name in ends and bool(ends & cpus)


@pytest.mark.parametrize("validity", ["free", "convex"])
def test_other_validities(validity):
    counted = 0
    for seed in range(12):
        problem = linked_case(seed, 4)
        least = least_over_links(problem, validity)
        counted += found(problem, MethodOptions(validity=validity), least) is not None
    assert counted > 8


@pytest.mark.parametrize("method", METHODS)
def test_methods_by_classes_say_so(method):
    planned_by = []
    for seed in range(8):
        problem = linked_case(seed, 4, training=False, objective="throughput")
        validity = SPLITS[method].kinds[0]
        solution = found(problem, MethodOptions(method), least_over_links(problem, validity))
        planned_by += [] if solution is None else [solution.planned_by]
    assert {*planned_by} == {"classes"}


def test_near_all_splits():
    """Within 2 % of the optimum on average, and mostly there."""
    ratios = []
    for seed in range(30):
        problem = linked_case(seed)
        least = least_over_links(problem)
        if math.isfinite(least) and least > 0:
            ratios.append(problem.value(solve(problem, MethodOptions()).blocks) / least)
    assert sum(ratios) / len(ratios) < 1.02
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) > 0.9 * len(ratios)


def test_the_search_never_makes_it_worse():
    counted = better_ones = 0
    for seed in range(30):
        problem = linked_case(seed, 6, max_replicas=2)
        try:
            start = solve(problem, MethodOptions("slice")).blocks
        except InfeasibleError:
            continue
        validity = problem.plan(start).validity
        better = problem.plan(heed_links(problem, start, SearchContext(effort=0.1)))
        assert better.value <= problem.value(start)
        assert better.validity == validity
        counted += 1
        better_ones += better.value < problem.value(start)
    assert counted > 20
    assert better_ones > 5


def test_one_seed_one_split():
    problem = linked_case(17, 6, limited=False)
    one, other = (solve(problem, MethodOptions(), SearchContext(seed=3)) for _ in range(2))
    assert [b.nodes.tolist() for b in one.blocks] == [b.nodes.tolist() for b in other.blocks]
    assert (one.bound, one.method) == (other.bound, other.method)
