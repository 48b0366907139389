"""The ideal search against the published table over pairs of ideals, beyond brute force's reach."""

from __future__ import annotations

import random

import pytest

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.ideals.search import ideal_search
from dnnp.formats.graph import graph_of
from support.brute import brute_force
from support.cases import random_case
from support.graphs import random_stream
from support.plain_dp import Reference, chart_of_graph, charts_of_problem, plain_dp
from support.problems import priced
from support.wide import wide_problem

ROUNDING = 1e-9


def random_problem(seed: int, nodes: tuple[int, int]) -> SplitProblem:
    """A random graph without colours on one class of accelerators and perhaps CPUs."""
    rng = random.Random(f"table {seed}")
    stream = random_stream(
        seed, rng.randint(*nodes), classes=["cpu"], memory=True, params=rng.random() < 0.5
    )
    graph = graph_of(stream)
    devices = [
        DeviceClass(
            "dev",
            count=rng.randint(1, 4),
            bandwidth_bytes_per_s=rng.choice([1.0, 3.0]),
            memory_bytes=rng.choice([float("inf"), 40.0, 80.0]),
        ),
        DeviceClass("cpu", kind="cpu", count=rng.randint(0, 2)),
    ]
    used = tuple(d for d in devices if d.count)
    return SplitProblem(graph, singletons(graph), used, CostOptions(memory_model="sum"))


def compare(problem: SplitProblem) -> Reference:
    """The search proves the value of the table, from nothing and from a guess just above it."""
    reference = plain_dp(chart_of_graph(problem.graph, problem.devices))
    found = ideal_search(problem)
    if reference.value == float("inf"):
        assert found.blocks is None
        assert found.bound == float("inf")
        return reference
    assert found.blocks is not None
    assert priced(problem, found.blocks).value == pytest.approx(reference.value, rel=ROUNDING)
    assert found.bound == pytest.approx(reference.value, rel=ROUNDING)
    near = ideal_search(problem, incumbent=reference.value * 1.01 + 1e-9)
    assert near.value == pytest.approx(reference.value, rel=ROUNDING)
    assert near.bound == pytest.approx(reference.value, rel=ROUNDING)
    return reference


def test_the_table_equals_brute_force() -> None:
    for seed in range(60):
        problem = random_problem(seed, (1, 7))
        expected, _ = brute_force(problem)
        assert plain_dp(chart_of_graph(problem.graph, problem.devices)).value == pytest.approx(
            expected, rel=ROUNDING
        )


def test_equals_the_table_on_graphs_with_hundreds_of_ideals() -> None:
    solved = [compare(random_problem(seed, (10, 14))) for seed in range(60)]
    feasible = [r for r in solved if r.value < float("inf")]
    assert len(feasible) > 40
    assert sum(r.ideals >= 200 for r in feasible) > 12


def test_equals_the_table_on_training_graphs() -> None:
    tried = 0
    for seed in range(60):
        case = random_case(
            seed,
            12,
            training=True,
            max_replicas=1,
            comm="sum",
            charge_io=False,
            objective="throughput",
            memory_mode="hard",
        )
        classes = {d.kind for d in case.devices}
        if len(classes) < len(case.devices) or classes == {"cpu"}:
            continue
        problem = case.problem
        expected = min(plain_dp(chart).value for chart in charts_of_problem(problem))
        assert ideal_search(problem).value == pytest.approx(expected, rel=ROUNDING)
        tried += 1
    assert tried > 25


def test_equals_the_table_on_a_small_wide_graph() -> None:
    for seed in range(3):
        problem = wide_problem(seed, 300, k=1 + seed, cpus=seed, shape=(4, 1, 4))
        assert compare(problem).ideals >= 300


def test_the_wide_graph_keeps_its_ideals() -> None:
    # Next to no effort: contraction and enumeration only.
    assert ideal_search(wide_problem(), run=SearchContext(effort=1e-6)).ideals >= 36_000
