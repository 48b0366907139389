"""Gaps that are small enough: `--max-gap`, and the status within_gap."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import orjson
import pytest

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.auto import auto_blocks, auto_operators
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.parallel import search, shared
from dnnp.core.parallel.search import plan_hybrid
from dnnp.core.parallel.shared import plan_shared
from dnnp.core.split.clusters import hierarchy
from dnnp.core.split.hierarchy import hierarchy_split
from dnnp.formats.graph import graph_of
from support.graphs import random_stream
from support.hybrid import random_problem as parallel_case
from support.hybrid import random_shared_problem as shared_case
from support.latency_cases import random_problem as latency_case
from support.run import dnnp

GRAPH = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "10", "--seed", "1").out
LARGE = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "320", "--seed", "1").out
SLICED = ("-k", "3", "--bandwidth", "100", "--method", "slice")


def planned(*words: str) -> tuple[bytes, dict, str]:
    result = dnnp("partition", *SLICED, *words, stdin=GRAPH)
    return result.out, result.one("plan"), result.err


def test_a_plan_within_the_gap_says_so_and_is_not_called_optimal() -> None:
    out, plan, said = planned("--max-gap", "0.9")
    assert (plan["status"], plan["max_gap"]) == ("within_gap", 0.9)
    assert 0 < plan["gap"] < 0.9
    assert ", within 90 %, ordered" in said
    assert "optimal" not in said
    assert dnnp("check", stdin=out).status == 0
    shown = dnnp("view", stdin=out).out.decode()
    assert "within 90 %, ordered: bound" in shown


@pytest.mark.parametrize("most", ["0", "0.0001"])
def test_a_larger_gap_is_feasible_as_before(most: str) -> None:
    _, plan, said = planned("--max-gap", most)
    assert plan["status"] == "feasible"
    assert "max_gap" not in plan
    assert ", gap " in said


@pytest.mark.parametrize(
    "lie",
    [{"max_gap": 1e-4}, {"status": "feasible"}, {"bound": 1e-9}, {"status": "optimal"}],
    ids=str,
)
def test_the_checker_compares_the_gap_with_what_is_claimed(lie: dict) -> None:
    out, plan, _ = planned("--max-gap", "0.9")
    forged = plan | lie
    forged["gap"] = (forged["value"] - forged["bound"]) / forged["value"]
    data = out.replace(orjson.dumps(plan), orjson.dumps(forged))
    assert data != out
    result = dnnp("check", stdin=data)
    assert result.status == 3, result.err
    assert "status" in result.err or "claims to be optimal" in result.err


def test_a_bound_that_meets_the_value_makes_it_optimal() -> None:
    words = ("-k", "3", "--bandwidth", "100", "--method", "anneal", "--validity", "ordered")
    data = dnnp("partition", "-q", *words, "--max-gap", "0.9", stdin=GRAPH).out
    plan = dnnp("bound", "-q", stdin=data).one("plan")
    assert plan["status"] == "optimal"
    assert "max_gap" not in plan


def efforts(*words: str) -> tuple[int, dict]:
    """Searches over ideals that `auto` ran on a large graph, and its plan."""
    words = ("-v", "-k", "4", "--bandwidth", "50", "--effort", "0.005", *words)
    result = dnnp("partition", *words, stdin=LARGE)
    return result.err.count("ideals, "), result.one("plan")


def test_auto_ends_once_the_gap_is_small_enough() -> None:
    none, plan = efforts("--max-gap", "0.9")
    assert (none, plan["status"]) == (0, "within_gap")
    both, plan = efforts("--max-gap", "0")
    assert (both, plan["status"]) == (2, "feasible")


def alike(count: int) -> bytes:
    """Independent nodes of almost the same time: more ideals than can be searched."""
    rows = "".join(f"n{i},{2e-6 + i * 7 % 15 * 1e-9!r}\n" for i in range(count))
    return dnnp("import", "-q", "--from", "csv", "-", stdin=f"name,time_s\n{rows}".encode()).out


@pytest.mark.parametrize("count", [21, 71])
def test_small_graphs_end_at_the_gap_asked_for(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first split is within the gap: no search over ideals nor for two stages runs."""
    monkeypatch.setattr("dnnp.core.split.exact.ideal_search", None)
    monkeypatch.setattr("dnnp.core.split.cuts.Bisection.search", None)
    data = dnnp("partition", "-k", "2", "--max-gap", "0.05", stdin=alike(count)).out
    assert dnnp("check", "-q", "--max-gap", "0.05", stdin=data).status == 0
    bound = dnnp("bound", "--max-gap", "0.05", stdin=data)
    assert ", within 5 %, ordered" in bound.err


