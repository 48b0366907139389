"""Greedy filling with contiguous blocks (2020 paper, Section 7)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.baselines.placing.greedy import greedy_blocks, training_items
from dnnp.core.cost.latency import POOL, LatencyProblem, Split, latency_problem, pool_times
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, machine_of
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.plan import device_of
from dnnp.formats.workloads.msr import read_workload
from support.latency_brute import brute_blocks
from support.latency_cases import random_problem
from support.placing import problem_of

WORKLOADS = Path(__file__).parents[3] / "shared/workloads/latency"


def blocks_problem(
    n: int,
    edges: list[tuple[int, int]],
    memory: list[float],
    *,
    capacity: float = 2.0,
    count: int = 2,
    cpu: bool = True,
    q: int = 1,
) -> LatencyProblem:
    """Tasks of time 1 on accelerators and 5 on the CPU; transfers take 1."""
    fast = DeviceClass("acc", count=count, memory_bytes=capacity, bandwidth_bytes_per_s=1.0)
    slow = DeviceClass("cpu", kind="cpu", bandwidth_bytes_per_s=1.0)
    machine = machine_of((fast, slow) if cpu else (fast,))
    time = [[1.0] * n] * count + [[5.0] * n] * cpu
    problem = problem_of(time, edges, [1.0] * len(edges), memory=memory)
    options = CostOptions(objective="latency", execution="blocks", invocations=q)
    return replace(problem, machine=machine, options=options)


def greedy(problem: LatencyProblem) -> Split:
    """The method's placement of a problem."""
    return greedy_blocks(problem, MethodOptions(), PLAIN).split


@pytest.mark.parametrize("seed", range(60))
def test_greedy_is_valid_and_not_below_brute_force(seed: int) -> None:
    q = 1 + seed % 2
    problem = random_problem(
        random.Random(seed),
        1 + seed % 6,
        execution="blocks",
        tight=seed % 4 < 2,
        training=seed % 3 == 0,
        colors=seed % 5 < 2,
        q=q,
    )
    least, _ = brute_blocks(problem)
    try:
        split = greedy(problem)
    except InfeasibleError:
        assert np.isinf(least)
        return
    except LimitError:
        # Some task is for accelerators only.
        assert np.isinf(pool_times(problem.tasks, problem.machine)).any()
        return
    assert problem.value(split) >= least * (1 - 1e-12)


def test_larger_splits_are_valid() -> None:
    found = 0
    for seed in range(30):
        problem = random_problem(
            random.Random(seed),
            40,
            execution="blocks",
            devices=3,
            tight=True,
            training=seed % 2 == 0,
            colors=seed % 5 == 0,
        )
        try:
            split = greedy(problem)
        except (InfeasibleError, LimitError):
            # Some task is for accelerators only.
            assert np.isinf(pool_times(problem.tasks, problem.machine)).any()
            continue
        found += 1
        assert np.isfinite(problem.value(split))
        again = greedy(problem)
        assert split.block.tolist() == again.block.tolist()
        assert split.device.tolist() == again.device.tolist()
    assert found > 20


def chain(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n - 1)]


def test_accelerators_fill_up_and_the_cpu_takes_the_rest() -> None:
    """2 + 2 tasks and one on the CPU: (0 + 2 + 1) + (1 + 2 + 1) + 5."""
    problem = blocks_problem(5, chain(5), [1.0] * 5)
    split = greedy(problem)
    assert split.device.tolist() == [0, 1]
    assert split.block.tolist() == [0, 0, 1, 1, POOL]
    assert problem.value(split) == 12


def test_an_accelerator_stops_at_the_first_item_that_does_not_fit() -> None:
    """Task 1 does not fit beside task 0, and tasks 2 and 3 no longer beside task 1."""
    problem = blocks_problem(4, [], [1.0, 2.0, 1.0, 1.0])
    assert greedy(problem).block.tolist() == [0, 1, POOL, POOL]


def test_without_a_cpu_what_does_not_fit_is_skipped() -> None:
    problem = blocks_problem(3, [], [1.0, 2.0, 1.0], cpu=False)
    assert greedy(problem).block.tolist() == [0, 1, 0]
    with pytest.raises(LimitError, match="full"):
        greedy(blocks_problem(3, chain(3), [1.0, 2.0, 1.0], cpu=False))
    with pytest.raises(InfeasibleError, match="need 5 B"):
        greedy(blocks_problem(3, [], [1.0, 2.0, 2.0], cpu=False))
    with pytest.raises(InfeasibleError, match="task 1"):
        greedy(blocks_problem(3, [], [0.5, 3.0, 0.5], cpu=False))


