"""Packing: counts, sums, and the search over all assignments, against brute force."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.bounds.packing import Packing, common_quantum, counted, next_sum, packing_claim
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import header
from support.run import dnnp


def least_load(work: list[int], devices: int) -> int:
    """The least largest load of all assignments."""
    best = sum(work)
    for place in product(range(devices), repeat=len(work)):
        loads = [0] * devices
        for one, d in zip(work, place, strict=True):
            loads[d] += one
        best = min(best, max(loads))
    return best


def drawn(rng: random.Random) -> tuple[list[int], int]:
    most = rng.choice([1, 3, 10, 50])
    work = [rng.randint(rng.choice([0, 1, most]), most) for _ in range(rng.randint(1, 8))]
    return work, rng.randint(1, 4 if len(work) < 7 else 3)


def test_bounds_and_packings_are_those_of_brute_force() -> None:
    rng = random.Random(1)
    by_count = by_sums = by_search = 0
    for _ in range(300):
        work, devices = drawn(rng)
        optimum, whole = least_load(work, devices), np.array(work, dtype=np.int64)
        count = counted(whole, devices)
        sums = next_sum(work, count)
        assert count <= sums <= optimum, (work, devices)
        assert devices != 2 or sums == optimum, (work, devices)
        found = Packing(whole, devices, sums)
        found.search()
        assert max(found.loads) == found.bound == optimum, (work, devices)
        by_count += count == optimum
        by_sums += count < sums == optimum
        by_search += sums < optimum
    assert min(by_count, by_sums, by_search) > 1, (by_count, by_sums, by_search)


def test_an_effort_ends_the_search_with_what_is_proven() -> None:
    work = np.array([100, 333, 517] * 24, dtype=np.int64)
    bound = next_sum(work.tolist(), counted(work, 16))
    steps = []
    for effort in (0.01, 0.1):
        found = Packing(work, 16, bound, SearchContext(effort=effort))
        found.search()
        assert bound <= found.bound < max(found.loads)
        steps.append(found.steps)
    assert steps[0] < steps[1] < 300_000


@pytest.mark.parametrize(
    ("times", "quantum"),
    [([2.0096e-6, 2.0144e-6, 2.008e-06], 1.6e-9), ([3.0, 6.0], 3.0), ([0.25], 0.25)],
)
def test_times_are_multiples_of_a_quantum(times: list[float], quantum: float) -> None:
    found, multiples = common_quantum(np.array(times))
    assert found == pytest.approx(quantum, rel=1e-12, abs=0)
    assert found < quantum
    assert multiples.tolist() == [round(t / quantum) for t in times]


def test_other_times_are_rounded_down() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-320, 1e-9, 1.0, 1e300):
        times = rng.random(20) * scale
        quantum, multiples = common_quantum(times)
        assert (multiples * quantum <= times).all()
        assert (times - multiples * quantum).max() <= quantum
    assert common_quantum(np.zeros(3))[1].sum() == 0


def independent(count: int, devices: int) -> SplitProblem:
    """Nodes of almost the same time that read nothing."""
    nodes = [
        {"type": "node", "id": i, "name": f"n{i}", "op": "Op", "inputs": [], "outputs": []}
        | {"time_s": {"dev": 2e-6 + i * 7 % 15 * 1e-9}}
        for i in range(count)
    ]
    graph = graph_of(Stream(header=header(), records={"node": nodes}))
    return SplitProblem(
        graph, singletons(graph), (DeviceClass("dev", count=devices),), CostOptions()
    )


def test_a_product_that_is_rounded_up_proves_no_more_than_it_is() -> None:
    counted = 0
    for count in range(3, 60):
        claim = packing_claim(independent(count, 3), BoundTask("ordered"))
        assert claim.certificate is not None
        exact = Fraction(claim.certificate["quantum"]) * claim.certificate["units"]
        assert Fraction(claim.value) <= exact
        counted += float(exact) > exact
    assert counted > 5


@pytest.mark.parametrize("validity", ["ordered", "convex", "free"])
def test_independent_nodes_are_packed(validity: str) -> None:
    for count, devices in ((21, 2), (71, 2), (71, 3), (71, 8)):
        problem = independent(count, devices)
        claim = packing_claim(problem, BoundTask(validity))
        assert claim.blocks is not None
        assert claim.value == pytest.approx(problem.value(claim.blocks), rel=1e-12, abs=0)


@pytest.mark.parametrize("method", ["auto", "exact", "anneal"])
def test_independent_nodes_are_proven(method: str) -> None:
    rows = "".join(f"n{i},{2e-6 + i * 7 % 15 * 1e-9!r}\n" for i in range(71))
    data = dnnp("import", "-q", "--from", "csv", "-", stdin=f"name,time_s\n{rows}".encode()).out
    made = dnnp("partition", "-q", "-k", "2", "--method", method, stdin=data)
    proven = dnnp("bound", "-q", stdin=made.out)
    assert proven.one("plan")["status"] == "optimal"
    assert dnnp("check", "--certificate", stdin=proven.out).status == 0
    if method != "anneal":
        assert made.one("plan")["status"] == "optimal"
