"""The exact search for two stages: it ends at the optimum, and a stop leaves a bound that holds."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from dnnp.core.bounds.lower_bound import BoundTask, LowerBound
from dnnp.core.bounds.searches import bisection_bound
from dnnp.core.certificates.certificate import VERIFIED
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split import cuts
from dnnp.core.split.ideals.search import ideal_search
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import Stream
from support.brute import brute_force
from support.cases import Case
from support.certificates import Made
from support.graphs import header, random_stream


def two(seed: int, most: int) -> Case:
    """A problem of two devices of one class, under `sum`; every third has colours."""
    rng = random.Random(f"halves {seed}")
    stream = random_stream(seed, rng.randint(3, most), params=True, colors=seed % 3 == 0)
    graph = graph_of(stream)
    device = DeviceClass("dev", count=2, bandwidth_bytes_per_s=rng.choice([0.5, 2.0, 8.0]))
    options = CostOptions(memory_model="sum", charge_io=rng.random() < 0.3)
    return Case(seed, graph, units_of(stream, graph), (device,), options)


def verified(case: Case, claim: LowerBound) -> bool:
    record = {"value": claim.value, "validity": "ordered", "certificate": claim.certificate}
    return Made(case, "ordered", record).verdict(record) == VERIFIED


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_it_ends_at_the_optimum(first):
    for seed in range(first, first + 30):
        case = two(seed, 9)
        optimum = brute_force(case.problem)[0]
        claim = bisection_bound(case.problem, BoundTask("ordered"))
        assert claim.status == "solved"
        assert claim.value == pytest.approx(optimum, rel=1e-9)
        assert claim.value <= optimum
        assert case.problem.value(claim.blocks) == pytest.approx(optimum, rel=1e-9)
        assert verified(case, claim)


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_the_search_over_ideals(seed):
    case = two(seed, 16)
    claim = bisection_bound(case.problem, BoundTask("ordered"))
    found = ideal_search(case.problem, incumbent=1e9)
    assert claim.value == pytest.approx(found.value, rel=1e-9)
    assert verified(case, claim)


def test_a_known_optimum_is_not_found_again_and_a_worse_one_is_replaced():
    replaced = 0
    for seed in range(30):
        case = two(seed, 8)
        first = bisection_bound(case.problem, BoundTask("ordered"))
        again = BoundTask("ordered", first.blocks, case.problem.value(first.blocks))
        assert bisection_bound(case.problem, again).blocks is None
        whole = [first.blocks[0]._replace(nodes=case.graph.order)]
        worse = BoundTask("ordered", whole, case.problem.value(whole))
        better = bisection_bound(case.problem, worse).blocks
        if better is not None:
            replaced += 1
            assert case.problem.value(better) == pytest.approx(first.value)
    assert replaced > 10


@pytest.mark.parametrize("patience", range(6))
def test_what_is_stopped_still_holds(patience):
    for seed in range(10):
        case = two(seed, 12)
        asked = count()
        run = SearchContext(interrupted=lambda asked=asked: next(asked) >= patience)
        claim = bisection_bound(case.problem, BoundTask("ordered"), run)
        assert claim.value <= brute_force(case.problem)[0]
        assert verified(case, claim)
        assert (claim.status == "limit") == bool(claim.reason)


def test_the_size_of_its_tree_is_limited_by_the_effort():
    stopped = 0
    for seed in range(20):
        case = two(seed, 30)
        claim = bisection_bound(case.problem, BoundTask("ordered"), SearchContext(effort=1e-7))
        assert verified(case, claim)
        assert claim.value <= bisection_bound(case.problem, BoundTask("ordered")).value
        stopped += claim.reason == "more than 1 nodes"
    assert stopped > 5


def alike(items: int) -> Case:
    """Independent items of almost the same work: no tree proves more than the mean in time."""
    sizes = enumerate(100_000 + i * 7 % 15 * 100 for i in range(items))
    ends = {"op": "Op", "inputs": [], "outputs": []}
    nodes = [{"type": "node", "id": i, "name": "", **ends, "time_s": {"dev": s}} for i, s in sizes]
    stream = Stream(header=header(), records={"tensor": [], "node": nodes})
    graph = graph_of(stream)
    options = CostOptions(memory_model="sum")
    return Case(0, graph, units_of(stream, graph), (DeviceClass("dev", count=2),), options)


def test_the_size_of_its_tree_is_limited_however_small_the_graph(monkeypatch):
    monkeypatch.setattr(cuts, "MOST_NODES", 60)
    for effort in (0.1, 1.0):
        claim = bisection_bound(
            alike(21).problem, BoundTask("ordered"), SearchContext(effort=effort)
        )
        assert claim.reason == "more than 60 nodes"
    more = bisection_bound(alike(21).problem, BoundTask("ordered"), SearchContext(effort=2.0))
    assert more.reason == "more than 120 nodes"


def test_it_ends_at_the_gap_asked_for():
    case = alike(21)
    claim = bisection_bound(case.problem, BoundTask("ordered"), SearchContext(max_gap=0.06))
    assert claim.reason == "the gap is small enough"
    assert claim.value < case.problem.value(claim.blocks) <= claim.value / (1 - 0.06)
    assert verified(case, claim)


def test_it_is_for_two_devices_of_one_class_only():
    case = two(3, 7)
    cpu = DeviceClass("cpu", kind="cpu")
    for changed, validity in (
        (replace(case, devices=(*case.devices, cpu)), "ordered"),
        (replace(case, devices=(replace(case.devices[0], count=3),)), "ordered"),
        (replace(case, options=replace(case.options, comm="overlap")), "ordered"),
        (replace(case, options=replace(case.options, max_replicas=2)), "ordered"),
        (case, "convex"),
    ):
        claim = bisection_bound(changed.problem, BoundTask(validity))
        assert (claim.status, claim.value) == ("refused", 0.0)
        assert claim.reason
