"""The method that a record names did run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dnnp as api
from dnnp.core.cost.latency import latency_problem
from dnnp.core.latency.solve import solve_latency
from dnnp.core.methods import Method
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import DnnpError, InfeasibleError
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext, Solution
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import Outcome
from dnnp.core.split import exact, heuristic, improve, slices
from dnnp.core.split.auto import solve
from support.cases import accelerators_case
from support.problems import DEGENERATE, chain, problem_of

PROBLEMS = {
    name: DEGENERATE[name] for name in ("one node", "more devices than nodes", "only CPUs")
} | {
    "a chain": problem_of(chain(4.0, 3.0, 5.0, 2.0, 6.0), DeviceClass("dev", count=2)),
    "too large in one order": problem_of(
        chain(1.0, 1.0, 1.0), DeviceClass("dev", count=3, memory_bytes=2.0)
    ),
}

COMBINED = ("auto", "heuristic")
"""Names of several methods in a row: any of them may have made the split."""


class Calls:
    """Names of what was called."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def watch(self, patch: pytest.MonkeyPatch, target: object, name: str, called: str) -> None:
        """Note calls of `target.name` as `called`."""
        real = getattr(target, name)

        def watched(*arguments: object, **named: object) -> object:
            self.names.add(called)
            return real(*arguments, **named)

        patch.setattr(target, name, watched)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Searches that ran, among those that others start from, fall back on, or replace."""
    seen = Calls()
    real = SolverProcess.ask

    def ask(process: SolverProcess, what: str, *arguments: Any, **named: Any) -> Outcome:
        seen.names.add("ip" if what == "solve" else what)
        return real(process, what, *arguments, **named)

    monkeypatch.setattr(SolverProcess, "ask", ask)
    seen.watch(monkeypatch, exact, "ideal_search", "exact")
    seen.watch(monkeypatch, slices, "best_slicing", "slice")
    seen.watch(monkeypatch, heuristic, "annealed", "anneal")
    return seen


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", [m for m in SPLITS if m not in ("scotch", "metis")])
def test_throughput(method: str, name: str, stopped: bool, calls: Calls) -> None:
    run = SearchContext(effort=0.01, interrupted=lambda: stopped)
    try:
        found = solve(PROBLEMS[name], MethodOptions(method=method, samples=3), run)
    except DnnpError:
        return
    if found.method in ("ip", "exact", "slice", "anneal"):
        assert found.method in calls.names
    assert found.method in (method, "slice", "exact", "first-fit")
    if method in COMBINED and not stopped:
        assert found.method == method


@pytest.mark.parametrize("seed", [0, 3, 40])
def test_exact_is_the_exact_search_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` goes on after too many ideals; both keep a bound."""
    monkeypatch.setattr("dnnp.core.split.ideals.search.MAX_IDEALS", 2)
    problem, run = accelerators_case(seed).problem, SearchContext(effort=0.01)
    seen = Calls()
    seen.watch(monkeypatch, improve, "anneal", "anneal")
    alone = solve(problem, MethodOptions(method="exact"), run)
    assert not seen.names
    found = solve(problem, MethodOptions(), run)
    assert seen.names
    assert (alone.method, found.method) == ("exact", "auto")
    assert alone.bound <= found.bound <= problem.value(found.blocks) < problem.value(alone.blocks)


@pytest.mark.parametrize("method", ["ip", "cpsat"])
def test_no_program_for_a_start_that_is_optimal(method: str, calls: Calls) -> None:
    """One task: nothing is left to a solver."""
    pytest.importorskip("ortools") if method == "cpsat" else None
    for execution in LATENCY[method].kinds:
        options = CostOptions(memory_model="sum", objective="latency", execution=execution)
        problem = problem_of(chain(3.0), DeviceClass("dev", count=2))
        problem = problem.with_options(options)
        found = solve_latency(latency_problem(problem), MethodOptions(method=method))
        assert found.method == (method if method in calls.names else "anneal")


