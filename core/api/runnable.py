"""What the devices of a plan run, as ONNX models: its stages, parts of them, or a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.core.model.graph import Graph as NodeGraph
    from dnnp.core.model.plan import Plan, Stage
    from dnnp.core.runtime.scheduled import Program
    from dnnp.formats.stream import Stream

MATTERS = ("block", "overlap", "wait", "stages", "node", "device")
"""Kinds of violation with which a schedule cannot be followed."""


def program_of_stream(stream: Stream, plan: Plan, samples: int | None) -> Program | None:
    """What each device runs by the schedule of the stream, if there is one.

    Raises
    ------
    FormatError
        The schedule is not for this plan, or does not hold.
    UsageError
        It is for another number of samples, or holds what cannot run.
    """
    from dnnp.core.check.passes import check_passes
    from dnnp.core.check.schedule import check_schedule
    from dnnp.core.runtime.scheduled import program_of
    from dnnp.formats.plan import plan_digest

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
    return program_of(schedule, blocks, plan)


def one_by_one(
    caller: Caller, stream: Stream, graph: NodeGraph, plan: Plan
) -> tuple[Plan, Sequence[Stage], Sequence[int], int]:
    """Parts of a plan of the objective latency in a pipeline order, for a sample at a time."""
    from dataclasses import replace

    from dnnp.core.cost.runnable import runnable_parts
    from dnnp.formats.graph import units_of

    parts, owners = runnable_parts(graph, units_of(stream, graph), plan)
    if len(parts) > len(plan.stages):
        caller.note(
            f"{counted(len(plan.stages), 'stage')} of a {plan.validity} plan run as "
            f"{len(parts)} parts, each in one go"
        )
    return replace(plan, validity="ordered"), parts, owners, 1