def test_a_task_for_the_cpu_closes_the_block() -> None:
    """Task 1 is too large; with a second invocation the accelerator goes on after it."""
    memory = [1.0, 3.0, 1.0]
    once = greedy(blocks_problem(3, chain(3), memory))
    assert once.block.tolist() == [0, POOL, 1]
    assert once.device.tolist() == [0, 1]
    twice = greedy(blocks_problem(3, chain(3), memory, q=2))
    assert twice.block.tolist() == [0, POOL, 1]
    assert twice.device.tolist() == [0, 0]


def test_a_task_for_the_cpu_that_can_wait_closes_nothing() -> None:
    problem = blocks_problem(3, [(0, 1), (0, 2)], [1.0, 3.0, 1.0])
    assert greedy(problem).block.tolist() == [0, POOL, 0]


def test_backward_tasks_follow_their_colours() -> None:
    """0 - 1 forward, 2 - 3 backward, colours {0, 3} and {1, 2}: mirrored, so two items."""
    problem = blocks_problem(4, chain(4), [0.5] * 4, capacity=1.0)
    late = np.array([False, False, True, True])
    tasks = replace(problem.tasks, backward=late, together=np.array([0, 1, 1, 0]))
    problem = replace(problem, tasks=tasks)
    item, tail, head, mirrored = training_items(tasks)
    assert (item.tolist(), tail.tolist(), head.tolist(), mirrored) == ([0, 1, 1, 0], [0], [1], True)
    split = greedy(problem)
    assert split.device.tolist() == [0, 1, 1, 0]
    assert split.block.tolist() == [0, 1, 2, 3]
    assert np.isfinite(problem.value(split))


def test_greedy_of_blocks_that_skips_says_so() -> None:
    said: list[str] = []
    path = [(0, 1), (1, 2)]
    greedy_blocks(
        blocks_problem(3, path, [1.0, 1.0, 1.0]), MethodOptions(), SearchContext(warn=said.append)
    )
    assert said == []
    problem = blocks_problem(4, [], [1.5, 1.5, 0.5, 0.5], cpu=False)
    split = greedy_blocks(problem, MethodOptions(), SearchContext(warn=said.append)).split
    assert np.isfinite(problem.value(split))
    assert said == ["greedy: devices also skip what does not fit: else nothing fits"]


def test_greedy_of_blocks_that_fills_large_devices_first_says_so() -> None:
    said: list[str] = []
    sizes = (DeviceClass("small", memory_bytes=1.0), DeviceClass("large", memory_bytes=2.0))
    problem = blocks_problem(2, [(0, 1)], [2.0, 1.0], cpu=False)
    problem = replace(problem, machine=machine_of(sizes))
    split = greedy_blocks(problem, MethodOptions(), SearchContext(warn=said.append)).split
    assert np.isfinite(problem.value(split))
    assert said == ["greedy: the largest devices are filled first: else nothing fits"]


def test_greedy_in_an_order_that_is_asked_for_skips_nothing() -> None:
    problem = blocks_problem(4, [], [1.5, 1.5, 0.5, 0.5], cpu=False)
    with pytest.raises(LimitError, match="the accelerators are full"):
        greedy_blocks(problem, MethodOptions(sequence=np.arange(4)), PLAIN)


@pytest.mark.skipif(not WORKLOADS.is_dir(), reason="the workloads are not here")
@pytest.mark.parametrize(
    ("name", "value"), [("layer_bert24_inference", 100.22), ("layer_gnmt_inference", 268.50)]
)
def test_the_values_of_table_4(name: str, value: float) -> None:
    path = WORKLOADS / f"{name}.json"
    stream = read_workload(path.read_bytes(), str(path))
    graph = graph_of(stream)
    devices = tuple(device_of(d) for d in stream.get("device"))
    options = CostOptions(objective="latency", execution="blocks", memory_model="sum")
    problem = latency_problem(SplitProblem(graph, units_of(stream, graph), devices, options))
    assert problem.value(greedy(problem)) == pytest.approx(value, abs=0.005)
