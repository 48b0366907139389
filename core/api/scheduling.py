"""Find when every stage runs every micro-batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from dnnp.core.methods import SCHEDULES
from dnnp.core.model.errors import UsageError
from dnnp.core.pipeline.shapes import ALL
from dnnp.formats.placement import MOST_DEVICES
from dnnp.graph import Graph
from dnnp.searching import run_of, with_bar
from dnnp.step import Options, changed, option, shown_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from dnnp.core.model.placement import Placement
    from dnnp.core.model.schedule import Point, Schedule
    from dnnp.formats.stream import Stream

P = ParamSpec("P")

SHAPE_OPTIONS = ("devices", "inference", "forward_time", "backward_time", "shared_time")
MOST_BLOCKS = 1_000_000
"""Blocks of a schedule."""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Options):
    """What is scheduled, and how."""

    micro_batches: int = option(32, least=1)
    """Micro-batches, or samples, to schedule."""
    shape: str | None = option(choices=ALL)
    """Instead of the plan of a graph: a placement from the literature; see dnnp-schedule(1)."""
    devices: int | None = option(least=0)
    """Devices of the shape; None: 4."""
    inference: bool = option(False)
    """A shape without backward passes and memory."""
    forward_time: float | None = option(least=0)
    """Forward block of a shape; None: 1."""
    backward_time: float | None = option(least=0)
    """Backward block of a shape; None: 3, of fine-tuning 2, of AlphaFold 1."""
    shared_time: float | None = option(least=0)
    """Block of a shape that all devices share; None: 1."""
    placement: str | os.PathLike[str] | None = option()
    """Instead of the plan of a graph: a placement file, see dnnp-graph(5)."""
    memory: float | None = option(above=0)
    """Most bytes that a device may hold; None: as the plan or the placement says."""
    transfers: str = option("model", choices=("model", "none", "blocking", "non-blocking"))
    """`model`: as the plan's cost model has them, non-blocking where a placement states them;
    `blocking`: both devices wait for a transfer; `non-blocking`: it takes a link only."""
    transfer_time: float | None = option(least=0)
    """Time of every transfer between two devices; None: what plan or placement say."""
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
        if self.method not in SCHEDULES:
            raise UsageError(f"--method {self.method!r}: must be one of {', '.join(SCHEDULES)}")
        if self.shape is not None and self.placement is not None:
            raise UsageError("give --shape or --placement, not both")
        if self.shape is None:
            for name in SHAPE_OPTIONS:
                if getattr(self, name) not in (None, False):
                    raise UsageError(f"--{name.replace('_', '-')} is for --shape")
        if self.devices is not None and self.devices > MOST_DEVICES:
            raise UsageError(f"--devices {self.devices} is above {MOST_DEVICES}")
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

    @cached_property
    def given(self) -> Placement | None:
        """The shape, or what the placement file holds; None: the plan of a graph is scheduled."""
        if self.shape is not None:
            from dnnp.core.pipeline.shapes import shape

            return shape(
                self.shape,
                4 if self.devices is None else self.devices,
                inference=self.inference,
                forward_s=1.0 if self.forward_time is None else self.forward_time,
                backward_s=self.backward_time,
                shared_s=1.0 if self.shared_time is None else self.shared_time,
            )
        if self.placement is None:
            return None
        from dnnp.formats.placement import read_placement

        path = os.fspath(self.placement)
        data = self.caller.read_input(path)
        return read_placement(data, "<stdin>" if path == "-" else path)

    def stream(self) -> Stream | None:
        """The stream to which the schedule of a shape or of a placement file is added."""
        if self.given is None:
            return None
        from dnnp.formats.schedule import placement_stream

        return placement_stream(self.given.name)


def schedule_stream(stream: Stream, options: ScheduleOptions) -> None:
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
    from dnnp.core.pipeline.auto import trade_off
    from dnnp.core.pipeline.problem import Wanted
    from dnnp.core.pipeline.solve import solve

    caller = options.caller
    with caller.interruptible():
        run = run_of(
            caller,
            effort=options.effort,
            seconds=options.time_limit,
            in_seconds=stream.in_seconds,
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


def _step(
    options: Callable[P, ScheduleOptions],
) -> Callable[Concatenate[Graph | None, P], Graph]:
    def call(graph: Graph | None, *args: P.args, **kwargs: P.kwargs) -> Graph:
        asked = options(*args, **kwargs)
        asked.check()
        streams = [asked.stream(), None if graph is None else graph.stream()]
        found = [stream for stream in streams if stream is not None]
        if len(found) != 1:
            raise UsageError("give one of these: a graph, --shape, --placement")
        return changed("dnnp-schedule", schedule_stream, found[0], asked)

    return shown_as(call, schedule_stream, options, Graph)


schedule = _step(ScheduleOptions)


def placement_of(stream: Stream, options: ScheduleOptions) -> tuple[Placement, str | None]:
    """What is scheduled, and the digest of its plan if it has one."""
    if options.given is not None:
        mode = "non-blocking" if options.transfers == "model" else options.transfers
        return limited_placement(options.given, options, mode), None
    from dnnp.core.pipeline.from_plan import placement_of_plan
    from dnnp.formats.graph import graph_of, units_of
    from dnnp.formats.plan import plan_digest
    from dnnp.read_plan import read_plan

    graph = graph_of(stream)
    plan = read_plan(stream, graph)
    if plan is None:
        raise UsageError(
            f"{stream.name}: no plan to schedule; run dnnp-partition first, or give --shape or "
            "--placement"
        )
    explicit = options.transfers != "model"
    units = units_of(stream, graph)
    if plan.hybrid is None:
        placement = placement_of_plan(graph, units, plan, explicit=explicit)
    else:
        if explicit:
            raise UsageError("parallel plans have transfers within blocks: no --transfers")
        from dnnp.core.cost.machine import Given
        from dnnp.core.hybrid.placement import placement_of_hybrid

        placement = placement_of_hybrid(Given(graph, units, plan.devices, plan.options), plan)
    mode = options.transfers if explicit else "none"
    digest = plan_digest(stream.get("plan")[0], stream.get("stage"))
    return limited_placement(placement, options, mode), digest


def limited_placement(placement: Placement, options: ScheduleOptions, mode: str) -> Placement:
    """The placement with the limits and the transfers that are asked for."""
    from dnnp.core.model.placement import check_placement
    from dnnp.core.pipeline.problem import with_limit
    from dnnp.core.pipeline.transfers import split_backward, with_transfers

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


def _name_shape(placement: Placement, options: ScheduleOptions) -> None:
    """Say which shape of the literature a plan with shared stages has, if it has one."""
    if not any(len(home) > 1 for block in placement.blocks for home in block.homes):
        return
    from dnnp.core.pipeline.shapes import shape_of

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
    from dnnp.core.pipeline.problem import peak_memory, problem_of
    from dnnp.core.pipeline.transfers import global_order
    from dnnp.formats.schedule import schedule_line, schedule_records
    from dnnp.formats.spread import unknown_words

    problem = problem_of(schedule.placement, options.micro_batches)
    start = schedule.start_s.ravel()
    peak, order = peak_memory(problem, start), global_order(problem, start)
    record, blocks = schedule_records(schedule, peak.tolist(), order.tolist(), points, digest)
    dropped = stream.replace("schedule", [record])
    stream.records["block"] = blocks
    if dropped:
        options.caller.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
    rough = "".join(map(unknown_words, stream.get("plan")))
    options.caller.note(schedule_line(record, options.method, stream.in_seconds) + rough)
