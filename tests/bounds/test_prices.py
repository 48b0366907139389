"""The search for the most valuable set of items, against all sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dnnp.core.bounds.column_generation import Aim, FoundSets, best_sets, item_sets
from dnnp.core.bounds.lower_bound import Whole, whole_of
from dnnp.core.bounds.pairs import Between, between_of, pair_costs
from dnnp.core.kernels.kernel import plain, scratch
from dnnp.core.model.graph import Bools, Floats
from dnnp.core.model.hypergraph import Hypergraph, hypergraph
from support.cases import accelerators_case

KEPT = 3


def load_of(work: Floats, nets: Hypergraph, cost: Floats, some: tuple[int, ...]) -> float:
    """Work and cut of a set, from the definition."""
    load = float(sum(work[v] for v in some))
    for e, (a, b) in enumerate(itertools.pairwise(nets.net_ptr.tolist())):
        inside = [v in some for v in nets.pins[a:b].tolist()]
        if any(inside) and (nets.always[e] or not all(inside)):
            load += cost[e]
    return load


def closed_sets(between: Between, n: int) -> list[tuple[int, ...]]:
    """Sets that hold all that lies between two of their items."""
    return [
        some
        for size in range(1, n + 1)
        for some in itertools.combinations(range(n), size)
        if all(
            set(between.holds(u, v).tolist()) <= set(some)
            for u, v in itertools.combinations_with_replacement(some, 2)
        )
    ]


def searched(
    whole: Whole,
    between: Between,
    price: Floats,
    target: float,
    least: float,
    *,
    limit: int = 10**6,
) -> tuple[Bools, bool]:
    """The sets found for all roots, and whether the search ended."""
    n, priced = whole.items.count, (whole.work[0], whole.nets, whole.cost[0], between)
    items = item_sets(*priced, pair_costs(*priced))
    roots = np.arange(n, dtype=np.int64)
    found = scratch(FoundSets, {"n": n, "rows": KEPT * n})
    halt = np.zeros(1, dtype=np.bool_)
    aim = Aim(plain(price)[0], target, least, roots)
    best_sets(items, aim, 0, 1, limit, halt, found)
    return found.sets[found.sets.any(axis=1)], bool(found.ended.all())


@pytest.mark.parametrize("validity", ["ordered", "convex", "free"])
@pytest.mark.parametrize("seed", range(30))
def test_the_best_set_of_all(seed, validity):
    case = accelerators_case(seed, 9)
    whole = whole_of(case.problem, validity)
    assert np.isfinite(whole.work).all()
    between = between_of(case.graph, whole.items, validity)
    n, work = whole.items.count, whole.work[0]
    rng = np.random.default_rng(seed)
    sets = closed_sets(between, n)
    loads = np.array([load_of(work, whole.nets, whole.cost[0], some) for some in sets])
    for _ in range(5):
        price = np.floor(rng.choice([0.0, 1.0, 1.0, 5.0], n) * rng.integers(1, 1000, n))
        target = float(np.floor(rng.choice(loads) * rng.uniform(0.8, 1.3))) + 1.0
        worth = np.array([price[list(some)].sum() for some in sets])
        best = worth[loads < target].max(initial=0.0)
        least = float(np.floor(best * rng.choice([0.0, 0.7])))
        found, ended = searched(whole, between, price, target, least)
        assert ended
        values = [price[some].sum() for some in found]
        assert max(values, default=0.0) == (best if best > least else 0.0)
        for some in found:
            members = tuple(np.flatnonzero(some).tolist())
            assert load_of(work, whole.nets, whole.cost[0], members) < target
            assert members in sets
        # There is none above the best one.
        none, ended = searched(whole, between, price, target, best)
        assert (len(none), ended) == (0, True)


def test_the_tree_that_is_drawn():
    work, price = np.array([3.0, 2.0, 3.0]), np.array([5.0, 4.0, 5.0])
    ends, source = np.array([0, 1, 1, 2]), np.array([0, 1])
    nets = hypergraph(3, np.array([0, 2, 4]), ends, source, np.zeros(2, dtype=np.bool_))
    after = np.triu(np.ones((3, 3), dtype=np.bool_))
    between = Between(np.arange(3), after, after.T.copy(), True)
    priced = (work, nets, np.array([4.0, 1.0]), between)
    items = item_sets(*priced, pair_costs(*priced))
    aim, found = Aim(price, 8.0, 0.0, np.arange(3)), scratch(FoundSets, {"n": 3, "rows": KEPT * 3})
    steps = best_sets(items, aim, 0, 3, 10**6, np.zeros(1, dtype=np.bool_), found)
    assert found.met.tolist() == [2, 0, 0]
    assert [np.flatnonzero(some).tolist() for some in found.sets[:2]] == [[0], [0, 1]]
    assert found.ended.tolist() == [True, False, False]
    assert steps <= 5


def test_a_search_that_is_cut_off_says_so():
    case = accelerators_case(1, 9)
    whole = whole_of(case.problem, "free")
    between = between_of(case.graph, whole.items, "free")
    price = np.ones(whole.items.count)
    assert not searched(whole, between, price, 1e18, 0.0, limit=0)[1]
