"""Plans whose stages several devices hold together, as ordinary models: one or more a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np
from onnx import ModelProto

from dnnp.callbacks import Callbacks
from dnnp.core.cost.load_formula import collective_time
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.shards import Share
from dnnp.core.model.text import counted
from dnnp.core.runtime.generate.decoder import named_states
from dnnp.core.runtime.pipeline.schedule_orders import (
    Piece,
    Program,
    program_of,
    schedule_of_pieces,
)
from dnnp.deployment.parts import Runnable, schedule_of_stream, topological_order
from dnnp.formats.onnx.scope import reads, writes
from dnnp.formats.onnx.shard_ops import Layout
from dnnp.formats.onnx.shards import ShardedModel, StageLayout, Task, shard_model
from dnnp.formats.onnx.value_types import TensorType, types_of
from dnnp.formats.plan import refuse_training
from dnnp.formats.stream import Stream


def runnable_shards(
    caller: Callbacks,
    stream: Stream,
    graph: Graph,
    plan: Plan,
    model: ModelProto,
    samples: int | None = None,
    *,
    generating: bool = False,
) -> Runnable:
    """Cut the model of a stream by its layouts, into parts that each run as one inference.

    With `generating` devices keep their parts of states, and sizes are free that phases differ in.

    Raises
    ------
    UsageError
        Nodes do not state their layout, there are states without `generating`, or with it phases
        of one size; or as for `runnable_of`.
    FormatError
        The plan is for training, or as for `shard_model`, `schedule_of_pieces` and `runnable_of`.
    """
    refuse_training(graph)
    if graph.states is not None and not generating:
        reason = "have states, which dnnp-run --generate alone keeps"
        raise UsageError(f"{stream.name}: stages that several devices hold {reason}")
    names = [record["name"] for record in stream.get("tensor")]
    place = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    degrees = [] if graph.shards is None else graph.shards.degrees.tolist()
    stages = []
    for stage in plan.stages:
        layouts = {}
        if stage.shards > 1:
            shares = {
                share.node: share
                for share in (() if graph.shards is None else graph.shards.shares)
                if degrees[share.degree] == stage.shards
            }
            missing = next((node for node in stage.nodes if place[node] not in shares), None)
            if missing is not None:
                raise UsageError(
                    f"{stream.name}: node {missing} does not state its layout on {stage.shards} "
                    "devices; dnnp-profile --tensor-parallel does that for all of a model"
                )
            layouts = {n: _layout(graph, names, shares[place[n]]) for n in stage.nodes}
        stages.append(StageLayout(stage.nodes, stage.shards, layouts))
    states = {s["input"]: s["output"] for s in named_states(stream.records)}
    types = free_types(stream) if generating else types_of(stream)
    made = shard_model(model, stages, types, states if generating else None)
    if made.whole:
        node, reason = next(iter(made.whole.items()))
        name = stream.get("node")[place[node]]["name"] or str(node)
        caller.warn(
            f"{counted(len(made.whole), 'node')} run whole on each device of a stage, against the "
            f"plan, such as '{name}': {reason}"
        )
    pieces, parts, shards = pieces_of(graph, plan, made)
    owners = tuple(piece.stage for piece in pieces)
    program = _program(stream, plan, pieces, parts, samples)
    shown = tuple(
        shard if plan.stages[owner].shards > 1 else -1
        for owner, shard in zip(owners, shards, strict=True)
    )
    return Runnable(plan, parts, owners, program, shown, made)


def free_types(stream: Stream) -> dict[str, TensorType]:
    """Types of tensors, with the sizes that are equal in all phases.

    UsageError: there are fewer than two phases, or points of one.
    """
    found, others = types_of(stream), stream.get("phase")[1:]
    if not others:
        reason = "generate by phases of two sizes; see dnnp-import --phase"
        raise UsageError(f"{stream.name}: stages that several devices hold {reason}")
    for record in others:
        for (name, kind), shape in zip([*found.items()], record["shapes"], strict=True):
            pairs = zip(kind.shape or (), shape, strict=False)
            equal = tuple(a if a == b else None for a, b in pairs)
            found[name] = replace(kind, shape=kind.shape and equal)
    return found


def _program(
    stream: Stream,
    plan: Plan,
    pieces: Sequence[Piece],
    parts: tuple[Stage, ...],
    samples: int | None,
) -> Program | None:
    """The program of each device by the schedule of the stream, if there is one."""
    found = schedule_of_stream(stream, samples)
    if found is None:
        return None
    made, rows = schedule_of_pieces(*found, pieces)
    program = program_of(made, rows, replace(plan, stages=parts))
    # Records name transfers by their positions in the schedule of the stream.
    others = [p for p, row in enumerate(found[0]["passes"]) if row["kind"] != "forward"]
    orders = program.unit_orders
    moves = (t._replace(number=others[t.number - len(pieces)]) for t in orders.transfers)
    orders = replace(orders, transfers=tuple(moves))
    return replace(program, owners=tuple(piece.stage for piece in pieces), unit_orders=orders)


def _layout(graph: Graph, names: Sequence[str], share: Share) -> Layout:
    v = share.node
    reads = graph.in_idx[graph.in_ptr[v] : graph.in_ptr[v + 1]].tolist()
    writes = graph.out_idx[graph.out_ptr[v] : graph.out_ptr[v + 1]].tolist()
    return Layout(
        {names[x]: state for x, state in zip(reads, share.inputs, strict=True)},
        {names[x]: state for x, state in zip(writes, share.outputs, strict=True)},
        share.reduced,
    )


def pieces_of(
    graph: Graph, plan: Plan, made: ShardedModel
) -> tuple[list[Piece], tuple[Stage, ...], list[int]]:
    """Pieces of stages in topological order, the same as stages, and their shards."""
    rows = list(made.tasks)
    homes = sorted({(task.stage, task.device) for task in made.tasks.values()})
    number = {place: h for h, place in enumerate(homes)}
    home = np.array([number[task.stage, task.device] for task in made.tasks.values()])
    unit, pairs = _units(made, home.tolist())
    before, after = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    # The last of the tasks of a unit determines its device.
    last = np.zeros(max(unit, default=-1) + 1, dtype=np.int64)
    last[unit] = np.arange(len(rows))
    level = np.array(_exchanges([homes[h] for h in home[last].tolist()], pairs), dtype=np.int64)
    key = home[last] * (level.max(initial=0) + 1) + level
    of_unit = np.unique(key, return_inverse=True)[1].ravel()
    waits: list[set[int]] = [set() for _ in range(int(of_unit.max(initial=-1)) + 1)]
    for a, b in zip(of_unit[before].tolist(), of_unit[after].tolist(), strict=True):
        if a != b:
            waits[b].add(a)
    part = of_unit[unit]
    of_home = [int(home[part == p][0]) for p in range(len(waits))]
    for p, mine in enumerate(of_home):
        waits[p] |= {q for q in range(p) if of_home[q] == mine}
    times = np.array(_times(graph, plan, made))
    total = np.bincount(home, weights=times, minlength=len(homes))
    pieces, parts, shards = list[Piece](), list[Stage](), list[int]()
    depth = [0] * len(waits)
    for p in topological_order(waits):
        at = of_home[p]
        owner, shard = homes[at]
        held = np.flatnonzero(part == p)
        share = float(times[held].sum() / total[at]) if total[at] else 0.0
        nodes = tuple(rows[i] for i in held.tolist())
        alone = of_home.count(at) == 1
        parts.append(_part(plan.stages[owner], nodes, shard, share, alone=alone))
        shards.append(shard)
        own = (q for q in waits[p] if homes[of_home[q]][0] == owner)
        depth[p] = max((depth[q] + 1 for q in own), default=0)
        pieces.append(Piece(owner, parts[-1].homes, depth[p]))
    return pieces, tuple(parts), shards


def _exchanges(homes: Sequence[tuple[int, int]], pairs: Collection[tuple[int, int]]) -> list[int]:
    """Exchanges within a stage that come before each unit, on the longest way.

    So what devices exchange leaves before any of them begins what waits for the others.
    `homes`: stage and device of each unit; `pairs`: units that wait for units.
    """
    before: dict[int, list[int]] = {u: [] for u in range(len(homes))}
    for a, b in pairs:
        if homes[a][0] == homes[b][0]:
            before[b].append(a)
    level = [0] * len(homes)
    for u in TopologicalSorter(before).static_order():
        level[u] = max((level[a] + (homes[a] != homes[u]) for a in before[u]), default=0)
    return level


def _units(made: ShardedModel, home: Sequence[int]) -> tuple[list[int], set[tuple[int, int]]]:
    """Tasks that stay together, and which of them wait for which.

    What depends on weights alone runs with the first of its readers and of what these run with, so
    that no tensor is handed on that ONNX Runtime computes once and for all when it loads the model.
    """
    nodes = [made.model.graph.node[at] for at in made.tasks]
    inputs = {value.name for value in made.model.graph.input}
    inputs -= {tensor.name for tensor in made.model.graph.initializer}
    maker = {name: i for i, node in enumerate(nodes) for name in writes(node)}
    makers = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    loose: list[bool] = []
    for i, node in enumerate(nodes):
        loose.append(inputs.isdisjoint(reads(node)) and all(loose[m] for m in makers[i]))
    joined = list(range(len(nodes)))
    readers: list[list[int]] = [[] for _ in nodes]
    for i in range(len(nodes) - 1, -1, -1):
        first = min((joined[reader] for reader in readers[i]), default=i)
        if loose[i] and home[first] == home[i]:
            joined[i] = first
        for m in makers[i]:
            readers[m].append(i)
    numbers = {i: u for u, i in enumerate(sorted({*joined}))}
    unit = [numbers[i] for i in joined]
    pairs = {(unit[m], unit[i]) for i, found in enumerate(makers) for m in found}
    return unit, {(a, b) for a, b in pairs if a != b}


def _part(stage: Stage, nodes: tuple[int, ...], shard: int, share: float, *, alone: bool) -> Stage:
    """A part of a stage on one of the devices of each replica; `share` of the compute there."""
    kind, _, first = stage.device.rpartition("/")
    device = f"{kind}/{int(first) + shard}"
    part = replace(stage, device=device, nodes=nodes, shards=1, apart=stage.shards, shared=False)
    if alone:
        return part
    compute = stage.compute_s * share
    return replace(part, load_s=compute / stage.replicas, compute_s=compute)


def _times(graph: Graph, plan: Plan, made: ShardedModel) -> list[float]:
    """Time of each node that was made, to share the compute of a stage by."""
    device = plan.devices[0]
    place = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    shards = graph.shards
    degrees = [1] if shards is None else shards.degrees.tolist()
    exchanged: Mapping[tuple[int, int], float] = {}
    if shards is not None:
        exchanged = dict[tuple[int, int], float]()
        for i, v, kind, size in shards.collectives:
            time = collective_time(kind, size, degrees[i], device.bandwidth_bytes_per_s)
            exchanged[i, v] = exchanged.get((i, v), 0.0) + time

    joins = Counter((t.stage, t.device, t.joins) for t in made.tasks.values())

    def time_of(task: Task) -> float:
        stage = plan.stages[task.stage]
        i = degrees.index(stage.shards)
        if task.joins is not None:
            count = joins[task.stage, task.device, task.joins]
            return exchanged.get((i, place[task.joins]), 0.0) / count
        if task.source is None:
            return 0.0
        v = place[task.source]
        if shards is not None and stage.shards > 1:
            return float(shards.plain.times[stage.device_class][i, v])
        return float(graph.times[stage.device_class][v])

    return [time_of(task) for task in made.tasks.values()]
