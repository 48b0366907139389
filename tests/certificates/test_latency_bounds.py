"""Bounds of latency, proven again by the checker: true ones, and ones that are raised."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from tools.agree_live import live_case

from dnnp.core.certificates.exact import Budget, UncheckedError, UnprovenError
from dnnp.core.certificates.latency import prove_latency
from dnnp.core.certificates.placements import one_machine
from dnnp.core.check.latency import LatencyCase
from dnnp.core.cost.latency import LatencyProblem, Split, latency_problem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.latency.auto import critical_path
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import clustering_of_labels
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream, read_bytes
from support import forgery, seeds
from support.graphs import header, node, tensor, to_bytes
from support.latency_brute import brute_blocks, brute_operators
from support.latency_cases import random_problem
from support.run import dnnp

BY_HAND = {"critical path", "area", "simple"}
"""Arguments that take no search."""


def case_of(problem: LatencyProblem, split: Split) -> LatencyCase:
    """The case of a plan, as the checker reads it."""
    whole = problem.whole
    plan = make_latency_plan(whole, problem, split, method="", bound=0.0, bound_method="")
    return LatencyCase.of(whole.graph, whole.units, plan)


def verdict(case: LatencyCase, claim: float, steps: int = 10**7) -> tuple[str, float]:
    """The argument, `refuted` or `not checkable`; and the latency that refutes it."""
    budget = Budget()
    budget.most = budget.left = steps
    try:
        return prove_latency(case, claim, budget), math.nan
    except UnprovenError as reason:
        return "refuted", float(re.findall(r"latency (\S+)$", str(reason))[0])
    except UncheckedError:
        return "not checkable", math.nan


def clustered(rng: random.Random, n: int, transfers: str) -> LatencyProblem:
    """A problem with four devices in two clusters."""
    drawn = random_problem(rng, n, devices=2, transfers=transfers, congestion="none")
    device = DeviceClass("dev", "accelerator", 4, 1e9, 1.0, 2, rng.choice([2.0, 8.0]))
    return latency_problem(replace(drawn.whole, devices=(device,)))


def grouped(problem: LatencyProblem, rng: random.Random) -> LatencyProblem:
    """The same with neighbours in topological order joined."""
    whole = problem.whole
    label = np.empty(whole.graph.n, dtype=np.int64)
    label[whole.graph.order] = np.cumsum(
        [0, *(rng.random() < 0.6 for _ in range(whole.graph.n - 1))]
    )
    return latency_problem(replace(whole, units=clustering_of_labels(whole.graph, label)))


def operators(seed: int) -> LatencyProblem:
    """A random problem of every mode of operators."""
    rng = random.Random(f"operators {seed}")
    transfers, n = rng.choice(["tensor", "edge"]), rng.randint(2, 6)
    if seed % 8 == 0:
        return clustered(rng, min(n, 4), transfers)
    problem = random_problem(
        rng,
        n,
        tight=rng.random() < 0.4,
        colors=rng.random() < 0.3,
        transfers=transfers,
        congestion=rng.choice(["none", "none", "device", "channel"]),
        links=seed % 3 == 0,
    )
    return grouped(problem, rng) if seed % 5 == 0 else problem


def blocks(seed: int) -> LatencyProblem:
    """A random problem of blocks."""
    rng = random.Random(f"blocks {seed}")
    return random_problem(
        rng,
        rng.randint(2, 5),
        execution="blocks",
        tight=rng.random() < 0.4,
        colors=rng.random() < 0.3,
        training=rng.random() < 0.3,
        transfers=rng.choice(["tensor", "edge"]),
        q=rng.choice([1, 1, 2]),
    )


@pytest.mark.parametrize(("draw", "brute"), [(operators, brute_operators), (blocks, brute_blocks)])
def test_the_least_latency_is_verified_and_no_more(draw, brute):
    counted = Counter[str]()
    for seed in range(260):
        problem = draw(seed)
        least, best = brute(problem)
        if best is None:
            continue
        case, options = case_of(problem, best), problem.options
        if options.charge_io and options.transfers == "edge":
            assert verdict(case, least)[0] == "not checkable"
            continue
        for claim in (least / 2, least * (1 - 1e-6), least):
            argument, _ = verdict(case, claim)
            assert argument in BY_HAND | {"search"}, (seed, claim, least)
            counted[argument] += 1
        for claim in (least * (1 + 1e-6), least * 1.1, least + 1, least + 1e9):
            if claim <= least * (1 + 1e-8):
                continue
            argument, found = verdict(case, claim)
            assert argument == "refuted", (seed, claim, least)
            assert least * (1 - 1e-9) <= found < claim, seed
            counted[argument] += 1
        counted[f"{options.congestion} {options.transfers}"] += 1
    assert counted["refuted"] > 800
    assert counted["search"] > 60
    assert counted["critical path"] > 300
    modes = ("none", "device", "channel") if draw is operators else ("device",)
    assert all(counted[f"{mode} {moved}"] > 10 for mode in modes for moved in ("tensor", "edge"))


@pytest.mark.parametrize("draw", [operators, blocks])
def test_simple_bounds_take_no_search(draw):
    """The same path as in the cost model; and at least the load of a linear program."""
    counted = Counter[str]()
    for seed in range(1000, 1240):
        problem = draw(seed)
        brute = brute_operators if draw is operators else brute_blocks
        best = brute(problem)[1]
        if best is None or problem.options.charge_io:
            continue
        case = case_of(problem, best)
        names = [(critical_path(problem), "critical path without transfers")]
        if draw is operators:
            names.append(operators_bound(problem))
        for value, name in names:
            # The price of memory is not the same for every solver of a linear program.
            if name not in ("windows", "segments", "memory path") and value > 0:
                argument, _ = verdict(case, value, 20_000)
                assert argument in BY_HAND, (seed, name, value)
                counted[name] += 1
    assert sum(counted.values()) > 150
    if draw is operators:
        assert all(counted[name] > 2 for name in ("area", "critical path"))


@pytest.mark.parametrize("execution", ["operators", "blocks"])
def test_live_tensors_are_relaxed(execution):
    """With live tensors no false bound is verified, and none is refuted that might be true."""
    counted = Counter[str]()
    brute = brute_blocks if execution == "blocks" else brute_operators
    for seed in range(60):
        problem = latency_problem(live_case(seed, execution))
        least, best = brute(problem)
        if best is None or not least:
            continue
        case = case_of(problem, best)
        below, _ = verdict(case, least)
        assert below in BY_HAND | {"search", "not checkable"}
        above, _ = verdict(case, least * (1 + 1e-6))
        assert above == "not checkable", seed
        counted[below] += 1
    assert counted.total() - counted["not checkable"] > 10


def test_what_takes_more_steps_is_not_checkable():
    problem = operators(17)
    least, best = brute_operators(problem)
    case = case_of(problem, best)
    assert verdict(case, least * 1.01)[0] == "refuted"
    budget = Budget()
    budget.most = budget.left = 100
    with pytest.raises(UncheckedError, match="more than 100 steps"):
        prove_latency(case, least * 1.01, budget)


def test_one_machine():
    """Jobs (head, time, tail) by hand, and below every order of random ones."""
    assert one_machine([]) == 0.0
    assert one_machine([(0, 4, 0), (1, 1, 5)]) == 7  # the second interrupts the first
    assert one_machine([(2, 3, 1)]) == 6


def test_cpus_are_free_where_all_accelerators_are_in_use():
    """One task for the accelerator, two for a CPU each."""
    stream = read_bytes(stream_of({"times": [4, 4, 4], "edges": []}))
    for row, name in zip(stream.get("node"), ("dev", "cpu", "cpu"), strict=True):
        row["time_s"] = {name: 4}
    options = CostOptions("latency", execution="operators", congestion="none", transfers="edge")
    devices = (DeviceClass("dev", count=2), DeviceClass("cpu", "cpu", 2))
    plan = Plan((), 1, "", "free", 4.0, 0.0, "feasible", options, devices, "")
    case = LatencyCase.of(graph_of(stream), None, plan)
    assert verdict(case, 4.0)[0] == "critical path"
    assert verdict(case, 5.0) == ("refuted", 4.0)


def stream_of(row: dict) -> bytes:
    """A published graph as a stream; times stand for themselves."""
    edges = row["edges"]
    tensors = [
        tensor(t, "activation", 0, transfer_s=delay) for t, (_, _, delay) in enumerate(edges)
    ]
    nodes = []
    for v, time in enumerate(row["times"]):
        inputs = [t for t, edge in enumerate(edges) if edge[1] == v]
        outputs = [t for t, edge in enumerate(edges) if edge[0] == v]
        nodes.append(node(v, "Task", inputs, outputs, time_s={"dev": time}))
    return to_bytes(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


def test_published_makespans_of_ten_tasks(shared_makespans: Path):
    """Optima that are published are verified, what is above them is not."""
    counted = Counter[str]()
    options = CostOptions("latency", execution="operators", congestion="none", transfers="edge")
    for line in (shared_makespans / "optimal.jsonl").read_bytes().splitlines():
        row = orjson.loads(line)
        if len(row["times"]) > 10:
            continue
        least, count = float(row["optimum"]), row["processors"]
        devices = (DeviceClass("dev", count=count),)
        plan = Plan((), count, "", "free", least, 0.0, "feasible", options, devices, "")
        case = LatencyCase.of(graph_of(read_bytes(stream_of(row))), None, plan)
        argument, _ = verdict(case, least, 10**6)
        counted[argument] += 1
        assert verdict(case, least * (1 + 1e-6), 10**6) == ("refuted", least), row["name"]
    assert counted["search"] > 80
    assert set(counted) <= BY_HAND | {"search"}
    assert counted.total() == 139


def command(*options: str, seed: int = 1, nodes: int = 7) -> bytes:
    """A latency plan by the commands."""
    graph = dnnp("import", "--synthetic", "layered", "--nodes", nodes, "--seed", seed).out
    late = ("partition", "--objective", "latency", "--execution", "operators", "--effort", "0.1")
    return dnnp(*late, *options, stdin=graph).out


def changed(data: bytes, **fields: float | str) -> bytes:
    """The stream with a bound raised, of its plan and its record, and digests that fit."""
    records = forgery.records_in(data)
    for record in records:
        if record["type"] == "plan":
            record.update(fields)
        elif record["type"] == "bound":
            row = {"method": record["method"], "status": "solved", "value": fields["bound"]}
            record |= {"value": fields["bound"], "tried": [row], "status": fields["status"]}
    return seeds.encode(forgery.resealed(records))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_claim_of_optimality_is_refuted(recorded: bool):
    """By a command: a plan that is not the best, called optimal; without a bound record too."""
    plan = command("--method", "single")
    data = dnnp("bound", "--method", "simple", stdin=plan).out if recorded else plan
    fair = dnnp("check", "--certificate", "--json", stdin=data)
    assert fair.status == 0, fair.err
    (proof,) = orjson.loads(fair.out)["certificates"]
    assert proof["verdict"] == "verified"
    assert f"bound verified ({proof['argument']})" in fair.err
    value = next(r for r in forgery.records_in(data) if r["type"] == "plan")["value"]
    forged = changed(data, bound=value, status="optimal")
    assert dnnp("check", stdin=forged).status == 0
    result = dnnp("check", "--certificate", "--json", stdin=forged)
    assert result.status == 6, result.err
    assert orjson.loads(result.out)["certificates"][0]["verdict"] == "refuted"
    assert "is no bound: there is a plan with the latency" in result.err


def test_the_best_plan_is_verified_as_optimal():
    data = dnnp("bound", "--method", "exact", stdin=command(seed=3)).out
    result = dnnp("check", "--certificate", "--max-gap", "0.0001", stdin=data)
    assert result.status == 0, result.err
    assert "gap 0, bound verified (" in result.err
