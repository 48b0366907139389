"""Turn splits into plans of the objective latency: every number comes from the cost model."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnp.core.cost.items import validity_of
from dnnp.core.cost.latency import (
    POOL,
    TASK,
    Invocations,
    LatencyProblem,
    Placement,
    check_invocations,
    check_placement,
    rank_of,
    simulate,
    time_invocations,
)
from dnnp.core.cost.problem import SplitProblem, excess_of
from dnnp.core.model.graph import Clustering, Graph, Ints, distinct, row_of
from dnnp.core.model.plan import CLOSED, Plan, Stage, Transfer
from dnnp.core.model.search_context import Learned


def make_latency_plan(
    problem: SplitProblem,
    latency: LatencyProblem,
    split: Invocations | Placement,
    *,
    method: str,
    bound: float,
    bound_method: str,
    digest: str = "",
    interrupted: bool = False,
    learned: Learned | None = None,
) -> Plan:
    """Price a split by the latency of one sample.

    Raises
    ------
    FormatError
        Blocks wait for each other, a colour is on two devices.
    InfeasibleError
        A device is invoked too often, has too little memory or does not support a task.
    """
    graph, units = problem.graph, problem.units
    latency.value(split)  # refuses what does not fit
    if isinstance(split, Invocations):
        stages, value = _block_stages(graph, units, latency, split)
    else:
        stages, value = _operator_stages(graph, units, latency, split)
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    stage_of = row_of(([position[node] for node in stage.nodes] for stage in stages), graph.n)
    proven = value <= bound * (1 + CLOSED)
    excess = excess_of(stages, problem.devices, problem.options.memory_mode)
    status = "optimal" if proven else "interrupted" if interrupted else "feasible"
    return Plan(
        stages=tuple(stages),
        k=sum(d.count for d in problem.devices if not d.is_cpu),
        method=method,
        validity=validity_of(graph, stage_of, len(stages)),
        value=value,
        bound=min(bound, value),
        status="infeasible" if excess else status,
        options=problem.options,
        devices=problem.devices,
        digest=digest,
        links=problem.links,
        rules=problem.rules,
        bound_method=bound_method,
        learned=None if learned is None else learned.told(),
        excess_bytes=excess,
    )


def _stage(
    problem: tuple[Graph, Clustering, LatencyProblem],
    device: int,
    mine: Ints,
    parts: tuple[float, float, float],
    span: tuple[float, float],
    peak: float | None = None,
    **operators: Any,
) -> Stage:
    """A stage of tasks on a device; `parts`: in, compute and out; `operators`: more of `Stage`."""
    graph, units, latency = problem
    machine = latency.machine
    in_s, compute_s, out_s = parts
    return Stage(
        device=machine.names[device],
        device_class=machine.classes[device],
        nodes=_nodes(graph, units, mine),
        load_s=compute_s if operators else in_s + compute_s + out_s,
        in_s=in_s,
        compute_s=compute_s,
        overflow_s=0.0,
        out_s=out_s,
        memory_bytes=float(latency.tasks.memory[mine].sum()) + (peak or 0.0),
        peak_bytes=peak,
        begin_s=span[0],
        end_s=span[1],
        **operators,
    )


def _block_stages(
    graph: Graph, units: Clustering, latency: LatencyProblem, split: Invocations
) -> tuple[list[Stage], float]:
    """A stage for every invocation, in their order, and one for the CPU pool."""
    tasks, machine, problem = latency.tasks, latency.machine, (graph, units, latency)
    check_invocations(tasks, machine, split, latency.options.invocations)
    times = time_invocations(tasks, machine, split)
    rank = rank_of(tasks)
    peaks: list[float] | None = None if latency.live is None else latency.peaks(split).tolist()
    stages = []
    for b, device in enumerate(split.device.tolist()):
        mine = _by(rank, np.flatnonzero(split.block == b))
        parts = float(times.in_s[b]), float(times.compute_s[b]), float(times.out_s[b])
        span = float(times.start_s[b]), float(times.end_s[b])
        peak = None if peaks is None else peaks[b]
        stages.append(_stage(problem, device, mine, parts, span, peak))
    pool = np.flatnonzero(split.block == POOL)
    if len(pool):
        cpu = int(np.argmax(machine.is_cpu))
        length = tasks.time[cpu, pool]
        first = max(float((times.ready_s[pool] - length).min()), 0.0)
        span = first, float(times.ready_s[pool].max())
        parts = 0.0, float(length.sum()), 0.0
        stages.append(_stage(problem, cpu, _by(rank, pool), parts, span))
    return stages, times.value


def _operator_stages(
    graph: Graph, units: Clustering, latency: LatencyProblem, placement: Placement
) -> tuple[list[Stage], float]:
    """A stage for every device that has work, its units in the order of their starts."""
    tasks, machine = latency.tasks, latency.machine
    check_placement(tasks, machine, placement)
    times = simulate(tasks, machine, placement, latency.options.congestion)
    rank = np.empty(tasks.n, dtype=np.int64)
    is_task = placement.events[:, 0] == TASK
    rank[placement.events[is_task, 1]] = np.arange(tasks.n)
    ptr = tasks.carried_ptr
    peaks: list[float] | None = None if latency.live is None else latency.peaks(placement).tolist()
    stages = []
    for device in distinct(placement.device).tolist():
        mine = _by(rank, np.flatnonzero(placement.device == device))
        coming = np.flatnonzero(times.moves[:, 2] == device)
        going = np.flatnonzero(times.moves[:, 1] == device)
        coming = coming[np.argsort(times.move_start_s[coming], kind="stable")]
        length = times.move_end_s - times.move_start_s
        compute_s = float(tasks.time[device, mine].sum())
        first = min(times.start_s[mine].min(), times.move_start_s[coming].min(initial=np.inf))
        last = max(times.end_s[mine].max(), times.move_end_s[going].max(initial=0.0))
        moves = zip(coming.tolist(), times.moves[coming].tolist(), strict=True)
        received = tuple(
            Transfer(
                tuple(tasks.carried_id[ptr[f] : ptr[f + 1]].tolist()),
                machine.names[source],
                float(times.move_start_s[m]),
                float(times.move_end_s[m]),
            )
            for m, (f, source, _) in moves
        )
        stages.append(
            _stage(
                (graph, units, latency),
                device,
                mine,
                (float(length[coming].sum()), compute_s, float(length[going].sum())),
                (float(first), float(last)),
                None if peaks is None else peaks[device],
                starts_s=tuple(times.start_s[mine].tolist()),
                receives=received,
            )
        )
    return stages, times.value


def _by(rank: Ints, units: Ints) -> Ints:
    """Units, the least rank first."""
    return units[np.argsort(rank[units], kind="stable")]


def _nodes(graph: Graph, units: Clustering, chosen: Ints) -> tuple[int, ...]:
    """Ids of the nodes of units, unit after unit."""
    nodes = [graph.node_ids[units.members(u)] for u in chosen.tolist()]
    return tuple(np.concatenate(nodes).tolist()) if nodes else ()
