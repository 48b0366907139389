"""Put a plan to work: stage sessions, the pipeline, verification, comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, LimitError
from dnnp.core.model.plan import Stage
from dnnp.core.model.processors import available_cores
from dnnp.core.runtime.choice import (
    MOST_ROUNDS,
    REPLICAS,
    WHOLE,
    Choice,
    Offer,
    choose,
    is_clear,
)
from dnnp.core.runtime.compare import ROUNDS, run_replicas
from dnnp.core.runtime.fallback import Left, note_provider
from dnnp.core.runtime.inputs import Sample
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.load import Load, Watch, widest
from dnnp.core.runtime.moving import Crew, crew_of
from dnnp.core.runtime.pipeline import Step, Worker, send
from dnnp.core.runtime.placing import (
    copied_outputs,
    homes_of,
    main_config,
    reference_config,
)
from dnnp.core.runtime.report import Timing, median_timing, summarize, summarize_schedule
from dnnp.core.runtime.routes import route
from dnnp.core.runtime.scheduled import room_of
from dnnp.core.runtime.session import Place, SessionConfig, make_session, places
from dnnp.core.runtime.sinks import Sink
from dnnp.core.runtime.sources import Repeated, Source
from dnnp.core.runtime.stages import make_stage
from dnnp.core.runtime.steady import Settled, count_for, settle
from dnnp.core.runtime.trace import Trace
from dnnp.core.runtime.values import to_numpy
from dnnp.core.runtime.verify import (
    Tolerance,
    Verdict,
    exposed,
    first_difference,
    verify_files,
    verify_outputs,
)
from dnnp.core.runtime.waits import with_threads
from dnnp.core.runtime.weights import use_weights
from dnnp.core.runtime.workers.hiring import Common, hire_step
from dnnp.core.runtime.workers.staff import Staff

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx_stages import StageModel
    from dnnp.formats.onnx_types import TensorType

MAX_SESSIONS = 4096
"""Sessions, and threads, of one pipeline."""


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
    watch: Watch = field(default_factory=Watch)
    crowded: bool = False
    """Devices share processors: waiting for one says nothing about other processes."""
    homes: list[tuple[Place, ...]] = field(default_factory=list)
    """Of each step, one place a replica."""
    left: list[Left] = field(default_factory=list)
    """What the provider of each step left to the CPU."""
    staff: Staff | None = None
    """Where the workers of the stages come from; None: they are threads of this process."""

    @property
    def devices(self) -> int:
        """Devices that the stages run on, replicas included."""
        return sum({stage.device: stage.replicas for stage in self.stages}.values())

    def warmup(self, load: Load) -> int:
        """Samples of a trace that go before those that are measured."""
        return 0 if load.apart else load.warmup * widest(self.stages)

    def warmup_apart(self, load: Load) -> int:
        """Samples that go before a trace."""
        return load.warmup * widest(self.stages) if load.apart and load.samples else 0

    def settle(self, load: Load) -> tuple[Load, Settled]:
        """Send samples through until the rate is steady, as far as the load asks for that.

        Returns the load with the number of samples to measure, and what went through.
        """
        first = max(load.warmup, 1) * widest(self.stages)
        most = None if load.settle else 1 if load.least_s and load.warmup else 0
        if most == 0:
            return load, Settled()

        def stretch(count: int) -> Timing:
            source = Repeated(load.samples, count)
            return self.figures(summarize(self._send(load, source)))

        settled = settle(stretch, first, most=most)
        count = count_for(settled.rate_per_s, load.least_s, load.count)
        if not load.apart:
            load = replace(load, count=count)
        return load, settled

    def run(self, load: Load, keep: Callable[[int], bool] = lambda s: False) -> Trace:
        """Send the warm-up and the measured samples through; of a schedule these alone count.

        Raises
        ------
        FormatError
            The devices of a schedule would wait for each other for ever.
        """
        sink = load.sink(keep)
        try:
            trace = self._through(load, sink)
        except BaseException:
            with suppress(DnnpError):  # what was done stays, but this is not why it ends
                sink.close()
            raise
        sink.close()
        return replace(trace, outputs=sink.outputs(trace.done))

    def _through(self, load: Load, sink: Sink) -> Trace:
        """Send warm-up and samples through, on their own or together."""
        if not load.apart:
            return self._send(load, load.source(self.warmup(load) + load.count), sink, among=0)
        first = self.warmup_apart(load)
        steered: dict[str, Any] = {}
        crew: Crew | None = None
        if load.program is not None:
            turns = load.program.turns
            crew = crew_of(self.steps, turns, emulate=load.emulate)
            edges = route(crew.steps, self.outputs, waits=turns.waits)
            room = room_of(turns, edges, load.queue)
            steered = {"orders": turns.orders, "room": room, "waits": turns.waits}
            steered["steps"] = crew.steps
        if first:
            trace = self._send(load, Repeated(load.samples, first), among=0, after=load.expected)
            if trace.interrupted:
                return trace.before(0)
        trace = self._send(load, load.source(load.count), sink, among=first, **steered)
        return trace if crew is None else crew.apart(trace)

    def _send(
        self,
        load: Load,
        source: Source,
        sink: Sink | None = None,
        *,
        among: int | None = None,
        after: int = 0,
        steps: Sequence[Step] | None = None,
        **steered: Any,
    ) -> Trace:
        """Send samples through.

        `among`: how many others went before, and `after` so many will come; None: nobody is told
        of them.
        """

        def progress(number: int) -> None:
            if among is not None:
                known = load.expected if source.count is None else source.count
                total = among + known + after if known else 0
                self.watch.progress(among + number, total)

        return send(
            self.steps if steps is None else steps,
            source,
            sink or Sink(),
            self.outputs,
            queue=load.queue,
            window=load.window,
            interrupted=self.watch.interrupted,
            progress=progress,
            **steered,
        )

    def summarize(self, trace: Trace, load: Load) -> Timing:
        """Figures of a trace."""
        if load.program is not None:
            return self.figures(summarize_schedule(trace, self.devices))
        return self.figures(summarize(trace, self.warmup(load)))

    def figures(self, timing: Timing) -> Timing:
        """Figures without those that mean nothing here."""
        return replace(timing, taken=()) if self.crowded else timing

    def verify(self, trace: Trace, load: Load, tolerance: Tolerance) -> Verdict:
        """Compare the outputs that a trace kept with those of the whole model."""
        self.watch.checks("verifying", 0.0)
        whole = self.whole(reference_config(self.homes, self.config), Place(), "the whole model")
        stopped = self.watch.interrupted
        if load.files is not None:
            files, went = load.files, load.files.went or ()
            verdict = verify_files(went, files.read, whole.run, tolerance, stopped)
            if not verdict.ok and verdict.bad_sample is not None:
                bad = files.read(went[verdict.bad_sample].path)
                verdict.fault += f"; {self._locate(bad, tolerance)}"
            return verdict
        reference = []
        for sample in load.samples:
            if stopped():
                break
            values = whole.run(dict(sample))
            reference.append({name: to_numpy(values[name]) for name in self.outputs})
        if len(reference) < len(load.samples):
            return Verdict()
        verdict = verify_outputs(reference, trace.outputs, tolerance)
        if not verdict.ok and verdict.bad_sample is not None:
            verdict.fault += f"; {self._locate(load.samples[verdict.bad_sample], tolerance)}"
        return verdict

    def _locate(self, sample: Sample, tolerance: Tolerance) -> str:
        open_model = exposed(self.model, [part.model for part in self.parts])
        names = [value.name for value in open_model.graph.output]
        config = reference_config(self.homes, self.config)
        whole = self._worker(open_model, names, config, Place(), "the whole model")
        return first_difference(self.steps, whole.run, sample, tolerance)

    def whole(
        self, config: SessionConfig, place: Place, name: str, *, alone: bool = False
    ) -> Worker:
        """The unsplit model."""
        return self._worker(self.model, self.outputs, config, place, name, alone=alone)

    def _worker(
        self,
        model: ModelProto,
        outputs: Sequence[str],
        config: SessionConfig,
        place: Place,
        name: str,
        *,
        alone: bool = False,
    ) -> Worker:
        model = use_weights(model, self.weights) if self.weights else model
        with making_session(name):
            session, threads = with_threads(
                lambda: make_session(model, self.folder, config, place, self.weights, alone=alone)
            )
        stage = make_stage(session, outputs, outputs, config, place)
        return Worker(name, stage, place.cores, stage.stop, threads)

    def compare(
        self, load: Load, first: Timing, offer: Offer | None = None
    ) -> list[tuple[str, SessionConfig, int, Timing]]:
        """Time the pipeline, the whole model and replicas of it, on as many devices, in turn.

        Returns (mode, configuration, number of sessions, figures) for each; `first` is a
        round of the pipeline already run. The whole model's threads spin while they wait, or
        not, whichever is faster here. With `offer`, what fits the memory of the devices, until
        it is clear which is the fastest.
        """
        others = self._others(load, offer or Offer())
        modes = {"pipeline": (self.config, len(self.steps))}
        modes |= {mode: (config, len(workers)) for mode, (config, workers) in others.items()}
        rounds: dict[str, list[Timing]] = {"pipeline": [first]} | {mode: [] for mode in others}
        least, most = ROUNDS, ROUNDS if offer is None else MOST_ROUNDS
        stop = self.watch.interrupted
        for number in range(most):
            figures = {mode: median_timing(timings) for mode, timings in rounds.items() if timings}
            if number >= least and is_clear(figures):
                break
            of = f"of {least}" if number < least else f"of {most} at most"
            self.watch.detail(f"comparison, round {number + 1} {of}")
            self.watch.checks(f"comparing, round {number + 1} {of}", number / most)
            if number and not stop():
                rounds["pipeline"].append(self.summarize(self.run(load), load))
            for mode, (_, workers) in others.items():
                if not stop():
                    rounds[mode].append(
                        run_replicas(workers, load.samples, load.count, load.warmup, stop)
                    )
        return [
            (mode, *modes[mode], median_timing(timings))
            for mode, timings in rounds.items()
            if timings
        ]

    def _others(self, load: Load, offer: Offer) -> dict[str, tuple[SessionConfig, list[Worker]]]:
        """Mode -> sessions of the whole model, in one configuration."""
        cores = len(available_cores())
        config = main_config(self.homes, self.config)
        whole = replace(config, threads=cores, pin=False)
        single = replace(config, threads=1)
        spots, _ = places(self.devices, single)
        if config.provider == "cpu":
            spots = spots[:cores]
        else:
            spots = spots[: len({spot.device_id for spot in spots})]
        found = {}
        if WHOLE not in offer.ruled_out:
            found[WHOLE] = (whole, [self._fastest_whole(whole, load)])
        if REPLICAS not in offer.ruled_out:
            spots = spots[: offer.copies]
            copies = [self.whole(single, spot, f"replica {i}") for i, spot in enumerate(spots)]
            found[REPLICAS] = (single, copies)
        return found

    def choose(
        self, others: Sequence[tuple[str, SessionConfig, int, Timing]], offer: Offer
    ) -> Choice | None:
        """The fastest of the ways that `compare` timed, beside what was predicted of it."""
        gpu = main_config(self.homes, self.config).provider != "cpu"
        predicted = {
            # A stage stands for a device of the plan: one GPU, or as many cores as it has threads.
            mode: offer.predicted(
                mode,
                sessions,
                as_planned=not self.crowded and (gpu or config.threads == self.config.threads),
            )
            for mode, config, sessions, _ in others
        }
        return choose({mode: timing for mode, _, _, timing in others}, offer, predicted)

    def _fastest_whole(self, config: SessionConfig, load: Load) -> Worker:
        """The whole model on all cores, with threads that wait in the better way."""
        workers = [
            self.whole(config, Place(), "the whole model", alone=alone) for alone in (False, True)
        ]
        trial = [
            run_replicas([w], load.samples, min(load.count, 8), 2, self.watch.interrupted)
            for w in workers
        ]
        return max(zip(trial, workers, strict=True), key=lambda pair: pair[0].throughput_per_s)[1]


def count_sessions(stages: Sequence[Stage]) -> int:
    """Sessions that it takes to run stages, one for each replica.

    Raises
    ------
    LimitError
        Too many.
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
    known: Mapping[str, TensorType] | None = None,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    watch: Watch | None = None,
    staff: Staff | None = None,
) -> Pipeline:
    """Split a model by a plan and make a session for every replica of every stage.

    `staff` makes the workers; None: they are threads of this process.

    Raises
    ------
    FormatError
        The plan does not fit the model, or its stages depend on each other in a circle.
    LimitError
        Too many sessions.
    InputFileError, UnavailableError
        See `make_session`.
    """
    from dnnp.formats.onnx_stages import split_model

    watch = watch or Watch()
    used = [stage for stage in stages if stage.nodes]
    parts = split_model(model, [stage.nodes for stage in used], known)
    count_sessions(used)
    spread = sum({stage.device: stage.replicas for stage in used}.values())
    homes, notices = homes_of(used, config)
    for notice in notices:
        watch.note(notice)
    pipeline = Pipeline(
        model=model,
        folder=folder,
        config=config,
        weights=weights or {},
        parts=parts,
        steps=[],
        stages=used,
        outputs=tuple(value.name for value in model.graph.output),
        watch=watch,
        crowded=spread * config.threads > len(available_cores()),
        homes=homes,
        staff=staff,
    )
    for i, (part, spots) in enumerate(zip(parts, homes, strict=True)):
        name = f"stage {i}"
        if staff is None:
            step = make_step(pipeline, name, part, spots)
        else:
            common = Common(folder, config, pipeline.weights)
            step = hire_step(staff, name, part, spots, used[i].device, common)
            pipeline.left.append(Left())
        pipeline.steps.append(step)
    if staff is not None:
        staff.ready()
    return pipeline


