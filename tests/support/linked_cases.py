"""Random small problems over links, and all their splits, judged by the checker alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from dnnp.core.check.graph import tables_of, validity_of
from dnnp.core.check.load import StageLinks, compute_of, footprint_of, price, units_of
from dnnp.core.check.violation import above
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.plan import Plan, Stage
from dnnp.formats.inputs.links import expand_links
from support.cases import random_case

RATES = (0.25, 1.0, 2.0, 7.0)


def linked_case(seed: int, most: int = 5, *, hosts: bool = True, **fixed: object) -> SplitProblem:
    """A random problem of up to `most` nodes, 2 to 4 devices and random links between them.

    Without `hosts` no link names a CPU, where there are two other devices.
    """
    case = random_case(seed, most, **{"max_replicas": 1, **fixed})
    rng = random.Random(f"links {seed}")
    devices = tuple(replace(d, count=rng.randint(1, 2)) for d in case.devices)[:2]
    if sum(d.count for d in devices) == 1:
        devices = (replace(devices[0], count=3), *devices[1:])
    named = [d for d in devices if hosts or not d.is_cpu]
    if sum(d.count for d in named) < 2:
        named = list(devices)
    names = [f"{d.name}/{i}" for d in named for i in range(d.count)]
    records = [
        {
            "from": a,
            "to": b,
            "bandwidth_bytes_per_s": rng.choice(RATES),
            "back_bandwidth_bytes_per_s": rng.choice(RATES),
            "latency_s": rng.choice([0.0, 0.0, 0.5, 2.0]),
        }
        for n, b in enumerate(names)
        for m, a in enumerate(names[:n])
        if m == n - 1 or rng.random() < 0.6
    ]
    links = expand_links(records, devices, lambda *why: AssertionError(why))
    return SplitProblem(case.graph, case.units, devices, case.options, links)


Home = tuple[str, int]
"""The first device of a stage, and how many there are."""


def stages_of(problem: SplitProblem, blocks: list[list[int]], homes: Sequence[Home]) -> Plan:
    """A plan that states nothing but which nodes are where."""
    zeros = dict.fromkeys(
        ("load_s", "in_s", "compute_s", "overflow_s", "out_s", "memory_bytes"), 0.0
    )
    ids = problem.graph.node_ids
    stages = tuple(
        Stage(
            device,
            device.rpartition("/")[0],
            tuple(int(ids[v]) for v in block),
            replicas=replicas,
            **zeros,
        )
        for block, (device, replicas) in zip(blocks, homes, strict=True)
    )
    return Plan(
        stages, 0, "", "ordered", 0.0, 0.0, "feasible", problem.options, problem.devices, "",
        problem.links,
    )  # fmt: skip


def judged(problem: SplitProblem, blocks: list[list[int]], homes: Sequence[Home]) -> float:
    """The objective by the checker; inf: it does not fit."""
    tables = tables_of(problem.graph)
    plan = stages_of(problem, blocks, homes)
    wires, units = StageLinks(plan, tables, blocks), units_of(problem.graph, problem.units, tables)
    classes = {d.name: d for d in problem.devices}
    costs = []
    for number, (stage, block) in enumerate(zip(plan.stages, blocks, strict=True)):
        compute, unsupported = compute_of(units, stage, block)
        device = classes[stage.device_class]
        if unsupported:
            return math.inf
        cost = price(
            tables,
            footprint_of(tables, block, problem.options),
            compute,
            device,
            problem.options,
            stage.replicas,
            wires=wires.of(number),
        )
        full = not device.is_cpu and above(cost.memory_bytes, device.memory_bytes)
        if full and problem.options.memory_mode == "hard":
            return math.inf
        costs.append(cost)
    if problem.options.objective == "gpipe":
        return max(c.forward_s or 0.0 for c in costs) + max(c.backward_s or 0.0 for c in costs)
    return max(c.load_s for c in costs)


def least_over_links(problem: SplitProblem, validity: str = "ordered") -> float:
    """Least objective over all splits of at least this validity and all devices; inf: none fits."""
    return min(least_by_way(problem, validity).values(), default=math.inf)


def least_by_way(problem: SplitProblem, validity: str = "ordered") -> dict[tuple[int, bool], float]:
    """The same for each number of stages, up to 2, and whether some are replicated."""
    tables, label = tables_of(problem.graph), problem.free_items.label
    homes = [
        (d.name, i, r)
        for d in problem.devices
        for r in range(1, min(problem.options.max_replicas, d.count) + 1)
        for i in range(d.count - r + 1)
    ]
    rank, best = problem.graph.rank, dict[tuple[int, bool], float]()
    strength = ("free", "convex", "ordered")
    for partition in _partitions(int(label.max()) + 1):
        if max(partition) >= sum(d.count for d in problem.devices):
            continue
        part = np.array(partition)[label]
        blocks = [
            sorted(np.flatnonzero(part == b).tolist(), key=lambda v: rank[v])
            for b in range(max(partition) + 1)
        ]
        found = validity_of(tables, blocks)[0]
        if strength.index(found) < strength.index(validity):
            continue
        for chosen in product(homes, repeat=len(blocks)):
            used = [(name, i + j) for name, i, r in chosen for j in range(r)]
            if len(set(used)) < len(used):
                continue
            value = judged(problem, blocks, [(f"{name}/{i}", r) for name, i, r in chosen])
            way = min(len(blocks), 2), len(used) > len(blocks)
            best[way] = min(best.get(way, math.inf), value)
    return best


def _partitions(n: int) -> Iterator[tuple[int, ...]]:
    """All partitions of 0..n-1, as restricted growth strings."""

    def extend(head: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(head) == n:
            yield head
            return
        for b in range(max(head, default=-1) + 2):
            yield from extend((*head, b))

    yield from extend(())
