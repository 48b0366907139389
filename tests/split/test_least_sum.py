"""Splits of the least sum of loads: against all splits, and what is proven of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import Link
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from dnnp.core.split.peak import with_least_peak
from support.cases import random_case


def problem_of(seed: int) -> SplitProblem:
    """A random problem of classes with bandwidths of their own, CPUs, colours, capacities."""
    fixed = {"comm": "sum", "memory_mode": "hard", "objective": "sequence", "max_replicas": 1}
    case = random_case(seed, 5, training=False, **fixed)
    options = replace(case.options, objective="sequence")
    devices = [replace(d, count=min(d.count, 2)) for d in case.devices]
    devices = [replace(d, cluster_size=0, larger_clusters=()) for d in devices]
    return SplitProblem(case.graph, case.units, tuple(devices), options)


def partitions(items: int) -> Iterator[list[int]]:
    """The part of every item, in each partition of the items."""
    if not items:
        yield []
        return
    for parts in partitions(items - 1):
        for part in range(max(parts, default=-1) + 2):
            yield [*parts, part]


def best(problem: SplitProblem) -> float:
    """The least sum of loads over all ordered splits on all devices; inf: none fits."""
    label, least = problem.items.label, math.inf
    for parts in partitions(problem.items.count):
        nodes = [np.flatnonzero(np.array(parts)[label] == p) for p in range(max(parts) + 1)]
        nodes = [n[np.argsort(problem.graph.rank[n])] for n in nodes]
        homes = [(d, i) for d in problem.devices for i in range(d.count if problem.links else 1)]
        for chosen in product(homes, repeat=len(nodes)):
            numbers = [i if problem.links else -1 for _, i in chosen]
            rows = zip(nodes, chosen, numbers, strict=True)
            blocks = [Block(n, d, number=i) for n, (d, _), i in rows]
            if len(set(chosen)) < len(chosen) and problem.links:
                continue
            try:
                plan = problem.plan(with_least_peak(problem.graph, blocks))
            except InfeasibleError:
                continue
            if plan.validity == "ordered":
                least = min(least, plan.value)
    return least


def linked(problem: SplitProblem, seed: int) -> SplitProblem:
    """The same over links between all devices."""
    rng = np.random.default_rng(seed)
    names = [f"{d.name}/{i}" for d in problem.devices for i in range(d.count)]
    pairs = [(a, b) for a in names for b in names if a != b]
    links = [Link(a, b, float(rng.integers(1, 9)), float(rng.integers(0, 3))) for a, b in pairs]
    return replace(problem, links=tuple(links))


@pytest.mark.parametrize("over_links", [False, True])
def test_against_all_splits(over_links: bool) -> None:
    compared = equal = optimal = several = infeasible = wrong = 0
    for seed in range(70):
        problem = problem_of(seed)
        if over_links:
            problem = linked(problem, seed)
        if sum(d.count for d in problem.devices) > (4 if over_links else 9):
            continue
        least = best(problem)
        try:
            found = solve(problem, MethodOptions())
        except (InfeasibleError, LimitError) as error:
            refused = isinstance(error, InfeasibleError)
            wrong += refused and least < math.inf
            infeasible += refused
            continue
        value = problem.value(found.blocks)
        assert simple_bound(problem) <= least * (1 + 1e-9)
        assert found.bound <= least * (1 + 1e-9), seed
        assert value >= least * (1 - 1e-9), seed
        assert problem.plan(found.blocks).validity == "ordered"
        compared += 1
        equal += value <= least * (1 + 1e-9)
        optimal += found.bound >= value * (1 - 1e-9)
        several += len(found.blocks) > 1
    assert not wrong
    assert infeasible > 1
    assert compared > 50
    assert min(equal, optimal) >= compared - over_links
    assert several > 9
