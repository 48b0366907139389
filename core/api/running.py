"""Run a split model on ONNX Runtime, measure it, and verify it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.callbacks import Callbacks, Shown, open_source
from dnnp.core.model.device import own_times
from dnnp.core.model.errors import InputFileError, LimitError, UsageError, VerificationError
from dnnp.core.model.graph import Clustering, with_own_times
from dnnp.core.model.graph import Graph as NodeGraph
from dnnp.core.model.plan import Plan
from dnnp.core.model.search_context import MethodOptions, Progress
from dnnp.core.model.text import counted
from dnnp.core.runtime.execute import execute
from dnnp.core.runtime.model.providers import (
    SessionConfig,
    may_use_tf32,
    parse_options,
    parse_places,
    provider_name,
    require_provider,
    short_name,
)
from dnnp.core.runtime.model.session import self_contained
from dnnp.core.runtime.model.weights import Weights, random_weights, shard_weights
from dnnp.core.runtime.pipeline.prepare import Pipeline, count_sessions, prepare
from dnnp.core.runtime.pipeline.sources import RunCallbacks, widest
from dnnp.core.runtime.report.outcome import NO_FORECAST, Checks, Forecast, Outcome
from dnnp.core.runtime.report.verify import tolerance_for
from dnnp.deployment.load import load_of, sweep_of
from dnnp.deployment.parts import Runnable, runnable_of
from dnnp.deployment.workers import pool_of
from dnnp.formats.files import whole_file
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.header import stamped
from dnnp.formats.onnx.value_types import types_of
from dnnp.formats.plan import check_runnable, plan_digest, plan_of
from dnnp.formats.spread import unknown_words
from dnnp.formats.stream import Stream
from dnnp.formats.tensors import write_outputs
from dnnp.graph import Graph
from dnnp.options.run import SWEEP, RunOptions
from dnnp.options.table import DEFAULT_DEVICE, HERE, function
from dnnp.workload import has_shards, refuse_contradictions, refuse_infeasible, refuse_shards

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.runtime.comparisons import WayPredictions
    from dnnp.core.runtime.pipeline.schedule_orders import Program
    from dnnp.formats.onnx.shards import ShardedModel


MEASURED = 0.1
"""Share of the progress that measuring counts as, where ways to run are compared."""


def run_stream(stream: Stream, options: RunOptions) -> Outcome:
    """Run the plan of a stream, and put what was measured into it; see `run`.

    Whether outputs are right is in the outcome's verdict.
    """
    if options.calibrate:
        from dnnp.fits.runs import refuse_several_classes, save_calibration

        refuse_several_classes(stream)
    outcome = _run(stream, options)
    stream.replace("run", outcome.records(plan_digest(stream.get("plan")[0], stream.get("stage"))))
    if options.calibrate and not outcome.interrupted:
        try:
            save_calibration(options.calibrate, stream, options.caller)
        except LimitError as error:  # the stream is written all the same
            outcome.unlearned = f"--calibrate: {error}"
    return outcome


@function(RunOptions)
def run(graph: Graph, options: RunOptions) -> Graph:
    """Run the plan of a graph on ONNX Runtime, by its schedule if any, and measure it.

    Raises
    ------
    UsageError
        There is no plan, or options do not fit it.
    FormatError
        The graph is malformed, or the model is not the one that was imported.
    InputFileError
        A file cannot be read or written, or ONNX Runtime cannot load a stage.
    UnavailableError
        The provider is not there.
    VerificationError
        The split model does not compute what the whole model computes.
    LimitError
        Other processes took so much that nothing is chosen or learned.
    """
    stream = graph.stream()
    if options.generate is not None:
        from dnnp.generating import generate_stream

        generate_stream(stream, options)
    else:
        outcome = run_stream(stream, options)
        save_files(options, outcome, stream)
        judge(outcome, options.caller)
    stream.header = stamped(stream.header, "dnnp-run", options.words())
    return Graph(stream)


def judge(outcome: Outcome, caller: Callbacks) -> None:
    """Warn of what was found by a comparison with the whole model.

    Raises
    ------
    VerificationError
        The outputs are not those of the whole model.
    InputFileError
        Some inputs failed, and the others went on.
    LimitError
        Other processes took so much that nothing is chosen or learned.
    """
    verdict = outcome.verdict
    for message in verdict.warnings if verdict is not None else ():
        caller.warn(message)
    if verdict is not None and not verdict.ok:
        raise VerificationError(verdict.mismatch)
    if outcome.files is not None and outcome.files.tally.failed:
        failed = counted(outcome.files.tally.failed, "input")
        raise InputFileError(f"{failed} failed, {outcome.files.tally.written} went through")
    if outcome.choice is not None and outcome.choice.disturbed:
        raise LimitError(f"--choose: nothing is clear: {outcome.choice.disturbed}")
    if outcome.unlearned:
        raise LimitError(outcome.unlearned)


def save_files(options: RunOptions, outcome: Outcome, stream: Stream) -> None:
    """Write outputs, if not interrupted, and the timeline to the files of the options, each
    atomically.

    Raises
    ------
    InputFileError
        One of them cannot be written.
    """
    if options.save_outputs and not outcome.interrupted:
        with whole_file(options.save_outputs) as file:
            write_outputs(file, outcome.outputs)
    if options.save_located and outcome.located and (model := outcome.located.model):
        with whole_file(options.save_located) as file:
            file.write(self_contained(model, outcome.pipeline.folder, outcome.pipeline.weights))
        options.caller.note(f"wrote the smallest model that shows it to {options.save_located}")
    if options.trace:
        from dnnp.formats.trace_events import write_trace

        header, plan = stream.header, stream.get("plan")[0]
        about = {"tool": "dnnp-run", "model": header.get("model"), "plan": plan["digest"]}
        about |= {"interrupted": outcome.interrupted, "provider": options.provider}
        with whole_file(options.trace) as file:
            write_trace(file, outcome.timeline(), about)


def _run(stream: Stream, options: RunOptions) -> Outcome:
    caller = options.caller
    graph = graph_of(stream)
    plan = plan_of(stream, graph)
    if plan is None:
        raise UsageError(f"{stream.name}: no plan to run; run dnnp-partition first")
    if plan.options.workload is not None:
        raise UsageError(
            f"{stream.name}: the plan is for sequences of prompts and tokens; --generate runs them"
        )
    count_sessions(plan.stages)
    refuse_contradictions(stream, plan)
    refuse_infeasible(stream, plan)
    for name in ("calibrate", "choose"):
        if getattr(options, name):
            refuse_shards(stream, plan, f"which --{name} does not know")
    priced = with_own_times(graph, units_of(stream, graph), own_times(plan.devices))
    predictions = predictions_of(plan, *priced) if options.choose else None
    config = _config(options, overlap=plan.options.comm != "sum")
    # Machines of a Ray cluster may not see the file: stages are sent with their weights.
    model, path, _ = open_source(caller, stream, options.model, light=options.kind != "ray")
    if has_shards(plan):
        from dnnp.deployment.shards import runnable_shards

        found = runnable_shards(caller, stream, graph, plan, model, options.samples)
        devices = len({home for part in found.parts for home in part.homes})
        caller.note(
            f"{counted(len(plan.stages), 'stage')} run as {counted(len(found.parts), 'part')} on "
            f"{counted(devices, 'device')}, each in one go"
        )
    else:
        found = runnable_of(caller, stream, graph, plan, options.samples)
    if options.emulate_links:
        _check_links(options, stream, found.program)
    check_runnable(found.plan, graph, "run dnnp-schedule first, it finds turns for them")
    load = load_of(options, stream, model, widest(found.plan.stages), found.program)
    alone = plan.objective == "latency" and found.program is None
    load = replace(load, window=1 if alone else None, emulate=options.emulate_links)
    with (
        caller.interruptible(),
        caller.progress("loading the stages") as bar,
        pool_of(options, by_device=found.program is not None) as pool,
    ):
        compare = options.compare or options.choose or options.rate == SWEEP
        pipeline = prepare(
            model,
            path.parent,
            found.parts,
            config,
            made=found.made.model if found.made is not None else None,
            known={**types_of(stream), **(found.made.types if found.made is not None else {})},
            weights=_weights(options, model, path.parent, found.made),
            watch=_watch(caller, Shown(bar, "loading the stages"), compare=compare),
            pool=pool,
        )
        _warn_of_other_devices(caller, pipeline)
        on_cpus = all(place.provider == "cpu" for home in pipeline.homes for place in home)
        if on_cpus:
            _tell_of_shipped_rates(caller, stream)
        if rough := "".join(map(unknown_words, stream.get("plan"))):
            caller.note(f"the predicted loads leave something out{rough}")
        if plan.links and not options.emulate_links and on_cpus:
            caller.note(
                "the loads were predicted with links; threads of one process hand tensors over "
                "without"
            )
        outcome = execute(pipeline, load, _checks(options, pipeline, found, predictions))
    if load.files is not None and load.files.error is not None:
        caller.note(f"stopped; {counted(load.files.tally.written, 'input')} went through before")
        raise load.files.error
    return outcome


def _forecast(found: Runnable) -> Forecast:
    """Predictions of a schedule, or of a plan for latency."""
    program = found.program
    if program is None:
        return Forecast(found.plan.value) if found.plan.objective == "latency" else NO_FORECAST
    share = program.transfer_share if program.unit_orders.transfers else None
    return Forecast(None, program.makespan_s, program.bubble, share)


def _weights(
    options: RunOptions, model: ModelProto, folder: Path, made: ShardedModel | None
) -> Weights:
    """Random weights, if requested, and parts of weights that no file holds as such."""
    weights: Weights = {}
    if options.random_weights is not None:
        weights = random_weights(model, options.random_weights, folder)
        options.caller.note(f"{len(weights)} weights drawn with seed {options.random_weights}")
    if made is not None:
        weights |= shard_weights(made.model, made.slices, folder, weights)
    return weights


def _checks(
    options: RunOptions, pipeline: Pipeline, found: Runnable, predictions: WayPredictions | None
) -> Checks:
    """Checks besides measuring."""
    tolerance = None
    if options.verify:
        tf32 = may_use_tf32(pipeline.homes, pipeline.config)
        tolerance = tolerance_for(pipeline.model, options.rtol, options.atol, tf32=tf32)
    return Checks(
        tolerance,
        options.compare or options.choose,
        predictions,
        bool(options.save_outputs),
        _forecast(found),
        found.owners,
        found.shards,
        sweep_of(options),
        {device.name: device.overhead_bytes for device in found.plan.devices},
        options.locate,
    )


def _check_links(options: RunOptions, stream: Stream, program: Program | None) -> None:
    """Make sure that there are links to emulate, and note their parts that are not emulated."""
    if program is None or not program.unit_orders.transfers:
        raise UsageError(
            "--emulate-links: there are no transfers to run; dnnp-schedule --transfers blocking or "
            "non-blocking makes them"
        )
    rows = stream.get("schedule")[0]["passes"]
    if any(wait.get("delay_s", 0.0) > 0 for row in rows for wait in row["after"]):
        options.caller.note("links are emulated without the delays (--latency) of the schedule")


def _config(options: RunOptions, *, overlap: bool) -> SessionConfig:
    """Settings that all sessions have in common; the providers are those of this build.

    Raises
    ------
    UsageError
        ONNX Runtime has never heard of a provider, or an option is malformed or for none.
    UnavailableError
        This build has not got a provider.
    """
    provider, targets = short_name(provider_name(options.provider)), parse_places(options.place)
    providers = dict.fromkeys([*(t.provider for t in targets.values()), provider])
    for name in providers:
        require_provider(name)
    return SessionConfig(
        provider,
        options.optimization,
        options.threads,
        not options.no_pin,
        targets=targets,
        options=parse_options(options.provider_option, providers),
        allow_fallback=options.allow_fallback,
        overlap=overlap,
    )


def _watch(caller: Callbacks, shown: Shown, *, compare: bool) -> RunCallbacks:
    """Callbacks of a run."""
    # The same samples go through several times more where ways to run the model are compared.
    measured = MEASURED if compare else 1.0

    def progress(done: int, total: int) -> None:
        share = measured * done / total if total else None
        of = f" of {total}" if total else ""
        shown.take(Progress(f"running, {done}{of} samples", share=share))

    def checks(doing: str, share: float) -> None:
        shown.take(Progress(doing, share=measured + (1 - measured) * share))

    return RunCallbacks(caller.note, caller.detail, lambda: caller.interrupted, progress, checks)


def _warn_of_other_devices(caller: Callbacks, pipeline: Pipeline) -> None:
    """Say when the loads were predicted for something else than what runs."""
    foreign: dict[str, dict[str, None]] = {}
    for stage, home in zip(pipeline.stages, pipeline.homes, strict=True):
        for place in home:
            if stage.device_class.startswith("cpu") != (place.provider == "cpu"):
                foreign.setdefault(place.provider, {})[stage.device_class] = None
    for provider, classes in foreign.items():
        caller.note(
            f"the loads were predicted for {', '.join(classes)}, the stages run on "
            f"{provider}: expect other times"
        )


def _tell_of_shipped_rates(caller: Callbacks, stream: Stream) -> None:
    """Note loads that follow from the rates of the default device, not of this machine."""
    by_rates = any(d["class"] == DEFAULT_DEVICE and d.get("fitted") for d in stream.get("device"))
    known = {"measured", "calibration"} & {*stream.header}
    if by_rates and not known:
        caller.note(
            f"the loads were predicted by the rates of {DEFAULT_DEVICE}, not of this machine: "
            f"dnnp-profile --device {HERE} measures those, once"
        )


def predictions_of(plan: Plan, graph: NodeGraph, units: Clustering) -> WayPredictions:
    """Predict the whole model and its replicas, on the devices that a plan uses.

    Raises
    ------
    UsageError
        The plan is for the latency of one sample.
    """
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.cost.rates import planned
    from dnnp.core.runtime.comparisons import REPLICAS, WHOLE, WayPredictions
    from dnnp.core.split.ways import whole_blocks

    if plan.objective in ("latency", "sequence"):
        raise UsageError("--choose compares throughput, the plan is for the latency of one sample")
    graph, units = planned(graph, units, plan.options)
    problem = SplitProblem(graph, units, plan.devices, plan.options)
    blocks, reasons = whole_blocks(problem, MethodOptions())
    value = {block.device.name: problem.value([block]) for block in blocks}
    used = [s.device_class for s in plan.stages for _ in range(s.replicas)]
    rates = [1 / value[name] if value[name] else 0.0 for name in used if name in value]
    ruled_out = {} if rates else dict.fromkeys((WHOLE, REPLICAS), "; ".join(reasons))
    return WayPredictions(len(rates), ruled_out, rates, plan.value)
