"""Operator-level placement: kernels against the definition, annealing and bounds against brute
force.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, Placement, latency_problem, lazy_events, simulate
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.auto import critical_path
from dnnp.core.latency.lists.net import falling, net_of
from dnnp.core.latency.lists.schedule import inserted
from dnnp.core.latency.operators.anneal import (
    Listed,
    anneal_operators,
    best_rank,
    placed,
)
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.latency.operators.moves import new_annealing, start_state, sweep
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.synthetic import layered_graph
from support.latency_brute import brute_operators
from support.latency_cases import layered_case, random_problem
from support.problems import chain

CONGESTIONS = ("device", "channel", "none")
MIX = (20, 20, 20, 10, 10, 10)
CLOSE = 1e-9


def small(seed: int, most: int = 5) -> LatencyProblem:
    rng = random.Random(seed)
    return random_problem(
        rng,
        rng.randint(1, most),
        tight=seed % 3 == 0,
        colors=seed % 4 == 0,
        training=seed % 5 == 0,
        transfers="edge" if seed % 7 == 0 else "tensor",
        congestion=CONGESTIONS[seed // 2 % 3],
        links=seed % 4 == 1,
    )


def layered(n: int, ratio: float = 1.0, seed: int = 0, **options: str) -> LatencyProblem:
    graph, devices = layered_case(layered_graph(n, ratio, seed))
    chosen = CostOptions(objective="latency", execution="operators")
    return latency_problem(
        SplitProblem(graph, singletons(graph), devices, replace(chosen, **options))
    )


@pytest.mark.parametrize("transfers", ["tensor", "edge"])
@pytest.mark.parametrize("congestion", CONGESTIONS)
def test_annealing_keeps_the_exact_latency(congestion: str, transfers: str) -> None:
    problem = layered(70, 1.0, 3, congestion=congestion, transfers=transfers)
    tasks = problem.tasks
    net = net_of(problem, tails=True)
    rng = np.random.default_rng(0)
    search = new_annealing(net, 1, MIX, 40)
    state = start_state(net, search, tasks.order, rng.integers(0, 4, tasks.n))
    for temperature in (10.0, 1.0, 0.1, 0.01):
        for _ in range(5):
            sweep(net, state, search, np.array([temperature]), np.array([400]))
            for order, device, value in (
                (state.order, state.device, search.energy[0]),
                (search.best_order, search.best_device, search.value[0]),
            ):
                placement = placed(net, Listed(order, device))
                assert problem.value(placement) == pytest.approx(value, rel=1e-12)
    assert sorted(state.place[state.order].tolist()) == list(range(tasks.n))


@pytest.mark.parametrize("seed", range(40))
def test_annealing_of_odd_problems_keeps_the_exact_latency(seed: int) -> None:
    problem = small(seed, 9)
    tasks, net = problem.tasks, net_of(problem, tails=True)
    device = np.argmax(net.allowed, axis=1)[tasks.together]
    if not net.allowed.any(axis=1).all():
        return
    search = new_annealing(net, seed, MIX, 40)
    search.strict[:] = 2.0, 0.1
    state = start_state(net, search, tasks.order, device)
    for _ in range(10):
        sweep(net, state, search, np.ones(1), np.array([50]))
        placement = placed(net, Listed(state.order, state.device))
        used = np.bincount(state.device, weights=tasks.memory, minlength=problem.machine.count)
        assert used == pytest.approx(search.used)
        times = simulate(tasks, problem.machine, placement, problem.options.congestion)
        if (used <= problem.machine.capacity).all():
            assert problem.value(placement) == times.value
            assert times.value == pytest.approx(search.energy[0], rel=1e-12)
        else:
            assert times.value < search.energy[0]


@pytest.mark.parametrize("seed", range(20))
def test_times_without_congestion_are_those_of_lazy_events(seed: int) -> None:
    problem = small(seed, 9)
    problem = replace(problem, options=replace(problem.options, congestion="none"))
    tasks, net = problem.tasks, net_of(problem, tails=True)
    device = np.random.default_rng(seed).integers(0, problem.machine.count, tasks.n)
    placement = placed(net, Listed(tasks.order, device))
    lazy = Placement(device, lazy_events(tasks, device, tasks.order))
    one, two = (simulate(tasks, problem.machine, x, "none") for x in (placement, lazy))
    assert (one.end_s == two.end_s).all()


def test_insertion_gives_valid_placements() -> None:
    counted = 0
    for seed in range(30):
        problem = small(seed, 9)
        net = net_of(problem, tails=True)
        if not net.allowed.any(axis=1).all():
            continue
        order = falling(net, best_rank(net))
        for ahead in (0.0, 1.0):
            found = inserted(net, order, np.full(problem.tasks.n, -1), ahead)
            if found is None:
                continue
            value = problem.value(found[1])
            assert np.isfinite(value), seed
            again = inserted(net, found[0], found[1].device)
            assert again is not None
            assert (again[1].device == found[1].device).all()
            assert problem.value(again[1]) <= 2 * value
            counted += 1
    assert counted > 40


@pytest.mark.parametrize("seed", range(60))
def test_optimal_on_small_problems(seed: int) -> None:
    """The optimum on each of these, and on 105 of 105 others of up to 6 tasks."""
    problem = small(seed)
    value, placement = brute_operators(problem)
    if placement is None:
        with pytest.raises(InfeasibleError):
            anneal_operators(problem, run=SearchContext(seed=seed, effort=0.01))
        return
    found = problem.value(anneal_operators(problem, run=SearchContext(seed=seed, effort=0.01)))
    assert found == pytest.approx(value, rel=CLOSE)
    assert critical_path(problem) <= value * (1 + CLOSE)
    for upper in (np.inf, value, 1.1 * value):
        bound, name = operators_bound(problem, upper=upper)
        assert bound <= value * (1 + CLOSE), name
        assert bound <= upper


@pytest.mark.parametrize("seed", range(6))
def test_bound_is_below_what_is_found(seed: int) -> None:
    for ratio in (0.1, 1.0, 5.0):
        problem = layered(40, ratio, seed, congestion=CONGESTIONS[seed % 3])
        value = problem.value(anneal_operators(problem, run=SearchContext(effort=0.02)))
        loose, sharp = (operators_bound(problem, upper=x)[0] for x in (np.inf, value))
        assert 0 < loose <= value * (1 + CLOSE)
        assert loose * (1 - CLOSE) <= sharp <= value


def test_bound_counts_memory() -> None:
    """A chain of four tasks on two devices that hold two each: one transfer at least."""
    devices = tuple(DeviceClass(x, memory_bytes=2.0, bandwidth_bytes_per_s=1.0) for x in "ab")
    graph = replace(
        chain(1.0, 1.0, 1.0, 1.0, transfer=3.0),
        times={"a": np.ones(4), "b": np.full(4, 2.0)},
        node_bytes=np.ones(4),
    )
    options = CostOptions(objective="latency", execution="operators", memory_model="sum")
    problem = latency_problem(SplitProblem(graph, singletons(graph), devices, options))
    value = brute_operators(problem)[0]
    bound, name = operators_bound(problem)
    assert name == "memory path"
    assert 4.0 < bound <= value * (1 + CLOSE)


def test_same_seed_same_placement() -> None:
    problem = layered(60)
    one, two = (anneal_operators(problem, run=SearchContext(seed=5, effort=0.02)) for _ in range(2))
    assert (one.device == two.device).all()
    assert (one.events == two.events).all()


def test_a_start_is_never_lost() -> None:
    problem = layered(60)
    start = anneal_operators(problem, run=SearchContext(seed=1, effort=0.05))
    for stopped in (False, True):
        found = anneal_operators(
            problem, start=start, run=SearchContext(effort=0.001, interrupted=lambda s=stopped: s)
        )
        assert problem.value(found) <= problem.value(start)


def test_stop_ends_the_search() -> None:
    problem = layered(100)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 20

    placement = anneal_operators(
        problem, endless=True, run=SearchContext(effort=1e9, interrupted=stop)
    )
    assert np.isfinite(problem.value(placement))
    bound, _ = operators_bound(problem, run=SearchContext(interrupted=lambda: True))
    assert bound > 0


def test_not_worse_than_one_device() -> None:
    problem = layered(80, 50.0)
    value = problem.value(anneal_operators(problem, run=SearchContext(effort=0.001)))
    assert value <= problem.tasks.time.sum(axis=1).min() * (1 + CLOSE)


def test_tight_memory() -> None:
    """Twelve tasks fill three devices to the last byte; greedy list schedules do not fit."""
    graph, offered = layered_case(layered_graph(12, 1.0, 2))
    sizes = np.array([5.0, 5, 4, 4, 3, 3, 3, 3, 2, 2, 1, 1])
    graph = replace(graph, node_bytes=sizes)
    devices = tuple(replace(d, memory_bytes=12.0) for d in offered[:3])
    options = CostOptions(objective="latency", execution="operators", memory_model="sum")
    problem = latency_problem(SplitProblem(graph, singletons(graph), devices, options))
    placement = anneal_operators(problem, run=SearchContext(effort=0.02))
    used = np.bincount(placement.device, weights=problem.tasks.memory)
    assert used.tolist() == [12.0] * 3
    assert np.isfinite(problem.value(placement))


def test_packing_is_exact() -> None:
    """Capacity is enough in total, but no two of three tasks fit one of two devices."""
    devices = (DeviceClass("a", count=2, memory_bytes=5.0, bandwidth_bytes_per_s=1.0),)
    graph = replace(chain(1.0, 1.0, 1.0), node_bytes=np.full(3, 3.0))
    graph = replace(graph, times={"a": np.ones(3)})
    options = CostOptions(objective="latency", execution="operators", memory_model="sum")
    problem = latency_problem(SplitProblem(graph, singletons(graph), devices, options))
    with pytest.raises(InfeasibleError, match="do not fit"):
        anneal_operators(problem)


def test_shortfalls_are_named() -> None:
    devices = (DeviceClass("a", memory_bytes=5.0, bandwidth_bytes_per_s=1.0),)
    options = CostOptions(objective="latency", execution="operators", memory_model="sum")
    graph = replace(chain(1.0, 1.0), times={"a": np.ones(2)}, node_bytes=np.array([3.0, 3.0]))
    problem = latency_problem(SplitProblem(graph, singletons(graph), devices, options))
    with pytest.raises(InfeasibleError, match=re.escape("need 6 B")):
        anneal_operators(problem)
    graph = replace(graph, times={"a": np.array([1.0, np.inf])})
    problem = latency_problem(SplitProblem(graph, singletons(graph), devices, options))
    with pytest.raises(InfeasibleError, match="no device runs task 1"):
        anneal_operators(problem)
    with pytest.raises(InfeasibleError, match="task 1"):
        operators_bound(problem)


def test_layered_graphs_are_as_described() -> None:
    one, two = layered_graph(300, 1.0, 7), layered_graph(300, 5.0, 7)
    assert (one.head == two.head).all()
    assert two.size == pytest.approx(5 * one.size)
    times = np.array(list(one.times.values()))
    assert one.size.mean() == pytest.approx(times.mean())
    slower = times * np.array([1.0, 1.0, 0.5, 0.25])[:, None]
    assert (slower.max(axis=0) / slower.min(axis=0) <= 1.2 / 0.8 + CLOSE).all()
    read = np.bincount(one.head, minlength=300)
    assert read.max() == 3
    assert (one.head > one.tail).all()
    graph, _ = layered_case(one)
    assert (graph.edges[0] == one.tail[np.lexsort((one.head, one.tail))]).all()
    assert layered_graph(300, 1.0, 8).size.sum() != one.size.sum()


@pytest.mark.parametrize(("n", "ratio", "seed"), [(0, 1.0, 0), (5, -1.0, 0), (5, 1.0, -1)])
def test_layered_graphs_refuse(n: int, ratio: float, seed: int) -> None:
    with pytest.raises(UsageError):
        layered_graph(n, ratio, seed)