def test_ip_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The split is that of the search for a start, and the record says so."""
    monkeypatch.setattr("dnnp.core.solver.slices.MAX_ENTRIES", 3)
    said: list[str] = []
    problem = PROBLEMS["a chain"]
    found = solve(problem, MethodOptions(method="ip"), SearchContext(warn=said.append))
    assert found.method == "exact"
    assert "is too large" in said[0]


def failing(*program: object, **how: object) -> Outcome:
    """The message about a solver that has crashed."""
    return Outcome("failed", reason="signal 11")


def test_a_solver_that_fails_leaves_the_split_to_what_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dnnp.core.split.heuristic.start", lambda *_: (start, "slice"))
    monkeypatch.setattr(SolverProcess, "ask", failing)
    said: list[str] = []
    devices = DeviceClass("dev", count=2)
    problem = problem_of(chain(4.0, 3.0, 5.0, 2.0, 6.0), devices)
    start = [Block(np.arange(4), devices), Block(np.array([4]), devices)]
    found = solve(problem, MethodOptions(method="ip"), SearchContext(warn=said.append))
    assert found.method == "slice"
    assert said == [
        "the solver cbc failed (the solver cbc failed: signal 11): the best split so far"
    ]
    for execution in LATENCY["ip"].kinds:
        said.clear()
        options = CostOptions(memory_model="sum", objective="latency", execution=execution)
        graph = replace(chain(4.0, 3.0, 5.0, 2.0), node_bytes=np.full(4, 2.0))
        tight = problem_of(graph, DeviceClass("dev", count=2, memory_bytes=4.0))
        latency = latency_problem(tight.with_options(options))
        placed = solve_latency(latency, MethodOptions(method="ip"), SearchContext(warn=said.append))
        assert placed.method == "anneal"
        assert said in ([], ["the solver ended early: the solver cbc failed: signal 11"])


@pytest.mark.parametrize("method", ["dpl", "pipedream"])
def test_a_split_that_fits_in_another_order_alone_is_by_slice(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> Solution:
        raise InfeasibleError("infeasible: in this order")

    monkeypatch.setattr(Method, "function", lambda self, kind="": none)
    said: list[str] = []
    device = DeviceClass("dev", count=2, memory_bytes=1e9)
    problem = problem_of(chain(4.0, 3.0, 5.0), device, memory_model="peak")
    found = solve(problem, MethodOptions(method=method), SearchContext(warn=said.append))
    assert found.method == "slice"
    assert said == [f"{method}: infeasible: in this order; this split is by slice"]


def test_getf_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.baselines.placing.getf.MOST_CHOICES", 1)
    said: list[str] = []
    options = CostOptions(memory_model="sum", objective="latency")
    problem = problem_of(chain(3.0, 1.0), DeviceClass("dev", count=2))
    latency = latency_problem(problem.with_options(options))
    found = solve_latency(latency, MethodOptions(method="getf"), SearchContext(warn=said.append))
    assert found.method == "getf-fluid"
    reason = "4 choices are too many for its linear program"
    assert said == [f"getf: {reason}; what ran instead is getf-fluid"]


@pytest.mark.parametrize("method", ["auto", "exact", "slice", "greedy"])
def test_nodes_that_fit_only_beside_others(method: str, tmp_path: Path) -> None:
    """Two products that belong together read 400 kB each; both at once, they would not fit."""
    size, node, value = 100_000, onnx.helper.make_node, onnx.helper.make_tensor_value_info
    weights = [
        onnx.numpy_helper.from_array(np.ones(size, np.float32), "w"),
        onnx.numpy_helper.from_array(np.array([size]), "s"),
    ]
    nodes = [
        node("Expand", ["x", "s"], ["p"], "p"),
        node("MatMul", ["p", "w"], ["a"], "a"),
        node("Expand", ["z", "s"], ["q"], "q"),
        node("MatMul", ["q", "w"], ["b"], "b"),
        node("Add", ["a", "b"], ["y"], "y"),
    ]
    inputs = [value(name, onnx.TensorProto.FLOAT, [1]) for name in "xz"]
    outputs = [value("y", onnx.TensorProto.FLOAT, [])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, weights)
    versions = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=versions, ir_version=10), tmp_path / "m")
    priced = api.profile(api.load(tmp_path / "m"), device=["a100"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", api.DnnpWarning)  # it is by slice
        plan = api.split(priced, k=1, memory=["900000"], method=method, together=["a,b"])
    assert [stage["nodes"] for stage in plan.stream().get("stage")] == [[0, 1, 2, 3, 4]]
    with pytest.raises(InfeasibleError, match=r"needs 800\.004 kB; the largest device has 700 kB"):
        api.split(priced, k=1, memory=["700000"], method=method, together=["a,b"])
