"""Turn blocks into a plan: every number is computed here, from the nodes alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.linked import Linked, linked_stages
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.cost.machine import Given
from dnnp.core.cost.validity import quotient_order, validity_of
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import CLOSED, Block, CostOptions, Plan, Stage
from dnnp.core.model.text import shown_bytes


def make_plan(
    problem: Given,
    blocks: Sequence[Block],
    *,
    method: str = "",
    bound: float = 0.0,
    digest: str = "",
    interrupted: bool = False,
    planned_by: str = "",
) -> Plan:
    """Price a split.

    Empty blocks are dropped; blocks come out in pipeline order when the split is ordered. The
    devices of a class are numbered in that order, save where blocks state numbers.

    Raises
    ------
    FormatError
        A node is missing or in two blocks, or a group is cut in two.
    InfeasibleError
        More blocks of a class than devices, a node its device cannot run, or a capacity
        exceeded in the hard memory mode.
    """
    blocks = [b._replace(nodes=np.asarray(b.nodes, dtype=np.int64)) for b in blocks if len(b.nodes)]
    graph, options = problem.graph, problem.options
    block = _block_of(problem, blocks)
    validity = validity_of(graph, block, len(blocks))
    order = quotient_order(graph, block, len(blocks))
    if order is not None:
        blocks = [blocks[b] for b in order.tolist()]
    blocks = _numbered(blocks)
    near = surroundings(problem, blocks)
    stages = [_stage(problem, b, close) for b, close in zip(blocks, near, strict=True)]
    value = objective_of(stages, options)
    proven = bound >= value * (1 - CLOSED)
    excess = excess_of(stages, problem.devices, options.memory_mode)
    status = "optimal" if proven else "interrupted" if interrupted else "feasible"
    return Plan(
        stages=tuple(stages),
        k=sum(d.count for d in problem.devices if not d.is_cpu),
        method=method,
        validity=validity,
        value=value,
        bound=value if proven else min(bound, value),
        status="infeasible" if excess else status,
        options=options,
        devices=problem.devices,
        digest=digest,
        links=problem.links,
        planned_by=planned_by,
        excess_bytes=excess,
    )


def excess_of(stages: Sequence[Stage], devices: Sequence[DeviceClass], mode: str) -> float:
    """Bytes that an accelerator needs beyond what it has, at most, where capacities are ignored.

    0: all fits, or the mode of memory is another one. Table 4 of the 2020 paper has such splits.
    """
    if mode != "ignore":
        return 0.0
    held: dict[tuple[str, str], float] = {}
    for stage in stages:
        key = stage.device_class, stage.device
        held[key] = held.get(key, 0.0) + stage.memory_bytes
    room = {d.name: np.inf if d.is_cpu else d.memory_bytes for d in devices}
    return max(
        (m - room[name] for (name, _), m in held.items() if m > room[name] * ROOM), default=0.0
    )


def objective_of(stages: Sequence[Stage], options: CostOptions) -> float:
    """The objective of a plan, from its stages."""
    if options.objective == "gpipe":
        ahead = max((s.forward_s or 0.0 for s in stages), default=0.0)
        return ahead + max((s.backward_s or 0.0 for s in stages), default=0.0)
    return max((s.load_s for s in stages), default=0.0)


def _numbered(blocks: Sequence[Block]) -> list[Block]:
    """Give every block the number of its first device."""
    used: dict[str, int] = {}
    numbered = []
    for b in blocks:
        number = used.get(b.device.name, 0) if b.number < 0 else b.number
        used[b.device.name] = max(used.get(b.device.name, 0), number + b.replicas)
        if number + b.replicas > b.device.count:
            raise InfeasibleError(
                f"infeasible: the split needs more than the {b.device.count} devices "
                f"of class '{b.device.name}'"
            )
        numbered.append(b._replace(number=number))
    return numbered


def surroundings(problem: Given, blocks: Sequence[Block]) -> Sequence[Ints | Linked | None]:
    """For each (numbered) block what its transfers depend on besides its class, as `stage_load`
    takes it: links where there are any, else clusters."""
    if problem.links:
        return linked_stages(problem, blocks)
    return link_levels(problem.graph, blocks)


def link_levels(graph: Graph, blocks: Sequence[Block]) -> list[Ints | None]:
    """For each (numbered) block the level of its link to every node, as `stage_load` takes it.

    None: its devices form no clusters.
    """
    devices = {b.device.name: b.device for b in blocks if b.device.levels}
    homes = {name: _homes(graph, blocks, device) for name, device in devices.items()}
    found: list[Ints | None] = []
    for b in blocks:
        if not b.device.levels:
            found.append(None)
            continue
        level = np.full(graph.n, len(b.device.levels), dtype=np.int64)
        for i in reversed(range(len(b.device.levels))):
            home = homes[b.device.name][i]
            if home[b.nodes[0]] >= 0:
                level[home == home[b.nodes[0]]] = i
        found.append(level)
    return found


def _homes(graph: Graph, blocks: Sequence[Block], device: DeviceClass) -> Ints:
    """i64[levels, n]: the cluster that holds all devices of every node's block; -1: none does."""
    homes = np.full((len(device.levels), graph.n), -1, dtype=np.int64)
    for b in blocks:
        for home, level in zip(homes, device.levels, strict=True):
            first, last = b.number // level.size, (b.number + b.replicas - 1) // level.size
            if b.device.name == device.name and first == last:
                home[b.nodes] = first
    return homes


