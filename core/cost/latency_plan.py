"""Turn splits into plans of the objective latency: every number comes from the cost model."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import (
    POOL,
    TASK,
    Invocations,
    LatencyProblem,
    Placement,
    check_invocations,
    check_placement,
    simulate,
    time_invocations,
)
from dnnp.core.cost.problem import SplitProblem, excess_of
from dnnp.core.cost.validity import validity_of
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import Graph, Ints, distinct
from dnnp.core.model.plan import CLOSED, Plan, Stage, Transfer
from dnnp.core.model.request import Learned


def make_latency_plan(
    problem: SplitProblem,
    latency: LatencyProblem,
    split: Invocations | Placement,
    *,
    method: str,
    bound: float,
    bound_method: str,
    digest: str,
    interrupted: bool = False,
    learned: Learned | None = None,
) -> Plan:
    """Price a split by the latency of one sample.

    Parameters
    ----------
    latency
        The problem as the solvers see it.
    split
        Blocks, or a placement, as `options.execution` says.
    bound, bound_method
        A proven lower bound, and the argument for it.
    learned
        The policy that made the split, if one did.

    Raises
    ------
    FormatError
        Blocks wait for each other, a colour is on two devices.
    InfeasibleError
        A device is invoked too often, has too little memory or does not support a task.
    """
    graph, units = problem.graph, problem.units
    if isinstance(split, Invocations):
        stages, value = _block_stages(graph, units, latency, split)
    else:
        stages, value = _operator_stages(graph, units, latency, split)
    stage_of = np.empty(graph.n, dtype=np.int64)
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    for number, stage in enumerate(stages):
        stage_of[[position[node] for node in stage.nodes]] = number
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
        bound_method=bound_method,
        learned=None if learned is None else learned.told(),
        excess_bytes=excess,
    )


def _block_stages(
    graph: Graph, units: Clustering, latency: LatencyProblem, split: Invocations
) -> tuple[list[Stage], float]:
    """A stage for every invocation, in their order, and one for the CPU pool."""
    tasks, machine = latency.tasks, latency.machine
    check_invocations(tasks, machine, split, latency.options.invocations)
    times = time_invocations(tasks, machine, split)
    rank = np.empty(tasks.n, dtype=np.int64)
    rank[tasks.order] = np.arange(tasks.n)
    stages = []
    for b, device in enumerate(split.device.tolist()):
        mine = _by(rank, np.flatnonzero(split.block == b))
        parts = (float(x[b]) for x in (times.in_s, times.compute_s, times.out_s))
        in_s, compute_s, out_s = parts
        stages.append(
            Stage(
                device=machine.names[device],
                device_class=machine.classes[device],
                nodes=_nodes(graph, units, mine),
                load_s=in_s + compute_s + out_s,
                in_s=in_s,
                compute_s=compute_s,
                overflow_s=0.0,
                out_s=out_s,
                memory_bytes=float(tasks.memory[mine].sum()),
                begin_s=float(times.start_s[b]),
                end_s=float(times.end_s[b]),
            )
        )
    pool = np.flatnonzero(split.block == POOL)
    if len(pool):
        cpu = int(np.argmax(machine.is_cpu))
        length = tasks.time[cpu, pool]
        start = times.ready_s[pool] - length
        pool = _by(rank, pool)
        stages.append(
            Stage(
                device=machine.names[cpu],
                device_class=machine.classes[cpu],
                nodes=_nodes(graph, units, pool),
                load_s=float(length.sum()),
                in_s=0.0,
                compute_s=float(length.sum()),
                overflow_s=0.0,
                out_s=0.0,
                memory_bytes=float(tasks.memory[pool].sum()),
                begin_s=max(float(start.min()), 0.0),
                end_s=float(times.ready_s[pool].max()),
            )
        )
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
        stages.append(
            Stage(
                device=machine.names[device],
                device_class=machine.classes[device],
                nodes=_nodes(graph, units, mine),
                load_s=compute_s,
                in_s=float(length[coming].sum()),
                compute_s=compute_s,
                overflow_s=0.0,
                out_s=float(length[going].sum()),
                memory_bytes=float(tasks.memory[mine].sum()),
                begin_s=float(first),
                end_s=float(last),
                starts_s=tuple(times.start_s[mine].tolist()),
                receives=tuple(
                    Transfer(
                        tuple(tasks.carried_id[ptr[f] : ptr[f + 1]].tolist()),
                        machine.names[source],
                        float(times.move_start_s[m]),
                        float(times.move_end_s[m]),
                    )
                    for m, (f, source, _) in zip(
                        coming.tolist(), times.moves[coming].tolist(), strict=True
                    )
                ),
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
