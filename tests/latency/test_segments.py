"""Bound by segments: below the optimum, above windows in deep networks, once for layers alike."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.operators import bound as bounds
from dnnp.core.latency.operators.anneal import anneal_operators
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.latency_brute import brute_operators
from support.latency_cases import random_problem

CLOSE = 1e-9


@pytest.mark.parametrize("seed", range(120))
def test_below_the_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With windows over each segment, in pieces, and without any."""
    rng = random.Random(seed)
    problem = random_problem(
        rng,
        rng.randint(2, 5),
        tight=seed % 3 == 0,
        colors=seed % 4 == 0,
        transfers="edge" if seed % 7 == 0 else "tensor",
        congestion=("device", "channel", "none")[seed % 3],
        links=seed % 4 == 1,
    )
    value, placement = brute_operators(problem)
    if placement is None:
        return
    monkeypatch.setattr(bounds, "WINDOW", 0)
    monkeypatch.setattr(bounds, "MANY", 1)
    monkeypatch.setattr(bounds, "windows_bound", lambda *_: 0.0)
    for gaps, work in ((2**22, 5e9), (4 * problem.machine.count**2, 5e9), (2**22, 0.0)):
        monkeypatch.setattr(bounds, "MOST_GAPS", gaps)
        monkeypatch.setattr(bounds, "MOST_WORK", work)
        bound, name = operators_bound(problem)
        assert bound <= value * (1 + CLOSE), (name, gaps, work)


def deep(layers: int, heads: int, *, skip: bool = False, aside: int = 0) -> LatencyProblem:
    """Layers of branches of two nodes that join again; two devices, slow links."""
    edges, last, n = [], 0, 1
    for _ in range(layers):
        ends = []
        for _ in range(heads):
            edges += [(last, n), (n, n + 1)]
            ends.append(n + 1)
            n += 2
        edges += [(end, n) for end in ends]
        last, n = n, n + 1
    if skip:
        edges += [(0, n), (last, n)]
        n += 1
    edges += [(0, n + i) for i in range(aside)]
    n += aside
    tail, head = (np.array(side) for side in zip(*edges, strict=True))
    graph = graph_of(synthetic_stream("deep", tail, head, np.full(n, 30.0), np.ones(n)))
    graph = replace(graph, times={"a": np.full(n, 1.0), "b": np.full(n, 1.5)})
    devices = tuple(DeviceClass(x, bandwidth_bytes_per_s=1.0) for x in "ab")
    options = CostOptions(objective="latency", execution="operators", memory_model="sum")
    return latency_problem(SplitProblem(graph, singletons(graph), devices, options))


def test_layers_add_up_and_those_alike_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = deep(10, 40)
    gaps, calls = bounds.gaps_of, []

    def counted(part: LatencyProblem) -> np.ndarray:
        calls.append(part.tasks.n)
        return gaps(part)

    monkeypatch.setattr(bounds, "gaps_of", counted)
    bound, name = operators_bound(problem)
    value = problem.value(anneal_operators(problem, run=SearchContext(effort=0.01)))
    assert name == "segments"
    assert calls == [82]
    assert 0.85 * value <= bound <= value
    monkeypatch.setattr(bounds, "segments_bound", lambda *_: (0.0, False))
    assert operators_bound(problem)[0] < 0.9 * bound


def test_an_edge_past_all_layers_leaves_pieces() -> None:
    """No task is passed by every way, but the longest way is."""
    problem = deep(60, 12, skip=True)
    bound, name = operators_bound(problem)
    value = problem.value(anneal_operators(problem, run=SearchContext(effort=0.01)))
    assert name == "segments"
    assert 0.7 * value <= bound <= value


def test_windows_are_looked_at_where_few_tasks_lie_in_segments() -> None:
    """A path of nodes beside a block that takes longer than any path through it."""
    problem = deep(12, 1, aside=120)
    bound, name = operators_bound(problem)
    assert name != "segments"
    assert bound >= 60.0


def test_a_stop_leaves_a_bound() -> None:
    problem = deep(10, 12)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 6

    early = operators_bound(problem, run=SearchContext(interrupted=stop))[0]
    full = operators_bound(problem)[0]
    assert 0 < early <= full


def test_what_fits_nowhere_is_refused() -> None:
    problem = deep(2, 2)
    none = replace(problem.tasks, time=np.full_like(problem.tasks.time, np.inf))
    with pytest.raises(InfeasibleError):
        operators_bound(replace(problem, tasks=none))
