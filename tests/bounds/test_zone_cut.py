"""The bound of a path and of minimum cuts, against brute force, by hand and cut by cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dnnp.core.bounds.chain import chain_bound, heaviest_path, zones_of
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.bounds.zone_cut import (
    ContractedItems,
    contracted_items,
    most_of_zones,
    near_zones,
    zone_cut_bound,
    zone_cut_claim,
)
from dnnp.core.model.graph import Bools, Floats
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.slices import best_slicing
from support.brute import brute_force
from support.cases import accelerators_case, random_case
from support.problems import SUM, fan


def test_what_is_cut_amid_a_fork_is_paid():
    # Of the four nodes two stand on each side: 2 + 2 + 1 + 2 * 2 of work, the tensor that all four
    # read, and those that two of them make. The path alone sees one tensor between the stages.
    # The cut of ideals with the path's own node of the four costs 2, 3, 4 and 4 by work 7, 9, 11
    # and 13: a line from the first to the last would allow 11.5, but in the first three the fork's
    # tensor is paid, and in the last all its readers are in.
    problem = fan(layers=1, k=2)
    assert problem.value(best_slicing(problem)) == pytest.approx(12)
    assert chain_bound(problem) == pytest.approx(10)
    assert zone_cut_bound(problem) == pytest.approx(12, rel=1e-4)
    assert zone_cut_claim(problem, BoundTask("ordered")).value == pytest.approx(12, rel=1e-9)


@pytest.mark.parametrize("kind", ["accelerator", "cpu"])
@pytest.mark.parametrize("first", [True, False])
def test_classes_without_devices_do_not_count(kind: str, first: bool):
    problem = fan(layers=1, k=2)
    (device,) = problem.devices
    idle = replace(device, name="idle", kind=kind, count=0)
    problem = problem.with_devices(*((idle, device) if first else (device, idle)))
    assert zone_cut_claim(problem, BoundTask("ordered")).value == pytest.approx(12, rel=1e-9)


def test_layers_that_are_alike():
    problem = fan(layers=6, k=8)
    value = problem.value(best_slicing(problem))
    found = zone_cut_bound(problem, above=chain_bound(problem), below=value)
    assert chain_bound(problem) < found <= value * (1 + 1e-9)
    # It is only looked for where there is something to be found.
    assert zone_cut_bound(problem, above=value, below=value) == 0.0


def test_it_says_how_far_it_is():
    problem, shares = fan(layers=6, k=8), []
    run = SearchContext(watch=lambda standing: shares.append(standing.share))
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
        found = max(zone_cut_bound(problem), zone_cut_claim(problem, BoundTask("ordered")).value)
        assert found <= optimum * (1 + 1e-9), seed
        better += found > chain_bound(problem) * (1 + 1e-6)
    assert better > 0


def test_where_it_does_not_hold_it_proves_nothing():
    for seed in range(40):
        case = random_case(seed, 6)
        optimum, _ = brute_force(case.problem)
        assert zone_cut_bound(case.problem) <= optimum * (1 + 1e-9), seed
        for validity in ("convex", "free"):
            assert zone_cut_claim(case.problem, BoundTask(validity)).status == "refused"


def all_ideals(packed: ContractedItems) -> Iterator[Bools]:
    for bits in product((False, True), repeat=len(packed.work)):
        inside = np.array(bits)
        if not (inside[packed.items.head] & ~inside[packed.items.tail]).any():
            yield inside


def test_least_cuts_equal_all_ideals():
    rates, looked_at, parted = ((0, 1), (1, 2), (1, 1)), 0, 0
    for seed, span in product(range(40), (1, 2)):
        problem = accelerators_case(seed, 8).problem
        if problem.graph.backward.any():
            continue  # its tensors do not go one way
        line = problem.line()
        packed, _ = contracted_items(
            line, np.floor(1000 * line.work[0]), np.floor(1000 * line.cost[0]), SUM
        )
        path = heaviest_path(packed.items, packed.work)
        after, until = zones_of(packed.items, path)
        first, last = near_zones(packed, after, until, span)
        made = most_of_zones(packed, after, until, first, last, len(path), rates)
        assert made is not None
        case, held, found, parting = made
        expected: dict[tuple[int, ...], Floats] = {}
        for inside in all_ideals(packed):
            i, cut, key = int(inside[path].sum()), 0.0, [int(inside[path].sum())]
            for e in np.flatnonzero((first <= i) & (i < last)).tolist():
                pins = inside[packed.nets.pins[packed.nets.net_ptr[e] : packed.nets.net_ptr[e + 1]]]
                cut += float(packed.cost[e]) if pins.any() and not pins.all() else 0.0
                if (i, e) in parting:
                    assert pins.any(), (seed, span)
                    key.append(int(pins.all()))
            work = float(packed.work[inside].sum())
            worth = np.array([-work, *(p * work - q * cut for p, q in rates)])
            expected[tuple(key)] = np.maximum(expected.get(tuple(key), -np.inf), worth)
        keys = sorted(expected)
        assert np.array_equal(np.bincount([key[0] for key in keys]), np.diff(case)), (seed, span)
        exact = np.array([expected[key] for key in keys])
        assert (-exact[:, 0] >= held).all(), (seed, span)
        assert (found >= exact[:, 1:]).all(), (seed, span)
        whole = np.column_stack([-held, found])  # a case may hold too much, a zone none
        assert np.array_equal(
            np.maximum.reduceat(whole, case[:-1]), np.maximum.reduceat(exact, case[:-1])
        ), (seed, span)
        looked_at += 1
        parted += len(parting)
    assert looked_at > 40
    assert parted > 10
