"""Premises of the checker of certificates: its inequalities hold, its search misses nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from dnnp.core.certificates.cover import Sets
from dnnp.core.certificates.cuts import ROWS, Sums
from dnnp.core.certificates.exact import Budget, Exact, UnprovenError, bits
from support.brute import brute_force
from support.cases import Case, accelerators_case

COMMS = ("sum", "overlap", "duplex")
VALIDITIES = ("ordered", "convex", "free")


def exact_of(case: Case, validity: str, quantum: Fraction) -> Exact:
    units = case.units
    return Exact(case.graph, units, case.devices, case.options, validity, quantum, Budget())


def all_rows(exact: Exact) -> Iterator[tuple[str, list[int]]]:
    """Every row of every kind, also those that repeat what they are about, or that do not hold."""
    names = exact.names
    for part in (0, 1):
        yield "total", [part]
        yield from (("stage", [part, v]) for v in names)
    for tensor, (pins, _, _) in exact.nets.items():
        inside = [names[v] for v in sorted(pins)]
        for v, p in product(names, inside):
            yield "inside", [tensor, v, p]
            yield from (("cut", [tensor, v, p, q]) for q in inside)
        for size in range(len(pins) + 1):
            yield from (("paid", [tensor, *some]) for some in combinations(inside, size))
    for three in product(names, repeat=3):
        yield "between", list(three)
        yield "triangle", list(three)


def least_load(exact: Exact, used: Counter[str]) -> float:
    """Least T of the program of all rows that are admitted, quanta; counts rows by kind."""
    n, nets = exact.n, len(exact.nets)
    pairs = {pair: 1 + i for i, pair in enumerate(combinations(range(n), 2))}
    matrix, least = [], []
    for kind, about in all_rows(exact):
        sums = Sums(exact, "dev")
        try:
            ROWS[kind](sums, about, 1)
        except UnprovenError:
            continue
        sums.spread()
        row = np.zeros(1 + len(pairs) + nets + nets * n)
        row[0] = sums.loads
        for pair, weight in sums.together.items():
            row[pairs[pair]] += weight
        for e, weight in enumerate(sums.paid):
            row[1 + len(pairs) + e] += weight
        for (e, v), weight in sums.pays.items():
            row[1 + len(pairs) + nets + e * n + v] += weight
        used[kind] += bool(row[1:].any())
        matrix.append(-row)
        least.append(-sums.number)
    most = [(0, None), *[(0, 1)] * len(pairs), *[(0, n)] * nets, *[(0, 1)] * (nets * n)]
    objective = np.zeros(len(most))
    objective[0] = 1
    found = linprog(objective, np.array(matrix), np.array(least), bounds=most)
    assert found.status == 0, found.message
    return float(found.fun)


@pytest.mark.parametrize("comm", COMMS)
def test_no_program_of_all_rows_exceeds_the_optimum(comm):
    tight, used = 0, Counter[str]()
    for seed in range(12):
        case = accelerators_case(seed, 5, comms=(comm,))
        for validity in VALIDITIES:
            problem = case.problem
            optimum = brute_force(problem, validity=validity)[0]
            found = least_load(exact_of(case, validity, Fraction(1, 8)), used) / 8
            assert found <= optimum * (1 + 1e-7) + 1e-7, (seed, validity)
            tight += found > 0.9 * optimum
    assert tight > 12
    assert min(used[kind] for kind in ROWS) > 12, used


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_the_search_finds_a_set_if_and_only_if_there_is_one(first):
    told = {True: 0, False: 0}
    for seed, validity in product(range(first, first + 10), VALIDITIES):
        rng = random.Random(seed)
        exact = exact_of(accelerators_case(seed, 9), validity, Fraction(1, 8))
        sets = dict(loads(exact))
        for _ in range(4):
            prices = [max(0, w // rng.randint(1, 4) + rng.randint(-2, 9)) for w in work(exact)]
            room = rng.choice(sorted(sets.values())) - rng.choice((0, 0, 1))
            allowed = (some for some, load in sets.items() if load <= room)
            best = max((sum(prices[v] for v in bits(some)) for some in allowed), default=0)
            for share in {best, max(best - 1, 0), best + 3}:
                found = Sets(exact, "dev", prices, room, share).run()
                assert (found is None) == (best <= share), (seed, validity, prices, room, share)
                told[found is None] += 1
    assert min(told.values()) > 30, told


def work(exact: Exact) -> list[int]:
    return [w or 0 for w in exact.work["dev"]]


def loads(exact: Exact) -> Iterator[tuple[int, int]]:
    """All sets that a stage may be, as bit masks, and their loads."""
    nets = [
        (sum(1 << v for v in pins), always, exact.cost("dev", tensor))
        for tensor, (pins, always, _) in exact.nets.items()
    ]
    for some in range(1, 1 << exact.n):
        items = list(bits(some))
        if all(not exact.between(u, v) & ~some for u in items for v in items):
            paid = (c for pins, always, c in nets if pins & some and (always or pins & ~some))
            yield some, sum(work(exact)[v] for v in items) + sum(paid)
