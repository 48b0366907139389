"""Sessions and workers for the stages of a plan, and the pipeline that they make."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, LimitError
from dnnp.core.model.plan import Stage
from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.limits import allowed_bytes, making_session
from dnnp.core.runtime.model.providers import (
    CpuFallback,
    Place,
    SessionConfig,
    copied_outputs,
    homes_of,
    note_provider,
    reference_config,
)
from dnnp.core.runtime.model.session import (
    Values,
    drawing_nodes,
    empty_session_bytes,
    make_session,
    make_stage,
    model_bytes,
    named,
    seeded,
    to_numpy,
)
from dnnp.core.runtime.model.weights import supplied_weights, use_weights
from dnnp.core.runtime.pipeline.sources import Repeated, RunCallbacks, Sink, Source, Traffic, widest
from dnnp.core.runtime.pipeline.steps import Call, DeviceOrders, Step, Worker
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import (
    SteadyRate,
    Timing,
    Trace,
    count_for,
    find_steady_rate,
    summarize,
    summarize_schedule,
)
from dnnp.core.runtime.report.verify import (
    FEW,
    Case,
    Examiner,
    Tolerance,
    Verdict,
    case_of_file,
    cause_of,
    chain,
    exposed,
    verify_cases,
)
from dnnp.core.runtime.usage import give_back, resident_bytes, with_threads

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.runtime.pipeline.schedule_orders import ScheduleSteps
    from dnnp.core.runtime.workers.messages import Recipe
    from dnnp.core.runtime.workers.pool import Rules, WorkerPool, WorkerSpec
    from dnnp.formats.onnx.stages import StageModel
    from dnnp.formats.onnx.value_types import TensorType


@dataclass
class Pipeline:
    """A split model, ready to run."""

    model: ModelProto
    folder: Path
    config: SessionConfig
    weights: Mapping[str, NDArray[np.generic]]
    parts: list[StageModel]
    steps: list[Step]
    stages: list[Stage]
    """The plan's stages, without empty ones."""
    outputs: tuple[str, ...]
    watch: RunCallbacks = field(default_factory=RunCallbacks)
    oversubscribed: bool = False
    """Devices share processors: a wait for one is no sign of other processes."""
    homes: list[tuple[Place, ...]] = field(default_factory=list)
    """Places of each step, one a replica."""
    fallbacks: list[CpuFallback] = field(default_factory=list)
    """Nodes that the provider of each step left to the CPU."""
    pool: WorkerPool[Any] | None = None
    """Pool of the workers; None: threads of this process."""
    made: ModelProto | None = None
    """Model that was split, if derived from `model`."""

    @property
    def devices(self) -> int:
        """Devices that the stages run on, replicas included."""
        return len({home for stage in self.stages for home in stage.homes})

    def warmup(self, traffic: Traffic) -> int:
        """Samples of a trace that go before those that are measured."""
        return 0 if traffic.apart else traffic.warmup * widest(self.stages)

    def warmup_apart(self, traffic: Traffic) -> int:
        """Samples that go before a trace."""
        return traffic.warmup * widest(self.stages) if traffic.apart and traffic.samples else 0

    def reach_steady_rate(self, traffic: Traffic) -> tuple[Traffic, SteadyRate]:
        """Send samples through until the rate is steady, if the traffic requests it.

        Returns the traffic with the number of samples to measure, and what went through.
        """
        first = max(traffic.warmup, 1) * widest(self.stages)
        most = None if traffic.until_steady else 1 if traffic.least_s and traffic.warmup else 0
        if most == 0:
            return traffic, SteadyRate()

        def stretch(count: int) -> Timing:
            source = Repeated(traffic.samples, count)
            return self.figures(summarize(self._send(traffic, source)))

        steady_rate = find_steady_rate(stretch, first, most=most)
        count = count_for(steady_rate.rate_per_s, traffic.least_s, traffic.count)
        if not traffic.apart:
            traffic = replace(traffic, count=count)
        return traffic, steady_rate

    def run(self, traffic: Traffic, keep: Callable[[int], bool] = lambda s: False) -> Trace:
        """Send the warm-up and the measured samples through; of a schedule these alone count.

        Raises `FormatError` if the devices of a schedule would wait for each other for ever.
        """
        sink = traffic.sink(keep)
        try:
            trace = self._through(traffic, sink)
        except BaseException:
            with suppress(DnnpError):  # what was done stays, but this is not why it ends
                sink.close()
            raise
        sink.close()
        return replace(trace, outputs=sink.outputs(trace.done))

    def _through(self, traffic: Traffic, sink: Sink) -> Trace:
        """Send warm-up and samples through, on their own or together."""
        if not traffic.apart:
            source = traffic.source(self.warmup(traffic) + traffic.count)
            return self._send(traffic, source, sink, among=0)
        first = self.warmup_apart(traffic)
        orders: DeviceOrders | None = None
        scheduled: ScheduleSteps | None = None
        if traffic.program is not None:
            from dnnp.core.runtime.pipeline.schedule_orders import schedule_steps

            unit_orders = traffic.program.unit_orders
            scheduled = schedule_steps(self.steps, unit_orders, emulate=traffic.emulate)
            orders = scheduled.device_orders(self.outputs, traffic.queue)
        if first:
            source = Repeated(traffic.samples, first)
            trace = self._send(traffic, source, among=0, after=traffic.expected)
            if trace.interrupted:
                return trace.without_samples()
        steps = self.steps if scheduled is None else scheduled.steps
        source = traffic.source(traffic.count)
        trace = self._send(traffic, source, sink, among=first, steps=steps, orders=orders)
        return trace if scheduled is None else scheduled.apart(trace)

    def _send(
        self,
        traffic: Traffic,
        source: Source,
        sink: Sink | None = None,
        *,
        among: int | None = None,
        after: int = 0,
        steps: Sequence[Step] | None = None,
        orders: DeviceOrders | None = None,
    ) -> Trace:
        """Send samples through.

        `among`: samples that went before, and `after`: samples to come, for progress; None: there
        is no progress.
        """

        def progress(number: int) -> None:
            if among is not None:
                known = traffic.expected if source.count is None else source.count
                total = among + known + after if known else 0
                self.watch.progress(among + number, total)

        return send(
            self.steps if steps is None else steps,
            source,
            sink or Sink(),
            self.outputs,
            queue=traffic.queue,
            window=traffic.window,
            interrupted=self.watch.interrupted,
            progress=progress,
            orders=orders,
        )

    def resident_bytes(self) -> list[int]:
        """Measured memory of the largest replica of each stage; 0: unknown.

        A thread's is that of its session, before it ran; a process has one for all its stages, so
        that nothing is known of each of several.
        """
        remotes = Counter(id(w.remote) for step in self.steps for w in step.workers if w.remote)
        return [
            max(0 if remotes[id(w.remote)] > 1 else w.resident_bytes() for w in step.workers)
            for step in self.steps
        ]

    def summarize(self, trace: Trace, traffic: Traffic) -> Timing:
        """Figures of a trace."""
        if traffic.program is not None:
            return self.figures(summarize_schedule(trace, self.devices))
        return self.figures(summarize(trace, self.warmup(traffic)))

    def figures(self, timing: Timing) -> Timing:
        """Figures without those that mean nothing here."""
        return replace(timing, taken=()) if self.oversubscribed else timing

    def verify(
        self, trace: Trace, traffic: Traffic, tolerance: Tolerance, *, last: bool = False
    ) -> Verdict:
        """Compare the outputs that a trace kept with those of the whole model.

        `last`: nothing runs after it, so that the stages end first where both do not fit.
        """
        self.watch.checks("verifying", 0.0)
        if alone := last and sum(stage.memory_bytes for stage in self.stages) > allowed_bytes():
            self.watch.note("no memory for the stages and the whole model: the stages have ended")
            self.release()
        whole = self.whole(reference_config(self.homes, self.config), "the whole model")
        stopped = self.watch.interrupted
        reference: list[Values] = []
        if traffic.files is not None:
            files, went = traffic.files, traffic.files.went or ()
            numbers = list(range(len(went)))

            def case_of(number: int) -> Case:
                return case_of_file(went[number], files.read, whole.run)
        else:
            for sample in traffic.samples:
                if stopped():
                    return Verdict()
                values = whole.run(dict(sample))
                reference.append({name: to_numpy(values[name]) for name in self.outputs})
            numbers = sorted(trace.outputs)

            def case_of(number: int) -> Case:
                i = number % len(reference)
                shown, sample = f"sample {number}", traffic.samples[i]
                return Case(shown, sample, reference[i], trace.outputs[number])

        verdict = verify_cases(numbers, case_of, tolerance, reference, stopped)
        if alone:
            return verdict
        drawing = drawing_nodes(self.model)
        if not stopped() and (drawing or not verdict.ok):
            examiner = self._examiner(tolerance)
            verdict.examine(case_of, examiner)
            for case in map(case_of, numbers[:FEW]) if drawing else ():
                verdict.mismatch = verdict.mismatch or examiner.drawn(case)
        if verdict.ok and verdict.max_abs and not stopped():
            case, model = case_of(verdict.worst), self.made or self.model
            crossing = chain(self.steps, verdict.worst, dict(case.sample))
            del whole  # one more copy of the model at a time is enough
            verdict.cause = cause_of(case, model, self.parts, crossing, self.reference)
        return verdict

    def reference(self, model: ModelProto, optimization: str = "") -> Call:
        """Open a model whose outputs are to be compared with."""
        config = reference_config(self.homes, self.config)
        config = replace(config, optimization=optimization or config.optimization)
        names = [value.name for value in model.graph.output]
        return self.worker("the whole model", model, names, config).run

    def release(self) -> None:
        """End all workers and free their memory; nothing can run any more."""

        def ended(values: Values) -> Values:
            raise LimitError("the stages have ended")

        self.steps = [
            replace(step, workers=tuple(replace(w, call=ended, stop=None) for w in step.workers))
            for step in self.steps
        ]
        if self.pool is not None:
            self.pool.close()
        give_back()

    def _examiner(self, tolerance: Tolerance) -> Examiner:
        """Make the examiner of outputs that differ."""
        model = self.made or self.model
        opened = exposed(model, (name for part in self.parts for name in part.outputs))
        plain = None
        if self.config.optimization != "disable":
            with suppress(DnnpError):  # not every model runs without
                plain = self.reference(opened, "disable")
        drawing, made = named(drawing_nodes(model)), self.made is not None
        return Examiner(self.steps, tolerance, self.reference(opened), plain, drawing, made)

    def whole(self, config: SessionConfig, name: str) -> Worker:
        """Make a worker for the unsplit model."""
        return self.worker(name, self.model, self.outputs, config)

    def worker(
        self,
        name: str,
        model: ModelProto,
        outputs: Sequence[str],
        config: SessionConfig,
        host: Sequence[str] | None = None,
        ahead: Mapping[str, tuple[str, int]] | None = None,
    ) -> Worker:
        """Make a session and what calls it; see `make_stage` for `host` (None: all) and `ahead`."""
        model = use_weights(model, self.weights) if self.weights else model
        before = resident_bytes()
        with making_session(name):
            session, threads = with_threads(
                lambda: make_session(model, self.folder, config, self.weights)
            )
        host = outputs if host is None else host
        stage = make_stage(session, outputs, host, config, ahead)
        made = max(resident_bytes() - before, 0)
        return Worker(
            name, stage, config.place.cores, stage.stop, threads, None, 0, stage.memory, made
        )


