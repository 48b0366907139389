"""Annealing: as good as brute force on small graphs, never behind its start, and repeatable."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.annealing.anneal import _placed, anneal
from dnnp.core.split.auto import solve
from dnnp.core.split.slices import best_slicing
from dnnp.formats.graph import graph_of, units_of
from support.brute import brute_force
from support.cases import random_case
from support.graphs import random_stream
from support.project import ROOT
from support.run import output_of


def priced(case, blocks):
    """The plan of some blocks."""
    return make_plan(
        case.problem,
        blocks,
        method="anneal",
        bound=0.0,
        digest="0" * 64,
    )


def test_equals_brute_force():
    missed = []
    for seed in range(60):
        case = random_case(seed, 7, max_replicas=1)
        expected, _ = brute_force(case.problem, "free")
        if not np.isfinite(expected):
            with pytest.raises(InfeasibleError):
                anneal(case.problem, run=SearchContext(effort=0.05))
            continue
        blocks = anneal(case.problem, run=SearchContext(effort=0.05))
        plan = priced(case, blocks)
        assert check_plan(case.graph, None, plan).violations == (), seed
        assert plan.value >= expected * (1 - 1e-9) - 1e-12, seed
        if plan.value > expected * (1 + 1e-9) + 1e-12:
            missed.append(seed)
    assert missed == []


def test_convex_splits_equal_brute_force():
    counted = 0
    for seed in range(60):
        case = random_case(seed, 7, max_replicas=1)
        expected, _ = brute_force(case.problem, "convex")
        if not np.isfinite(expected):
            continue
        start = None
        with suppress(InfeasibleError):
            start = best_slicing(case.problem)
        try:
            blocks = anneal(case.problem, convex=True, start=start, run=SearchContext(effort=0.05))
        except InfeasibleError:
            assert start is None
            continue
        plan = priced(case, blocks)
        assert plan.validity in ("convex", "ordered"), seed
        assert check_plan(case.graph, None, plan).violations == (), seed
        assert plan.value == pytest.approx(expected, rel=1e-9), seed
        counted += 1
    assert counted > 40


def test_convex_splits_below_ordered_ones():
    """Stages that wait for each other, none of which a path leaves and comes back to."""
    stream = random_stream(5008, 23, params=True)
    graph = graph_of(stream)
    device = DeviceClass("dev", count=3, bandwidth_bytes_per_s=8.0)
    options = CostOptions(comm="sum", memory_model="sum")
    problem = SplitProblem(graph, units_of(stream, graph), (device,), options)
    found = {v: solve(problem, MethodOptions(validity=v)) for v in ("ordered", "convex", "free")}
    values = {v: problem.value(split.blocks) for v, split in found.items()}
    assert values["free"] <= values["convex"] < values["ordered"]
    assert problem.plan(found["convex"].blocks).validity == "convex"
    assert found["convex"].bound == pytest.approx(values["convex"])


def test_never_behind_its_start():
    counted = 0
    for seed in range(40):
        case = random_case(seed, 12, max_replicas=1, limited=False, objective="throughput")
        try:
            start = best_slicing(case.problem)
        except InfeasibleError:
            continue
        blocks = anneal(
            case.problem,
            start=start,
            run=SearchContext(effort=0.01, interrupted=lambda: True),
        )
        assert priced(case, blocks).value <= priced(case, start).value * (1 + 1e-12)
        counted += 1
    assert counted > 30


def two_splits():
    """The splits of a graph by two seeds."""
    problem = random_case(3, 9, limited=False, max_replicas=1).problem
    found = [anneal(problem, run=SearchContext(seed=seed, effort=0.01)) for seed in (0, 1)]
    return [[(b.nodes.tolist(), b.device.name) for b in blocks] for blocks in found]


def test_same_split_for_a_seed_compiled_or_not():
    """In this process, in another one, and in one that compiles nothing."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from split.test_anneal import two_splits\n"
        "print(two_splits())\n"
    )
    for environment in ({}, {"NUMBA_DISABLE_JIT": "1"}):
        env = {**os.environ, **environment}
        said = output_of([sys.executable, "-c", code], cwd=ROOT, env=env)
        assert said == f"{two_splits()}\n"


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_numbers_of_any_size(scale):
    graph = graph_of(random_stream(5, 10))
    units = units_of(random_stream(5, 10), graph)
    device = DeviceClass("dev", count=3, bandwidth_bytes_per_s=2.0)
    plain = anneal(
        SplitProblem(graph, units, (device,), CostOptions(memory_model="sum")),
        run=SearchContext(effort=0.1),
    )
    times = {"dev": graph.times["dev"] * scale}
    scaled = replace(
        graph,
        times=times,
        tensor_bytes=graph.tensor_bytes * scale,
        transfer_s=graph.transfer_s * scale,
    )
    blocks = anneal(
        SplitProblem(
            scaled, replace(units, times=times), (device,), CostOptions(memory_model="sum")
        ),
        run=SearchContext(effort=0.1),
    )

    def value(graph, units, blocks):
        return make_plan(
            SplitProblem(graph, units, (device,), CostOptions(memory_model="sum")),
            blocks,
            method="anneal",
            bound=0.0,
            digest="0" * 64,
        ).value

    assert value(scaled, replace(units, times=times), blocks) == pytest.approx(
        scale * value(graph, units, plain), rel=1e-9
    )


def test_degenerate_problems():
    stream = random_stream(1, 1)
    graph = graph_of(stream)
    units = units_of(stream, graph)
    options = CostOptions(memory_model="sum")
    many = DeviceClass("dev", count=9)
    assert (
        len(anneal(SplitProblem(graph, units, (many,), options), run=SearchContext(effort=0.01)))
        == 1
    )
    only_cpus = DeviceClass("dev", kind="cpu", count=2)
    assert (
        len(
            anneal(
                SplitProblem(graph, units, (only_cpus,), options), run=SearchContext(effort=0.01)
            )
        )
        == 1
    )
    with pytest.raises(UsageError, match="clusters"):
        anneal(SplitProblem(graph, units, (replace(many, cluster_size=3),), options))


def test_many_stages_are_placed_in_their_order():
    """Time by the cube of their number would not end for so many."""
    k = 4_000
    slots = np.zeros(k, dtype=np.int64)
    line = SimpleNamespace(n=k, devices=(DeviceClass("dev", count=k),))
    blocks = [Block(np.array([v]), line.devices[0]) for v in range(k)]
    placed = _placed(np.arange(k), line, slots, blocks, ordered=True)
    assert placed is not None
    assert (placed.place == np.arange(k)).all()
    assert len(placed.kind) == k
    assert _placed(np.arange(k), line, slots[1:], blocks, ordered=True) is None
