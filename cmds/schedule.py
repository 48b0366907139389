"""dnnp-schedule: when every stage runs every micro-batch."""

from __future__ import annotations

import argparse
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from dnnp.cmds.find_placement import add_placement_arguments, check_source, find_placement
from dnnp.cmds.shell.arguments import factor, positive, seconds
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.cmds.shell.output import atomic_output
from dnnp.core.methods import SCHEDULES, lines
from dnnp.core.model.errors import InputFileError, UsageError

if TYPE_CHECKING:
    from dnnp.formats.stream import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "-n",
        "--micro-batches",
        type=positive,
        default=32,
        metavar="N",
        help="micro-batches, or samples, to schedule (default: 32)",
    )
    add_placement_arguments(parser)
    how = parser.add_argument_group("how")
    how.add_argument(
        "--method",
        choices=tuple(SCHEDULES),
        default="auto",
        metavar="NAME",
        help="how to find the schedule (default: auto)",
    )
    how.add_argument(
        "--unroll",
        type=positive,
        metavar="U",
        help="micro-batches in a period (default: 1, up to 4 where that leaves a gap)",
    )
    how.add_argument(
        "--pareto",
        action="store_true",
        help="also find the least period for every limit of memory that makes a difference",
    )
    how.add_argument(
        "--max-micro-batches",
        type=positive,
        metavar="N",
        help="tessel: micro-batches that a repetend may hold blocks of (default: as memory allows)",
    )
    how.add_argument(
        "--eager",
        action="store_true",
        help="tessel: complete every better repetend, not only the best",
    )
    how.add_argument(
        "--time-limit", type=seconds, metavar="S", help="stop searching after so many seconds"
    )
    how.add_argument(
        "--effort",
        type=factor,
        metavar="X",
        default=1.0,
        help="scale the work of searches that would not end (default: 1)",
    )
    shown = parser.add_argument_group("pictures")
    shown.add_argument(
        "--chart", action="store_true", help="draw the schedule as text on standard error"
    )
    shown.add_argument("--svg", metavar="FILE", help="draw the schedule as an SVG picture")
    parser.add_argument_group("methods", lines(SCHEDULES))


def run(args: argparse.Namespace, context: Context) -> int:
    """Schedule a plan or a placement and write the stream with the schedule."""
    check_source(args)
    _check_method(args)
    started = monotonic()
    stream, placement, digest = find_placement(args, context)
    with context.interruptible():
        from dnnp.cmds.find_split import note_compiling
        from dnnp.core.model.run import Run
        from dnnp.core.pipeline.problem import peak_memory, problem_of
        from dnnp.core.pipeline.solve import solve
        from dnnp.core.pipeline.trade_off import trade_off
        from dnnp.core.pipeline.transfers import global_order
        from dnnp.core.pipeline.wanted import Wanted
        from dnnp.formats.schedule import schedule_records
        from dnnp.formats.schedule_text import schedule_line, trade_off_lines

        note_compiling(context)
        search = Run(
            effort=args.effort,
            interrupted=lambda: context.interrupted,
            end=inf if args.time_limit is None else started + args.time_limit,
            tell=context.detail,
            warn=context.warn,
        )
        n, lazy = args.micro_batches, not args.eager
        context.elapsed("searching")
        wanted = Wanted(n, args.method, args.unroll, args.max_micro_batches, lazy)
        schedule = solve(placement, wanted, search)
        context.elapsed("found the schedule")
        points = trade_off(placement, args.unroll, search) if args.pareto else None
        problem, start = problem_of(schedule.placement, n), schedule.start_s.ravel()
        peak, order = peak_memory(problem, start), global_order(problem, start)
        record, blocks = schedule_records(schedule, peak.tolist(), order.tolist(), points, digest)
        dropped = stream.replace("schedule", [record])
        stream.records["block"] = blocks
        if dropped:
            context.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
        context.note(schedule_line(record, args.method))
        context.show(trade_off_lines(record))
        if args.chart:
            from dnnp.formats.gantt import text_chart

            context.show(text_chart(record, blocks))
        if args.svg is not None:
            _draw(args.svg, record, blocks)
        context.write(stream)
    return 0


def _check_method(args: argparse.Namespace) -> None:
    """No option of another method."""
    if args.unroll is not None and args.method != "auto":
        raise UsageError("--unroll is for --method auto")
    if args.method != "tessel" and (args.max_micro_batches is not None or args.eager):
        option = "eager" if args.eager else "max-micro-batches"
        raise UsageError(f"--{option} is for --method tessel")


def _draw(path: str, record: Record, blocks: list[Record]) -> None:
    """Write the picture, as a whole or not at all."""
    from dnnp.formats.gantt import svg_chart

    try:
        with atomic_output(path) as file:
            file.write(svg_chart(record, blocks).encode())
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None


COMMAND = Command(
    "dnnp-schedule", "find when every stage runs every micro-batch",
    add_arguments, run, stream_unless=("shape", "placement"),
)  # fmt: skip


def main() -> int:
    """Entry point."""
    return COMMAND.main()