MAX_SESSIONS = 4096
"""Sessions, and threads, of one pipeline."""


def count_sessions(stages: Sequence[Stage]) -> int:
    """Sessions that it takes to run stages, one for each replica.

    Raises `LimitError` if they are too many.
    """
    count = sum(stage.replicas for stage in stages if stage.nodes)
    if count > MAX_SESSIONS:
        raise LimitError(f"the plan needs {count} sessions; at most {MAX_SESSIONS} are made")
    return count


def prepare(
    model: ModelProto,
    folder: Path,
    stages: Sequence[Stage],
    config: SessionConfig,
    *,
    made: ModelProto | None = None,
    known: Mapping[str, TensorType] | None = None,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    watch: RunCallbacks | None = None,
    pool: WorkerPool[Any] | None = None,
) -> Pipeline:
    """Split a model by a plan and make a session for each replica of a stage.

    `made`: the model that the nodes of the stages are in, if it is made of `model`, whose outputs
    it has. `pool` makes the workers; None: they are threads of this process.

    Raises
    ------
    FormatError
        The plan does not fit the model, or its stages depend on each other in a circle.
    LimitError
        Too many sessions.
    InputFileError, UnavailableError
        See `make_session`.
    """
    from dnnp.formats.onnx.stages import split_model

    watch = watch or RunCallbacks()
    used = [stage for stage in stages if stage.nodes]
    parts = split_model(made or model, [stage.nodes for stage in used], known)
    count_sessions(used)
    width = len({home for stage in used for home in stage.homes})
    homes, notices = homes_of(used, config)
    for notice in notices:
        watch.note(notice)
    pipeline = Pipeline(
        model=model,
        made=made,
        folder=folder,
        config=config,
        weights=weights or {},
        parts=parts,
        steps=[],
        stages=used,
        outputs=tuple(value.name for value in model.graph.output),
        watch=watch,
        oversubscribed=width * config.threads > len(available_cores()),
        homes=homes,
        pool=pool,
    )
    if pool is None:
        empty_session_bytes()  # what the first session of a process takes is of no stage
    for i, (part, spots) in enumerate(zip(parts, homes, strict=True)):
        name = f"stage {i}"
        if pool is None:
            step = make_step(pipeline, name, part, spots)
        else:
            step = pooled_step(pipeline, pool, name, part, spots, used[i].homes)
        pipeline.steps.append(step)
    if pool is not None:
        pool.ready()
    return pipeline