def _block_of(problem: Given, blocks: Sequence[Block]) -> Ints:
    """Block of every node, after checking that blocks partition nodes and keep groups whole."""
    graph, units = problem.graph, problem.units
    nodes = np.concatenate([b.nodes for b in blocks]) if blocks else np.zeros(0, np.int64)
    counts = np.bincount(nodes, minlength=graph.n)
    if (counts != 1).any():
        wrong = int(np.flatnonzero(counts != 1)[0])
        what = "in no stage" if not counts[wrong] else f"in {int(counts[wrong])} places"
        raise FormatError(
            f"the split does not fit the graph: node {graph.node_ids[wrong]} is {what}"
        )
    block = np.empty(graph.n, dtype=np.int64)
    for b, one in enumerate(blocks):
        block[one.nodes] = b
    first = block[units.member_idx[units.member_ptr[:-1]]]
    cut = np.flatnonzero(first[units.label] != block)
    if len(cut):
        group = int(units.group_ids[units.label[int(cut[0])]])
        raise FormatError(f"the split does not fit the graph: group {group} is in two stages")
    return block


def _stage(problem: Given, block: Block, near: Ints | Linked | None) -> Stage:
    graph, units, options = problem.graph, problem.units, problem.options
    nodes, device = block.nodes, block.device
    cost = stage_load(graph, units, nodes, device, options, block.replicas, near)
    name = f"{device.name}/{block.number}"
    if not np.isfinite(cost.compute_s):
        times = units.times.get(device.name, np.full(units.g, np.inf))
        group = int(np.flatnonzero(~np.isfinite(times[units.label[nodes]]))[0])
        node = int(graph.node_ids[nodes[group]])
        raise InfeasibleError(f"infeasible: node {node} is not supported on '{device.name}'")
    over = cost.memory_bytes > device.memory_bytes * ROOM
    if options.memory_mode == "hard" and not device.is_cpu and over:
        raise InfeasibleError(
            f"infeasible: the stage on {name} needs {shown_bytes(cost.memory_bytes, 6)}, "
            f"its device has {shown_bytes(device.memory_bytes, 6)}"
        )
    return Stage(
        device=name,
        device_class=device.name,
        nodes=tuple(graph.node_ids[nodes].tolist()),
        load_s=cost.load_s,
        in_s=cost.in_s,
        compute_s=cost.compute_s,
        overflow_s=cost.overflow_s,
        out_s=cost.out_s,
        memory_bytes=cost.memory_bytes,
        replicas=block.replicas,
        sync_s=cost.sync_s,
        forward_s=cost.forward_s,
        backward_s=cost.backward_s,
        peak_bytes=cost.peak_bytes,
        peak_bound_bytes=_peak_bound(block, cost.peak_bytes),
    )


def _peak_bound(block: Block, peak: float | None) -> float | None:
    """The bound that the block brings; one that is equal but for rounding is the peak itself."""
    if peak is None or (peak and not block.peak_bound_bytes):
        return None
    return peak if block.peak_bound_bytes >= peak * (1 - MARGIN) else block.peak_bound_bytes
