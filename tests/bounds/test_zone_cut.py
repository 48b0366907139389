"""The bound of a path and of minimum cuts, against brute force, by hand and cut by cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from dnnp.core.bounds.chain import chain_bound, heaviest_path, zones_of
from dnnp.core.bounds.claim import Known
from dnnp.core.bounds.zone_cut import (
    Strip,
    most_of_zones,
    near_zones,
    strip_of,
    zone_cut_bound,
    zone_cut_claim,
)
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.cluster import singletons
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Bools
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import Run
from dnnp.core.split.slices import best_slicing
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.brute import brute_force
from support.cases import accelerators_case, random_case

SUM = CostOptions(memory_model="sum")


def fan(*, layers: int, k: int) -> SplitProblem:
    """Layers of two nodes in a row, four beside each other, and one that joins them.

    The two take 2 each, the first of a fork 1, each of the four 2, the join 1; all tensors cost 1.
    """
    tail, head, cost = [], [], []
    for _ in range(layers):
        first = len(cost)
        cost += [2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0]
        if first:
            tail, head = [*tail, first - 1], [*head, first]
        for u, v in (
            (0, 1),
            (1, 2),
            *((2, v) for v in range(3, 7)),
            *((u, 7) for u in range(3, 7)),
        ):
            tail, head = [*tail, first + u], [*head, first + v]
        tail, head = [*tail, first + 7, first + 8], [*head, first + 8, first + 9]
    made = synthetic_stream(
        "fan", np.array(tail), np.array(head), np.ones(len(cost)), np.array(cost)
    )
    graph = graph_of(made)
    device = DeviceClass("unit", count=k, bandwidth_bytes_per_s=1.0)
    return SplitProblem(graph, singletons(graph), (device,), SUM)


def test_what_is_cut_amid_a_fork_is_paid():
    # Of the four nodes two stand on each side: 2 + 2 + 1 + 2 * 2 of work, the tensor that all four
    # read, and those that two of them make. The path alone sees one tensor between the stages.
    # The cut of ideals with the path's own node of the four costs 2, 3, 4 and 4 by work 7, 9, 11
    # and 13; what lies between the first and the last of these is bounded by a line.
    problem = fan(layers=1, k=2)
    assert problem.value(best_slicing(problem)) == pytest.approx(12)
    assert chain_bound(problem) == pytest.approx(10)
    assert zone_cut_bound(problem) == pytest.approx(11.5, rel=1e-4)
    assert zone_cut_claim(problem, Known("ordered")).value == pytest.approx(11.5, rel=1e-9)


def test_layers_that_are_alike():
    problem = fan(layers=6, k=8)
    value = problem.value(best_slicing(problem))
    found = zone_cut_bound(problem, above=chain_bound(problem), below=value)
    assert chain_bound(problem) < found <= value * (1 + 1e-9)
    # It is only looked for where there is something to be found.
    assert zone_cut_bound(problem, above=value, below=value) == 0.0


def test_it_says_how_far_it_is():
    problem, shares = fan(layers=6, k=8), []
    run = Run(watch=lambda standing: shares.append(standing.share))
    assert zone_cut_bound(problem, run=run) == zone_cut_bound(problem)
    assert len(set(shares)) > 10
    assert shares == sorted(shares)
    assert shares[-1] < 1


@pytest.mark.parametrize("first", [0, 40])
def test_never_above_the_optimum(first):
    better = 0
    for seed in range(first, first + 40):
        problem = accelerators_case(seed, 8).problem
        optimum, _ = brute_force(problem)
        found = max(zone_cut_bound(problem), zone_cut_claim(problem, Known("ordered")).value)
        assert found <= optimum * (1 + 1e-9), seed
        better += found > chain_bound(problem) * (1 + 1e-6)
    assert better > 0


def test_where_it_does_not_hold_it_proves_nothing():
    for seed in range(40):
        case = random_case(seed, 6)
        optimum, _ = brute_force(case.problem)
        assert zone_cut_bound(case.problem) <= optimum * (1 + 1e-9), seed
        for validity in ("convex", "free"):
            assert zone_cut_claim(case.problem, Known(validity)).status == "refused"


def all_ideals(strip: Strip) -> Iterator[Bools]:
    for bits in product((False, True), repeat=len(strip.work)):
        inside = np.array(bits)
        if not (inside[strip.items.head] & ~inside[strip.items.tail]).any():
            yield inside


def test_least_cuts_equal_all_ideals():
    rates, looked_at = ((0, 1), (1, 2), (1, 1)), 0
    for seed, span in product(range(40), (1, 2)):
        problem = accelerators_case(seed, 8).problem
        if problem.graph.backward.any():
            continue  # its tensors do not go one way
        line = problem.line()
        strip, _ = strip_of(line, np.floor(1000 * line.work[0]), np.floor(1000 * line.cost[0]), SUM)
        path = heaviest_path(strip.items, strip.work)
        after, until = zones_of(strip.items, path)
        first, last = near_zones(strip, after, until, span)
        found = most_of_zones(strip, after, until, first, last, len(path), rates)
        assert found is not None
        expected = np.full((len(path) + 1, len(rates)), -np.inf)
        for inside in all_ideals(strip):
            i, cut = int(inside[path].sum()), 0.0
            for e in np.flatnonzero((first <= i) & (i < last)).tolist():
                pins = inside[strip.pins[strip.ptr[e] : strip.ptr[e + 1]]]
                cut += float(strip.cost[e]) if pins.any() and not pins.all() else 0.0
            worth = [p * strip.work[inside].sum() - q * cut for p, q in rates]
            expected[i] = np.maximum(expected[i], worth)
        assert (found == expected).all(), (seed, span)
        looked_at += 1
    assert looked_at > 40
