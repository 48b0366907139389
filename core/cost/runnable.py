"""Stages that can run as ONNX models, from plans whose stages wait for each other.

A device of a latency plan may go back and forth between its own units and what other devices
send. Its units are cut, in their order, into parts that each run in one go: as few as going
through the units once gives, and such that the parts of all devices have a pipeline order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from dnnp.core.model.graph import Clustering, Graph, Ints, distinct
from dnnp.core.model.plan import Plan, Stage


def runnable_parts(graph: Graph, units: Clustering, plan: Plan) -> tuple[list[Stage], list[int]]:
    """Cut the stages of a plan into parts with a pipeline order.

    Returns the parts, and the stage each is part of. The `load_s` of a part is its compute time; a
    stage that runs in one go stays as it is, and so does an ordered plan.
    """
    if plan.validity == "ordered":
        return list(plan.stages), list(range(len(plan.stages)))
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    rows = [np.array([position[node] for node in stage.nodes]) for stage in plan.stages]
    stage_of = np.empty(units.g, dtype=np.int64)
    place = np.empty(units.g, dtype=np.int64)
    for number, row in enumerate(rows):
        stage_of[units.label[row]] = number
        place[units.label[row]] = np.arange(len(row))
    part = cut_into_parts(graph, units, stage_of, place)
    parts, owners = [], []
    for number in range(int(part.max()) + 1):
        mine = np.flatnonzero(part == number)
        owner = int(stage_of[mine[0]])
        stage, row = plan.stages[owner], rows[owner]
        # In the order of the stage, in which the nodes of two groups may take turns.
        nodes = graph.node_ids[row[part[units.label[row]] == number]]
        if len(nodes) < len(row):
            time = float(units.times[stage.device_class][mine].sum())
            stage = replace(stage, nodes=tuple(nodes.tolist()), load_s=time, compute_s=time)
        parts.append(stage)
        owners.append(owner)
    return parts, owners


def cut_into_parts(graph: Graph, units: Clustering, stage_of: Ints, place: Ints) -> Ints:
    """Part of each unit: what runs in one go; i64[g], numbers from 0.

    Parts wait for each other without a circle, and those of one stage run one after the other.
    An ordered split has one part a stage. `stage_of`: i64[g], stage of each unit, numbers from 0;
    `place`: i64[g], ascending in the order in which each stage runs its units.
    """
    tail, head = graph.edges
    pairs = distinct(units.label[tail] * units.g + units.label[head])
    before, after = pairs // units.g, pairs % units.g
    apart = before != after
    before, after = before[apart], after[apart]
    return _cut(before, after, stage_of, _sequence(before, after, stage_of, place))


def _sequence(before: Ints, after: Ints, stage_of: Ints, place: Ints) -> list[int]:
    """Units in an order of the graph that stays in a stage while it can.

    Stages run their units in the order of `place`. It need not suit the others: each of two stages
    may begin with what waits for the end of the other, and nodes of two groups may take turns.
    When no stage can go on, one runs a later unit first.
    """
    g = len(stage_of)
    waiting = np.bincount(after, minlength=g)
    followers: list[list[int]] = [[] for _ in range(g)]
    for a, b in zip(before.tolist(), after.tolist(), strict=True):
        followers[a].append(b)
    stages = range(int(stage_of.max(initial=-1)) + 1)
    chains = [np.flatnonzero(stage_of == s) for s in stages]
    chains = [c[np.argsort(place[c], kind="stable")] for c in chains]
    rank = np.empty(g, dtype=np.int64)
    for c in chains:
        rank[c] = np.arange(len(c))
    # Ranks of those of each stage that wait for nothing; a heap.
    ready: list[list[int]] = [rank[c[waiting[c] == 0]].tolist() for c in chains]
    done = np.zeros(g, dtype=np.bool_)
    first = [0] * len(chains)
    """Rank of the first unit of each stage that has not run."""
    sequence: list[int] = []
    current = 0
    while len(sequence) < g:
        able = [s for s in (current, *stages) if ready[s]]
        current = next((s for s in able if ready[s][0] == first[s]), able[0])
        u = int(chains[current][heappop(ready[current])])
        done[u] = True
        while first[current] < len(chains[current]) and done[chains[current][first[current]]]:
            first[current] += 1
        sequence.append(u)
        for v in followers[u]:
            waiting[v] -= 1
            if not waiting[v]:
                heappush(ready[int(stage_of[v])], int(rank[v]))
    return sequence


def _cut(before: Ints, after: Ints, stage_of: Ints, sequence: Sequence[int]) -> Ints:
    """Part of each unit; i64[g].

    A unit joins the last part of its stage unless something it waits for waits for that part.
    """
    makers: list[list[int]] = [[] for _ in stage_of]
    for a, b in zip(before.tolist(), after.tolist(), strict=True):
        makers[b].append(a)
    part = np.full(len(stage_of), -1, dtype=np.int64)
    # Bit p of waits[q]: part q waits for part p, by way of others too.
    waits: list[int] = []
    last: dict[int, int] = {}
    for u in sequence:
        needed = 0
        for maker in makers[u]:
            p = int(part[maker])
            needed |= 1 << p | waits[p]
        stage = int(stage_of[u])
        mine = last.get(stage, -1)
        if mine >= 0 and _may_join(needed & ~(1 << mine), mine, waits):
            waits[mine] |= needed & ~(1 << mine)
            for q in range(len(waits)):
                if waits[q] >> mine & 1:
                    waits[q] |= waits[mine]
        else:
            # Parts of one device run one after the other.
            needed |= (1 << mine | waits[mine]) if mine >= 0 else 0
            mine = last[stage] = len(waits)
            waits.append(needed)
        part[u] = mine
    return part


def _may_join(needed: int, mine: int, waits: Sequence[int]) -> bool:
    """True if no part among `needed` waits for part `mine`."""
    p = 0
    while needed:
        if needed & 1 and waits[p] >> mine & 1:
            return False
        needed >>= 1
        p += 1
    return True
