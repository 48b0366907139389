"""dnnp-profile: learn what every operator costs, by formula or by measuring."""

from __future__ import annotations

import argparse

from dnnp.choices import DEFAULT_DEVICE, MEASURED, OPTIMIZATIONS, PROFILE_MODES
from dnnp.cmds.shell.arguments import count, limit_options, list_option, positive, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--mode",
        choices=PROFILE_MODES,
        default="analytic",
        help="analytic: a roofline over work and traffic (default); measure: time the model "
        "with ONNX Runtime on this machine; scaled: carry the times of one class to others",
    )
    parser.add_argument(
        "--device",
        metavar="NAME|FILE",
        action="append",
        default=[],
        help=f"device class to price, by name or by device file; repeatable, but not with --mode "
        f"measure (default: {DEFAULT_DEVICE})",
    )
    list_option(parser)
    parser.add_argument(
        "--costs",
        metavar="FILE",
        action="append",
        default=[],
        help="take costs from a file, whatever else the stream prices: a table (name, class, "
        "seconds), a profile of ONNX Runtime, or what trtexec --exportProfile writes, with "
        "--exportLayerInfo beside it or not; repeatable",
    )
    measure = parser.add_argument_group("measuring")
    measure.add_argument(
        "--model", metavar="PATH", help="the ONNX model, if it is not where it was imported from"
    )
    measure.add_argument(
        "--provider",
        default="cpu",
        metavar="NAME",
        help="ONNX Runtime execution provider to time, such as cuda or tensorrt; needs --device: "
        "what it runs on (default: cpu)",
    )
    measure.add_argument(
        "--provider-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the provider, such as use_tf32=0; may be repeated",
    )
    measure.add_argument(
        "--allow-fallback",
        action="store_true",
        help="time nodes that the provider cannot run on the CPU; the header lists them (default: "
        "that is an error)",
    )
    measure.add_argument(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="threads of ONNX Runtime (default: 1)",
    )
    measure.add_argument(
        "--optimization",
        choices=OPTIMIZATIONS,
        default="all",
        help="graph optimization level of the run (default: all)",
    )
    measure.add_argument(
        "--beside",
        type=count,
        metavar="N",
        help="parts of the model that run beside each on other cores, as other stages will "
        "(default: one fewer than the devices of the stream, or 1, as far as there are cores)",
    )
    measure.add_argument(
        "--repeats",
        type=positive,
        default=10,
        metavar="N",
        help="rounds, of which the median counts; more follow until the time of the model is known "
        "to 2%%, but none after 20 seconds (default: 10)",
    )
    measure.add_argument(
        "--warmup", type=count, default=3, metavar="N", help="runs before them (default: 3)"
    )
    cache = measure.add_mutually_exclusive_group()
    cache.add_argument(
        "--cache",
        metavar="DIR",
        help="where measured costs are kept (default: $XDG_CACHE_HOME/dnnp or ~/.cache/dnnp)",
    )
    cache.add_argument("--no-cache", action="store_true", help="always measure, keep nothing")
    limit_options(parser, "limits of measuring")
    learned = parser.add_argument_group("learning from runs")
    learned.add_argument(
        "--from-run",
        metavar="FILE",
        action="append",
        default=[],
        help="correct the costs by what runs measured: a file of dnnp-run --calibrate, or a stream "
        "with a run, of this or of other models; repeatable, more runs say more",
    )
    parallel = parser.add_argument_group("parallel plans")
    parallel.add_argument(
        "--tensor-parallel",
        type=positive,
        metavar="T",
        help="state besides what nodes take on 2, 4, 8, ... up to T devices at once, by formula "
        "(default: nothing of it)",
    )
    scaled = parser.add_argument_group("scaling")
    scaled.add_argument(
        "--from",
        dest="source",
        metavar="NAME|FILE",
        help=f"class whose times are carried over, by name or by device file (default: {MEASURED}, "
        "the only one that the stream prices)",
    )
    scaled.add_argument(
        "--against",
        metavar="FILE",
        help="a stream of the same model that was measured on the device: say how far off the "
        "scaled times are",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, price it, write it with its costs."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.profiling import ProfileOptions, profile_stream

    if args.against == args.stream == "-" and args.mode == "scaled" and args.device:
        raise UsageError("--against and the stream cannot both be standard input")
    if "-" in args.costs and (args.stream == "-" or args.costs.count("-") > 1):
        raise UsageError("--costs and the stream cannot both be standard input")
    options = options_of(ProfileOptions, args, context)
    stream = context.read(args.stream)
    if args.mode == "measure":
        set_limits(args)
    profile_stream(stream, options)
    context.write(stream)
    return 0


COMMAND = Command(
    "dnnp-profile", "learn what every operator costs, by formula or by measuring", add_arguments,
    run,
)  # fmt: skip
main = COMMAND.main