def make_step(pipeline: Pipeline, name: str, part: StageModel, spots: Sequence[Place]) -> Step:
    """Sessions for one stage; an interruption leaves out replicas, as nothing will run."""
    config, weights = pipeline.config, pipeline.weights
    model = use_weights(part.model, weights) if weights else part.model
    host, ahead = copied_outputs(part.targets, pipeline.homes, overlap=config.overlap)
    workers = []
    for j, spot in enumerate(spots):
        if j and pipeline.watch.interrupted():
            break
        shown = f"replica {j} of {name}" if len(spots) > 1 else name
        with making_session(shown):
            session, threads = with_threads(
                partial(make_session, model, pipeline.folder, config, spot, weights)
            )
        stage = make_stage(session, part.outputs, host, config, spot, ahead)
        workers.append(Worker(shown, stage, spot.cores, stage.stop, threads))
    provider, options = config.at(spots[0]).provider, dict(config.options)
    left = note_provider(name, provider, session, model, options, pipeline.watch.note)
    pipeline.left.append(left)
    ready = f"{len(workers)} sessions" if len(spots) > 1 else "session"
    pipeline.watch.detail(f"{name}: {len(part.nodes)} nodes, {ready} ready")
    return Step(name, part.inputs, part.outputs, tuple(workers))
