"""The placement of a parallel plan: what its stages do with every micro-batch.

A stage is a forward and a backward block on all devices of a replica at once; replicas take the
micro-batches in turn. Blocks of a shared stage are on all devices. Forward passes that are run
again are part of the backward block. A forward block holds what its stage keeps of a micro-batch,
its backward block lets that go. Where a graph has no backward pass, both are one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load import transfer_times
from dnnp.core.cost.machine import Given
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Bools, Ints, distinct
from dnnp.core.model.placement import PlacedBlock, Placement, Unit, Wait
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.parallel.problem import degrees_in, node_bytes, node_times


class _Pass(NamedTuple):
    """What a stage does in one pass."""

    stage: int
    backward: bool
    time_s: float
    held_bytes: float


def placement_of_hybrid(given: Given, plan: Plan) -> Placement:
    """The blocks of one micro-batch of a parallel plan.

    Raises
    ------
    UsageError
        Transfers that overlap with computing.
    """
    if plan.options.comm != "sum":
        raise UsageError(
            f"schedules of parallel plans have transfers within blocks: not --comm "
            f"{plan.options.comm}"
        )
    graph = given.graph
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    stage_of = np.empty(graph.n, dtype=np.int64)
    for s, stage in enumerate(plan.stages):
        stage_of[[position[n] for n in stage.nodes]] = s
    passes = [p for s in range(len(plan.stages)) for p in _passes(given, plan, s, stage_of)]
    number = {(p.stage, p.backward): i for i, p in enumerate(passes)}
    part = np.array(
        [number[s, bool(b)] for s, b in zip(stage_of.tolist(), graph.backward, strict=True)],
        dtype=np.int64,
    )
    tail, head = graph.edges
    pairs = distinct(part[tail] * len(passes) + part[head])
    waits: dict[int, set[int]] = {i: set() for i in range(len(passes))}
    for a, b in zip((pairs // len(passes)).tolist(), (pairs % len(passes)).tolist(), strict=True):
        if a != b:
            waits[b].add(a)
    for i, one in enumerate(passes):
        ahead = number.get((one.stage, False))
        if one.backward and ahead is not None:
            waits[i].add(ahead)
    units, homes = _units(plan, passes)
    blocks = tuple(
        PlacedBlock(
            f"{'B' if p.backward else 'F'}{p.stage}",
            "backward" if p.backward else "forward",
            homes[p.stage],
            p.time_s,
            p.held_bytes,
            tuple(Wait(j) for j in sorted(waits[i])),
            p.stage,
        )
        for i, p in enumerate(passes)
    )
    return Placement("plan", units, blocks)


def _passes(given: Given, plan: Plan, s: int, stage_of: Ints) -> list[_Pass]:
    """The passes of a stage that do anything; together they take what the stage takes."""
    graph, stage = given.graph, plan.stages[s]
    (device,) = plan.devices
    i = degrees_in(graph).tolist().index(stage.shards)
    once, twice = node_times(given, device)
    mine = stage_of == s
    again = np.isin(graph.node_ids, stage.recomputed) & mine
    late = mine & graph.backward
    moved = [_moved(given, plan, i, mine, backward) for backward in (False, True)]
    if not late.any():
        return [_Pass(s, False, stage.load_s * stage.replicas, 0.0)]
    ahead = mine & ~graph.backward
    forward = float(once[i, ahead].sum()) + moved[0]
    repeated = float((twice[i, again] - once[i, again]).sum())
    behind = float(once[i, late].sum()) + repeated + moved[1] + stage.sync_s * stage.replicas
    held = _held(given, i, mine, again)
    return [_Pass(s, False, forward, held), _Pass(s, True, behind, -held)]


def _moved(given: Given, plan: Plan, i: int, mine: Bools, backward: bool) -> float:
    """Time that tensors of one pass take to enter and leave a stage."""
    graph = given.graph
    (device,) = plan.devices
    made = graph.producer >= 0
    kind = made & (graph.backward[graph.producer] == backward)
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    reads = np.zeros(graph.m, dtype=np.bool_)
    reads[tensor[mine[graph.use_idx]]] = True
    leaves = np.zeros(graph.m, dtype=np.bool_)
    leaves[tensor[~mine[graph.use_idx]]] = True
    inside = made & mine[graph.producer]
    cost = transfer_times(graph, device)
    band = device.bandwidth_bytes_per_s
    shards = graph.shards
    none = np.zeros(graph.m)
    coming, going = (none, none) if shards is None else (shards.in_bytes[i], shards.out_bytes[i])
    enters, goes = kind & ~inside & reads, kind & inside & leaves
    return float((cost + coming / band)[enters].sum() + (cost + going / band)[goes].sum())


def _held(given: Given, i: int, mine: Bools, again: Bools) -> float:
    """Bytes that a stage holds of a micro-batch from its forward to its backward pass."""
    graph = given.graph
    _, held = node_bytes(graph)
    stated = graph.shards is not None and graph.shards.again is not None
    if stated or not again.any():
        return float(held[0, i, mine & ~again].sum() + held[1, i, again].sum())
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    read = distinct(tensor[mine[graph.use_idx]])
    read = read[graph.producer[read] >= 0]
    entering = ~mine[graph.producer[read]] & ~graph.backward[graph.producer[read]]
    return float(graph.tensor_bytes[read[entering]].sum())


def _units(
    plan: Plan, passes: list[_Pass]
) -> tuple[tuple[Unit, ...], list[tuple[tuple[int, ...], ...]]]:
    """The devices with their limits, and those of the replicas of each stage."""
    (device,) = plan.devices
    limit = device.memory_bytes if plan.options.memory_mode == "hard" else float("inf")
    between = {p.stage: p.held_bytes for p in passes if not p.backward}
    homes = []
    fixed: dict[int, float] = {}
    for s, stage in enumerate(plan.stages):
        first = int(stage.device.rpartition("/")[2])
        numbers = range(first, first + stage.devices)
        always = max(stage.memory_bytes - (stage.in_flight or 1) * between[s], 0.0)
        for number in numbers:
            fixed[number] = fixed.get(number, 0.0) + always
        homes.append(_replicas(stage, numbers))
    units = {n: Unit(f"{device.name}/{n}", limit, always) for n, always in fixed.items()}
    place = {number: i for i, number in enumerate(sorted(units))}
    return (
        tuple(units[number] for number in sorted(units)),
        [tuple(tuple(place[n] for n in turn) for turn in home) for home in homes],
    )


def _replicas(stage: Stage, numbers: range) -> tuple[range, ...]:
    """Devices of each replica."""
    t = stage.shards
    return tuple(numbers[j * t : (j + 1) * t] for j in range(stage.replicas))
