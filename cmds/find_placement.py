"""What dnnp-schedule schedules: a shape, a placement file, or the plan of a stream."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dnnp.cmds.shell.arguments import count, seconds, share, size
from dnnp.core.model.errors import UsageError
from dnnp.core.pipeline.shapes import SHAPES

if TYPE_CHECKING:
    from dnnp.cmds.shell.context import Context
    from dnnp.core.model.placement import Placement
    from dnnp.formats.stream import Stream

SHAPE_OPTIONS = ("devices", "inference", "forward_time", "backward_time", "shared_time")
MOST_BLOCKS = 1_000_000
"""Blocks of a schedule."""
MOST_DEVICES = 4096
"""Devices of a shape."""


def add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of what is scheduled."""
    what = parser.add_argument_group("what to schedule, instead of the plan of a stream")
    what.add_argument(
        "--shape",
        choices=SHAPES,
        help="a placement from the literature: V: one stage a device; X: V and its mirror image; "
        "M: V between shared blocks; NN: M with another one in the middle; K: two branches",
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
        "--backward-time", type=seconds, metavar="T", help="backward block of a shape (default: 3)"
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


def check_source(args: argparse.Namespace) -> None:
    """Refuse more than one thing to schedule, and options of another.

    Raises
    ------
    UsageError
        Naming the option.
    """
    given = [f"--{o}" for o in ("shape", "placement") if getattr(args, o) is not None]
    if len(given) > 1:
        raise UsageError("give --shape or --placement, not both")
    if given and args.stream != "-":
        raise UsageError(f"give a stream or {given[0]}, not both ('{args.stream}')")
    if args.shape is None:
        for option in SHAPE_OPTIONS:
            if getattr(args, option) not in (None, False):
                raise UsageError(f"--{option.replace('_', '-')} is for --shape")
    if args.devices is not None and args.devices > MOST_DEVICES:
        raise UsageError(f"--devices {args.devices} is above {MOST_DEVICES}")
    if args.transfers not in ("blocking", "non-blocking"):
        for option in ("transfer_time", "latency"):
            if getattr(args, option) is not None:
                reason = f"--{option.replace('_', '-')} is for --transfers blocking or non-blocking"
                raise UsageError(reason)


def find_placement(
    args: argparse.Namespace, context: Context
) -> tuple[Stream, Placement, str | None]:
    """The stream to write to, the placement to schedule and the digest of its plan.

    Raises
    ------
    UsageError
        There is too much to schedule, or nothing.
    """
    from dnnp.core.model.placement import check_placement
    from dnnp.core.pipeline.limits import with_limit
    from dnnp.core.pipeline.split_backward import split_backward
    from dnnp.core.pipeline.transfers import with_transfers
    from dnnp.formats.schedule import placement_stream

    digest, mode = None, args.transfers
    if args.shape is not None:
        from dnnp.core.pipeline.shapes import shape

        placement = shape(
            args.shape,
            4 if args.devices is None else args.devices,
            inference=args.inference,
            forward_s=1.0 if args.forward_time is None else args.forward_time,
            backward_s=3.0 if args.backward_time is None else args.backward_time,
            shared_s=1.0 if args.shared_time is None else args.shared_time,
        )
        stream = placement_stream(placement.name)
    elif args.placement is not None:
        from dnnp.formats.placement import read_placement

        name = "<stdin>" if args.placement == "-" else args.placement
        placement = read_placement(context.read_input(args.placement), name)
        stream = placement_stream(placement.name)
    else:
        stream = context.read(args.stream)
        with context.interruptible():
            placement, digest = _of_plan(stream, args)
    if args.memory is not None:
        placement = with_limit(placement, args.memory)
        check_placement(placement)
    if args.split_backward is not None:
        placement = split_backward(placement, args.split_backward)
    if mode == "model":
        mode = "non-blocking" if digest is None else "none"
    placement = with_transfers(placement, mode, time_s=args.transfer_time, delay_s=args.latency)
    blocks = len(placement.blocks) * args.micro_batches
    if blocks > MOST_BLOCKS:
        raise UsageError(
            f"{args.micro_batches} micro-batches have {blocks} blocks; at most {MOST_BLOCKS} are "
            "scheduled"
        )
    return stream, placement, digest


def _of_plan(stream: Stream, args: argparse.Namespace) -> tuple[Placement, str]:
    """The placement of the plan in a stream, and the plan's digest."""
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
    explicit = args.transfers != "model"
    placement = placement_of_plan(graph, units_of(stream, graph), plan, explicit=explicit)
    return placement, plan_digest(stream.get("plan")[0], stream.get("stage"))
