"""Parts of a plan that devices run as ONNX models: its stages, parts of them, or a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dnnp.callbacks import Callbacks
from dnnp.core.check.passes import check_passes
from dnnp.core.check.schedule import check_schedule
from dnnp.core.cost.runnable import runnable_parts
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Graph as NodeGraph
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.text import counted
from dnnp.core.runtime.pipeline.schedule_orders import Program, program_of
from dnnp.formats.export.manifest import Role
from dnnp.formats.graph import units_of
from dnnp.formats.plan import plan_digest
from dnnp.formats.stream import Stream

MATTERS = ("block", "overlap", "wait", "stages", "node", "device")
"""Kinds of violation with which a schedule cannot be followed."""


def program_of_stream(stream: Stream, plan: Plan, samples: int | None) -> Program | None:
    """Make the program of each device by the schedule of the stream, if there is one.

    Raises
    ------
    FormatError
        The schedule is not for this plan, or does not hold.
    UsageError
        It is for another number of samples, or holds what cannot run.
    """
    found = schedule_of_stream(stream, samples)
    return None if found is None else program_of(*found, plan)


def schedule_of_stream(
    stream: Stream, samples: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The schedule of a stream and its blocks, if there is one that can be followed.

    Raises
    ------
    FormatError, UsageError
        See `program_of_stream`.
    """
    if not stream.get("schedule"):
        return None
    (schedule, *others), blocks = stream.get("schedule"), stream.get("block")
    if others:
        raise stream.fault_at("schedule", 1, None, "a second schedule; a stream holds one")
    if schedule.get("digest") != plan_digest(stream.get("plan")[0], stream.get("stage")):
        raise stream.fault_at("schedule", 0, "digest", "the schedule was made for another plan")
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


def one_by_one(
    caller: Callbacks, stream: Stream, graph: NodeGraph, plan: Plan
) -> tuple[Plan, Sequence[Stage], Sequence[int], int]:
    """Parts of a plan of the objective latency in a pipeline order, for a sample at a time."""
    parts, owners = runnable_parts(graph, units_of(stream, graph), plan)
    if len(parts) > len(plan.stages):
        caller.note(
            f"{counted(len(plan.stages), 'stage')} of a {plan.validity} plan run as "
            f"{len(parts)} parts, each in one go"
        )
    return replace(plan, validity="ordered"), parts, owners, 1


@dataclass(frozen=True)
class Parts:
    """Parts of a plan that are exported."""

    roles: tuple[Role, ...]
    """Parts that run in one go, in an order in which they can run."""
    schedule: dict[str, Any] | None = None
    """Program of each device by a schedule, as a manifest has it; None: there is none."""


def parts_of(caller: Callbacks, stream: Stream, graph: NodeGraph, plan: Plan) -> Parts:
    """The parts of a plan that run in one go: those of its schedule, if the stream has one.

    Raises
    ------
    FormatError, UsageError
        See `program_of_stream`.
    """
    stages: Sequence[Stage]
    owners: Sequence[int]
    program = program_of_stream(stream, plan, None)
    if program is not None:
        stages, owners = program.stages, program.owners
    else:
        _, stages, owners, _ = one_by_one(caller, stream, graph, plan)
    before = waits_of(graph, stages)
    if program is None:
        # The parts of a device run in the order in which they stand.
        for i, owner in enumerate(owners):
            before[i] |= {j for j in range(i) if owners[j] == owner}
    else:
        for first, then in program.unit_orders.of_nodes()[1]:
            before[then].add(first)
    order = [i for i in in_turn(before) if stages[i].nodes]
    roles = tuple(
        Role(stages[i], owners[i], len(stages[i].nodes) == len(plan.stages[owners[i]].nodes))
        for i in order
    )
    if program is None:
        return Parts(roles)
    return Parts(roles, exported_order(program, order))


def exported_order(program: Program, order: Sequence[int] | None = None) -> dict[str, Any]:
    """A program as a manifest has it; `order` is that of exported steps, None: as they stand."""
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


def in_turn(before: Sequence[set[int]]) -> list[int]:
    """Stages such that each comes after those before it; what is in a circle, as numbered."""
    order: list[int] = []
    while len(order) < len(before):
        done = {*order}
        left = [i for i in range(len(before)) if i not in done]
        order.append(next((i for i in left if before[i] <= done), left[0]))
    return order
