"""The exact search for placements without waiting: brute force, known optima, bounds, limits."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, Split
from dnnp.core.latency.exact.net import grid_of, part_of, turned, unit_of
from dnnp.core.latency.exact.search import LIMIT, advance, new_search, with_windows
from dnnp.core.latency.exact.solve import BOUND, MOST_TASKS, exact, prove
from dnnp.core.latency.operators.anneal import anneal_operators
from dnnp.core.latency.proof import latency_bound
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from support.graphs import to_bytes
from support.latency_brute import brute_operators
from support.latency_cases import random_problem
from support.makespans import TaskGraph, packed, problem_of, stream_of
from support.run import dnnp

CLOSE = 1e-9
OPTIONS = ("--objective", "latency", "--execution", "operators", "--congestion", "none")


def drawn(seed: int, most: int) -> LatencyProblem:
    """A problem of devices that differ, with links, colours, capacities."""
    rng = random.Random(seed)
    return random_problem(
        rng,
        rng.randint(1, most),
        devices=None if seed % 7 else 4,
        tight=seed % 3 == 0,
        colors=seed % 4 == 0,
        training=seed % 5 == 0,
        transfers="edge" if seed % 2 else "tensor",
        congestion="none",
        links=seed % 4 == 1,
    )


def equal(seed: int, most: int) -> LatencyProblem:
    """A problem of equal devices and small whole times, so that much is interchangeable."""
    rng = random.Random(seed)
    n, long, slow = rng.randint(4, most), rng.choice([1, 2, 3, 6]), rng.choice([0, 1, 3, 8])
    pairs = [(a, b) for b in range(n) for a in range(b) if rng.random() < rng.choice([0.2, 0.4])]
    pairs = {1: [(0, b) for b in range(1, n)], 2: [(b, n - 1) for b in range(n - 1)]}.get(
        seed % 4, pairs
    )
    times = [float(rng.randint(1 if seed % 3 else 0, long)) for _ in range(n)]
    edges = [(a, b, float(rng.randint(0, slow))) for a, b in pairs]
    return problem_of(TaskGraph(times, edges), rng.randint(2, 4))


class Proof(NamedTuple):
    """Result of the search, and the latency of what it found."""

    split: Split | None
    value: float
    bound: float


def proven(problem: LatencyProblem, run: SearchContext = PLAIN) -> Proof:
    """Search without a known placement; `more` says whether the bound meets the value."""
    found = prove(problem, run=run)
    value = np.inf if found.split is None else problem.value(found.split)
    assert found.more == (found.bound < value * (1 - CLOSE))
    return Proof(found.split, value, found.bound)


@pytest.mark.parametrize("make", [drawn, equal])
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_all_are_proven_and_equal_to_brute_force(first: int, make) -> None:
    solved = infeasible = 0
    for seed in range(first, first + 50):
        problem = make(seed, 6)
        least, _ = brute_operators(problem)
        found = proven(problem)
        if least == np.inf:
            assert (found.split, found.bound) == (None, np.inf), seed
            infeasible += 1
            continue
        assert found.split is not None, seed
        assert problem.value(found.split) == found.value == pytest.approx(least, rel=CLOSE), seed
        assert found.bound <= found.value <= found.bound * (1 + CLOSE), seed
        solved += 1
    assert solved + infeasible == 50
    assert solved >= 35


def test_either_direction_and_all_parts_bound_the_optimum() -> None:
    counted = met = 0
    for seed in range(40):
        problem = equal(seed, 7)
        found = proven(problem)
        grid = grid_of(problem, found.value)
        most = round(found.value / grid.unit)
        rng = np.random.default_rng(seed)
        whole = with_windows(grid.net)
        for net in (whole, turned(whole)):
            assert _least(net, most) == most, seed
            for _ in range(3):
                size = int(rng.integers(1, len(net.time) + 1))
                chosen = np.sort(rng.choice(len(net.time), size, replace=False))
                part = _least(part_of(net, chosen), most)
                assert part <= most, seed
                met += part == most
                counted += 1
    assert counted == 240
    assert met > 60


def _least(net, most: int) -> int:
    """Length of the shortest schedule, of at most `most`, found by one search."""
    state = new_search(net, most, 1 << 10)
    advance(net, state, 10**6)
    return int(state.at[LIMIT]) + 1


@pytest.mark.parametrize("seed", range(8))
def test_packings_are_found_and_proven(seed: int) -> None:
    graph, devices, length = packed(seed)
    problem = problem_of(graph, devices)
    found = proven(problem)
    assert (found.value, found.bound) == (length, length)
    assert len(graph.times) >= 20


@pytest.mark.parametrize("unit", [1.0, 0.25, 1e-3, 1 / 3, 1.2345678e-5])
def test_optima_scale(unit: float) -> None:
    counted = 0
    for seed in range(20):
        problem = equal(seed, 6)
        if problem.tasks.time.max() == 0:
            continue
        tasks = replace(
            problem.tasks, time=problem.tasks.time * unit, fixed=problem.tasks.fixed * unit
        )
        plain, scaled = proven(problem), proven(replace(problem, tasks=tasks))
        assert scaled.value == pytest.approx(plain.value * unit, rel=CLOSE)
        assert scaled.bound <= scaled.value <= scaled.bound * (1 + CLOSE)
        counted += 1
    assert counted > 15


def test_units() -> None:
    assert unit_of(np.array([4.0, 6.0, 10.0]), 20.0) == 2.0
    assert unit_of(np.array([0.004, 0.006]), 1.0) == pytest.approx(0.002, rel=1e-15)
    assert unit_of(np.array([1 / 3, 0.1]), 1.0) < 1e-11


def test_stopped_searches_keep_what_they_have() -> None:
    met = 0
    for seed in range(12):
        problem = equal(seed + 100, 8)
        whole = proven(problem)
        for effort in (1e-9, 5e-7, 5e-6):
            part = proven(problem, SearchContext(effort=effort))
            again = proven(problem, SearchContext(effort=effort))
            assert part.bound <= whole.value * (1 + CLOSE)
            assert part.value >= whole.value * (1 - CLOSE)
            assert (part.value, part.bound) == (again.value, again.bound)
            met += part.bound < whole.bound
    assert met > 5
    stopped = proven(equal(3, 8), SearchContext(interrupted=lambda: True))
    assert (stopped.split, stopped.bound) == (None, 0.0)


def test_what_is_known_is_proven_or_beaten() -> None:
    counted = 0
    for seed in range(20):
        problem = equal(seed, 7)
        best = proven(problem)
        if best.value == 0:
            continue
        again = prove(problem, upper=best.value)
        assert (again.split, again.more) == (None, False)
        assert best.value * (1 - CLOSE) <= again.bound <= best.value
        better = prove(problem, upper=1.5 * best.value)
        assert better.split is not None
        assert problem.value(better.split) == best.value
        counted += 1
    assert counted > 15


def test_refusals() -> None:
    many = problem_of(TaskGraph([1.0] * (MOST_TASKS + 1), []), 2)
    with pytest.raises(UsageError, match="63 tasks, at most 62"):
        exact(many, MethodOptions("exact"), SearchContext())
    few = random_problem(random.Random(1), 3, congestion="none")
    small = replace(few, machine=replace(few.machine, capacity=few.machine.capacity * 0))
    heavy = replace(small, tasks=replace(small.tasks, memory=small.tasks.memory + 1))
    with pytest.raises(InfeasibleError):
        exact(heavy, MethodOptions("exact"), SearchContext())


def test_command() -> None:
    graph, devices, length = packed(1)
    data = to_bytes(stream_of(graph))
    for method in ("exact", "auto"):
        words = (*OPTIONS, "-k", str(devices), "--transfers", "edge", "--method", method)
        result = dnnp("partition", *words, stdin=data)
        assert result.status == 0, result.err
        plan = result.one("plan")
        assert (plan["value"], plan["bound"], plan["bound_method"]) == (length, length, BOUND)
        assert plan["status"] == "optimal"
        judged = dnnp("check", stdin=result.out)
        assert judged.status in (0, 9), judged.err
        assert "no method" not in judged.err


def test_published_optima_of_ten_tasks(shared_makespans: Path) -> None:
    counted = 0
    for line in (shared_makespans / "optimal.jsonl").read_text().splitlines():
        given = json.loads(line)
        if len(given["times"]) > 10:
            continue
        graph = TaskGraph(given["times"], [tuple(edge) for edge in given["edges"]])
        found = proven(problem_of(graph, given["processors"]))
        assert (found.value, found.bound) == (given["optimum"], given["optimum"]), given["name"]
        counted += 1
    assert counted == 139


def test_plans_are_bounded_with_and_without_waiting() -> None:
    closed = above = 0
    for seed in range(40):
        problem = random_problem(
            random.Random(seed), 6, congestion=("none", "device")[seed % 2], links=seed % 3 == 0
        )
        start = anneal_operators(problem, run=SearchContext(effort=1e-4))
        found = latency_bound(problem, start, "auto", run=SearchContext(effort=0.1))
        least, _ = brute_operators(problem)
        assert found.value <= least * (1 + CLOSE), seed
        assert found.latency >= least * (1 - CLOSE), seed
        above += BOUND in [trial.method for trial in found.tried]
        closed += seed % 2 == 0 and found.value >= least * (1 - CLOSE)
    assert above > 5
    assert closed == 20
