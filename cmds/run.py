"""dnnp-run: run the split model on ONNX Runtime and measure it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dnnp.cmds.shell.arguments import count, positive
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, counted
from dnnp.cmds.shell.limits import limit_options, set_limits
from dnnp.cmds.shell.output import atomic_output
from dnnp.core.model.errors import InputFileError, UsageError, VerificationError

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Plan, Stage
    from dnnp.core.runtime.execute import Pipeline
    from dnnp.core.runtime.inputs import Sample
    from dnnp.core.runtime.outcome import Outcome
    from dnnp.core.runtime.scheduled import Program
    from dnnp.formats.stream import Stream

MATTERS = ("block", "overlap", "wait", "stages", "node", "device")
"""Kinds of violation with which a schedule cannot be followed."""

SAMPLES = 32
"""Samples that are measured at least where nothing says how many."""

ENOUGH_S = 1.0
"""Seconds that are measured at least where nothing says how many samples."""

WARMUP = 3
"""Samples before them where nothing says how many, for each replica of a stage; after those that
go through until the rate is steady."""

DISTINCT = 4
"""Random inputs drawn when none are given; samples take them in turn."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--provider",
        choices=("cpu", "cuda"),
        default="cpu",
        help="ONNX Runtime execution provider; cuda: stages and replicas go to GPUs in turn "
        "(default: cpu)",
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
        "--inputs",
        action="append",
        default=[],
        metavar="FILE",
        help="one sample: .npz by name, .npy or .pb for one input, or a folder of input_0.pb, ...; "
        "may be repeated (default: random inputs)",
    )
    what.add_argument(
        "--seed", type=count, default=0, metavar="N", help="seed of random inputs (default: 0)"
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
    checks = parser.add_argument_group("checks")
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
        "--save-outputs", metavar="FILE", help="write the outputs of each distinct sample as .npz"
    )
    limit_options(parser)
    how = parser.add_argument_group("how to run it")
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
        "--no-pin", action="store_true", help="let the system move threads between cores"
    )
    how.add_argument(
        "--optimization",
        choices=("disable", "basic", "extended", "all"),
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


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the plan of a stream."""
    from dataclasses import replace

    from dnnp.cmds.read_plan import refuse_contradictions
    from dnnp.cmds.source import open_source
    from dnnp.core.runtime.execute import Load, Watch, count_sessions, prepare, widest
    from dnnp.core.runtime.outcome import Checks, execute
    from dnnp.core.runtime.report import Forecast
    from dnnp.core.runtime.session import SessionConfig, require_provider
    from dnnp.core.runtime.verify import tolerance_for
    from dnnp.core.runtime.weights import random_weights
    from dnnp.formats.graph import graph_of, plan_digest, plan_of
    from dnnp.formats.onnx_plan import check_runnable
    from dnnp.formats.onnx_types import types_of

    set_limits(args)
    stream = context.read(args.stream)
    graph = graph_of(stream)
    plan = plan_of(stream, graph)
    if plan is None:
        raise UsageError(f"{stream.name}: no plan to run; run dnnp-partition first")
    count_sessions(plan.stages)
    refuse_contradictions(stream, plan)
    require_provider(args.provider)
    model, path, _ = open_source(context, stream, args.model)
    parts: Sequence[Stage] = plan.stages
    owners: Sequence[int] = ()
    window: int | None = None
    forecast = Forecast()
    program = _program(stream, plan, args.samples)
    if program is not None:
        parts, owners = program.stages, program.owners
        plan = replace(plan, validity="ordered")
        forecast = Forecast(makespan_s=program.makespan_s, bubble=program.bubble)
    elif plan.objective == "latency":
        plan, parts, owners, window = _one_by_one(context, stream, graph, plan)
        forecast = Forecast(latency_s=plan.value)
    check_runnable(plan, graph, "run dnnp-schedule first, it finds turns for them")
    warmup = WARMUP if args.warmup is None else args.warmup
    first = warmup * widest(plan.stages)
    measured = max(SAMPLES, len(args.inputs)) if args.samples is None else args.samples
    measured = measured if program is None else program.count
    total = measured if program is not None else first + measured
    samples = _samples(args, context, stream, model, total)
    if len(samples) > total:
        how = "raise -n" if program is None else "the schedule is for as many"
        context.note(f"only the first {total} of {len(samples)} inputs are used; {how}")
        del samples[total:]
    with context.interruptible():
        weights = {}
        if args.random_weights is not None:
            weights = random_weights(model, args.random_weights, path.parent)
            context.note(f"{len(weights)} weights drawn with seed {args.random_weights}")
        progress = context.progress("running", 100)
        pipeline = prepare(
            model,
            path.parent,
            parts,
            SessionConfig(args.provider, args.optimization, args.threads, not args.no_pin),
            known=types_of(stream),
            weights=weights,
            watch=Watch(
                context.note,
                context.detail,
                lambda: context.interrupted,
                lambda done, total: progress.update(100 * done // total),
            ),
        )
        _warn_of_other_devices(context, pipeline, args.provider)
        load = Load(samples, measured, warmup, args.queue, window, program, args.warmup is None)
        load = replace(load, least_s=ENOUGH_S if args.samples is None else 0.0)
        tolerance = tolerance_for(model, args.rtol, args.atol) if args.verify else None
        try:
            outcome = execute(
                pipeline,
                load,
                Checks(tolerance, args.compare, bool(args.save_outputs), forecast, owners),
            )
        finally:
            progress.close()
    stream.replace("run", outcome.records(plan_digest(stream.get("plan")[0], stream.get("stage"))))
    if args.save_outputs and not outcome.interrupted:
        _save(args.save_outputs, outcome)
    context.show(outcome.lines())
    context.write(stream)
    verdict = outcome.verdict
    for message in verdict.warnings if verdict is not None else ():
        context.warn(message)
    if verdict is not None and not verdict.ok:
        raise VerificationError(verdict.fault)
    return 0


def _program(stream: Stream, plan: Plan, samples: int | None) -> Program | None:
    """What each device runs by the schedule of the stream, if there is one.

    Raises
    ------
    FormatError
        The schedule is not for this plan, or does not hold.
    UsageError
        It is for another number of samples, or holds what cannot run.
    """
    from dnnp.core.check.passes import check_passes
    from dnnp.core.check.schedule import check_schedule
    from dnnp.core.runtime.scheduled import program_of
    from dnnp.formats.graph import plan_digest

    if not stream.get("schedule"):
        return None
    (schedule, *others), blocks = stream.get("schedule"), stream.get("block")
    if others:
        raise stream.fault_at("schedule", 1, None, "a second schedule; a stream holds one")
    if schedule.get("digest") != plan_digest(stream.get("plan")[0], stream.get("stage")):
        raise stream.fault_at("schedule", 0, "digest", "the schedule was made for another plan")
    found = [*check_schedule(schedule, blocks).violations, *check_passes(schedule, stream.records)]
    for violation in found:
        if violation.kind in MATTERS:
            reason = f"the schedule does not hold: {violation}; dnnp-check says more"
            raise stream.fault_at("schedule", 0, None, reason)
    count = schedule["micro_batches"]
    if samples is not None and samples != count:
        raise UsageError(
            f"-n {samples}, but the schedule is for {count}: run dnnp-schedule -n {samples} first, "
            "or leave -n out"
        )
    return program_of(schedule, blocks, plan)


def _one_by_one(
    context: Context, stream: Stream, graph: Graph, plan: Plan
) -> tuple[Plan, Sequence[Stage], Sequence[int], int]:
    """Parts of a plan of the objective latency in a pipeline order, for a sample at a time."""
    from dataclasses import replace

    from dnnp.core.cost.runnable import runnable_parts
    from dnnp.formats.graph import units_of

    parts, owners = runnable_parts(graph, units_of(stream, graph), plan)
    if len(parts) > len(plan.stages):
        context.note(
            f"{counted(len(plan.stages), 'stage')} of a {plan.validity} plan run as "
            f"{len(parts)} parts, each in one go"
        )
    return replace(plan, validity="ordered"), parts, owners, 1


def _samples(
    args: argparse.Namespace, context: Context, stream: Stream, model: ModelProto, total: int
) -> list[Sample]:
    """The given inputs, or up to `total` random ones of the shapes that were imported."""
    from functools import partial

    from dnnp.core.runtime.inputs import bind_names, input_specs, random_inputs
    from dnnp.formats.onnx_types import input_shapes
    from dnnp.formats.tensors import read_inputs

    specs, shapes = input_specs(model), input_shapes(stream)
    if args.inputs:
        given = []
        for path in args.inputs:
            bind = partial(bind_names, specs=specs, source=path)
            given.append(bind(read_inputs(path, admit=bind)))
        for path, sample in zip(args.inputs, given, strict=True):
            for name, value in sample.items():
                shape = list(getattr(value, "shape", ()))
                if name in shapes and shape != shapes[name]:
                    context.note(
                        f"{path}: input '{name}' has shape {shape}, the loads were predicted for "
                        f"{shapes[name]}: expect other times"
                    )
        return given
    distinct = min(DISTINCT, total)
    return [random_inputs(model, [args.seed, i], shapes=shapes) for i in range(distinct)]


def _warn_of_other_devices(context: Context, pipeline: Pipeline, provider: str) -> None:
    """Say when the loads were predicted for something else than what runs."""
    classes = dict.fromkeys(stage.device_class for stage in pipeline.stages)
    foreign = [name for name in classes if name.startswith("cpu") != (provider == "cpu")]
    if foreign:
        context.note(
            f"the loads were predicted for {', '.join(foreign)}, the stages run on "
            f"{provider}: expect other times"
        )


def _save(path: str, outcome: Outcome) -> None:
    """Write the outputs, as a whole or not at all."""
    from dnnp.formats.tensors import write_outputs

    try:
        with atomic_output(path) as file:
            write_outputs(file, outcome.outputs)
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None


COMMAND = Command(
    "dnnp-run",
    "run the split model on ONNX Runtime, measure it, and compare it with the whole model",
    add_arguments,
    run,
)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
