"""The bound of single items, against all sets of items and against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.bounds.node_cut import cpu_cut_claim, node_cut_bound
from dnnp.core.cost.items import item_choices
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from support.brute import brute_force
from support.cases import accelerators_case
from support.problems import chain

SUM = CostOptions(memory_model="sum")


def cheapest_sets(line):
    """f64[n], the least load of a set that holds each item, by looking at all sets."""
    least = np.full(line.n, np.inf)
    for mask in range(1, 1 << line.n):
        held = np.array([mask >> v & 1 for v in range(line.n)], dtype=bool)
        load = line.work[0][held].sum()
        for e, always in enumerate(line.nets.always):
            pins = held[line.nets.pins[line.nets.net_ptr[e] : line.nets.net_ptr[e + 1]]]
            if pins.any() and (always or not pins.all()):
                load += line.cost[0, e]
        least[held] = np.minimum(least[held], load)
    return least


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_equals_all_sets_and_is_never_above_the_optimum(first):
    for seed in range(first, first + 20):
        case = accelerators_case(seed)
        problem = case.problem
        found = node_cut_bound(problem)
        expected = min(
            cheapest_sets(problem.line(items)).max()
            for items in item_choices(case.graph, case.units)
        )
        assert found == pytest.approx(expected, rel=1e-9), seed
        assert found <= brute_force(problem)[0] * (1 + 1e-9), seed


def test_a_dear_tensor_keeps_its_neighbours():
    # Alone the middle pays 9 + 5 + 5; with both neighbours it pays 9 + 1 + 1.
    graph = chain(1, 9, 1, transfer=5.0)
    device = DeviceClass("dev", count=3, bandwidth_bytes_per_s=1.0)
    assert node_cut_bound(SplitProblem(graph, singletons(graph), (device,), SUM)) == pytest.approx(
        11
    )


def test_refuses_what_it_does_not_hold_for():
    graph = chain(1, 9, 1)
    units = singletons(graph)
    device = DeviceClass("dev", count=3, bandwidth_bytes_per_s=1.0)
    cpu = DeviceClass("cpu", kind="cpu")
    cases = (
        ((device, cpu), SUM),
        ((cpu,), SUM),
        ((device,), CostOptions(comm="overlap", memory_model="sum")),
        ((device,), CostOptions(max_replicas=2, memory_model="sum")),
        ((device,), CostOptions(objective="gpipe", memory_model="sum")),
    )
    for devices, options in cases:
        assert node_cut_bound(SplitProblem(graph, units, devices, options)) == 0.0
    assert node_cut_bound(SplitProblem(graph, units, (device,), SUM), above=100.0) == 0.0


def test_what_only_cpus_take_is_too_much_for_them():
    # On the accelerator the middle pays 9 + 5 + 5 or more with what is beside it; the CPU takes 12.
    graph = chain(4, 9, 4, transfer=5.0)
    graph = replace(graph, times={"dev": graph.times["dev"], "cpu": np.array([30.0, 12.0, 30.0])})
    devices = (
        DeviceClass("dev", count=2, bandwidth_bytes_per_s=1.0),
        DeviceClass("cpu", kind="cpu", count=1),
    )
    problem = SplitProblem(graph, singletons(graph), devices, SUM)
    for validity in ("ordered", "free"):
        optimum = brute_force(problem, validity=validity)[0]
        assert optimum == pytest.approx(12)
        claim = cpu_cut_claim(problem, BoundTask(validity, value=optimum))
        assert claim.value == pytest.approx(12)
        assert [row["item"] for row in claim.certificate["items"]] == [1]