def make_step(pipeline: Pipeline, name: str, part: StageModel, spots: Sequence[Place]) -> Step:
    """Make sessions for one stage; an interruption leaves out replicas, as nothing will run."""
    config = pipeline.config
    host, ahead = copied_outputs(part.targets, pipeline.homes, overlap=config.overlap)
    first = sum(len(step.workers) for step in pipeline.steps)
    workers = []
    for j, spot in enumerate(spots):
        if j and pipeline.watch.interrupted():
            break
        shown = _replica_name(name, j, spots)
        mine, own = seeded(config, part.model, first + j, j)
        workers.append(pipeline.worker(shown, own, part.outputs, mine.at(spot), host, ahead))
    stage: Any = workers[-1].call
    provider, note = config.at(spots[0]).provider, pipeline.watch.note
    model = use_weights(part.model, pipeline.weights) if pipeline.weights else part.model
    left = note_provider(name, provider, stage.session, model, dict(config.options), note)
    pipeline.fallbacks.append(left)
    ready = f"{len(workers)} sessions" if len(spots) > 1 else "session"
    pipeline.watch.detail(f"{name}: {len(part.nodes)} nodes, {ready} ready")
    return Step(name, part.inputs, part.outputs, tuple(workers))


def _replica_name(stage: str, number: int, spots: Sequence[Place]) -> str:
    return f"replica {number} of {stage}" if len(spots) > 1 else stage


