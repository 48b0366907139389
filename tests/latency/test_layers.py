"""Networks of layers put together from placements of their segments."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, Placement, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency import auto
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.operators import layers
from dnnp.core.latency.operators.anneal import Listed, anneal_operators, placed
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.latency.operators.layers import chain_of, layered
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream

CLOSE = 1e-9


def problem_of(
    edges: list[tuple[int, int]],
    times: dict[str, list[float]],
    size: list[float],
    memory: list[float],
    room: tuple[float, ...] = (np.inf, np.inf),
    *,
    model: str = "sum",
) -> LatencyProblem:
    """Devices of one class each, links of a byte a second."""
    tail, head = (
        np.array(side) for side in zip(*sorted(edges, key=lambda edge: edge[1]), strict=True)
    )
    stream = synthetic_stream("layers", tail, head, np.array(size), np.ones(len(size)))
    graph = graph_of(stream)
    graph = replace(
        graph,
        times={name: np.array(row) for name, row in times.items()},
        node_bytes=np.array(memory),
    )
    devices = tuple(
        DeviceClass(name, memory_bytes=limit, bandwidth_bytes_per_s=1.0)
        for name, limit in zip(times, room, strict=True)
    )
    options = CostOptions(objective="latency", execution="operators", memory_model=model)
    return latency_problem(SplitProblem(graph, singletons(graph), devices, options))


def deep(blocks: int, heads: int, room: tuple[float, ...], model: str = "sum") -> LatencyProblem:
    """Blocks of branches of two nodes; the last node of each holds most of its memory."""
    edges, last, n = [], 0, 1
    for _ in range(blocks):
        branches = [(n + 2 * i, n + 2 * i + 1) for i in range(heads)]
        n += 2 * heads
        for first, second in branches:
            edges += [(last, first), (first, second), (second, n)]
        last, n = n, n + 1
    at = [(v - 1) % (2 * heads + 1) % 3 for v in range(n)]
    size = [3.0 + 5.0 * (i == 1) for i in at]
    times = {"a": [1.0 + i for i in at], "b": [1.5 + i for i in at]}
    return problem_of(edges, times, size, [1.0] * n, room, model=model)


@pytest.mark.parametrize("seed", range(24))
def test_optimal_along_a_path(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks are waists: the least of all assignments that fit."""
    monkeypatch.setattr(layers, "SPREAD", np.inf)
    rng = random.Random(seed)
    n = rng.randint(9, 11)
    kinds = [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 4))]
    kinds += [(rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 4))]
    rows = [kinds[v % 2] for v in range(n)]
    total = sum(row[3] for row in rows)
    room = (total * rng.choice((0.4, 0.7, 1.0)) + 4, total * rng.choice((0.4, 0.8)) + 4)
    problem = problem_of(
        [(v, v + 1) for v in range(n - 1)],
        {"a": [float(row[0]) for row in rows], "b": [float(row[1]) for row in rows]},
        [float(row[2]) for row in rows],
        [float(row[3]) for row in rows],
        room,
    )
    net, order, least = net_of(problem), problem.tasks.order, np.inf
    for home in itertools.product((0, 1), repeat=n):
        split = placed(net, Listed(order, np.array(home)))
        if problem.fits(split):
            least = min(least, problem.value(split))
    found = layered(problem, None, SearchContext())
    if least == np.inf:
        assert found is None
        return
    assert found is not None
    assert least * (1 - CLOSE) <= problem.value(found) <= least * (1 + layers.NEAR + CLOSE)


@pytest.mark.parametrize("heads", [2, 5])
@pytest.mark.parametrize("share", [2.0, 0.6, 0.52])
def test_valid_and_no_worse_than_a_little_annealing(heads: int, share: float) -> None:
    free = deep(20, heads, (np.inf, np.inf))
    total = float(free.tasks.memory.sum())
    problem = deep(20, heads, (share * total, share * total))
    found = layered(problem, None, SearchContext())
    assert found is not None
    value = problem.value(found)
    assert operators_bound(problem)[0] <= value * (1 + CLOSE)
    assert value <= 1.05 * problem.value(anneal_operators(problem, run=SearchContext(effort=0.002)))


