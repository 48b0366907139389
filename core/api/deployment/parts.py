"""Parts of a plan that devices run as ONNX models: its stages, parts of them, or a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dnnp.callbacks import Callbacks
from dnnp.core.model.device import own_times
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Graph as NodeGraph
from dnnp.core.model.graph import with_own_times
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.text import counted
from dnnp.formats.graph import units_of
from dnnp.formats.plan import plan_digest
from dnnp.formats.stream import Stream

if TYPE_CHECKING:
    from dnnp.core.runtime.pipeline.schedule_orders import Program
    from dnnp.formats.onnx.shards import ShardedModel

MATTERS = ("block", "overlap", "wait", "stages", "node", "device")
"""Kinds of violation with which a schedule cannot be followed."""


@dataclass(frozen=True, eq=False)
class Runnable:
    """A plan as ONNX models: parts that each run as one inference."""

    plan: Plan
    parts: Sequence[Stage]
    """Stages of the plan or parts of them, in topological order."""
    owners: Sequence[int] = ()
    """Stage of the plan that each part belongs to; empty: the parts are the stages."""
    program: Program | None = None
    """The schedule that is followed; its steps are the parts."""
    shards: Sequence[int] = ()
    """Shard of its stage that each part belongs to; empty: there are none."""
    made: ShardedModel | None = None
    """The model that was made of the plan's, and whose nodes the parts hold."""


def runnable_of(
    caller: Callbacks,
    stream: Stream,
    graph: NodeGraph,
    plan: Plan,
    samples: int | None = None,
    *,
    split: bool = False,
) -> Runnable:
    """The parts of a plan whose stages have a device each; those of its schedule, if it has one.

    A stage of a plan for latency, or with `split` of any plan, is split into parts that do not wait
    for their own results.

    Raises
    ------
    FormatError
        The schedule is not for this plan, or does not hold.
    UsageError
        It is for another number of samples, or holds passes that cannot run.
    """
    found = schedule_of_stream(stream, samples)
    if found is not None:
        from dnnp.core.runtime.pipeline.schedule_orders import program_of

        program = program_of(*found, plan)
        return Runnable(replace(plan, validity="ordered"), program.stages, program.owners, program)
    if plan.objective != "latency" and not split:
        return Runnable(plan, plan.stages)
    from dnnp.core.cost.runnable import runnable_parts

    priced = with_own_times(graph, units_of(stream, graph), own_times(plan.devices))
    parts, owners = runnable_parts(*priced, plan)
    if len(parts) > len(plan.stages):
        caller.note(
            f"{counted(len(plan.stages), 'stage')} of a {plan.validity} plan run as "
            f"{len(parts)} parts, each in one go"
        )
    return Runnable(replace(plan, validity="ordered"), parts, owners)


def schedule_of_stream(
    stream: Stream, samples: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The schedule of a stream and its blocks, if any; see `runnable_of` for errors."""
    if not stream.get("schedule"):
        return None
    (schedule, *others), blocks = stream.get("schedule"), stream.get("block")
    if others:
        raise stream.fault_at("schedule", 1, None, "a second schedule; a stream holds one")
    if schedule.get("digest") != plan_digest(stream.get("plan")[0], stream.get("stage")):
        raise stream.fault_at("schedule", 0, "digest", "the schedule was made for another plan")
    from dnnp.core.check.passes import check_passes
    from dnnp.core.check.schedule import check_schedule

    found = [*check_schedule(schedule, blocks).violations, *check_passes(schedule, stream.records)]
    for violation in found:
        if violation.kind in MATTERS:
            reason = f"the schedule does not hold: {violation}; dnnp-check says more"
            raise stream.fault_at("schedule", 0, None, reason)
    count = schedule["micro_batches"]
    if samples is not None and samples != count:
        raise UsageError(
            f"-n {samples}, but the schedule is for {count}: run dnnp-schedule -n {samples} first, "
            "or leave -n out"
        )
    return schedule, blocks


def export_order(graph: NodeGraph, found: Runnable) -> list[int]:
    """Positions of the parts with nodes, each after those that it waits for."""
    before = waits_of(graph, found.parts)
    if found.program is None:
        # The parts of a device run in the order in which they are listed.
        for i, owner in enumerate(found.owners):
            before[i] |= {j for j in range(i) if found.owners[j] == owner}
    else:
        for first, then in found.program.unit_orders.of_nodes()[1]:
            before[then].add(first)
    return [i for i in topological_order(before) if found.parts[i].nodes]


def exported_order(program: Program, order: Sequence[int] | None = None) -> dict[str, Any]:
    """A program for a manifest; `order` is that of exported steps; None: their own."""
    place = {step: position for position, step in enumerate(order or range(len(program.stages)))}
    rows = []
    for row in program.unit_orders.of_nodes()[0]:
        device = program.stages[row[0].step].homes[row[0].replica]
        jobs = [[place[job.step], job.replica, job.sample] for job in row]
        rows.append({"device": device, "jobs": jobs})
    return {
        "micro_batches": program.count,
        "makespan_s": program.makespan_s,
        "bubble": program.bubble,
        "devices": rows,
    }


def waits_of(graph: NodeGraph, stages: Sequence[Stage]) -> list[set[int]]:
    """Stages whose tensors each stage reads. The stages of a plan for latency stand by device."""
    stage_of = {node: i for i, stage in enumerate(stages) for node in stage.nodes}
    before: list[set[int]] = [set() for _ in stages]
    ids, (tail, head) = graph.node_ids.tolist(), graph.edges
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        first, then = stage_of.get(ids[u]), stage_of.get(ids[v])
        if first is not None and then is not None and first != then:
            before[then].add(first)
    return before


def topological_order(before: Sequence[set[int]]) -> list[int]:
    """Topological order of stages; those on a cycle as numbered."""
    order: list[int] = []
    while len(order) < len(before):
        done = {*order}
        left = [i for i in range(len(before)) if i not in done]
        order.append(next((i for i in left if before[i] <= done), left[0]))
    return order
