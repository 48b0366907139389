"""A split model at work: samples go through it, and outputs are compared with the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError
from dnnp.core.model.plan import Stage
from dnnp.core.runtime.fallback import Left
from dnnp.core.runtime.inputs import Sample
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.load import Load, Watch, widest
from dnnp.core.runtime.moving import Crew, crew_of
from dnnp.core.runtime.pipeline import send
from dnnp.core.runtime.placing import (
    reference_config,
)
from dnnp.core.runtime.report import Timing, summarize, summarize_schedule
from dnnp.core.runtime.scheduled import steering
from dnnp.core.runtime.session import Place, SessionConfig, make_session
from dnnp.core.runtime.sinks import Sink
from dnnp.core.runtime.sources import Repeated, Source
from dnnp.core.runtime.stages import make_stage
from dnnp.core.runtime.steady import Settled, count_for, settle
from dnnp.core.runtime.steps import Steered, Step, Worker
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
from dnnp.core.runtime.workers.staff import Staff

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx_stages import StageModel


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
    made: ModelProto | None = None
    """What was split, if it is a model that was made of this one."""

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
        steered: Steered | None = None
        crew: Crew | None = None
        if load.program is not None:
            crew = crew_of(self.steps, load.program.turns, emulate=load.emulate)
            steered = steering(crew.turns, crew.steps, self.outputs, load.queue)
        if first:
            trace = self._send(load, Repeated(load.samples, first), among=0, after=load.expected)
            if trace.interrupted:
                return trace.before(0)
        steps = self.steps if crew is None else crew.steps
        source = load.source(load.count)
        trace = self._send(load, source, sink, among=first, steps=steps, steered=steered)
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
        steered: Steered | None = None,
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
            steered=steered,
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
        open_model = exposed(self.made or self.model, [part.model for part in self.parts])
        names = [value.name for value in open_model.graph.output]
        config = reference_config(self.homes, self.config)
        whole = self._worker(open_model, names, config, Place(), "the whole model")
        found = first_difference(self.steps, whole.run, sample, tolerance)
        return found or (
            "every stage alone is right: tensors were mixed up between the stages"
            if self.made is None
            else "every part alone is right: sums of parts are rounded otherwise, or the model was "
            "cut in a wrong way"
        )

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
