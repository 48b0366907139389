"""The search over ideals that knows links, against all splits on all devices."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, machine_of
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.ideals import linked
from dnnp.core.split.ideals.linked import kinds_of, linked_search
from support.linked_cases import least_over_links, linked_case
from support.problems import chain

SEEDS = st.integers(0, 10**6)


@given(SEEDS)
def test_no_bound_is_above_the_optimum(seed):
    problem = linked_case(seed, training=False, objective="throughput")
    least = least_over_links(problem)
    found = linked_search(problem, math.inf)
    assert found.bound <= least * (1 + 1e-9)
    better = linked_search(problem, least * (1 + 1e-6))
    assert better.bound <= least * (1 + 1e-9)
    straight = linked_search(problem, math.inf, straight=True)
    assert straight.bound == 0
    for answer in (found, straight):
        if answer.blocks is not None:
            try:
                assert problem.value(answer.blocks) >= least * (1 - 1e-9)
            except InfeasibleError:
                assert problem.options.memory_model == "peak"


@given(SEEDS)
def test_chains_are_exact(seed):
    problem = random_chain(seed)
    least = least_over_links(problem)
    found = linked_search(problem, math.inf)
    assert found.blocks is not None
    assert problem.value(found.blocks) == pytest.approx(least)
    assert found.bound == pytest.approx(least)


def random_chain(seed: int) -> SplitProblem:
    """A chain of five nodes on the devices and links of another problem, without limits."""
    rng = random.Random(seed)
    base = linked_case(seed, 3, training=False, colors=False)
    graph = replace(
        chain(*[1.0] * 5),
        tensor_bytes=np.array([float(rng.randint(0, 30)) for _ in range(5)]),
        transfer_s=np.array([rng.choice([math.nan, math.nan, 4.0]) for _ in range(5)]),
        times={
            d.name: np.array([float(rng.randint(1, 9)) for _ in range(5)]) for d in base.devices
        },
    )
    devices = tuple(replace(d, memory_bytes=math.inf) for d in base.devices)
    options = CostOptions(comm=base.options.comm, memory_model="sum")
    return SplitProblem(graph, singletons(graph), devices, options, base.links)


def test_kinds_of_devices():
    devices = (DeviceClass("a", count=3), DeviceClass("b", count=1))
    machine = machine_of(devices)
    assert [k.tolist() for k in kinds_of(machine)] == [[0, 1, 2], [3]]


def test_too_many_ideals_prove_nothing(monkeypatch):
    problem = linked_case(3, 5, training=False, objective="throughput", colors=False)
    monkeypatch.setattr(linked._Search, "ideals", lambda self: None)
    found = linked_search(problem, math.inf)
    assert found.blocks is not None
    assert found.bound == 0


def test_too_many_items_are_not_laid_out(monkeypatch):
    problem = linked_case(4, training=False, objective="throughput")
    monkeypatch.setattr(linked, "MOST_IDEALS", problem.unlinked.line().n)
    monkeypatch.setattr(linked, "_Search", None)  # square in the items
    assert linked_search(problem, math.inf) == (None, 0.0)


def test_stopped():
    problem = linked_case(3, 5, training=False, objective="throughput")
    assert linked_search(problem, math.inf, SearchContext(interrupted=lambda: True)) == (None, 0.0)


def test_training_and_replicas_are_left_alone():
    cases = (linked_case(seed, 5, training=True) for seed in range(20))
    trained = next(case for case in cases if case.graph.backward.any())
    assert linked_search(trained, math.inf) == (None, 0.0)
    assert linked_search(linked_case(5, 5, max_replicas=2), math.inf) == (None, 0.0)
