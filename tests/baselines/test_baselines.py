"""Baselines: valid splits, what each one promises, and the published values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.formats.workloads.msr import read_split
from support.cases import random_case
from support.problems import DEGENERATE, chain, priced, problem_of, workload

CORE = ("greedy", "local-search", "pipedream", "uniform", "params", "single")
"""Baselines that need nothing else installed."""


def split(problem: SplitProblem, name: str, run: SearchContext = PLAIN) -> list[Block]:
    return SPLITS[name].function()(problem, MethodOptions(method=name), run).blocks


@pytest.mark.parametrize("name", CORE)
def test_splits_are_valid(name: str) -> None:
    solved = 0
    for seed in range(60):
        case = random_case(seed)
        problem = case.problem
        try:
            blocks = split(problem, name, SearchContext(seed=seed))
        except InfeasibleError:
            continue
        plan = priced(problem, blocks, name)
        assert plan.validity == "ordered" or name == "local-search"
        solved += 1
    assert solved > 40


@pytest.mark.parametrize("what", DEGENERATE)
@pytest.mark.parametrize("name", CORE)
def test_degenerate_problems(name: str, what: str) -> None:
    problem = DEGENERATE[what]
    plan = priced(problem, split(problem, name), name)
    assert sum(len(stage.nodes) for stage in plan.stages) == problem.graph.n
    if what == "one colour":
        assert len(plan.stages) == 1


@pytest.mark.parametrize("name", CORE)
def test_capacity_below_the_largest_node_is_explained(name: str) -> None:
    graph = chain(1.0, 1.0, memory_bytes=100)
    problem = problem_of(graph, DeviceClass("dev", count=2, memory_bytes=60), memory_model="sum")
    with pytest.raises(InfeasibleError, match=r"^infeasible: .*(60|memory of the devices)"):
        split(problem, name)


@pytest.mark.parametrize("name", CORE)
def test_nodes_that_run_nowhere_are_named(name: str) -> None:
    problem = problem_of(chain(1.0, 1.0), DeviceClass("other", count=2))
    with pytest.raises(InfeasibleError, match=r"node 0 \('n0'\).* cannot run on any device"):
        split(problem, name)


def test_greedy_fills_memory_in_order() -> None:
    # Work would allow 3 nodes a device; 20 bytes allow two of ten bytes.
    graph = chain(*[1.0] * 6, memory_bytes=10)
    problem = problem_of(graph, DeviceClass("dev", count=3, memory_bytes=20), memory_model="sum")
    plan = priced(problem, split(problem, "greedy"))
    assert [stage.nodes for stage in plan.stages] == [(0, 1), (2, 3), (4, 5)]


def test_greedy_puts_the_rest_on_cpus() -> None:
    graph = chain(*[1.0] * 6, memory_bytes=10)
    devices = (DeviceClass("dev", count=1, memory_bytes=20), DeviceClass("cpu", "cpu", 2))
    problem = problem_of(graph, *devices, memory_model="sum")
    plan = priced(problem, split(problem, "greedy"))
    assert [(s.device, s.nodes) for s in plan.stages] == [
        ("dev/0", (0, 1)),
        ("cpu/0", (2, 3)),
        ("cpu/1", (4, 5)),
    ]
    without = problem.with_devices(*devices[:1])
    with pytest.raises(InfeasibleError, match="full before every node has a place"):
        split(without, "greedy")


def test_greedy_balances_where_memory_is_ample() -> None:
    problem = problem_of(chain(1.0, 1.0, 2.0, 4.0, 0.0), DeviceClass("dev", count=2))
    plan = priced(problem, split(problem, "greedy"))
    assert [stage.nodes for stage in plan.stages] == [(0, 1, 2), (3, 4)]


@pytest.mark.parametrize(("name", "value"), [("bert24", 20.08), ("gnmt", 46.21)])
def test_expert_splits_have_the_published_values(
    shared_workloads: Path, name: str, value: float
) -> None:
    problem = workload(shared_workloads, f"layer_{name}_inference")
    graph, devices = problem.graph, problem.devices
    path = shared_workloads / "expert" / f"{name}_inference_expert.json"
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    kinds = {d.kind: d for d in devices}
    blocks = []
    for part in read_split(path.read_bytes(), path.name):
        nodes = np.array([position[i] for i in part.nodes], dtype=np.int64)
        blocks.append(Block(nodes[np.argsort(graph.rank[nodes])], kinds[part.kind]))
    assert round(priced(problem, blocks).value, 2) == value
