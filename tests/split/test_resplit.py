"""Pairs of stages split anew: no load grows, and no pair can be parted better."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, product

import numpy as np
import pytest

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.improve import resplit
from dnnp.core.split.slices import best_slicing
from support.cases import Case, accelerators_case, random_case


def plain(seed: int, most: int, k: int) -> Case:
    """A problem of k devices of one class under `sum`, without a backward pass."""
    for tried in count(1000 * seed):
        case = accelerators_case(tried, most)
        if not case.graph.backward.any():
            device = replace(case.devices[0], count=k)
            return replace(case, devices=(device,))
    raise AssertionError


def in_turn(problem: SplitProblem, k: int) -> list[Block]:
    """Items in their order, as many for each stage."""
    label, order = problem.items.label, problem.items.order
    place = np.argsort(order)[label]
    parts = np.array_split(np.arange(len(order)), k)
    nodes = problem.graph.order
    blocks = [nodes[np.isin(place[nodes], part)] for part in parts]
    return [Block(part, problem.devices[0]) for part in blocks if len(part)]


def larger(problem: SplitProblem, blocks: list[Block], pair: list[Block]) -> float:
    """The larger load of two of some stages; inf: they have no order."""
    plan = problem.plan(blocks)
    held = {frozenset(np.asarray(one.nodes).tolist()) for one in pair}
    loads = [s.load_s for s in plan.stages if frozenset(np.asarray(s.nodes).tolist()) in held]
    return max(loads) if plan.validity == "ordered" else np.inf


@pytest.mark.parametrize("k", [2, 3, 4])
def test_no_pair_can_be_parted_better(k):
    gained = 0
    for seed in range(12):
        problem = plain(seed, 9, k).problem
        start = in_turn(problem, k)
        found = resplit(problem, start)
        plan = problem.plan(found)
        assert plan.validity == "ordered"
        assert plan.value <= problem.value(start) * (1 + 1e-12)
        gained += plan.value < problem.value(start) * (1 - 1e-9)
        for b in range(len(found) - 1):
            nodes = np.concatenate([found[b].nodes, found[b + 1].nodes])
            now = larger(problem, found, found[b : b + 2])
            assert now <= best_pair(problem, found, b, np.sort(nodes)) * (1 + 1e-9), (seed, b)
    assert gained > 3


def best_pair(problem: SplitProblem, blocks: list[Block], b: int, nodes: np.ndarray) -> float:
    """The least larger load of stages b and b + 1, by trying all there is."""
    found = np.inf
    rank = problem.graph.rank
    items = np.unique(problem.items.label[nodes])
    for choice in product((False, True), repeat=len(items)):
        chosen = np.isin(problem.items.label[nodes], items[np.array(choice)])
        if chosen.all() or not chosen.any():
            continue
        parts = [part[np.argsort(rank[part])] for part in (nodes[chosen], nodes[~chosen])]
        pair = [blocks[b]._replace(nodes=part) for part in parts]
        whole = [*blocks[:b], *pair, *blocks[b + 2 :]]
        found = min(found, larger(problem, whole, pair))
    return found


def test_what_it_does_not_know_stays_as_it_is():
    counted = 0
    for seed in range(60):
        problem = random_case(seed, 9).problem
        try:
            blocks = best_slicing(problem)
            value = problem.value(blocks)
        except InfeasibleError:
            continue
        try:
            assert problem.value(resplit(problem, blocks)) <= value * (1 + 1e-12)
            counted += 1
        except InfeasibleError:
            assert np.isfinite([d.memory_bytes for d in problem.devices]).any()
    assert counted > 40


def test_a_stop_leaves_a_split():
    problem = plain(3, 12, 4).problem
    start = in_turn(problem, 4)
    for patience in range(5):
        asked = count()
        run = SearchContext(interrupted=lambda asked=asked, most=patience: next(asked) >= most)
        assert problem.value(resplit(problem, start, run)) <= problem.value(start)
