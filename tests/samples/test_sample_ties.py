"""The published dynamic program, ties included, against one that follows the text step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dnnp.core.baselines.blocks import interval_blocks
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from dnnp.formats.workloads.msr import read_workload
from dnnp.samples.papers import ties
from dnnp.samples.papers.ties import ideals_of, without_idle_ends
from support.cases import random_case
from support.graphs import to_bytes
from support.problems import chain, priced, problem_of
from support.run import dnnp

Ideal = frozenset[int]
Split = list[tuple[frozenset[int], bool]]
"""Nodes of each block, first to last, and whether it is on a CPU."""


def step_by_step(problem: SplitProblem) -> Split:
    """Every pair of ideals, every number of devices, in the order of the program."""
    items, rank = without_idle_ends(problem)
    nodes = [np.flatnonzero(items.label == i) for i in range(items.count)]
    first = sorted(range(items.count), key=lambda i: rank[i])
    needs = [set(items.tail[items.head == i].tolist()) for i in range(items.count)]
    met: list[Ideal] = []
    above: dict[Ideal, list[Ideal]] = {}

    def grow(ideal: Ideal) -> None:
        met.append(ideal)
        above.setdefault(ideal, [])
        for v in first:
            if v not in ideal and needs[v] <= ideal:
                larger = ideal | {v}
                if larger not in above:
                    grow(larger)
                above[larger].append(ideal)

    grow(frozenset())

    def below(ideal: Ideal) -> Iterator[Ideal]:
        stack, seen = [ideal], {ideal}
        while stack:
            one = stack.pop()
            yield one
            for less in above[one]:
                if less not in seen:
                    seen.add(less)
                    stack.append(less)

    @cache
    def load(block: Ideal, cpu: bool) -> float:
        if not block:
            return 0.0
        device = next(d for d in problem.devices if d.is_cpu == cpu)
        mine = np.sort(np.concatenate([nodes[i] for i in block]))
        cost = stage_load(problem.graph, problem.units, mine, device, problem.options)
        fits = cpu or cost.memory_bytes <= device.memory_bytes
        return cost.load_s if fits else float("inf")

    offered = {cpu: sum(d.count for d in problem.devices if d.is_cpu == cpu) for cpu in (0, 1)}
    whole = frozenset(range(items.count))

    @cache
    def best(ideal: Ideal, cpus: int, accelerators: int) -> tuple[float, Ideal, bool]:
        value, rest, on_cpu = (0.0 if not ideal else float("inf")), ideal, False
        for cpu in (True, False):
            a, b = cpus - cpu, accelerators - (not cpu)
            if a < 0 or b < 0 or not ideal:
                continue
            for less in below(ideal):
                candidate = max(best(less, a, b)[0], load(ideal - less, cpu))
                if candidate < value:
                    value, rest, on_cpu = candidate, less, cpu
        return value, rest, on_cpu

    ideal, cpus, accelerators = whole, offered[1], offered[0]
    split: Split = []
    while ideal:
        _, rest, cpu = best(ideal, cpus, accelerators)
        cpus, accelerators = cpus - cpu, accelerators - (not cpu)
        if rest != ideal:
            split.append((frozenset(int(v) for i in ideal - rest for v in nodes[i]), cpu))
        ideal = rest
    return split[::-1]


def published_split(problem: SplitProblem, within: float) -> list[Block]:
    return interval_blocks(problem, *ties.published_split(problem, within))


def drawn(seed: int) -> SplitProblem:
    """A random problem of the paper: one class of accelerators, and perhaps one of CPUs."""
    case = random_case(
        seed, 7, comm="sum", memory_model="sum", memory_mode="hard", charge_io=False,
        objective="throughput", max_replicas=1, training=False,
    )  # fmt: skip
    devices = [d for d in case.devices if d.name in ("dev", "cpu")]
    return case.problem.with_devices(*devices)


@given(st.integers(0, 10**6))
def test_the_split_is_that_of_the_text(seed: int) -> None:
    problem = drawn(seed)
    assume(problem.graph.n > 0)
    try:
        value = problem.value(solve(problem, MethodOptions(method="exact")).blocks)
    except InfeasibleError:
        assume(False)
    blocks = published_split(problem, value)
    assert priced(problem, blocks).value == pytest.approx(value)
    found = [(frozenset(b.nodes.tolist()), b.device.is_cpu) for b in blocks]
    assert found == step_by_step(problem)


def nodes_of(blocks: list[Block]) -> list[list[int]]:
    return [sorted(block.nodes.tolist()) for block in blocks]


def test_the_last_block_is_the_smallest_that_will_do() -> None:
    problem = problem_of(chain(4.0, 1.0, 1.0, 1.0, transfer=0.0), DeviceClass("dev", count=2))
    assert nodes_of(published_split(problem, 4.0)) == [[0], [1, 2, 3]]
    problem = problem_of(chain(1.0, 1.0, 1.0, 5.0, transfer=0.0), DeviceClass("dev", count=3))
    assert nodes_of(published_split(problem, 5.0)) == [[0, 1, 2], [3]]


def test_idle_ends_go_with_their_neighbour() -> None:
    problem = problem_of(chain(0.0, 0.0, 2.0, 3.0, 0.0), DeviceClass("dev", count=2))
    items, rank = without_idle_ends(problem)
    assert rank.tolist() == [2, 3]
    assert items.label.tolist() == [items.label[2]] * 3 + [items.label[3]] * 2
    assert items.count == 2
    idle = problem_of(chain(0.0, 0.0, 0.0), DeviceClass("dev", count=2))
    assert without_idle_ends(idle)[0].count == 1


def test_colours_rank_items() -> None:
    graph = chain(1.0, 1.0, 1.0, 1.0)
    colors = np.array([-1, 7, -1, 3])
    problem = problem_of(replace(graph, color=colors), DeviceClass("dev", count=2))
    items, rank = without_idle_ends(problem)
    assert [int(np.flatnonzero(items.label == i)[0]) for i in np.argsort(rank)] == [0, 2, 3, 1]


def test_other_cost_models_are_refused() -> None:
    problem = problem_of(chain(1.0, 1.0), DeviceClass("dev", count=2))
    for change in ({"comm": "overlap"}, {"charge_io": True}, {"max_replicas": 2}):
        with pytest.raises(UsageError, match="--order published"):
            published_split(problem.with_options(replace(problem.options, **change)), 2.0)


TABLE_4 = {"layer_bert24": 108.03, "layer_gnmt": 244.33, "op_bert_l-3": 415.90}


@pytest.mark.parametrize("name", TABLE_4)
def test_max_load_in_table_4(shared_workloads: Path, name: str) -> None:
    path = shared_workloads / "latency" / f"{name}_inference.json"
    data = to_bytes(read_workload(path.read_bytes(), str(path)))
    words = ("--objective", "latency", "--method", "max-load", "--order", "published")
    value = dnnp("partition", *words, stdin=data).one("plan")["value"]
    assert int(100 * value) == round(100 * TABLE_4[name])  # the paper cuts off


def test_ideals_of_table_1(shared_workloads: Path) -> None:
    path = shared_workloads / "throughput" / "layer_gnmt_inference.json"
    from support.problems import workload

    problem = workload(shared_workloads, path.stem)
    line = problem.line(without_idle_ends(problem)[0])
    assert len(ideals_of(line, np.arange(line.n)).masks) == 17914
