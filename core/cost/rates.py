"""Rates of a plan of a model that generates: tokens per second, TTFT, TPOT.

With loads L_s of the stages for a sequence, N sequences under way and passes over tokens of B rows,

    seconds a sequence = max(max L_s, sum L_s * B / N)

since N / B passes keep that many stages busy at most. TTFT is the sum over stages of all passes
over the prompt of a sequence that is alone, TPOT that of a mean pass over a token. What a pass
takes in a stage besides its nodes counts in all three, and not in L_s: it is equal in all stages,
so that of splits into as many no other one is better for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.cost.layouts import laid_out
from dnnp.core.cost.problem import SplitProblem, make_plan, planned_blocks
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.phases import PROMPT, TOKEN, passes_of
from dnnp.core.model.plan import CostOptions, Plan


def planned(graph: Graph, units: Clustering, options: CostOptions) -> tuple[Graph, Clustering]:
    """Graph and units as options count them: a sequence's share of passes, states of all."""
    if options.workload is not None and graph.phases is not None:
        passes = list(passes_of(graph.phases.points, options.workload))
        if options.objective != "sequence":
            passes = [n / p.rows for n, p in zip(passes, graph.phases.points, strict=True)]
        graph, units = graph.of_passes(passes), units.of_passes(passes)
    rows = 1 if options.workload is None else options.workload.rows
    return laid_out(graph.with_sequences(options.in_flight, options.max_length, rows)), units


def least_alone(
    graph: Graph, units: Clustering, plan: Plan, name: str, ends: Sequence[float]
) -> float:
    """Compute of the passes of a phase over a sequence that is alone, on the fastest device each.

    `ends`: passes of each point that it takes. With what they take besides in one stage; no plan
    over these devices takes less time.
    """
    phases = graph.phases
    if phases is None:
        return 0.0
    own = [n * (p.name == name) for n, p in zip(ends, phases.points, strict=True)]
    times = units.of_passes(own).times_on(*(device.name for device in plan.devices))
    return float(times.min(axis=0).sum() + np.dot(own, phases.pass_s))


Loads = Callable[[SplitProblem, Plan], Sequence[float]]


def with_rates(plan: Plan, graph: Graph, units: Clustering, loads: Loads | None = None) -> Plan:
    """State tokens per second, TTFT and TPOT of a plan.

    `graph`, `units`: those whose times are of the first phase; `loads`: gives those of the stages
    of a plan, where they hold more than one device.
    """
    phases, workload = graph.phases, plan.options.workload
    if phases is None or workload is None or not plan.stages:
        return plan
    passes = passes_of(phases.points, workload)

    def alone(name: str) -> float:
        """Time of the passes of one phase over a sequence that has each of them to itself."""
        own = [n * (p.name == name) for n, p in zip(passes, phases.points, strict=True)]
        options = replace(plan.options, memory_mode="ignore", workload=None)
        besides = len(plan.stages) * float(np.dot(own, phases.pass_s))
        spent = laid_out(graph.of_passes(own)), units.of_passes(own)
        one = SplitProblem(*spent, plan.devices, options, plan.links)
        if loads is not None:
            return besides + sum(loads(one, plan))
        stages = make_plan(one, planned_blocks(plan, graph)).stages
        return besides + sum(stage.load_s for stage in stages)

    later, one = workload.tokens - 1, plan.objective == "sequence"
    shares = [n / (1 if one else p.rows) for n, p in zip(passes, phases.points, strict=True)]
    besides = float(np.dot(shares, phases.pass_s))
    busy = sum(stage.load_s + besides for stage in plan.stages)
    pipelined = max(plan.value + besides, busy * workload.rows / (plan.options.in_flight or 1))
    whole = busy if one else pipelined
    return replace(
        plan,
        tokens_per_s=workload.tokens / whole if whole > 0 else None,
        ttft_s=alone(PROMPT),
        tpot_s=alone(TOKEN) / later if later > 0 else 0.0,
    )


def most_in_flight(plan: Plan, problem: SplitProblem) -> int:
    """Sequences that fit beside the stages of a plan, at least those that it is for."""
    states, now = problem.graph.states, plan.options.in_flight
    if states is None or now is None or plan.objective == "sequence":
        return now or 1
    each = states.sequence_bytes + states.token_bytes * float(plan.options.max_length or 0)
    stage = {number: s for s, row in enumerate(plan.stages) for number in row.nodes}
    held = np.zeros(len(plan.stages))
    for t, size in zip(states.output.tolist(), each.tolist(), strict=True):
        held[stage[int(problem.graph.node_ids[problem.graph.producer[t]])]] += size
    room = {device.name: device.memory_bytes for device in plan.devices}
    more = [
        (room[s.device_class] - s.memory_bytes) / size
        for s, size in zip(plan.stages, held.tolist(), strict=True)
        if size > 0 and np.isfinite(room[s.device_class])
    ]
    return now + max(0, int(min(more))) if more else now
