"""Sums of memory refuse some problems before any search, and none that fits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dnnp.core.cost.problem import over_capacity
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.parallel.plan import refuse_excess
from dnnp.core.split import auto as searches
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.brute import brute_force
from support.cases import random_case
from support.graphs import header, node, tensor, to_bytes
from support.hybrid import best_of_all, best_shared, random_problem, random_shared_problem
from support.problems import problem_of
from support.run import dnnp

WIDE = 40


def wide(**fields: object) -> Stream:
    """Branches with a weight of 10 bytes each, and one of 30 that all of them read."""
    sizes = [1, *([10] * WIDE), 30, *([1] * WIDE)]
    kinds = ["input", *(["parameter"] * (WIDE + 1)), *(["activation"] * WIDE)]
    tensors = [
        tensor(i, kind, size) for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
    ]
    nodes = [
        node(v, "Op", [0, v + 1, WIDE + 1], [WIDE + 2 + v], **{"time_s": {"dev": 1}, **fields})
        for v in range(WIDE)
    ]
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def test_weights_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """430 bytes on four devices of 100 are refused without a search; on five there may be room."""
    monkeypatch.setattr(searches, "simple_bound", lambda problem: pytest.fail("it searches"))
    for count in (1, 4):
        devices = DeviceClass("dev", count=count, memory_bytes=100)
        problem = problem_of(graph_of(wide()), devices, memory_model="peak", memory_mode="hard")
        with pytest.raises(InfeasibleError) as caught:
            searches.solve(problem, searches.MethodOptions())
        assert str(caught.value) == (
            f"infeasible: the weights, each counted once, need 430 B; all devices together have "
            f"{count}00 B ({count} x dev of 100 B); at least 5 devices of 100 B hold them"
        )
    problem = problem_of(
        graph_of(wide()), DeviceClass("dev", count=5, memory_bytes=100),
        memory_model="peak", memory_mode="hard",
    )  # fmt: skip
    assert over_capacity(problem) is None


@pytest.mark.parametrize(
    ("objective", "least"),
    [((), 5), (("--allow-replicas",), 5), (("--objective", "latency"), 16)],  # one copy a task
)
def test_status_and_both_sums(objective: tuple[str, ...], least: int) -> None:
    result = dnnp("partition", "-k", "3", "--memory", "100", *objective, stdin=to_bytes(wide()))
    assert (result.status, result.out) == (4, b"")
    assert "all devices together have 300 B" in result.err
    assert f"at least {least} devices of 100 B hold them" in result.err


def test_one_node_is_too_large() -> None:
    result = dnnp("partition", "-k", "99", "--memory", "41", stdin=to_bytes(wide()))
    assert result.status == 4
    assert "node 0 ('n0') needs 42 B; the largest device has 41 B" in result.err


def test_parallel_plans() -> None:
    """Without shards every device of a stage holds all of it."""
    data = to_bytes(wide(memory_bytes=10))
    more = ("--memory", "100", "--data-parallel", "2")
    result = dnnp("partition", "-k", "3", *more, stdin=data)
    assert result.status == 4
    assert "the nodes need 400 B" in result.err
    assert "at least 4 devices of 100 B" in result.err


def test_cpus_and_ignored_capacities_have_room() -> None:
    data = to_bytes(wide())
    assert dnnp("partition", "-k", "3", "--memory", "100", "--memory-mode", "ignore",
                stdin=data).status == 0  # fmt: skip
    offered = DeviceClass("dev", memory_bytes=100), DeviceClass("cpu", kind="cpu")
    limits = {"memory_model": "peak", "memory_mode": "hard"}
    both = graph_of(wide(time_s={"dev": 1, "cpu": 2}))
    assert over_capacity(problem_of(both, *offered, **limits)) is None
    assert over_capacity(problem_of(graph_of(wide()), *offered, **limits)) is not None


def test_nothing_that_fits_is_refused() -> None:
    refused = 0
    for seed in range(400):
        problem = random_case(seed, most=5, limited=True, memory_mode="hard").problem
        if over_capacity(problem) is not None:
            refused += 1
            assert math.isinf(brute_force(problem, "free")[0]), seed
    assert refused > 20


def test_no_parallel_plan_that_fits_is_refused() -> None:
    refused = 0
    for seed in range(300):
        for make, least in ((random_problem, best_of_all), (random_shared_problem, best_shared)):
            problem = replace(make(seed, most=4), memory=15.0)
            try:
                refuse_excess(problem, DeviceClass("dev", count=9, memory_bytes=15.0))
            except InfeasibleError:
                refused += 1
                assert math.isinf(least(problem)), (make, seed)
    assert refused > 20