def test_a_known_placement_gives_its_layers() -> None:
    """One good block of a placement is enough for all."""
    problem = deep(12, 6, (np.inf, np.inf))
    known = anneal_operators(problem, run=SearchContext(effort=0.002))
    stopped = SearchContext(interrupted=lambda: True)
    chain = chain_of(problem)
    assert chain is not None
    found = layered(problem, known, stopped)
    assert found is not None
    assert problem.value(found) <= problem.value(known) * (1 + CLOSE)


def test_live_tensors_fit() -> None:
    """Of capacities that bind because of live tensors."""
    counted = 0
    for room in (20.0, 40.0, 70.0, 100.0):
        problem = deep(12, 4, (room, room), "peak")
        found = layered(problem, None, SearchContext(effort=0.5))
        if found is not None:
            assert problem.fits(found)
            counted += 1
    assert counted >= 2


@pytest.mark.parametrize("seed", range(6))
def test_devices_that_lack_operators(seed: int) -> None:
    """Tasks that one device alone supports, by kind; memory that is nothing, or nearly all."""
    rng = random.Random(seed)
    room = (np.inf, np.inf) if seed % 2 else (26.0, 26.0)
    problem = deep(12, 2, room)
    time = problem.tasks.time.copy()
    for v in range(5):
        if rng.random() < 0.4:
            time[rng.randrange(2), 1 + v :: 5] = np.inf
    memory = problem.tasks.memory * (seed % 3)
    tasks = replace(problem.tasks, time=time, memory=memory)
    problem = replace(problem, tasks=tasks)
    found = layered(problem, None, SearchContext(effort=0.3))
    if found is not None:
        assert operators_bound(problem)[0] <= problem.value(found) * (1 + CLOSE)
    else:  # 61 or 122 units of memory, in 52
        assert seed % 3
        assert room[0] < np.inf


def test_tasks_beside_the_layers() -> None:
    """They are scheduled, too, and memory is left for them."""
    edges, times = [(v, v + 1) for v in range(11)], [2.0] * 12
    edges += [(v, 12 + v) for v in range(8)]
    problem = problem_of(
        edges,
        {"a": times + [1.0] * 8, "b": times + [1.5] * 8},
        [1.0] * 20,
        [1.0] * 20,
        (11.0, 11.0),
    )
    chain = chain_of(problem)
    assert chain is not None
    assert chain.aside.sum() == 8
    found = layered(problem, None, SearchContext())
    assert found is not None
    assert 24.0 <= problem.value(found) <= 40.0


def test_a_stop_ends_it_early() -> None:
    problem = deep(12, 4, (40.0, 80.0))
    for last in (0, 3, 10, 40):
        asked = iter(range(10**6))
        run = SearchContext(interrupted=lambda asked=asked, last=last: next(asked) >= last)
        found = layered(problem, None, run)
        assert found is None or problem.fits(found)


def test_same_bytes() -> None:
    problem = deep(12, 4, (40.0, 80.0))
    first, second = (layered(problem, None, SearchContext(seed=3)) for _ in range(2))
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert first.events.tobytes() == second.events.tobytes()


def test_what_is_no_network_of_layers() -> None:
    """Few segments; colours that join two of them."""
    assert chain_of(deep(3, 4, (np.inf, np.inf))) is None
    problem = deep(12, 4, (np.inf, np.inf))
    together = problem.tasks.together.copy()
    assert chain_of(problem) is not None
    together[together == together[-2]] = together[1]
    joined = np.unique(together, return_inverse=True)[1].astype(np.int64)
    assert chain_of(replace(problem, tasks=replace(problem.tasks, together=joined))) is None


def test_bounded_before_annealing_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a large problem is there before layers are, which may take all of the time."""
    problem, seen = deep(20, 3, (np.inf, np.inf)), []
    monkeypatch.setattr(auto, "_layered", lambda _problem, known, _run: seen.append(known) or known)
    for large in (10, 1000):
        monkeypatch.setattr(auto, "LARGE", large)
        auto.auto_operators(problem, MethodOptions(), SearchContext(effort=0.05).within(8.0))
    assert len(seen) == 4
    assert seen[0].bound > seen[2].bound
    assert seen[0].bound_method == "segments"
