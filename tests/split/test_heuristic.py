"""Pipelines by annealing, by levels, and by all heuristics together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import contract, singletons
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.core.model.search_context import MethodOptions, Progress, SearchContext
from dnnp.core.split import improve as levels
from dnnp.core.split.annealing.anneal import anneal
from dnnp.core.split.auto import solve
from dnnp.core.split.improve import coarsened, multilevel
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.workloads.synthetic import DEVICE_CLASS, synthetic_stream
from dnnp.samples.papers.regal import FAMILIES, regal_graph
from support.brute import brute_force
from support.cases import random_case
from support.graphs import random_stream

SHORT = 60_000
"""Work of a round of annealing where little will do."""


def priced(problem: SplitProblem, blocks) -> Plan:
    """The plan of a split, after the checker has agreed that it is a pipeline."""
    plan = make_plan(
        problem,
        blocks,
        method="test",
        bound=0.0,
        digest="0" * 64,
    )
    assert check_plan(problem.graph, problem.units, plan).violations == ()
    assert plan.validity == "ordered"
    assert sorted(v for b in blocks for v in b.nodes.tolist()) == list(range(problem.graph.n))
    return plan


def generated(family: str, n: int, seed: int = 0, k: int = 4) -> SplitProblem:
    """A generated graph on `k` devices."""
    graph = regal_graph(family, n, seed)
    stream = synthetic_stream("test", graph.tail, graph.head, graph.size, graph.cost)
    device = DeviceClass(DEVICE_CLASS, count=k, bandwidth_bytes_per_s=1.0)
    of = graph_of(stream)
    return SplitProblem(of, singletons(of), (device,), CostOptions())


@pytest.fixture
def short_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.split.annealing.anneal.LEAST_WORK", SHORT)
    monkeypatch.setattr("dnnp.core.split.annealing.anneal.MOST_WORK", SHORT)


# Annealing as a pipeline


def start_of(problem: SplitProblem):
    try:
        return best_slicing(problem)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("first", [0, 30])
def test_ordered_annealing_equals_brute_force(first):
    missed = []
    for seed in range(first, first + 30):
        case = random_case(seed, 7, max_replicas=1)
        problem = case.problem
        expected, _ = brute_force(case.problem)
        annealed = {"ordered": True, "start": start_of(problem), "run": SearchContext(effort=0.5)}
        if not np.isfinite(expected):
            with pytest.raises(InfeasibleError):
                anneal(case.problem, **annealed)
            continue
        blocks = anneal(case.problem, **annealed)
        value = priced(problem, blocks).value
        assert value >= expected * (1 - 1e-9) - 1e-12, seed
        if value > expected * (1 + 1e-9) + 1e-12:
            missed.append(seed)
    assert missed == []


def test_items_that_a_device_cannot_run_stay_in_order(short_annealing):
    """Nothing moves if an item pulls along one that is unsupported there."""
    counted = 0
    for seed in (*range(300, 320), 349):
        case = random_case(seed, 7, max_replicas=1, training=False)
        if len(case.devices) == 1:
            continue
        problem = case.problem
        try:
            blocks = anneal(case.problem, ordered=True)
        except InfeasibleError:
            continue
        assert problem.value(blocks) > 0
        assert priced(problem, blocks).validity == "ordered", seed
        counted += 1
    assert counted > 10


@pytest.mark.parametrize("warm", [False, True])
def test_ordered_annealing_is_never_behind_its_start(warm, short_annealing):
    counted = 0
    for seed in range(40):
        case = random_case(seed, 14, max_replicas=1, objective="throughput")
        problem = case.problem
        start = start_of(problem)
        if start is None:
            continue
        before = problem.value(start)
        for stopped in (True, False):
            blocks = anneal(
                case.problem,
                ordered=True,
                warm=warm,
                start=start,
                run=SearchContext(seed=seed, effort=0.05, interrupted=lambda: stopped),  # noqa: B023
            )
            # Nodes of a stage run in the graph's order, which may need more memory than `start`.
            if case.options.memory_model == "sum":
                assert priced(problem, blocks).value <= before * (1 + 1e-12), seed
                counted += 1
            else:
                priced(problem, blocks)
    assert counted > 30


def test_ordered_annealing_repeats():
    problem = generated("watts-strogatz", 60)
    start = best_slicing(problem)
    splits = [
        [
            b.nodes.tolist()
            for b in anneal(problem, ordered=True, start=start, run=SearchContext(effort=0.02))
        ]
        for _ in range(2)
    ]
    assert splits[0] == splits[1]


# Levels


def random_problem(seed: int, n: int, **options: object) -> SplitProblem:
    stream = random_stream(seed, n, params=True, **options)
    graph = graph_of(stream)
    devices = (
        DeviceClass("dev", count=3, bandwidth_bytes_per_s=2.0),
        *([DeviceClass("cpu", kind="cpu", count=1)] if options.get("classes") else []),
    )
    return SplitProblem(graph, units_of(stream, graph), devices, CostOptions(memory_model="sum"))


@pytest.mark.parametrize("late", [False, True])
def test_coarse_units_are_acyclic_and_cost_what_they_hold(late):
    fewer = 0
    for seed in range(30):
        problem = random_problem(
            seed, 20 + 5 * seed, colors=seed % 3 == 0, classes=("cpu",) if seed % 2 else ()
        )
        graph, units, items = problem.graph, problem.units, problem.items
        coarse = coarsened(problem, late=late)
        coarse_problem = replace(problem, units=coarse)
        fewer += coarse.g < 0.8 * items.count
        assert items.count / 2 <= coarse.g <= items.count
        # Cycles would be contracted: every unit is an item of its own.
        assert coarse_problem.items.count == coarse.g
        assert sorted(coarse.member_idx.tolist()) == list(range(graph.n))
        for unit, (a, b) in enumerate(pairwise(coarse.member_ptr)):
            assert (coarse.label[coarse.member_idx[a:b]] == unit).all()
        for name, times in units.times.items():
            expected = np.zeros(coarse.g)
            np.add.at(expected, coarse.label[units.member_idx[units.member_ptr[:-1]]], times)
            assert coarse.times[name] == pytest.approx(expected)

        # A tensor between two units that were joined is in no net.
        before, after = problem.line(), coarse_problem.line()
        assert after.nets.net_count <= before.nets.net_count
        made = np.flatnonzero(graph.producer >= 0)
        cut = [
            t
            for t in made.tolist()
            if {*coarse.label[graph.use_idx[graph.use_ptr[t] : graph.use_ptr[t + 1]]].tolist()}
            - {int(coarse.label[graph.producer[t]])}
        ]
        assert after.nets.net_count == len(cut)
        assert contract(graph, coarse).n == coarse.g

        blocks = best_slicing(coarse_problem)
        assert coarse_problem.value(blocks) == pytest.approx(problem.value(blocks))
    assert fewer >= 12


def test_coarsening_again_and_again():
    problem = generated("erdos-renyi", 400)
    level = problem
    for late in (True, False, True, False):
        coarser = coarsened(level, late=late)
        assert coarser.g < level.units.g
        level = replace(problem, units=coarser)
        assert level.items.count == coarser.g
        # No unit has more than its part of a device's share.
        most = coarser.times[DEVICE_CLASS].max()
        share = problem.units.times[DEVICE_CLASS].sum() / 4 / levels.UNITS_PER_DEVICE
        assert most <= max(share, problem.units.times[DEVICE_CLASS].max())


def test_levels_are_never_worse_than_their_start(monkeypatch, short_annealing):
    monkeypatch.setattr(levels, "COARSEST", 10)
    for seed in range(12):
        problem = random_problem(seed, 60, colors=seed % 3 == 0, training=seed % 4 == 3)
        start = best_slicing(problem, "kahn")
        for stopped in (False, True):
            run = SearchContext(seed=seed, effort=0.01, interrupted=lambda: stopped)  # noqa: B023
            blocks = multilevel(problem, start, run)
            assert priced(problem, blocks).value <= problem.value(start) * (1 + 1e-12)


def test_levels_of_a_large_graph(short_annealing):
    problem = generated("watts-strogatz", 12_000, k=8)
    start = best_slicing(problem, "dfs")
    told: list[Progress] = []
    blocks = multilevel(problem, start, SearchContext(effort=0.002, watch=told.append))
    shares = [standing.share for standing in told if standing.share is not None]
    assert len(shares) >= 3
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] < 0.5 < shares[-1] <= 1.0
    assert priced(problem, blocks).value <= problem.value(start)


# All heuristics


@pytest.mark.parametrize("family", FAMILIES)
def test_never_worse_than_slices_and_orders(family, short_annealing):
    for seed in range(2):
        problem = generated(family, 50, seed)

        def value(method: str, order: str = "best") -> float:
            run = SearchContext(seed=seed, effort=0.1)  # noqa: B023
            found = solve(problem, MethodOptions(method=method, order=order), run)  # noqa: B023
            return priced(problem, found.blocks).value  # noqa: B023

        found = value("heuristic")
        for order in ORDERS:
            assert found <= value("slice", order)
        for method in ("random", "brkga"):
            assert found <= value(method) * (1 + 1e-12)
        assert found <= value("mla-weighted") * 1.02


def test_heuristic_on_any_problem(short_annealing):
    optimal = 0
    for seed in range(28):
        case = random_case(seed, 8, max_replicas=1)
        problem = case.problem
        expected, _ = brute_force(case.problem)
        try:
            found = solve(problem, MethodOptions(method="heuristic"), SearchContext(effort=0.1))
        except InfeasibleError:
            # It starts from slices: a heuristic may find nothing.
            continue
        value = priced(problem, found.blocks).value
        assert found.bound <= expected * (1 + 1e-9)
        assert value <= min(
            problem.value(best_slicing(case.problem, order))
            for order in ORDERS
            if can_be_sliced(problem, order)
        ) * (1 + 1e-9)
        optimal += value <= expected * (1 + 1e-9) + 1e-12
    assert optimal >= 20


def can_be_sliced(problem: SplitProblem, order: str) -> bool:
    try:
        best_slicing(problem, order)
    except InfeasibleError:
        return False
    return True
