"""dnnp-schedule: when every stage runs every micro-batch."""

from __future__ import annotations

import argparse
from time import monotonic
from typing import TYPE_CHECKING

from dnnp.cmds.arguments import count, factor, positive, seconds, share, size
from dnnp.cmds.cli import Command
from dnnp.cmds.context import Context
from dnnp.cmds.output import atomic_output
from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.core.pipeline.shapes import SHAPES

if TYPE_CHECKING:
    from dnnp.core.model.placement import Placement
    from dnnp.formats.stream import Record, Stream

METHODS = {
    "auto": "shortest period, then least memory, then shortest span, each proven where the effort "
    "allows; then a short warm-up and cool-down",
    "optimal": "shortest schedule of N micro-batches; for small N",
    "tessel": "Tessel's search (Algorithm 1), for comparison",
    "sequential": "one micro-batch after the other",
    "gpipe": "all forward passes, then all backward passes",
    "1f1b": "one forward, one backward (PipeDream-flush, DAPPLE)",
    "1f1b+": "the same, with blocks of several devices beside their neighbours",
    "interleaved-1f1b": "the same with several stages a device (Megatron-LM)",
    "chimera": "two pipelines of opposite directions (shape X)",
    "zb-h1": "zero bubble: passes that only weights need fill the gaps (--split-backward)",
    "inference": "forward passes as they come, later stages first",
}
"""Name -> what it does."""

SHAPE_OPTIONS = ("inference", "forward_time", "backward_time", "shared_time")
MOST_BLOCKS = 1_000_000
"""Blocks of a schedule."""
MOST_DEVICES = 4096
"""Devices of a shape."""


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
    how = parser.add_argument_group(
        "how", "; ".join(f"{name}: {text}" for name, text in METHODS.items())
    )
    how.add_argument(
        "--method",
        choices=tuple(METHODS),
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


def run(args: argparse.Namespace, context: Context) -> int:
    """Schedule a plan or a placement and write the stream with the schedule."""
    _check_usage(args)
    started = monotonic()
    stream, placement, digest = _what(args, context)
    with context.interruptible():
        from dnnp.cmds.find_split import compilation_notice
        from dnnp.core.pipeline.problem import peak_memory, problem_of
        from dnnp.core.pipeline.solve import Request, kernels, solve, trade_off
        from dnnp.core.pipeline.transfers import global_order
        from dnnp.formats.schedule import schedule_records

        end = None if args.time_limit is None else started + args.time_limit
        request = Request(
            args.micro_batches,
            args.method,
            args.unroll,
            args.max_micro_batches,
            not args.eager,
            effort=args.effort,
            tell=context.detail,
            warn=context.warn,
            stop=lambda: context.interrupted or (end is not None and monotonic() >= end),
        )
        compilation_notice(context)(kernels(args.method))
        context.elapsed("searching")
        schedule = solve(placement, request)
        context.elapsed("found the schedule")
        points = trade_off(placement, request) if args.pareto else None
        problem = problem_of(schedule.placement, args.micro_batches)
        start = schedule.start_s.ravel()
        peak, order = peak_memory(problem, start), global_order(problem, start)
        record, blocks = schedule_records(schedule, peak.tolist(), order.tolist(), points, digest)
        dropped = stream.replace("schedule", [record])
        stream.records["block"] = blocks
        if dropped:
            context.note(f"dropped what earlier records led to: {', '.join(dropped)} records")
        _say(context, record, args.method)
        if args.chart:
            from dnnp.formats.gantt import text_chart

            context.show(text_chart(record, blocks))
        if args.svg is not None:
            _draw(args.svg, record, blocks)
        context.write(stream)
    return 0


def _check_usage(args: argparse.Namespace) -> None:
    """One thing to schedule, and no option of another."""
    given = [f"--{o}" for o in ("shape", "placement") if getattr(args, o) is not None]
    if len(given) > 1:
        raise UsageError("give --shape or --placement, not both")
    if given and args.stream != "-":
        raise UsageError(f"give a stream or {given[0]}, not both ('{args.stream}')")
    if args.shape is None:
        for option in ("devices", *SHAPE_OPTIONS):
            if getattr(args, option) not in (None, False):
                raise UsageError(f"--{option.replace('_', '-')} is for --shape")
    if args.devices is not None and args.devices > MOST_DEVICES:
        raise UsageError(f"--devices {args.devices} is above {MOST_DEVICES}")
    if args.transfers not in ("blocking", "non-blocking"):
        for option in ("transfer_time", "latency"):
            if getattr(args, option) is not None:
                reason = f"--{option.replace('_', '-')} is for --transfers blocking or non-blocking"
                raise UsageError(reason)
    if args.unroll is not None and args.method != "auto":
        raise UsageError("--unroll is for --method auto")
    if args.method != "tessel" and (args.max_micro_batches is not None or args.eager):
        option = "eager" if args.eager else "max-micro-batches"
        raise UsageError(f"--{option} is for --method tessel")


def _what(args: argparse.Namespace, context: Context) -> tuple[Stream, Placement, str | None]:
    """The stream to write to, the placement to schedule and the digest of its plan."""
    from dnnp.core.model.placement import check_placement
    from dnnp.core.pipeline.solve import with_limit
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
    from dnnp.cmds.read_plan import read_plan
    from dnnp.core.pipeline.from_plan import placement_of_plan
    from dnnp.formats.graph import graph_of, plan_digest, units_of

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


def _say(context: Context, record: Record, asked: str) -> None:
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
    context.note("; ".join(parts) + interrupted)
    if "pareto" in record:
        rows = [("memory", "period", "bound")]
        rows += [
            (f"{p['memory_bytes']:.6g}", f"{p['period_s']:.6g}", f"{p['period_bound_s']:.6g}")
            for p in record["pareto"]
        ]
        width = [max(len(row[c]) for row in rows) for c in range(3)]
        context.show(
            "  ".join(text.rjust(w) for text, w in zip(row, width, strict=True)) for row in rows
        )


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