def pooled_step(
    pipeline: Pipeline,
    pool: WorkerPool[Any],
    name: str,
    part: StageModel,
    spots: Sequence[Place],
    devices: Sequence[str],
) -> Step:
    """Request workers for one stage, a replica at each place; `pool.ready` waits for them."""
    from dnnp.core.runtime.workers.messages import MODEL, SessionRecipe
    from dnnp.core.runtime.workers.pool import WorkerSpec

    config, weights = pipeline.config, pipeline.weights
    model = use_weights(part.model, weights) if weights else part.model
    shared = shared_model(pool, model, pipeline.folder, weights)
    first = sum(len(step.workers) for step in pipeline.steps)
    workers = []
    for j, place in enumerate(map(pool.place, spots)):
        mine, own = seeded(config, model, first + j, j)
        if own is not model:
            shared = shared | pool.share({MODEL: np.frombuffer(model_bytes(own), dtype=np.uint8)})
        recipe = SessionRecipe(part.outputs, os.path.realpath(pipeline.folder), mine.at(place))
        gpus = int(bool(place.memory))
        spec = WorkerSpec(_replica_name(name, j, spots), place, devices[j], config.threads, gpus)
        workers.append(pooled_worker(pool, spec, recipe, shared))
    pipeline.fallbacks.append(CpuFallback())
    return Step(name, part.inputs, part.outputs, tuple(workers))


def shared_model(
    pool: WorkerPool[Any],
    model: ModelProto,
    folder: Path,
    weights: Mapping[str, NDArray[np.generic]],
) -> dict[str, Any]:
    """The values of a `SessionRecipe`: the bytes of a model, and weights that no file holds."""
    from dnnp.core.runtime.workers.messages import MODEL

    supplied = supplied_weights(model, folder, weights)
    return pool.share({MODEL: np.frombuffer(model_bytes(model), dtype=np.uint8), **supplied})


def pooled_worker(pool: WorkerPool[Any], spec: WorkerSpec, recipe: Recipe, shared: Any) -> Worker:
    """Request a worker from a pool."""
    remote, part = pool.add(spec, recipe, shared)
    memory = None if pool.kind == "process" and not spec.place.memory else "host"
    cores = spec.place.cores
    call = partial(remote.call, part=part)
    return Worker(spec.name, call, cores, remote.stop, remote=remote, part=part, memory=memory)


THREAD, RAY = "thread", "ray"


@contextmanager
def open_pool(kind: str, rules: Rules, address: str | None = None) -> Iterator[WorkerPool[Any]]:
    """A pool of processes or Ray actors, closed after the block.

    `address` is that of a Ray cluster; None: one that is started.
    """
    pool: WorkerPool[Any]
    if kind == RAY:
        from dnnp.core.runtime.workers.ray import RayPool

        pool = RayPool(rules, address)
    else:
        from dnnp.core.runtime.workers.process import ProcessPool

        pool = ProcessPool(rules)
    try:
        yield pool
    finally:
        pool.close()
