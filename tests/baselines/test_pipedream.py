"""PipeDream's optimiser: contracted branchings, optimal cuts of chains, published values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.baselines.pipedream import (
    biconnected,
    chain_of,
    contract_branches,
    loads_from,
    pipedream,
    scratch_of,
)
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.slicing.orders import kahn_order
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.cases import random_case
from support.graphs import header, node, tensor
from support.problems import UNBOUNDED, chain, objective, priced, problem_of, workload


def best_chain_cut(problem: SplitProblem) -> float:
    """Least objective over all cuts of a chain, devices, replicas and clusters, by brute force.

    A cluster holds one run of consecutive stages.
    """
    graph, devices, options = problem.graph, problem.devices, problem.options
    items = problem.items
    order = kahn_order(items)
    ranked = [np.flatnonzero(items.label == i) for i in order]
    best = UNBOUNDED

    def extend(at: int, blocks: list[Block], used: dict[str, int], clusters: list[int]) -> None:
        nonlocal best
        if at == items.count:
            best = min(best, objective(problem, blocks))
            return
        for end in range(at + 1, items.count + 1):
            nodes = np.concatenate(ranked[at:end])
            nodes = nodes[np.argsort(graph.rank[nodes])]
            for d in devices:
                for r in range(1, options.max_replicas + 1):
                    for number, past in places(d, r, used, clusters):
                        block = Block(nodes, d, r, number)
                        after = {**used, d.name: number + r}
                        extend(end, [*blocks, block], after, past)

    def places(
        d: DeviceClass, r: int, used: dict[str, int], clusters: list[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """Device number of a stage, and the clusters that are open (the last one) or done."""
        free = used.get(d.name, 0)
        if not d.cluster_size:
            if free + r <= d.count:
                # The last cluster is left behind.
                yield free, [*clusters, -1]
            return
        for cluster in range(-(-d.count // d.cluster_size)):
            first, end = cluster * d.cluster_size, (cluster + 1) * d.cluster_size
            here = bool(clusters) and clusters[-1] == cluster
            if cluster in clusters and not here:
                continue
            number = free if here else first
            if number + r <= min(end, d.count):
                yield number, clusters if here else [*clusters, cluster]

    extend(0, [], {}, [])
    return best


def random_chain(seed: int, clusters: bool) -> SplitProblem:
    """A random path, or a training graph over one, with devices, replicas and capacities."""
    rng = random.Random(f"chain {seed}")
    n = rng.randint(1, 5)
    graph = (
        training_chain(rng, n)
        if seed % 3 == 2
        else chain(
            *(rng.choice([0.0, 1.0, 2.0, 5.0, 9.0]) for _ in range(n)),
            transfer=rng.choice([0.0, 0.5, 2.0]),
            memory_bytes=rng.randint(1, 9),
        )
    )
    limited = rng.random() < 0.4
    device = DeviceClass(
        "dev",
        count=rng.randint(1, 4),
        memory_bytes=30 if limited else UNBOUNDED,
        bandwidth_bytes_per_s=2.0,
        cluster_size=2 if clusters else 0,
        inner_bandwidth_bytes_per_s=8.0,
    )
    devices = (device, DeviceClass("cpu", "cpu", 1)) if rng.random() < 0.4 else (device,)
    return problem_of(
        graph,
        *devices,
        comm=rng.choice(["sum", "overlap", "duplex"]),
        memory_model="sum",
        memory_mode=rng.choice(["hard", "overflow"]),
        max_replicas=rng.randint(1, 3),
        charge_io=rng.random() < 0.3,
    )


def training_chain(rng: random.Random, layers: int) -> Graph:
    """A path with a mirrored backward path."""
    tensors, nodes = [], []

    def layer(name: str, reads: list[int], **fields: object) -> int:
        made = len(tensors)
        tensors.append(tensor(made, "activation", 1, transfer_s=float(rng.randint(0, 3))))
        time, memory = rng.randint(1, 9), rng.randint(0, 9)
        fields |= {"name": name, "time_s": {"dev": time, "cpu": 5 * time}, "memory_bytes": memory}
        nodes.append(node(made, "Op", reads, [made], **fields))
        return made

    ahead: list[int] = []
    for i in range(layers):
        ahead.append(layer(f"f{i}", ahead[-1:], color=i))
    gradient = ahead[-1]
    for i in reversed(range(layers)):
        gradient = layer(f"b{i}", sorted({gradient, ahead[i]}), color=i, backward=True)
    return graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


@pytest.mark.parametrize("clusters", [False, True])
def test_pipedream_is_optimal_on_chains(clusters: bool) -> None:
    replicated = 0
    for seed in range(40):
        problem = random_chain(seed, clusters)
        expected = best_chain_cut(problem)
        try:
            plan = priced(problem, pipedream(problem, MethodOptions()).blocks)
        except InfeasibleError:
            assert expected == UNBOUNDED
            continue
        assert plan.value == pytest.approx(expected, rel=1e-9, abs=1e-12), seed
        replicated += any(stage.replicas > 1 for stage in plan.stages)
    assert replicated > 5


def test_the_program_prices_intervals_as_the_cost_model_does() -> None:
    for seed in range(40):
        case = random_case(seed, max_replicas=3, objective="throughput")
        graph, options, items = case.graph, case.options, case.problem.items
        line = case.problem.line(items, kahn_order(items))
        m = chain_of(case.problem, line)
        scratch = scratch_of(m)
        for first in range(line.n):
            last = loads_from(m, first, line.n, m.costs.net_cost, m.costs.net_cost, np.inf, scratch)
            assert last == line.n or last > line.reach[:, first].max() + 1
            for end in range(first + 1, last + 1):
                nodes = line.nodes[line.node_ptr[first] : line.node_ptr[end]]
                for way, load in enumerate(scratch.row[:, end].tolist()):
                    device = case.devices[m.way_class[way]]
                    part = stage_load(
                        graph, case.units, nodes, device, options, int(m.way_replicas[way])
                    )
                    full = options.memory_mode == "hard" and not device.is_cpu
                    full = full and part.memory_bytes > device.memory_bytes
                    expected = UNBOUNDED if full else part.load_s
                    assert load == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_long_chains_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    graph = chain(*(float(rng.randint(1, 9)) for _ in range(40)), transfer=0.25)
    problem = problem_of(graph, DeviceClass("dev", count=4), max_replicas=2)
    exact = priced(
        problem, pipedream(problem, MethodOptions(), SearchContext(warn=pytest.fail)).blocks
    )
    monkeypatch.setattr("dnnp.core.baselines.pipedream.MAX_STEPS", 1000)
    said: list[str] = []
    short = priced(
        problem, pipedream(problem, MethodOptions(), SearchContext(warn=said.append)).blocks
    )
    assert said == ["pipedream: a chain of 40 was shortened to 14 by joining neighbours"]
    assert exact.value <= short.value <= 1.3 * exact.value


def on_one_cycle(n: int, edges: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """Pairs of edges that lie on a common simple cycle, found by walking all cycles."""
    beside: dict[int, list[tuple[int, int]]] = {v: [] for v in range(n)}
    for e, (u, v) in enumerate(edges):
        beside[u].append((v, e))
        beside[v].append((u, e))
    pairs = {(e, e) for e in range(len(edges))}

    def walk(start: int, at: int, nodes: set[int], used: list[int]) -> None:
        for v, e in beside[at]:
            if v == start and e not in used:
                pairs.update(itertools.product([*used, e], repeat=2))
            elif v > start and v not in nodes:
                walk(start, v, {*nodes, v}, [*used, e])

    for v in range(n):
        walk(v, v, {v}, [])
    return pairs


def test_biconnected_components_by_definition() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        n = rng.randint(1, 7)
        possible = list(itertools.combinations(range(n), 2))
        edges = rng.sample(possible, rng.randint(0, min(len(possible), 9)))
        tail, head = (
            (np.array(ends, dtype=np.int64) for ends in zip(*edges, strict=True))
            if (edges)
            else (np.zeros(0, dtype=np.int64),) * 2
        )
        found = biconnected(n, tail, head).tolist()
        together = on_one_cycle(n, edges)
        for a, b in itertools.product(range(len(edges)), repeat=2):
            assert (found[a] == found[b]) == ((a, b) in together)


def test_branchings_become_one_layer() -> None:
    # 0 -> 1 -> {2, 3} -> 4 -> 5, and a mask 6 that 1, 3 and 5 read; 7 hangs idle on 4
    edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 7), (6, 1), (6, 3), (6, 5)]
    tensors = [tensor(v, "activation", 0, transfer_s=0.0 if v in (6, 7) else 1.0) for v in range(8)]
    nodes = [
        node(v, "Op", [a for a, b in edges if b == v], [v], time_s={"dev": 0.0 if v > 5 else 1.0})
        for v in range(8)
    ]
    graph = graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))
    problem = problem_of(graph, DeviceClass("dev", count=3))
    items = problem.items
    line = problem.line(items, np.arange(items.count))
    layers = contract_branches(items, line)
    members = {tuple(np.flatnonzero(layers.label == i).tolist()) for i in range(layers.count)}
    assert members == {(0,), (1, 2, 3), (4, 7), (5,), (6,)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_bert24_inference", 17.79),
        ("layer_gnmt_inference", 33.03),
        ("layer_bert24_training", 41.75),
        ("layer_gnmt_training", 107.35),
    ],
)
def test_pipedream_gives_the_published_values(
    shared_workloads: Path, name: str, value: float
) -> None:
    problem = workload(shared_workloads, name)
    plan = priced(problem, pipedream(problem, MethodOptions()).blocks)
    assert round(plan.value, 2) == value
    assert plan.validity == "ordered"
