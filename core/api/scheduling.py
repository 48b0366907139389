"""Find when every stage runs every micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnp.core.model.errors import UsageError
from dnnp.core.model.run import Run
from dnnp.searching import searching
from dnnp.step import Options, option, step

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.core.model.placement import Placement
    from dnnp.core.model.schedule import Point, Schedule
    from dnnp.formats.stream import Record, Stream

MOST_BLOCKS = 1_000_000
"""Blocks of a schedule."""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Options):
    """What is scheduled, and how."""

    micro_batches: int = option(32, least=1)
    """Micro-batches, or samples, to schedule."""
    memory: float | None = option(above=0)
    """Most bytes that a device may hold; None: as the plan says."""
    transfers: str = option("model", choices=("model", "none", "blocking", "non-blocking"))
    """`model`: as the plan's cost model has them; `blocking`: both devices wait for a transfer;
    `non-blocking`: it takes a link only."""
    transfer_time: float | None = option(least=0)
    """Time of every transfer between two devices; None: what the plan says."""
    latency: float | None = option(least=0)
    """Time after which a transfer arrives, on top."""
    split_backward: float | None = option(least=0, most=1)
    """Split backward blocks; the part that only weights need takes this share of the time."""
    method: str = option("auto")
    """One of the methods of dnnp-schedule(1)."""
    unroll: int | None = option(least=1)
    """Micro-batches in a period; None: 1, up to 4 where that leaves a gap."""
    pareto: bool = option(False)
    """Also find the least period for every limit of memory that makes a difference."""
    max_micro_batches: int | None = option(least=1)
    """`tessel`: micro-batches that a repetend may hold blocks of; None: as memory allows."""
    eager: bool = option(False)
    """`tessel`: complete every better repetend, not only the best."""
    time_limit: float | None = option(least=0)
    """Seconds after which to stop searching; None: no limit."""
    effort: float = option(1.0, above=0)
    """Scales the work of searches that would not end."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        from dnnp.core.pipeline.recipes.classics import CLASSICS

        known = ("auto", "optimal", "tessel", *CLASSICS)
        if self.method not in known:
            raise UsageError(f"--method {self.method!r}: must be one of {', '.join(known)}")
        if self.transfers not in ("blocking", "non-blocking"):
            for flag, value in (
                ("--transfer-time", self.transfer_time),
                ("--latency", self.latency),
            ):
                if value is not None:
                    raise UsageError(f"{flag} is for --transfers blocking or non-blocking")
        if self.unroll is not None and self.method != "auto":
            raise UsageError("--unroll is for --method auto")
        if self.method != "tessel" and (self.max_micro_batches is not None or self.eager):
            flag = "eager" if self.eager else "max-micro-batches"
            raise UsageError(f"--{flag} is for --method tessel")


def schedule_stream(stream: Stream, options: ScheduleOptions) -> None:
    """Find when every stage of the plan runs every micro-batch.

    Raises
    ------
    UsageError
        There is no plan, or options do not fit it.
    FormatError
        The graph is malformed, or its plan contradicts itself.
    InfeasibleError
        No schedule keeps within the memory.
    """
    caller = options.caller
    with (
        caller.interruptible(),
        searching(caller, effort=options.effort, seconds=options.time_limit) as run,
    ):
        placement, digest = placement_of(stream, options)
        caller.elapsed("searching")
        schedule, points = _solved(placement, options, run)
        _put(stream, schedule, points, digest, options)


schedule = step("dnnp-schedule", ScheduleOptions)(schedule_stream)


def placement_of(stream: Stream, options: ScheduleOptions) -> tuple[Placement, str]:
    """What is scheduled of the plan in a stream, and the plan's digest."""
    from dnnp.core.pipeline.from_plan import placement_of_plan
    from dnnp.formats.graph import graph_of, plan_digest, units_of
    from dnnp.read_plan import read_plan

    graph = graph_of(stream)
    plan = read_plan(stream, graph)
    if plan is None:
        raise UsageError(
            f"{stream.name}: no plan to schedule; run dnnp-partition first, or give --shape or "
            "--placement"
        )
    explicit = options.transfers != "model"
    placement = placement_of_plan(graph, units_of(stream, graph), plan, explicit=explicit)
    mode = options.transfers if explicit else "none"
    digest = plan_digest(stream.get("plan")[0], stream.get("stage"))
    return limited_placement(placement, options, mode), digest


