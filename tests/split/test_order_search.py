"""The search over orders: what an order is worth, evolution, random orders, short edges."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.items import steps_of
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import Evolution, SearchContext
from dnnp.core.split.order_search import OrderSpace, brkga, evolved_order, random_order
from dnnp.core.split.slices import best_slicing
from dnnp.core.split.slicing.decoder import LENGTH, SLICING
from dnnp.core.split.slicing.slice import slice_line
from dnnp.formats.graph import graph_of, units_of
from support.cases import Case, random_case
from support.graphs import random_stream
from support.problems import priced
from support.project import ROOT
from support.run import output_of
from support.slicing import line_of

TWO = (
    DeviceClass("dev", count=2, bandwidth_bytes_per_s=2.0),
    DeviceClass("cpu", kind="cpu", count=1),
)


def space_of(case: Case, threads: int = 0, *, weighted: bool = True) -> OrderSpace:
    return OrderSpace(case.problem, weighted=weighted, threads=threads)


def plain_case(seed: int, n: int, count: int = 4, comm: str = "sum", **options: object) -> Case:
    """One class of devices with all the memory that there is."""
    stream = random_stream(seed, n, params=True)
    graph = graph_of(stream)
    device = DeviceClass("dev", count=count, bandwidth_bytes_per_s=2.0)
    return Case(seed, graph, units_of(stream, graph), (device,), CostOptions(comm, **options))


def sliced(case: Case, order) -> float:
    """The value of one order by `slice_line`, and by the checker; inf if nothing fits."""
    line = line_of(case, order)
    overflow = case.options.memory_mode == "overflow"
    steps = steps_of(case.graph, line, case.options) if overflow else None
    problem = case.problem
    try:
        found = slice_line(line, case.options.comm, steps)
    except InfeasibleError:
        return math.inf
    assert priced(problem, best_slicing(problem, order)).value == pytest.approx(found.value)
    return found.value


# What an order is worth


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_values_are_those_of_slicing(comm):
    for seed in range(20):
        case = plain_case(seed, 1 + seed, 1 + seed % 5, comm, charge_io=seed % 2 == 0)
        space = space_of(case)
        assert space.compiled
        keys = np.random.default_rng(seed).random((6, space.n))
        expected = [sliced(case, space.order(row)) for row in keys]
        assert space.values(keys) == pytest.approx(expected, rel=1e-9, abs=1e-12), seed


def test_values_of_any_problem():
    """Several classes, hard and soft memory, summed and peak, colours, backward passes."""
    seen = {True: 0, False: 0}
    soft = 0
    for seed in range(80):
        case = random_case(seed, 9, max_replicas=1, objective="throughput")
        space = space_of(case)
        seen[space.compiled] += 1
        soft += case.options.memory_mode == "overflow"
        keys = np.random.default_rng(seed).random((3, space.n))
        expected = [sliced(case, space.order(row)) for row in keys]
        assert space.values(keys) == pytest.approx(expected, rel=1e-9, abs=1e-12), seed
    assert min(*seen.values(), soft) > 10


@pytest.mark.parametrize("slow", [False, True])
def test_rejection_keeps_the_first_minimum(slow):
    for seed in range(12):
        case = plain_case(seed, 30)
        if slow:
            times = {"dev": case.graph.times["dev"], "cpu": 3 * case.graph.times["dev"]}
            units = replace(case.units, times=times)
            case = Case(seed, case.graph, units, TWO, case.options)
        space = space_of(case)
        assert space.compiled is not slow
        keys = np.random.default_rng(seed).random((20 if slow else 90, space.n))
        keys[7] = keys[3]  # ties
        keys[-1] = keys[0]
        values = space.values(keys)
        least = values.min()
        quick = space.values(keys, reject=True)
        assert quick.argmin() == values.argmin()
        assert quick.min() == pytest.approx(least, rel=1e-12)
        kept = quick < np.inf
        assert quick[kept] == pytest.approx(values[kept], rel=1e-12)
        assert not np.isfinite(space.values(keys, below=least, reject=True)).any()
        middle = float(np.median(values)) * 1.0001
        some = space.values(keys, below=middle, reject=True)
        assert (some[np.isfinite(some)] < middle).all()
        assert some.argmin() == values.argmin()
        # `below` is for rejection.
        assert space.values(keys, below=least).tolist() == values.tolist()


def test_any_number_of_threads():
    case = plain_case(5, 40)
    keys = np.random.default_rng(0).random((300, 40))
    for goal, reject in ((SLICING, False), (SLICING, True), (LENGTH, False)):
        values = [
            space_of(case, threads).values(keys, goal, reject=reject).tolist()
            for threads in (1, 2, 5)
        ]
        assert values[0] == values[1] == values[2]


def some_values() -> list[object]:
    """Values of orders of some graphs, and those that are found."""
    found: list[object] = []
    for seed in range(4):
        space = space_of(plain_case(seed, 14, comm=("sum", "duplex")[seed % 2]))
        keys = np.random.default_rng(seed).random((40, 14))
        found += [space.values(keys).tolist(), space.values(keys, reject=True).tolist()]
        found += [space.values(keys, 1).tolist()]
        found += [random_order(space, 30).tolist(), evolved_order(space, Evolution(10, 5)).tolist()]
    return found


def test_the_same_values_compiled_or_not():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from split.test_order_search import some_values\n"
        "print(some_values())\n"
    )
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    said = output_of([sys.executable, "-c", code], cwd=ROOT, env=env)
    assert said == f"{some_values()}\n"


# Evolution


def sphere(keys):
    """A function with its minimum at 0.3."""
    return ((keys - 0.3) ** 2).sum(axis=1)


def test_more_generations_are_never_worse():
    for seed in range(5):
        values = [
            brkga(sphere, 8, Evolution(12, generations), SearchContext(seed=seed))[1]
            for generations in (1, 2, 3, 5, 8, 30, 80)
        ]
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0] / 2


def test_same_seed_same_result():
    how = Evolution(20, 10)
    keys, value = brkga(sphere, 6, how, SearchContext(seed=3))
    again, same = brkga(sphere, 6, how, SearchContext(seed=3))
    assert (keys.tolist(), value) == (again.tolist(), same)
    assert brkga(sphere, 6, how, SearchContext(seed=4))[0].tolist() != keys.tolist()
    assert keys.shape == (6,)
    assert value == sphere(keys[None])[0]
    assert ((keys >= 0) & (keys < 1)).all()


def test_a_generation_is_what_its_shares_say():
    """Elites are not valued again; mutants and children are."""
    calls: list[np.ndarray] = []

    def fitness(keys):
        calls.append(keys.copy())
        return sphere(keys)

    how = Evolution(20, 4, elite=0.25, mutants=0.1, bias=1.0)
    assert (how.kept, how.drawn) == (5, 2)
    brkga(fitness, 3, how)
    assert [len(keys) for keys in calls] == [20, 15, 15, 15]
    # With a bias of 1 a child is a copy of an elite.
    elite = calls[0][np.argsort(sphere(calls[0]), kind="stable")[:5]].tolist()
    assert all(child in elite for child in calls[1][:13].tolist())
    assert all(mutant not in calls[0].tolist() for mutant in calls[1][13:].tolist())


def test_evolution_stops_after_one_generation():
    sizes: list[int] = []

    def fitness(keys):
        sizes.append(len(keys))
        return sphere(keys)

    _, value = brkga(fitness, 5, Evolution(10, 50), run=SearchContext(interrupted=lambda: True))
    assert sizes == [10]
    assert value == brkga(sphere, 5, Evolution(10, 1))[1]


def test_smallest_population():
    how = Evolution(population=2, generations=6)
    how.check()
    assert (how.kept, how.drawn) == (1, 0)
    assert brkga(sphere, 3, how)[1] <= brkga(sphere, 3, Evolution(2, 1))[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"population": 1}, "a population of 1 is too small"),
        ({"population": 0}, "a population of 0"),
        ({"population": -5}, "a population of -5"),
        ({"generations": 0}, "0 generations are too few"),
        ({"generations": -1}, "-1 generations"),
        ({"elite": 0.0}, "an elite share of 0 "),
        ({"elite": 1.0}, "an elite share of 1 "),
        ({"elite": -0.1}, "an elite share of -0.1"),
        ({"elite": math.nan}, "an elite share of nan"),
        ({"mutants": 1.0}, "share of mutants of 1"),
        ({"mutants": -0.1}, "mutants"),
        ({"mutants": math.nan}, "mutants"),
        ({"bias": 1.01}, "a bias of 1.01 is no probability"),
        ({"bias": -0.01}, "a bias of -0.01"),
        ({"bias": math.nan}, "a bias of nan"),
        ({"elite": 0.6, "mutants": 0.5}, "an elite of 60 and 50 mutants are more than"),
    ],
)
def test_what_is_no_evolution(fields, words):
    how = Evolution(**fields)
    with pytest.raises(UsageError, match=words):
        how.check()
    with pytest.raises(UsageError, match=words):
        brkga(sphere, 3, how)


# Orders


def test_random_order_is_the_best_of_its_samples():
    for seed in range(8):
        case = plain_case(seed, 25)
        space = space_of(case)
        keys = np.random.default_rng(seed).random((50, space.n))
        values = space.values(keys)
        order = random_order(space, 50, SearchContext(seed=seed))
        assert order.tolist() == space.order(keys[int(values.argmin())]).tolist()
        assert (
            random_order(space, 1, SearchContext(seed=seed)).tolist()
            == space.order(keys[0]).tolist()
        )


def test_random_orders_in_batches(monkeypatch):
    space = space_of(plain_case(2, 25))
    expected = random_order(space, 50).tolist()
    monkeypatch.setattr("dnnp.core.split.order_search.BATCH_ITEMS", 1)
    assert random_order(space, 50).tolist() == expected


def test_no_samples_or_no_time():
    space = space_of(plain_case(2, 10))
    with pytest.raises(UsageError, match="0 samples"):
        random_order(space, 0)
    assert random_order(space, 10, run=SearchContext(interrupted=lambda: True)) is None
    for goal in (SLICING, LENGTH):
        assert (
            evolved_order(space, Evolution(), goal, run=SearchContext(interrupted=lambda: True))
            is None
        )


def test_no_order_can_be_sliced():
    case = plain_case(2, 6)
    tight = (DeviceClass("dev", count=2, memory_bytes=1.0, bandwidth_bytes_per_s=1.0),)
    space = space_of(Case(2, case.graph, case.units, tight, case.options))
    assert not space.compiled
    assert random_order(space, 5) is None
    assert evolved_order(space, Evolution(4, 2)) is None


def test_evolved_orders_are_topological_and_no_worse_than_random_ones():
    for seed in range(4):
        space = space_of(plain_case(seed, 30))
        evolved = evolved_order(space, Evolution(30, 15), run=SearchContext(seed=seed))
        place = np.argsort(evolved)
        assert (place[space.items.tail] < place[space.items.head]).all()
        case = plain_case(seed, 30)
        random_one = random_order(space, 30, SearchContext(seed=seed))
        assert sliced(case, evolved) <= sliced(case, random_one)


def topological_orders(graph: Graph) -> Iterator[list[int]]:
    """All of them."""
    tail, head = (a.tolist() for a in graph.edges)
    before = [{u for u, v in zip(tail, head, strict=True) if v == w} for w in range(graph.n)]
    order: list[int] = []

    def extend() -> Iterator[list[int]]:
        if len(order) == graph.n:
            yield list(order)
        for v in range(graph.n):
            if v not in order and before[v] <= set(order):
                order.append(v)
                yield from extend()
                order.pop()

    return extend()


def length(graph: Graph, order: list[int], bandwidth: float, *, weighted: bool) -> float:
    """Length of all edges; an edge weighs what its tensors take to move, or 1."""
    at = {v: i for i, v in enumerate(order)}
    total = 0.0
    joined = set()
    for t in range(graph.m):
        u = int(graph.producer[t])
        for v in graph.use_idx[graph.use_ptr[t] : graph.use_ptr[t + 1]].tolist():
            if u < 0 or (not weighted and (u, v) in joined):
                continue
            joined.add((u, v))
            given = graph.transfer_s[t]
            time = graph.tensor_bytes[t] / bandwidth if np.isnan(given) else given
            total += (time if weighted else 1.0) * (at[v] - at[u])
    return total


@pytest.mark.parametrize("weighted", [False, True])
def test_short_edges_are_the_shortest(weighted):
    for seed in range(12):
        case = plain_case(seed, 3 + seed % 4, charge_io=seed % 3 == 0)
        space = space_of(case, weighted=weighted)
        lengths = {
            tuple(order): length(case.graph, order, 2.0, weighted=weighted)
            for order in topological_orders(case.graph)
        }
        found = evolved_order(space, Evolution(60, 20), LENGTH, SearchContext(seed=seed))
        nodes = [int(np.flatnonzero(space.items.label == item)[0]) for item in found]
        assert lengths[tuple(nodes)] == pytest.approx(min(lengths.values())), seed
        keys = np.random.default_rng(seed).random((5, space.n))
        expected = [
            lengths[tuple(int(np.flatnonzero(space.items.label == i)[0]) for i in space.order(row))]
            for row in keys
        ]
        assert space.values(keys, LENGTH) == pytest.approx(expected)


def test_a_population_that_fits_no_memory_is_refused():
    with pytest.raises(UsageError, match="takes too much memory"):
        brkga(lambda keys: keys.sum(axis=1), 100, Evolution(population=10**9))
