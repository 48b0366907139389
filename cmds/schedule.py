"""dnnp-schedule: when every stage runs every micro-batch."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.methods.schedules import SCHEDULES
from dnnp.core.model.errors import UsageError
from dnnp.formats.files import whole_file
from dnnp.options.schedule import ScheduleOptions
from dnnp.options.table import Options, option


class _Pictures(Options):
    """Pictures of the schedule."""

    # fmt: off
    chart: bool = option(
        False, group="pictures", page=True, help="draw the schedule as text on standard error")
    svg: str | None = option(
        metavar="FILE", page=True, help="draw the schedule as an SVG picture")
    # fmt: on


def run(args: argparse.Namespace, context: Context) -> int:
    """Schedule a plan or a placement and write the stream with the schedule."""
    from dnnp.formats.schedule import trade_off_lines
    from dnnp.scheduling import schedule_stream

    given = [f"--{o}" for o in ("shape", "placement") if getattr(args, o) is not None]
    if len(given) == 1 and args.stream != "-":
        raise UsageError(f"give a stream or {given[0]}, not both ('{args.stream}')")
    options = options_of(ScheduleOptions, args, context)
    stream = options.stream() or context.read(args.stream)
    with context.interruptible():
        schedule_stream(stream, options)
        (record,), blocks = stream.get("schedule"), stream.get("block")
        context.show(trade_off_lines(record, stream.in_seconds))
        if args.chart:
            from dnnp.core.view.drawing import text_chart

            context.show(text_chart(record, blocks, stream.in_seconds))
        if args.svg is not None:
            from dnnp.core.view.svg import schedule_svg

            with whole_file(args.svg) as file:
                file.write(schedule_svg(stream))
        context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-schedule", "find when every stage runs every micro-batch", run, ScheduleOptions,
    _Pictures, stream_unless=("shape", "placement"), methods={"methods": SCHEDULES},
    examples=(
        "dnnp-schedule -n 64 --chart plan.dnnp -o scheduled.dnnp",
        "dnnp-schedule --shape V --devices 4 --method zb-h1 --svg v.svg -o v.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
