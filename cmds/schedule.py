"""dnnp-schedule: when every stage runs every micro-batch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dnnp.cmds.shell.arguments import count, factor, positive, seconds, share, size
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.methods import SCHEDULES, lines
from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.core.pipeline.shapes import ALL
from dnnp.formats.files import atomic_output

if TYPE_CHECKING:
    from dnnp.formats.stream import Stream


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
    _add_placement_arguments(parser)
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


def _add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of what is scheduled."""
    what = parser.add_argument_group("what to schedule, instead of the plan of a stream")
    what.add_argument(
        "--shape",
        choices=ALL,
        help="a placement from the literature: V: one stage a device; X: V and its mirror image; "
        "M: V between shared blocks; NN: M with another one in the middle; K: two branches; "
        "NN-eager: NN with that one after the first stage; multi-modal: after the last stage; "
        "fine-tuning: M whose first block is not trained; AlphaFold: three passes, the last one "
        "trained; VV: two stages a device, there and back",
    )
    what.add_argument(
        "--devices", type=count, metavar="D", help="devices of the shape (default: 4)"
    )
    what.add_argument(
        "--inference", action="store_true", help="a shape without backward passes and memory"
    )
    what.add_argument(
        "--forward-time", type=seconds, metavar="T", help="forward block of a shape (default: 1)"
    )
    what.add_argument(
        "--backward-time",
        type=seconds,
        metavar="T",
        help="backward block of a shape (default: 3, fine-tuning: 2, AlphaFold: 1)",
    )
    what.add_argument(
        "--shared-time",
        type=seconds,
        metavar="T",
        help="block of a shape that all devices share (default: 1)",
    )
    what.add_argument(
        "--placement",
        metavar="FILE",
        help="placement file (see dnnp-graph(5)); - is standard input",
    )
    limits = parser.add_argument_group("devices and transfers")
    limits.add_argument(
        "--memory",
        type=size,
        metavar="BYTES",
        help="most that a device may hold, such as 16G (default: as the plan or the placement "
        "says)",
    )
    limits.add_argument(
        "--transfers",
        choices=("model", "none", "blocking", "non-blocking"),
        default="model",
        help="model: as the plan's cost model has them, non-blocking where a placement states "
        "them; blocking: both devices wait for a transfer; non-blocking: it takes a link only "
        "(default: model)",
    )
    limits.add_argument(
        "--transfer-time",
        type=seconds,
        metavar="T",
        help="time of every transfer between two devices (default: what plan or placement say)",
    )
    limits.add_argument(
        "--latency", type=seconds, metavar="T", help="time after which a transfer arrives, on top"
    )
    limits.add_argument(
        "--split-backward",
        type=share,
        nargs="?",
        const=0.5,
        metavar="SHARE",
        help="split backward blocks; the part that only weights need takes this share of the time "
        "(default: 0.5)",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Schedule a plan or a placement and write the stream with the schedule."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.formats.schedule import trade_off_lines
    from dnnp.scheduling import ScheduleOptions, schedule_stream

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
            from dnnp.core.view.gantt import text_chart

            context.show(text_chart(record, blocks, stream.in_seconds))
        if args.svg is not None:
            _draw(args.svg, stream)
        context.write(stream)
    return 0


def _draw(path: str, stream: Stream) -> None:
    """Write the picture, as a whole or not at all."""
    from dnnp.core.view.svg import schedule_svg

    try:
        with atomic_output(path) as file:
            file.write(schedule_svg(stream))
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None


COMMAND = Command(
    "dnnp-schedule", "find when every stage runs every micro-batch",
    add_arguments, run, stream_unless=("shape", "placement"),
)  # fmt: skip
main = COMMAND.main
