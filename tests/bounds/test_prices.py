"""The search for the most valuable set of items, against all sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dnnp.core.bounds.cover import Aim, Field, FoundSets, best_sets, field_of
from dnnp.core.bounds.lower_bound import Whole, whole_of
from dnnp.core.bounds.pairs import Between, between_of, pair_costs
from dnnp.core.kernels.kernel import plain
from dnnp.core.model.graph import Bools, Floats
from dnnp.core.split.cuts import Nets
from support.cases import accelerators_case

KEPT = 3


def load_of(work: Floats, nets: Nets, some: tuple[int, ...]) -> float:
    """Work and cut of a set, from the definition."""
    load = float(sum(work[v] for v in some))
    for e, (a, b) in enumerate(itertools.pairwise(nets.ptr.tolist())):
        inside = [v in some for v in nets.pins[a:b].tolist()]
        if any(inside) and (nets.always[e] or not all(inside)):
            load += nets.cost[e]
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
    n = whole.items.count
    nets = whole.nets(0)
    field = field_of(whole.work[0], nets, between, pair_costs(whole.work[0], nets, between))
    roots = np.arange(n, dtype=np.int64)
    found = FoundSets(
        np.zeros((KEPT * n, n), dtype=np.bool_),
        np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.bool_),
    )
    halt = np.zeros(1, dtype=np.bool_)
    aim = Aim(plain(price)[0], target, least, roots)
    best_sets(Field(*plain(*field)), aim, 0, 1, limit, halt, found)
    return found.sets[found.sets.any(axis=1)], bool(found.ended.all())


@pytest.mark.parametrize("validity", ["ordered", "convex", "free"])
@pytest.mark.parametrize("seed", range(30))
def test_the_best_set_of_all(seed, validity):
    case = accelerators_case(seed, 9)
    whole = whole_of(case.problem, validity)
    if not np.isfinite(whole.work).all():
        pytest.skip("a unit runs nowhere")
    between = between_of(case.graph, whole.items, validity)
    n, work, nets = whole.items.count, whole.work[0], whole.nets(0)
    rng = np.random.default_rng(seed)
    sets = closed_sets(between, n)
    loads = np.array([load_of(work, nets, some) for some in sets])
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
            assert load_of(work, nets, tuple(np.flatnonzero(some).tolist())) < target
            assert tuple(np.flatnonzero(some).tolist()) in sets
        # There is none above the best one.
        none, ended = searched(whole, between, price, target, best)
        assert (len(none), ended) == (0, True)


def test_the_tree_that_is_drawn():
    work, price = np.array([3.0, 2.0, 3.0]), np.array([5.0, 4.0, 5.0])
    never = np.zeros(2, dtype=np.bool_)
    nets = Nets(np.array([0, 2, 4]), np.array([0, 1, 1, 2]), never, np.array([4.0, 1.0]))
    after = np.triu(np.ones((3, 3), dtype=np.bool_))
    between = Between(np.arange(3), after, after.T.copy(), True)
    field = Field(*plain(*field_of(work, nets, between, pair_costs(work, nets, between))))
    sets, count = np.zeros((KEPT * 3, 3), dtype=np.bool_), np.zeros(3, dtype=np.int64)
    ended, halt = np.zeros(3, dtype=np.bool_), np.zeros(1, dtype=np.bool_)
    aim, found = Aim(price, 8.0, 0.0, np.arange(3)), FoundSets(sets, count, ended)
    steps = best_sets(field, aim, 0, 3, 10**6, halt, found)
    assert count.tolist() == [2, 0, 0]
    assert [np.flatnonzero(some).tolist() for some in sets[:2]] == [[0], [0, 1]]
    assert ended.tolist() == [True, False, False]
    assert steps <= 5


def test_a_search_that_is_cut_off_says_so():
    case = accelerators_case(1, 9)
    whole = whole_of(case.problem, "free")
    between = between_of(case.graph, whole.items, "free")
    price = np.ones(whole.items.count)
    assert not searched(whole, between, price, 1e18, 0.0, limit=0)[1]
