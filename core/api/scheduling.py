"""Find when every stage runs every micro-batch."""

from __future__ import annotations

from dnnp.callbacks import run_of, with_bar
from dnnp.core.model.errors import UsageError
from dnnp.core.model.schedule import Placement, Point, Schedule, check_placement
from dnnp.core.schedule.auto import solve, trade_off
from dnnp.core.schedule.problem import Wanted, peak_memory, problem_of, with_limit
from dnnp.core.schedule.transfers import global_order, split_backward, with_transfers
from dnnp.formats.schedule import schedule_line, schedule_records
from dnnp.formats.spread import NO_COSTS, has_costs, is_blind, unknown_words
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from dnnp.options.schedule import ScheduleOptions
from dnnp.options.table import changed, function

MOST_BLOCKS = 1_000_000
"""Blocks of a schedule."""


@function(ScheduleOptions)
def schedule(graph: Graph | None, options: ScheduleOptions) -> Graph:
    """Find when every stage of the plan runs every micro-batch.

    Instead of a plan it may be a shape, or a placement file: `graph` is None then.

    Raises
    ------
    UsageError
        There is no plan, or options do not fit it.
    FormatError
        The graph or the placement is malformed, or the plan contradicts itself.
    InfeasibleError
        No schedule keeps within the memory.
    """
    streams = [options.stream(), None if graph is None else graph.stream()]
    found = [stream for stream in streams if stream is not None]
    if len(found) != 1:
        raise UsageError("give one of these: a graph, --shape, --placement")
    return changed("dnnp-schedule", schedule_stream, found[0], options)


def schedule_stream(stream: Stream, options: ScheduleOptions) -> None:
    """Find the schedule of a stream; see `schedule`."""
    caller = options.caller
    with caller.interruptible():
        run = run_of(
            caller,
            effort=options.effort,
            seconds=options.time_limit,
            in_seconds=stream.in_seconds,
            max_gap=options.max_gap if options.method == "auto" else 0.0,
        )
        placement, digest = placement_of(stream, options)
        if options.given is None:
            _name_shape(placement, options)
        caller.elapsed("searching")
        wanted = Wanted(
            options.micro_batches,
            options.method,
            options.unroll,
            options.max_micro_batches,
            not options.eager,
        )
        with with_bar(caller, run) as shown:
            found = solve(placement, wanted, shown)
        caller.elapsed("found the schedule")
        points = None
        if options.pareto:
            with with_bar(caller, run, "trade-off") as shown:
                points = trade_off(placement, options.unroll, shown)
        _put(stream, found, points, digest, options)


def placement_of(stream: Stream, options: ScheduleOptions) -> tuple[Placement, str | None]:
    """Find what is scheduled, and the digest of its plan if it has one."""
    if options.given is not None:
        mode = "non-blocking" if options.transfers == "model" else options.transfers
        return limited_placement(options.given, options, mode), None
    from dnnp.core.schedule.from_plan import placement_of_plan
    from dnnp.formats.plan import plan_digest
    from dnnp.workload import Workload

    work = Workload(stream)
    plan = work.plan
    if plan is None:
        raise UsageError(
            f"{stream.name}: no plan to schedule; run dnnp-partition first, or give --shape or "
            "--placement"
        )
    explicit = options.transfers != "model"
    if plan.hybrid is None:
        placement = placement_of_plan(*work.priced_on(plan.devices), plan, explicit=explicit)
    else:
        from dnnp.core.parallel.problem import placement_of_hybrid

        placement = placement_of_hybrid(work.problem_of_plan(plan), plan, explicit=explicit)
    mode = options.transfers if explicit else "none"
    digest = plan_digest(stream.get("plan")[0], stream.get("stage"))
    return limited_placement(placement, options, mode), digest


def limited_placement(placement: Placement, options: ScheduleOptions, mode: str) -> Placement:
    """The placement with the limits and the transfers that are asked for."""
    if options.memory is not None:
        placement = with_limit(placement, float(options.memory))
        check_placement(placement)
    if options.split_backward is not None:
        placement = split_backward(placement, options.split_backward)
    placement = with_transfers(
        placement, mode, time_s=options.transfer_time, delay_s=options.latency
    )
    blocks = len(placement.blocks) * options.micro_batches
    if blocks > MOST_BLOCKS:
        raise UsageError(
            f"{options.micro_batches} micro-batches have {blocks} blocks; at most {MOST_BLOCKS} "
            "are scheduled"
        )
    return placement


def _name_shape(placement: Placement, options: ScheduleOptions) -> None:
    """Say which shape of the literature a plan with shared stages has, if it has one."""
    if not any(len(home) > 1 for block in placement.blocks for home in block.homes):
        return
    from dnnp.core.schedule.shapes import shape_of

    found = shape_of(placement)
    if found is not None:
        options.caller.note(f"its blocks are those of shape {found[0]} on {found[1]} devices")


def _put(
    stream: Stream,
    schedule: Schedule,
    points: list[Point] | None,
    digest: str | None,
    options: ScheduleOptions,
) -> None:
    """Put the schedule into the stream, and say what it is."""
    problem = problem_of(schedule.placement, options.micro_batches)
    start = schedule.start_s.ravel()
    peak, order = peak_memory(problem, start), global_order(problem, start)
    record, blocks = schedule_records(schedule, peak.tolist(), order.tolist(), points, digest)
    max_gap = options.max_gap
    if any(map(is_blind, stream.get("plan"))) or not problem.time.any():
        max_gap = 0.0
        for part in (record, record.get("repetend", record)):
            part["status"] = part["status"].replace("optimal", "feasible")
    dropped = stream.replace("schedule", [record])
    stream.records["block"] = blocks
    if dropped:
        options.caller.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
    rough = "".join(map(unknown_words, stream.get("plan")))
    line = schedule_line(record, options.method, stream.in_seconds, max_gap)
    options.caller.note(line + rough)
    if not (all(map(has_costs, stream.get("plan"))) and problem.time.any()):
        options.caller.warn(NO_COSTS)
