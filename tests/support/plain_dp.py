"""The published program over pairs of ideals, as plain as it can be (2020 paper, section 5.1.1).

    dp[I][a][b] = min over ideals J in I of min(max(dp[J][a - 1][b], acc(I - J)),
                                                max(dp[J][a][b - 1], cpu(I - J)))

Every pair is looked at, none is ruled out, and nothing is contracted. From each ideal J its
supersets are walked by adding items in ascending order, so that the cost of a pair follows from
that of another one; looking each difference up by itself would take many times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph

CHUNK = 64
"""Ideals between two looks at the clock."""


class Reference(NamedTuple):
    """Result of the program, and its work."""

    value: float
    """Least largest load; inf: nothing fits, or it was stopped."""
    ideals: int
    """Ideals of the graph as it is."""
    pairs: int
    """Pairs of ideals that were priced."""
    done: int
    """Ideals all of whose supersets were priced; the last one has none."""


class Chart(NamedTuple):
    """Items 0..n-1 in a topological order, and two kinds of devices."""

    fast: np.ndarray
    """f64[n], time on an accelerator; inf: unsupported."""
    slow: np.ndarray
    """f64[n], time on a CPU."""
    memory: np.ndarray
    """f64[n], bytes."""
    nets: list[tuple[float, list[int]]]
    """Transfer time of each tensor that may cross, and the items that make or read it."""
    edges: list[tuple[int, int]]
    accelerators: DeviceClass
    cpus: DeviceClass


def chart_of_graph(graph: Graph, devices: tuple[DeviceClass, ...]) -> Chart:
    """An inference graph without groups or colours as it is."""
    accelerators, cpus = _kinds(devices)
    nothing = np.full(graph.n, np.inf)
    rank = np.empty(graph.n, dtype=np.int64)
    rank[graph.order] = np.arange(graph.n)
    nets = []
    for t in np.flatnonzero(graph.producer >= 0).tolist():
        readers = graph.use_idx[graph.use_ptr[t] : graph.use_ptr[t + 1]].tolist()
        pins = sorted({int(rank[v]) for v in (graph.producer[t], *readers)})
        stated = float(graph.transfer_s[t])
        time = float(graph.tensor_bytes[t] / accelerators.bandwidth_bytes_per_s)
        if len(pins) > 1:
            nets.append((time if np.isnan(stated) else stated, pins))
    tail, head = graph.edges
    return Chart(
        graph.times.get(accelerators.name, nothing)[graph.order],
        graph.times.get(cpus.name, nothing)[graph.order],
        np.nan_to_num(graph.node_bytes[graph.order]),
        nets,
        list(zip(rank[tail].tolist(), rank[head].tolist(), strict=True)),
        accelerators,
        cpus,
    )


def charts_of_problem(problem: SplitProblem) -> list[Chart]:
    """The items of a problem with a backward pass, too: one chart for each direction of it."""
    accelerators, cpus = _kinds(problem.devices)
    charts = []
    for items in problem.item_choices:
        line = problem.line(items)
        rows = {d.name: c for c, d in enumerate(line.devices)}
        nothing = np.full(line.n, np.inf)
        ends = zip(line.nets.net_ptr[:-1], line.nets.net_ptr[1:], strict=True)
        costs = line.cost[rows[accelerators.name]].tolist()
        charts.append(
            Chart(
                line.work[rows[accelerators.name]],
                line.work[rows[cpus.name]] if cpus.count else nothing,
                line.memory,
                [
                    (cost, line.nets.pins[a:b].tolist())
                    for cost, (a, b) in zip(costs, ends, strict=True)
                ],
                list(zip(line.tail.tolist(), line.head.tolist(), strict=True)),
                accelerators,
                cpus,
            )
        )
    return charts


def attached(chart: Chart) -> Chart:
    """The chart with idle ends joined to what they hang on.

    An item without work that has a single neighbour, before or after it, never needs another
    block than that one. On the layer graphs of the 2020 paper this leaves the published number of
    ideals; elsewhere there are hardly any such items.
    """
    n = len(chart.fast)
    into = list(range(n))
    edges = set(chart.edges)
    changed = True
    while changed:
        changed = False
        for v in range(n):
            beside = {a for a, b in edges if b == v} | {b for a, b in edges if a == v}
            if into[v] == v and len(beside) == 1 and chart.fast[v] == chart.slow[v] == 0:
                into[v] = beside.pop()
                edges -= {(v, into[v]), (into[v], v)}
                changed = True
    for v in range(n):
        while into[into[v]] != into[v]:
            into[v] = into[into[v]]
    kept = sorted(set(into))
    name = [kept.index(u) for u in into]
    nets = [(cost, sorted({name[v] for v in pins})) for cost, pins in chart.nets]
    return chart._replace(
        fast=np.bincount(name, chart.fast),
        slow=np.bincount(name, chart.slow),
        memory=np.bincount(name, chart.memory),
        nets=[(cost, pins) for cost, pins in nets if len(pins) > 1],
        edges=[(name[a], name[b]) for a, b in sorted(edges)],
    )


def _kinds(devices: tuple[DeviceClass, ...]) -> tuple[DeviceClass, DeviceClass]:
    """The class of accelerators and that of CPUs; without devices where there is none."""
    accelerators = next((d for d in devices if not d.is_cpu), DeviceClass("", count=0))
    return accelerators, next((d for d in devices if d.is_cpu), DeviceClass("", "cpu", 0))


def plain_dp(chart: Chart, stop: Callable[[], bool] = lambda: False) -> Reference:
    """The best ordered split, for `comm` sum and memory that adds up."""
    n = len(chart.fast)
    ideals, children = _ideals(n, chart.edges)
    child_ptr = np.cumsum([0, *map(len, children)])
    edges = np.array([pair for own in children for pair in own], dtype=np.int64).reshape(-1, 2)
    of_item: list[list[int]] = [[] for _ in range(n)]
    for e, (_, pins) in enumerate(chart.nets):
        for v in pins:
            of_item[v].append(e)
    problem = (
        chart.fast.astype(np.float64),
        chart.slow.astype(np.float64),
        chart.memory.astype(np.float64),
        float(chart.accelerators.memory_bytes),
        np.cumsum([0, *map(len, of_item)]),
        np.array([e for own in of_item for e in own], dtype=np.int64),
        np.array([len(pins) for _, pins in chart.nets], dtype=np.int64),
        np.array([cost for cost, _ in chart.nets], dtype=np.float64),
        child_ptr,
        edges[:, 0].copy(),
        edges[:, 1].copy(),
    )
    table = np.full((len(ideals), chart.accelerators.count + 1, chart.cpus.count + 1), np.inf)
    table[0] = 0.0
    done = pairs = 0
    while done < len(ideals) and not stop():
        last = min(done + CHUNK, len(ideals))
        pairs += _supersets(*problem, table, done, last)
        done = last
    value = float(table[-1].min()) if done == len(ideals) else float("inf")
    return Reference(value, len(ideals), pairs, done)


def _ideals(n: int, edges: list[tuple[int, int]]) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Bit masks of all ideals, small ones first; for each, (item added, ideal) ascending."""
    before = [0] * n
    for u, v in edges:
        before[v] |= 1 << u
    after = [[v for v in range(n) if before[v] >> u & 1] for u in range(n)]
    masks, ready = [0], [frozenset(v for v in range(n) if not before[v])]
    children: list[list[tuple[int, int]]] = []
    index = {0: 0}
    for mask in masks:  # grows while it is walked
        own = []
        now = ready[len(children)]
        for v in sorted(now):
            larger = mask | 1 << v
            if larger not in index:
                index[larger] = len(masks)
                masks.append(larger)
                freed = {w for w in after[v] if not before[w] & ~larger}
                ready.append(now - {v} | freed)
            own.append((v, index[larger]))
        children.append(own)
    return masks, children


