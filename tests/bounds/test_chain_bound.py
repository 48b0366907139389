"""The bound of the heaviest path, against brute force and by hand."""

from __future__ import annotations

import pytest

from dnnp.core.bounds.chain import chain_bound
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.slices import best_slicing
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from dnnp.samples.papers.regal import regal_graph
from support.brute import brute_force
from support.cases import accelerators_case, random_case
from support.problems import chain

SUM = CostOptions(memory_model="sum")


def bound(graph, k, options=SUM):
    device = DeviceClass("dev", count=k, bandwidth_bytes_per_s=1.0)
    return chain_bound(SplitProblem(graph, singletons(graph), (device,), options))


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_never_above_the_optimum(first):
    better = 0
    for seed in range(first, first + 40):
        case = accelerators_case(seed, comms=("sum", "sum", "overlap", "duplex"))
        problem = case.problem
        optimum, _ = brute_force(problem)
        found = chain_bound(problem)
        assert found <= optimum * (1 + 1e-9), seed
        better += found > simple_bound(problem) * (1 + 1e-6)
    assert better > 5


def test_never_above_the_optimum_with_classes_memory_and_replicas():
    for seed in range(60):
        case = random_case(seed, 6)
        optimum, _ = brute_force(case.problem)
        found = chain_bound(case.problem)
        assert found <= optimum * (1 + 1e-9), seed


def test_a_chain_is_bounded_by_its_optimum():
    # Cut before the last: 3 + 3 + 1 out, and 1 in + 3; after the first: 3 + 1, and 1 + 3 + 3.
    assert bound(chain(3, 3, 3), 2) == pytest.approx(7)
    # Three stages: the middle one pays on both sides.
    assert bound(chain(3, 3, 3), 3) == pytest.approx(5)
    # Dear transfers: better on one device; only the mean and what that rules out remain.
    assert bound(chain(3, 3, 3, transfer=9.0), 3) == pytest.approx(9)


@pytest.mark.parametrize("comm", ["overlap", "duplex"])
def test_transfers_count_only_where_they_add(comm):
    assert bound(chain(3, 3, 3), 2, CostOptions(comm=comm, memory_model="sum")) == pytest.approx(6)


def test_long_chains_are_thinned_but_bounded():
    graph = chain(*[1.0] * 6_000, transfer=0.0)
    found = bound(graph, 7)
    assert 857 < found <= 858 * (1 + 1e-9)


def test_large_random_graphs():
    made = regal_graph("watts-strogatz", 3_000, 1)
    stream = synthetic_stream("large", made.tail, made.head, made.size, made.cost)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    devices = (DeviceClass("unit", count=16, bandwidth_bytes_per_s=1.0),)
    blocks = best_slicing(SplitProblem(graph, units, devices, SUM))
    plan = make_plan(
        SplitProblem(graph, units, devices, SUM), blocks, method="", bound=0.0, digest=""
    )
    assert chain_bound(SplitProblem(graph, units, devices, SUM)) <= plan.value
