"""Local search: local optima, priced as the cost model does, near the published values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.baselines.blocks import slots_of
from dnnp.core.baselines.local_search import descend, local_search, moves_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.formats.graph import graph_of
from support.cases import random_case
from support.graphs import random_stream
from support.problems import UNBOUNDED, chain, objective, priced, problem_of, workload


def all_slots(problem: SplitProblem) -> np.ndarray:
    """Class of every device that the search sees."""
    items = problem.free_items
    line = problem.line(items, np.arange(items.count))
    return slots_of(line.devices, all_kinds=True)


def spots(blocks: list[Block], problem: SplitProblem) -> dict[int, int]:
    """Slot of every node."""
    slots = all_slots(problem)
    free = {d.name: iter(np.flatnonzero(slots == c)) for c, d in enumerate(problem.devices)}
    taken = {}
    for block in blocks:
        slot = int(next(free[block.device.name]))
        if block.number >= 0:
            names = [d.name for d in problem.devices]
            slot = int(np.searchsorted(slots, names.index(block.device.name))) + block.number
        taken.update(dict.fromkeys(block.nodes.tolist(), slot))
    return taken


def blocks_at(slot_of: dict[int, int], problem: SplitProblem) -> list[Block]:
    """Blocks of a choice of slots."""
    graph, devices = problem.graph, problem.devices
    slots = all_slots(problem)
    blocks = []
    for slot in sorted(set(slot_of.values())):
        nodes = [v for v in graph.order.tolist() if slot_of[v] == slot]
        device = devices[slots[slot]]
        number = slot - int(np.searchsorted(slots, slots[slot])) if device.cluster_size else -1
        blocks.append(Block(np.array(nodes), device, 1, number))
    return blocks


def clustered_case(seed: int) -> SplitProblem:
    """A random problem with devices in clusters of two."""
    rng = random.Random(seed)
    device = DeviceClass("dev", "accelerator", 4, UNBOUNDED, 1.0, 2, rng.choice([2.0, 10.0]))
    graph = graph_of(random_stream(seed, rng.randint(2, 9), params=True))
    return problem_of(graph, device, comm=rng.choice(["sum", "overlap", "duplex"]))


def local_cases() -> Iterator[SplitProblem]:
    for seed in range(40):
        case = random_case(seed, limited=seed % 4 == 0)
        options = case.options
        if seed % 4 == 0:
            options = replace(options, memory_model="sum")
        yield case.problem.with_options(options)
    for seed in range(12):
        yield clustered_case(seed)


def test_no_single_reassignment_improves_a_local_optimum() -> None:
    tried = 0
    for problem in local_cases():
        devices = problem.devices
        try:
            blocks = local_search(
                problem, MethodOptions(), SearchContext(seed=3), restarts=1
            ).blocks
        except InfeasibleError:
            continue
        slot_of = spots(blocks, problem)
        reached = objective(problem, blocks)
        assert objective(problem, blocks_at(slot_of, problem)) == pytest.approx(reached)
        slots = all_slots(problem)
        label = problem.free_items.label
        for item in range(int(label.max()) + 1):
            nodes = np.flatnonzero(label == item).tolist()
            fast = any(not devices[slots[slot_of[v]]].is_cpu for v in nodes)
            for slot in range(len(slots)):
                if devices[slots[slot]].is_cpu and fast:
                    continue
                moved = blocks_at({**slot_of, **dict.fromkeys(nodes, slot)}, problem)
                assert objective(problem, moved) >= reached * (1 - 1e-8)
                tried += 1
    assert tried > 500


def test_the_kernel_prices_splits_as_the_cost_model_does() -> None:
    counted = 0
    for number, problem in enumerate(local_cases()):
        options = problem.options
        if options.memory_model == "peak" and options.memory_mode == "overflow":
            continue
        items = problem.free_items
        line = problem.line(items, np.arange(items.count))
        slots = all_slots(problem)
        part = np.random.default_rng(number).integers(0, len(slots), items.count)
        expected = objective(
            problem, blocks_at(dict(enumerate(part[items.label].tolist())), problem)
        )
        if not np.isfinite(expected):
            continue
        _, value, _ = descend(moves_of(line, problem.devices, options, line.memory), part, -1)
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
        counted += 1
    assert counted > 10


def test_local_search_keeps_to_accelerators_and_to_memory() -> None:
    # Both nodes fit one device, which would be best; memory allows one each.
    graph = chain(1.0, 1.0, transfer=50.0, memory_bytes=10)
    devices = (DeviceClass("dev", count=2, memory_bytes=10), DeviceClass("cpu", "cpu", 1))
    problem = problem_of(graph, *devices, memory_model="sum")
    plan = priced(problem, local_search(problem, MethodOptions()).blocks)
    assert [s.device for s in plan.stages] == ["dev/0", "dev/1"]


def test_local_search_stops_between_restarts() -> None:
    asked = []

    def stop() -> bool:
        asked.append(1)
        return True

    problem = problem_of(chain(1.0, 2.0, 3.0), DeviceClass("dev", count=2))
    assert local_search(
        problem, MethodOptions(), SearchContext(interrupted=stop), restarts=1000
    ).blocks
    assert len(asked) < 5


def test_restarts_that_run_out_of_trials_are_said() -> None:
    problem = random_case(11, colors=False).problem
    said: list[str] = []
    local_search(problem, MethodOptions(), SearchContext(warn=pytest.fail))
    local_search(problem, MethodOptions(), SearchContext(effort=1e-9, warn=said.append))
    assert said == [
        "local-search: 10 of 10 restarts ran out of trials, perhaps before a local optimum; a "
        "larger --effort may help"
    ]


def test_same_seed_same_split() -> None:
    case = random_case(11, colors=False)
    problem = case.problem
    first, again = (
        local_search(problem, MethodOptions(), SearchContext(seed=5)).blocks for _ in range(2)
    )
    assert [b.nodes.tolist() for b in first] == [b.nodes.tolist() for b in again]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_bert24_inference", 17.80),
        ("layer_gnmt_inference", 31.75),
        ("layer_bert24_training", 39.93),
        ("layer_gnmt_training", 91.52),
        ("op_bert_l-3_inference", 24.32),
    ],
)
def test_local_search_brackets_the_published_values(
    shared_workloads: Path, name: str, value: float
) -> None:
    problem = workload(shared_workloads, name)
    found = [
        local_search(problem, MethodOptions(), SearchContext(seed=seed)).blocks
        for seed in range(20)
    ]
    values = [priced(problem, blocks).value for blocks in found]
    assert 0.9 * min(values) <= value <= 1.1 * max(values)