@numba.njit(cache=True)
def _supersets(  # type: ignore[no-untyped-def]
    fast,
    slow,
    size,
    capacity,
    net_ptr,
    net_idx,
    pins,
    cost,
    child_ptr,
    child_item,
    child_ideal,
    table,
    first,
    last,
):
    """Price every block that starts at the ideals first..last-1; their number."""
    n = len(fast)
    room = table.shape[1], table.shape[2]
    held = np.zeros(len(pins), np.int32)
    work, other = np.zeros(n + 1), np.zeros(n + 1)
    moved, memory = np.zeros(n + 1), np.zeros(n + 1)
    where, edge, added = np.zeros((3, n + 1), np.int64)
    pairs = 0
    for start in range(first, last):
        depth = 0
        where[0], edge[0], added[0] = start, child_ptr[start], -1
        while depth >= 0:
            here = where[depth]
            while edge[depth] < child_ptr[here + 1] and child_item[edge[depth]] <= added[depth]:
                edge[depth] += 1
            if edge[depth] == child_ptr[here + 1]:
                if depth > 0:
                    for i in range(net_ptr[added[depth]], net_ptr[added[depth] + 1]):
                        held[net_idx[i]] -= 1
                depth -= 1
                continue
            v, there = child_item[edge[depth]], child_ideal[edge[depth]]
            edge[depth] += 1
            pairs += 1
            crossing = moved[depth]
            for i in range(net_ptr[v], net_ptr[v + 1]):
                e = net_idx[i]
                held[e] += 1
                if held[e] == 1:
                    crossing += cost[e]
                if held[e] == pins[e]:
                    crossing -= cost[e]
            depth += 1
            where[depth], edge[depth], added[depth] = there, child_ptr[there], v
            moved[depth] = crossing
            work[depth] = work[depth - 1] + fast[v]
            other[depth] = other[depth - 1] + slow[v]
            memory[depth] = memory[depth - 1] + size[v]
            on_fast = work[depth] + crossing if memory[depth] <= capacity else np.inf
            on_slow = other[depth]
            for a in range(room[0]):
                for b in range(room[1]):
                    best = table[there, a, b]
                    if a > 0:
                        best = min(best, max(table[start, a - 1, b], on_fast))
                    if b > 0:
                        best = min(best, max(table[start, a, b - 1], on_slow))
                    table[there, a, b] = best
    return pairs
