"""The ideal search: optimal, proven, and honest about its limits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.ideals import search
from dnnp.core.split.ideals.search import ideal_search
from dnnp.formats.graph import graph_of, units_of
from support import cases
from support.brute import brute_force
from support.cases import random_case
from support.graphs import random_stream


def agrees(case) -> None:
    """The search finds the optimum that brute force finds, and proves no more."""
    expected, _ = brute_force(case.problem)
    found = ideal_search(case.problem)
    label = f"seed {case.seed}: {case.options} {case.devices}"
    if not np.isfinite(expected):
        assert found.blocks is None, label
        # In another order of its nodes a block might need less memory.
        assert found.bound == np.inf or case.options.memory_model == "peak", label
        return
    assert found.blocks is not None, label
    plan = make_plan(
        case.problem,
        found.blocks,
        method="exact",
        bound=found.bound,
        digest="0" * 64,
    )
    assert check_plan(case.graph, None, plan).violations == (), label
    assert plan.validity == "ordered", label
    assert plan.value == pytest.approx(expected, rel=1e-9, abs=1e-12), label
    assert found.bound <= expected * (1 + 1e-9), label
    if case.options.memory_model == "sum":
        assert found.bound == pytest.approx(expected, rel=1e-9, abs=1e-12), label

    # With an incumbent the graph may be contracted further.
    near = expected * 1.001 + 1e-3
    again = ideal_search(case.problem, incumbent=near)
    assert again.value == pytest.approx(expected, rel=1e-9, abs=1e-12), label
    proof = ideal_search(case.problem, incumbent=expected)
    assert proof.blocks is None, label
    assert proof.bound <= expected, label
    if case.options.memory_model == "sum":
        assert proof.bound == pytest.approx(expected, rel=1e-9), label


@pytest.mark.parametrize("start", range(0, 200, 100))
def test_equals_brute_force(start):
    for seed in range(start, start + 100):
        agrees(random_case(seed, 7))


def doubled(stream, seed):
    """The stream with copies of some nodes, whose own tensors may have other sizes."""
    rng = random.Random(seed)
    tensors, nodes = stream.get("tensor"), stream.get("node")
    for node in list(nodes):
        if "color" in node or node.get("backward") or rng.random() < 0.5:
            continue
        for _ in range(rng.choice([1, 1, 2])):
            made = []
            for old in node["outputs"]:
                made.append(len(tensors))
                size = abs(tensors[old]["size_bytes"] + rng.choice([0, 0, 9, -9]))
                tensors.append({**tensors[old], "id": made[-1], "name": "", "size_bytes": size})
                for reader in nodes:
                    if old in reader["inputs"]:
                        reader["inputs"].append(made[-1])
            nodes.append({**node, "id": len(nodes), "name": f"n{len(nodes)}", "outputs": made})
            nodes[-1]["inputs"] = list(node["inputs"])
    return stream


def test_interchangeable_units_in_turn(monkeypatch):
    """One order of units that may be exchanged keeps an optimum, and has fewer ideals."""
    asked, fewer, saved = [], search.make_lattice, 0

    def refused(*arguments):
        asked.append(arguments)
        return fewer(*arguments) if len(asked) % 2 == 0 else None

    build = cases.random_stream
    monkeypatch.setattr(
        cases, "random_stream", lambda s, n, **more: doubled(build(s, n, **more), s)
    )
    for seed in range(300):
        case = random_case(seed, 4)
        if case.graph.n > 8 or len(case.problem.item_choices) > 1:
            continue
        with monkeypatch.context() as patched:
            patched.setattr(search, "make_lattice", refused)
            agrees(case)
        for first, second in zip(asked[::2], asked[1::2], strict=True):
            saved += len(second[1]) > len(first[1])
        asked.clear()
    assert saved > 100


def test_a_star_of_like_units_is_proven():
    stream = random_stream(0, 1)
    tensors = [{"id": 0, "kind": "input", "size_bytes": 1}]
    tensors += [{"id": i + 1, "kind": "activation", "size_bytes": 1} for i in range(41)]
    nodes = [
        {"id": i, "inputs": [0], "outputs": [i + 1], "time_s": {"dev": 2 + i % 2}}
        for i in range(40)
    ]
    nodes.append({"id": 40, "inputs": [*range(1, 41)], "outputs": [41], "time_s": {"dev": 5}})
    stream.records["tensor"] = [{"type": "tensor", "name": f"t{t['id']}", **t} for t in tensors]
    stream.records["node"] = [{"type": "node", "name": "", "op": "Op", **node} for node in nodes]
    graph = graph_of(stream)
    devices = (DeviceClass("dev", count=3, bandwidth_bytes_per_s=1e9),)
    found = ideal_search(SplitProblem(graph, units_of(stream, graph), devices, CostOptions()))
    assert 0 < found.ideals < 1000
    assert found.bound == found.value == pytest.approx(35, rel=1e-6)


def test_what_is_known_from_the_other_end_loses_nothing(monkeypatch):
    """Passes that go on from the other end stop at the same optimum, after fewer blocks."""
    fewer = 0
    for seed in range(100):
        problem = random_case(seed, 9).problem
        with monkeypatch.context() as patched:
            patched.setattr(search._Choice, "_turn", lambda *_: None)
            alone = ideal_search(problem)
        turned = ideal_search(problem)
        assert turned.value == pytest.approx(alone.value, rel=1e-12), seed
        assert turned.bound == pytest.approx(alone.bound, rel=1e-12), seed
        fewer += turned.walked < alone.walked
    assert fewer > 2
