"""The 2020 paper's workloads: optima proven, and the published values of Table 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.plan import Plan
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.split.auto import solve
from dnnp.samples.papers.placement_values import TABLE_1
from support.plain_dp import attached, charts_of_problem, plain_dp
from support.problems import workload
from support.run import dnnp

INFERENCE = [name for name in TABLE_1 if name.endswith("_inference")]
QUICK = [
    "layer_bert24_inference", "layer_bert24_training", "layer_gnmt_inference",
    "layer_gnmt_training", "op_bert_l-3_inference", "op_bert_l-3_training",
]  # fmt: skip
"""Workloads on which a tenth of a search without order finds what is published."""


def solved(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Plan:
    """The plan of a method, after the independent checker has agreed."""
    found = solve(problem, asked, run)
    plan = make_plan(
        problem,
        found.blocks,
        method=found.method,
        bound=found.bound,
        digest="0" * 64,
    )
    assert check_plan(problem.graph, problem.units, plan).violations == ()
    return plan


@pytest.mark.parametrize("name", TABLE_1)
def test_the_best_contiguous_split_is_found_and_proven(shared_workloads: Path, name: str) -> None:
    plan = solved(workload(shared_workloads, name), MethodOptions())
    assert round(plan.value, 2) == TABLE_1[name].dp
    assert (plan.status, plan.gap, plan.validity) == ("optimal", 0.0, "ordered")


@pytest.mark.parametrize("name", TABLE_1)
def test_the_published_program_finds_the_same(shared_workloads: Path, name: str) -> None:
    if TABLE_1[name].ideals > 20_000:
        pytest.skip("takes minutes")
    charts = charts_of_problem(workload(shared_workloads, name))
    found = [plain_dp(attached(chart)) for chart in charts]
    assert max(reference.ideals for reference in found) == TABLE_1[name].ideals
    assert round(min(reference.value for reference in found), 2) == TABLE_1[name].dp


@pytest.mark.parametrize("name", TABLE_1)
def test_linearisation_gives_the_published_values(shared_workloads: Path, name: str) -> None:
    plan = solved(workload(shared_workloads, name), MethodOptions(method="dpl"))
    assert round(plan.value, 2) == TABLE_1[name].linearised


@pytest.mark.parametrize("name", QUICK)
def test_splits_without_order_are_as_good_as_the_published_ones(
    shared_workloads: Path, name: str
) -> None:
    problem = workload(shared_workloads, name)
    plan = solved(
        problem, MethodOptions(method="anneal", validity="free"), SearchContext(effort=0.1)
    )
    assert plan.value <= 1.002 * TABLE_1[name].free


@pytest.mark.parametrize("name", INFERENCE)
def test_identical_devices_without_cpus_are_certified(shared_workloads: Path, name: str) -> None:
    problem = workload(shared_workloads, name)
    values = []
    for k in (2, 4, 8, 16, 32, 64):
        same = (replace(d, count=k) for d in problem.devices if not d.is_cpu)
        plan = solved(problem.with_devices(*same), MethodOptions())
        assert (plan.status, plan.gap) == ("optimal", 0.0)
        values.append(plan.value)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("name", ["layer_bert24_inference", "layer_gnmt_inference"])
def test_expert_files_as_a_user_prices_them(shared_workloads: Path, name: str) -> None:
    graph = shared_workloads / "throughput" / f"{name}.json"
    expert = shared_workloads / "expert" / f"{name.removeprefix('layer_')}_expert.json"
    if not (graph.is_file() and expert.is_file()):
        pytest.skip(f"needs {graph.name} and {expert.name}")
    imported = dnnp("import", graph)
    result = dnnp("partition", "--eval", expert, stdin=imported.out)
    assert result.status == 0
    assert round(result.one("plan")["value"], 2) == TABLE_1[name].expert