def limited_placement(placement: Placement, options: ScheduleOptions, mode: str) -> Placement:
    """The placement with the limits and the transfers that are asked for."""
    from dnnp.core.model.placement import check_placement
    from dnnp.core.pipeline.solve import with_limit
    from dnnp.core.pipeline.split_backward import split_backward
    from dnnp.core.pipeline.transfers import with_transfers

    if options.memory is not None:
        placement = with_limit(placement, options.memory)
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


def _solved(
    placement: Placement, options: ScheduleOptions, run: Run
) -> tuple[Schedule, list[Point] | None]:
    """The schedule, and the trade-off of period and memory if that is asked for."""
    from dnnp.core.pipeline.solve import Request, solve, trade_off

    request = Request(
        options.micro_batches,
        options.method,
        options.unroll,
        options.max_micro_batches,
        not options.eager,
        effort=run.effort,
        tell=run.tell,
        warn=run.warn,
        stop=run.stop,
    )
    found = solve(placement, request)
    options.caller.elapsed("found the schedule")
    return found, trade_off(placement, request) if options.pareto else None


def _put(
    stream: Stream,
    schedule: Schedule,
    points: list[Point] | None,
    digest: str,
    options: ScheduleOptions,
) -> None:
    """Put the schedule into the stream, and say what it is."""
    from dnnp.core.pipeline.problem import peak_memory, problem_of
    from dnnp.core.pipeline.transfers import global_order
    from dnnp.formats.schedule import schedule_records

    problem = problem_of(schedule.placement, options.micro_batches)
    start = schedule.start_s.ravel()
    peak, order = peak_memory(problem, start), global_order(problem, start)
    record, blocks = schedule_records(schedule, peak.tolist(), order.tolist(), points, digest)
    dropped = stream.replace("schedule", [record])
    stream.records["block"] = blocks
    if dropped:
        options.caller.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
    _say(options.caller, record, options.method)


def _say(caller: Caller, record: Record, asked: str) -> None:
    """One line about the schedule, and the trade-off as a table; `asked` is the method."""
    makespan, bound = record["makespan_s"], record["bound_s"]
    number = record["micro_batches"]
    proven = "optimal" if record["status"] == "optimal" else f"bound {bound:.6g}"
    by = "" if record["method"] == asked else f" by {record['method']}"
    parts = [
        f"makespan {makespan:.6g} of {number} micro-batch{'es' * (number != 1)}{by}, {proven}, "
        f"bubble {100 * record['bubble']:.3g} %"
    ]
    repetend = record.get("repetend")
    if repetend is not None:
        unroll = repetend["unroll"]
        each = f" for {unroll} micro-batches" if unroll > 1 else ""
        parts.append(
            f"period {repetend['period_s']:.6g}{each}, memory {repetend['memory_bytes']:.6g}, "
            f"span {repetend['span_s']:.6g} ({_proof(repetend)})"
        )
    elif "rate_s" in record:
        parts.append(f"{record['rate_s']:.6g} for each of many")
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    caller.note("; ".join(parts) + interrupted)


def _proof(repetend: Record) -> str:
    """What is proven about a repetend, in words."""
    if repetend["status"] == "optimal":
        return "all proven"
    pairs = (
        ("period", "period_s", "period_bound_s"),
        ("memory", "memory_bytes", "memory_bound_bytes"),
        ("span", "span_s", "span_bound_s"),
    )
    open_ = [
        f"{name} at least {repetend[bound]:.6g}"
        for name, value, bound in pairs
        if repetend[value] > repetend[bound] * (1 + 1e-9)
    ]
    return ", ".join(open_) or "not proven"
