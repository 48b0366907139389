"""dnnp-run: run the split model on ONNX Runtime and measure it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from dnnp.choices import ENGINES, OPTIMIZATIONS, WORKERS
from dnnp.cmds.shell.arguments import count, limit_options, positive, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _what_to_run(parser.add_argument_group("what to run"))
    _checks(parser.add_argument_group("checks"))
    limit_options(parser)
    _how_to_run(parser.add_argument_group("how to run it"))


def _what_to_run(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--provider",
        default="cpu",
        metavar="NAME",
        help="ONNX Runtime execution provider, such as cuda or tensorrt; on GPUs stages and "
        "replicas go to these in turn (default: cpu)",
    )
    what.add_argument(
        "--place",
        action="append",
        default=[],
        metavar="CLASS=NAME[:GPU]",
        help="provider, and number of the GPU, of a device class of the plan, or of one device as "
        "in t4/1=cuda:0; may be repeated (default: --provider)",
    )
    what.add_argument(
        "--provider-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the providers other than cpu, such as use_tf32=0; may be repeated",
    )
    what.add_argument(
        "--allow-fallback",
        action="store_true",
        help="let nodes that a provider cannot run run on the CPU; the record lists them (default: "
        "that is an error)",
    )
    what.add_argument(
        "-n",
        "--samples",
        type=_up_to(10_000_000, 1),
        metavar="N",
        help="samples to send through and measure (default: those of the schedule; or what takes a "
        "second, by the rate of the warm-up, and at least 32)",
    )
    what.add_argument(
        "--warmup",
        type=_up_to(1_000_000),
        metavar="N",
        help="samples before them that are not measured, for each replica of a stage (default: "
        "until the rate is steady, for two seconds at most; a measurement that other processes "
        "disturb is then repeated)",
    )
    what.add_argument(
        "--duration",
        type=_seconds,
        metavar="S",
        help="in place of -n: samples set out, or arrive, for so many seconds",
    )
    what.add_argument(
        "--rate",
        type=_rate,
        metavar="R",
        help="samples that arrive a second, whatever becomes of those before them: latency counts "
        "from the arrival (default: for 10 seconds, and at least 32). sweep: tables for rates of "
        "10 to 120 %% of what the pipeline can do (for 2 seconds each, and at least 32)",
    )
    what.add_argument(
        "--arrivals",
        choices=("poisson", "uniform"),
        default="poisson",
        help="how they arrive: at random, or at equal distances (default: poisson)",
    )
    what.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help="one sample: .npz by name, .npy or .pb for one input, or a folder of input_0.pb, ...; "
        "may be repeated. A folder of other such files, or - for names on standard input, one a "
        "line: many samples, each of which goes through once (default: random inputs)",
    )
    what.add_argument(
        "--null", action="store_true", help="names on standard input end with a NUL byte instead"
    )
    what.add_argument(
        "--outputs",
        metavar="DIR",
        help="write the outputs of each input to a file of its name there, as .npz, and pass over "
        "inputs whose outputs are there",
    )
    what.add_argument(
        "--keep-going",
        action="store_true",
        help="say which inputs fail, and go on with the others; the status is 1 then",
    )
    what.add_argument(
        "--seed",
        type=count,
        default=0,
        metavar="N",
        help="seed of random inputs, and of arrivals at random (default: 0)",
    )
    what.add_argument(
        "--random-weights",
        type=count,
        metavar="SEED",
        help="draw the weights that the model makes from one constant, or that are missing",
    )
    what.add_argument(
        "--model", metavar="PATH", help="the ONNX model, if it is not where the stream says"
    )


def _checks(checks: argparse._ArgumentGroup) -> None:
    checks.add_argument(
        "--verify", action="store_true", help="compare all outputs with those of the unsplit model"
    )
    checks.add_argument(
        "--rtol",
        type=_tolerance,
        metavar="X",
        help="allowed error relative to each value (default: by the model's precision)",
    )
    checks.add_argument(
        "--atol",
        type=_tolerance,
        metavar="X",
        help="allowed error relative to the largest value of an output (default: likewise)",
    )
    checks.add_argument(
        "--compare",
        action="store_true",
        help="also time the whole model on all cores, and replicas of it on one core each, at most "
        "as many as the plan uses devices",
    )
    checks.add_argument(
        "--choose",
        action="store_true",
        help="compare so, until it is clear which is the fastest of those that fit the memory of "
        "the plan's devices, and say what to deploy (implies --compare)",
    )
    checks.add_argument(
        "--save-outputs", metavar="FILE", help="write the outputs of each distinct sample as .npz"
    )
    checks.add_argument(
        "--trace",
        metavar="FILE",
        help="write a timeline of what was measured, for Perfetto or chrome://tracing",
    )
    checks.add_argument(
        "--calibrate",
        metavar="FILE",
        help="write what the measured loads tell of the costs of operators there, for "
        "dnnp-profile --from-run",
    )


def _how_to_run(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--threads",
        type=_up_to(1024, 1),
        default=1,
        metavar="N",
        help="threads of a stage, or of each replica (default: 1)",
    )
    how.add_argument(
        "--queue",
        type=positive,
        default=2,
        metavar="N",
        help="samples that may wait between neighbouring stages, if need be one for each replica; "
        "with a schedule: besides those that wait in it (default: 2)",
    )
    how.add_argument(
        "--emulate-links",
        action="store_true",
        help="let the transfers of a schedule take as long as it says, by the links that are "
        "stated (default: copy the tensors)",
    )
    how.add_argument(
        "--no-pin", action="store_true", help="let the system move threads between cores"
    )
    how.add_argument(
        "--workers",
        choices=WORKERS,
        default="thread",
        help="what computes a stage: a thread of this process, or a process of its own, which gets "
        "tensors through shared memory (default: thread)",
    )
    how.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="local: stages run here, by --workers; ray: as actors on a Ray cluster (needs the "
        "extra 'ray') (default: local)",
    )
    how.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="the cluster, as HOST:PORT, or auto for the one of this machine (default: one that is "
        "started, and shut down at the end)",
    )
    how.add_argument(
        "--retries",
        type=_up_to(1000),
        default=0,
        metavar="N",
        help="start each worker that is lost again, N times at most; the samples that it had are "
        "computed again (default: 0)",
    )
    how.add_argument(
        "--optimization",
        choices=OPTIMIZATIONS,
        default="all",
        help="ONNX Runtime's graph optimization level (default: all)",
    )


def _up_to(limit: int, least: int = 0) -> Callable[[str], int]:
    """Type of an option that takes a whole number up to a limit."""

    def parse(text: str) -> int:
        value = positive(text) if least else count(text)
        if value > limit:
            raise argparse.ArgumentTypeError(f"{text} is above {limit}")
        return value

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None


def _tolerance(text: str) -> float:
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def _seconds(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and up to 1e+06")
    return value


def _rate(text: str) -> float | str:
    if text == "sweep":
        return text
    value = _number(text)
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and up to 1e+09")
    return value


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the plan of a stream."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.run_options import RunOptions
    from dnnp.running import judge, run_stream, save_files

    set_limits(args)
    options = options_of(RunOptions, args, context)
    if "-" in args.inputs and args.stream == "-":
        raise UsageError("--inputs -: standard input is the stream; give that as a file")
    stream = context.read(args.stream)
    outcome = run_stream(stream, options)
    save_files(options, outcome, stream)
    context.show(outcome.lines())
    context.write(stream)
    judge(outcome, context)
    return 0


COMMAND = Command(
    "dnnp-run",
    "run the split model on ONNX Runtime, measure it, and compare it with the whole model",
    add_arguments,
    run,
)
main = COMMAND.main
