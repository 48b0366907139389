"""The ways to use devices that links join: against all splits on all devices, and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.ways import all_replicas, compare_ways
from support import seeds, training
from support.forgery import accepts, forge, records_in
from support.linked_cases import least_by_way, linked_case
from support.run import Result, dnnp

WAYS = {
    (1, False): "whole",
    (1, True): "replicas",
    (2, False): "pipeline",
    (2, True): "replicated-pipeline",
}


def linked_problem(seed: int) -> SplitProblem:
    problem = linked_case(seed, 4)
    most = all_replicas(problem.devices)
    return problem.with_options(replace(problem.options, max_replicas=most))


def test_all_ways_against_all_splits() -> None:
    """Whole model and replicas are exact; the search is within 1 % on average, and mostly there."""
    ratios = []
    for seed in range(20):
        problem = linked_problem(seed)
        best = dict.fromkeys(WAYS.values(), math.inf)
        best |= {WAYS[key]: value for key, value in least_by_way(problem).items()}
        least = min(best.values())
        if math.isinf(least):
            with pytest.raises(InfeasibleError):
                compare_ways(problem, MethodOptions())
            continue
        solution, ways = compare_ways(problem, MethodOptions())
        value = {w.name: math.inf if w.value is None else w.value for w in ways}
        for name, least_of_way in best.items():
            if name in ("whole", "replicas"):
                assert value[name] == pytest.approx(least_of_way, rel=1e-9), (seed, name)
            assert value[name] >= least_of_way * (1 - 1e-9), (seed, name)
        assert solution.bound <= least * (1 + 1e-9), seed
        plan = make_plan(problem, solution.blocks, bound=solution.bound)
        plan = replace(plan, ways=ways)
        assert check_plan(problem.graph, problem.units, plan).violations == (), seed
        if least > 0:
            ratios.append(plan.value / least)
    assert sum(ratios) / len(ratios) < 1.01
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) > 0.9 * len(ratios)


def partition(*options: str) -> Result:
    """33 s of work and 64 bytes of weights on four devices, 0 and 1 joined at 1 byte a second.

    1 and 2 are, and 2 and 3, at 9; of the others no link speaks: they have the 8 of their class.
    """
    records = training.graph_records()
    for record in records:
        if record["type"] == "device":
            record.pop("cluster_size")
            record.pop("inner_bandwidth_bytes_per_s")
    ends = [("acc/0", "acc/1", 1), ("acc/1", "acc/2", 9), ("acc/2", "acc/3", 9)]
    links = [word for a, b, band in ends for word in ("--link", f"{a},{b}={band}")]
    return dnnp("partition", "-k", "4", *links, *options, stdin=seeds.encode(records))


def test_weights_go_between_the_devices_that_are_joined_best() -> None:
    """2 replicas take 33/2 + 64/2/9, 3 of them 33/3 + 64*2/3/8, all 33/4 + 64*3/4/1."""
    result = partition("--allow-replicas")
    assert result.status == 0, result.err
    ways = {way["way"]: way for way in result.one("plan")["ways"]}
    assert (ways["whole"]["value"], ways["replicas"]["devices"]) == (33, 3)
    assert ways["replicas"]["value"] == pytest.approx(11 + 64 * 2 / 3 / 8)
    (stage,) = result.records("stage")
    assert (stage["device"], stage["replicas"]) == ("acc/1", 3)


def test_no_number_of_a_way_over_links_can_be_forged() -> None:
    records = records_in(partition("--allow-replicas").out)
    assert accepts(records)
    found = list(forge("ways", records, 4, ("plan",)))
    assert {f.field for f in found} >= {"ways[].value", "ways[].devices", "ways[].stages"}
    mine = [f for f in found if f.field.startswith("ways")]
    assert [str(f) for f in mine if f.accepted and not f.reason] == []


def test_methods_by_classes_say_so() -> None:
    result = partition("--allow-replicas", "--method", "uniform")
    assert result.status == 0, result.err
    assert "knows the best link of each class only" in result.err
    assert dnnp("check", stdin=result.out).status == 0