def test_a_bound_within_the_gap_ends_and_marks_the_plan() -> None:
    """`auto` ends with the first argument that is enough."""
    many = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "60", "--seed", "1").out
    words = ("-k", "6", "--bandwidth", "20", "--method", "slice", "--max-gap", "0")
    data = dnnp("partition", "-q", *words, stdin=many).out
    near = dnnp("bound", "--effort", "0.0001", "--max-gap", "0.9", stdin=data)
    plan, bound = near.one("plan"), near.one("bound")
    assert (plan["status"], plan["max_gap"], bound["status"]) == ("within_gap", 0.9, "proven")
    assert bound["tried"][-1]["method"] == "simple"
    assert ", within 90 %, ordered" in near.err
    assert dnnp("check", "--certificate", stdin=near.out).status == 0


def test_a_schedule_within_the_gap_is_not_called_optimal() -> None:
    shape = ("schedule", "--shape", "V", "--devices", "4", "-n", "6", "--memory", "2")
    near, whole = (dnnp(*shape, "--max-gap", gap) for gap in ("0.9", "0"))
    assert ", within 90 %, bound " in near.err
    assert near.one("schedule")["status"] == "feasible"
    assert whole.one("schedule")["makespan_s"] <= near.one("schedule")["makespan_s"]
    assert ", within" not in whole.err
    assert dnnp("check", stdin=near.out).status == 0


def clusters(run: SearchContext) -> tuple[float, float]:
    graph = graph_of(random_stream(3, 20))
    device = DeviceClass(
        "dev",
        count=8,
        bandwidth_bytes_per_s=1.0,
        cluster_size=4,
        inner_bandwidth_bytes_per_s=10.0,
    )
    problem = SplitProblem(graph, singletons(graph), (device,), CostOptions())
    found = hierarchy_split(problem, run)
    return problem.value(found.blocks), found.bound


def latency(execution: str, run: SearchContext) -> tuple[float, float]:
    case = latency_case(random.Random(1), 25, execution=execution, devices=3)
    method = auto_blocks if execution == "blocks" else auto_operators
    found = method(case, MethodOptions(), replace(run, effort=0.01))
    return case.value(found.split), found.bound


def parallel(kind: str, run: SearchContext) -> tuple[float, float]:
    case = parallel_case(3) if kind == "own" else shared_case(5, 5)
    found = (plan_hybrid if kind == "own" else plan_shared)(case, [np.arange(case.n)], run)
    return found.value, found.bound


SEARCHES = {
    "clusters": clusters,
    "blocks": partial(latency, "blocks"),
    "operators": partial(latency, "operators"),
    "parallel": partial(parallel, "own"),
    "shared stages": partial(parallel, "shared"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_every_search_of_auto_ends_at_a_gap_that_is_small_enough(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search asks less often whether to stop, or finds less; its bound and gap are as asked."""
    for module in (search, shared, hierarchy):
        monkeypatch.setattr(module, "SETTLED", 0)
    asked = [0, 0]

    def counting(place: int) -> bool:
        asked[place] += 1
        return False

    value, bound = SEARCHES[name](SearchContext(interrupted=partial(counting, 0)))
    near, low = SEARCHES[name](SearchContext(interrupted=partial(counting, 1), max_gap=0.9))
    assert asked[1] < asked[0] or near > value
    assert bound <= value <= near
    assert near * (1 - 0.9) <= low <= value * (1 + 1e-9)
