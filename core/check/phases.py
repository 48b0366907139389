"""Plans for sequences of prompts and tokens: passes, rates and limits, recomputed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dnnp.core.check.violation import Violation, same
from dnnp.core.model.graph import Clustering, Graph
from dnnp.core.model.phases import Point, Sequences
from dnnp.core.model.plan import CostOptions, Plan

Loads = Callable[[Graph, Clustering | None, CostOptions], Sequence[float]]
"""Loads of the stages of a plan over a graph."""


def passes(points: Sequence[Point], workload: Sequences) -> list[float]:
    """Passes of each point for a sequence: a mean length lies between the two ends of a phase."""
    found = [0.0] * len(points)
    for name in dict.fromkeys(point.name for point in points):
        ends = [
            i
            for i, point in enumerate(points)
            if point.name == name and (name == "prompt" or point.rows == workload.rows)
        ]
        if not ends:
            continue
        first, last = points[ends[0]], points[ends[-1]]
        whole, low, high, at = 1.0, first.seq, last.seq, workload.prompt
        if name == "token":
            whole, low, high, at = workload.tokens - 1, first.past, last.past, workload.token_past
        elif first.past < last.past:
            whole, low, high = workload.prompt / first.seq, first.past, last.past
            at = workload.prompt_past
        upper = (at - low) / (high - low) if low < high else 0.0
        found[ends[-1]] = whole * upper
        found[ends[0]] = whole * (1 - upper)
    return found


def as_planned(
    graph: Graph, clustering: Clustering | None, options: CostOptions
) -> tuple[Graph, Clustering | None]:
    """Graph and groups with the times and sizes of the passes of a sequence."""
    if graph.phases is None or options.workload is None:
        return graph, clustering
    count = passes(graph.phases.points, options.workload)
    if options.objective != "sequence":  # others are in the rows of each pass
        count = [n / p.rows for n, p in zip(count, graph.phases.points, strict=True)]
    return graph.of_passes(count), None if clustering is None else clustering.of_passes(count)


def check_workload(graph: Graph, plan: Plan) -> Iterator[Violation]:
    """Check that phases and workload go together, and that lengths lie within the phases."""
    workload = plan.options.workload
    needed = graph.phases is not None or (plan.objective == "sequence" and workload is None)
    if needed != (workload is not None):
        message = "has a workload without phases" if workload else "has no workload"
        yield Violation("records", "plan", f"the plan {message}")
    if graph.phases is None or workload is None:
        return
    counts = passes(graph.phases.points, workload)
    if not all(0 <= count < math.inf for count in counts):
        yield Violation("load", "plan", f"its lengths are beyond the phases: passes are {counts}")
    for name, at, field in (
        ("prompt", workload.prompt, "seq"),
        ("token", workload.token_past, "past"),
    ):
        ends = [getattr(p, field) for p in graph.phases.points if p.name == name]
        chunked = len({p.past for p in graph.phases.points if p.name == "prompt"}) > 1
        if (name == "token" and workload.tokens <= 1) or (name == "prompt" and chunked):
            continue
        if ends and not min(ends) * (1 - 1e-9) <= at <= max(ends) * (1 + 1e-9):
            message = f"phase '{name}' is for {min(ends)}..{max(ends)}, the workload has {at!r}"
            yield Violation("load", "plan", message)
    least = max(workload.prompt, workload.tokens)
    if not workload.prompt + workload.tokens <= workload.longest * (1 + 1e-9) or least < 1:
        message = f"its longest sequence has {workload.longest} tokens, less than the mean"
        yield Violation("load", "plan", message)
    known = [p.rows for p in graph.phases.points if p.name == "token"]
    if workload.tokens > 1 and workload.rows not in known:
        message = f"no phase has passes over tokens of {workload.rows} sequences"
        yield Violation("load", "plan", message)
    held = plan.options.max_length
    if held is not None and held < workload.longest:
        message = f"states have room for {held} tokens, its longest sequence has {workload.longest}"
        yield Violation("capacity", "plan", message, workload.longest, held)


def check_rates(
    graph: Graph, clustering: Clustering | None, plan: Plan, loads: Loads
) -> Iterator[Violation]:
    """Check tokens per second, TTFT and TPOT.

    `graph`, `clustering`: those whose times are of the first phase.
    """
    phases, workload = graph.phases, plan.options.workload
    stated = (plan.tokens_per_s, plan.ttft_s, plan.tpot_s)
    if phases is None or workload is None:
        if any(value is not None for value in stated):
            yield Violation("records", "plan", "the plan has rates of tokens and no workload")
        return
    count = passes(phases.points, workload)
    options = replace(plan.options, memory_mode="ignore", workload=None)
    alone = []
    for name in ("prompt", "token"):
        own = [n * (p.name == name) for n, p in zip(count, phases.points, strict=True)]
        units = None if clustering is None else clustering.of_passes(own)
        besides = math.fsum(n * s for n, s in zip(own, phases.pass_s, strict=True))
        each = [load + besides for load in loads(graph.of_passes(own), units, options)]
        alone.append(math.fsum(each))
    one = plan.objective == "sequence"
    share = [s / (1 if one else p.rows) for s, p in zip(phases.pass_s, phases.points, strict=True)]
    besides = math.fsum(n * s for n, s in zip(count, share, strict=True))
    busy = math.fsum(stage.load_s + besides for stage in plan.stages)
    time = max(plan.value + besides, busy * workload.rows / (plan.options.in_flight or 1))
    time = plan.value + len(plan.stages) * besides if one else time
    expected = (
        workload.tokens / time if time > 0 else None,
        alone[0],
        alone[1] / (workload.tokens - 1) if workload.tokens > 1 else 0.0,
    )
    names = ("tokens_per_s", "ttft_s", "tpot_s")
    for name, got, right in zip(names, stated, expected, strict=True):
        if (got is None) != (right is None) or (
            got is not None and right is not None and not same(got, right)
        ):
            message = f"{name} is {got}, recomputed {right}"
            yield Violation("value", "plan", message, right, got)
