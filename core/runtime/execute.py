"""A split model at work: samples go through it, and outputs are compared with the whole model.

Transfers of a schedule at work: copies of tensors, or links that are emulated. Threads of one
process could read each other's tensors, but a schedule with transfers says that they move, so they
do: the thread of the link, or of the device that receives, copies every tensor into memory of its
own; from a GPU it comes to the host. An emulated link copies nothing and takes as long as the
schedule says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError
from dnnp.core.model.plan import Stage
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.load import Load, Watch, widest
from dnnp.core.runtime.pipeline import send
from dnnp.core.runtime.placing import reference_config
from dnnp.core.runtime.providers import Left
from dnnp.core.runtime.report import Timing, summarize, summarize_schedule
from dnnp.core.runtime.scheduled import steering
from dnnp.core.runtime.session import Place, SessionConfig, make_session
from dnnp.core.runtime.sources import Repeated, Sink, Source
from dnnp.core.runtime.stages import make_stage
from dnnp.core.runtime.steady import Settled, count_for, settle
from dnnp.core.runtime.steps import Steered, Step, Worker
from dnnp.core.runtime.trace import Moved, Trace
from dnnp.core.runtime.turns import Turns
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.core.runtime.verify import (
    Case,
    Examiner,
    Tolerance,
    Verdict,
    case_of_file,
    drawing_nodes,
    exposed,
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

            def case_of(number: int) -> Case:
                return case_of_file(went[number], files.read, whole.run)

            verdict = verify_files(len(went), case_of, tolerance, stopped)
        else:
            reference = []
            for sample in load.samples:
                if stopped():
                    return Verdict()
                values = whole.run(dict(sample))
                reference.append({name: to_numpy(values[name]) for name in self.outputs})
            verdict = verify_outputs(reference, trace.outputs, tolerance)

            def case_of(number: int) -> Case:
                i = number % len(reference)
                shown, sample = f"sample {number}", load.samples[i]
                return Case(shown, sample, reference[i], trace.outputs[number])

        if not verdict.ok and not stopped():
            verdict.examine(case_of, self._examiner(tolerance))
        return verdict

    def _examiner(self, tolerance: Tolerance) -> Examiner:
        """What finds out why outputs differ."""
        model = self.made or self.model
        opened = exposed(model, [part.model for part in self.parts])
        names = [value.name for value in opened.graph.output]
        config = reference_config(self.homes, self.config)

        def run_by(config: SessionConfig) -> Callable[[Values], Values]:
            return self._worker(opened, names, config, Place(), "the whole model").run

        plain = None
        if config.optimization != "disable":
            with suppress(DnnpError):  # not every model runs without
                plain = run_by(replace(config, optimization="disable"))
        drawing, made = drawing_nodes(model), self.made is not None
        return Examiner(self.steps, tolerance, run_by(config), plain, drawing, made)

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


def _copied(value: Any) -> Any:
    """The value in memory of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return to_numpy(value)


def _size(value: Any) -> int:
    """Bytes of a value; 0 where it does not tell."""
    if isinstance(value, list):
        return sum(map(_size, value))
    if hasattr(value, "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes()) if value.is_tensor() else 0
    return int(getattr(value, "nbytes", 0))


@dataclass
class Carrier:
    """Moves the tensors of a transfer, sample by sample."""

    seconds: float | None = None
    """How long the link is to take; None: copy."""
    moved: list[int] = field(default_factory=list)
    """Bytes of each sample, in any order."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, values: Values) -> Values:
        """The same tensors where they are to be."""
        self.moved.append(sum(map(_size, values.values())))
        if self.seconds is None:
            return {name: _copied(value) for name, value in values.items()}
        self._stopped.wait(min(self.seconds, threading.TIMEOUT_MAX))
        return values

    def stop(self) -> None:
        """End what is under way."""
        self._stopped.set()

    @property
    def mean_bytes(self) -> float:
        """Of a sample."""
        return sum(self.moved) / max(len(self.moved), 1)


def _nothing(values: Values) -> Values:
    return {}


@dataclass(frozen=True)
class Crew:
    """The steps of a schedule."""

    steps: tuple[Step, ...]
    """Those that run nodes, then the others."""
    carriers: tuple[Carrier, ...]
    """Of each transfer."""
    turns: Turns

    def apart(self, trace: Trace) -> Trace:
        """The trace of the steps that run nodes, with what the transfers did."""
        stages = len(self.steps) - len(self.turns.others)
        rows = [transfer.step for transfer in self.turns.transfers]
        moved = Moved(
            self.turns.transfers,
            trace.start_ns[rows],
            trace.end_ns[rows],
            tuple(carrier.mean_bytes for carrier in self.carriers),
            emulated=any(carrier.seconds is not None for carrier in self.carriers),
        )
        return replace(
            trace,
            start_ns=trace.start_ns[:stages],
            end_ns=trace.end_ns[:stages],
            replicas=trace.replicas[:stages],
            waited_ns=None if trace.waited_ns is None else trace.waited_ns[:stages],
            moved=moved if rows else None,
        )


def crew_of(stages: Sequence[Step], turns: Turns, *, emulate: bool = False) -> Crew:
    """What runs a schedule: stages that take what they read from transfers, and the transfers.

    Parameters
    ----------
    stages
        The steps that run nodes, in the order of the schedule's.
    emulate
        Transfers take as long as the schedule says; else they copy.
    """
    maker = {name: i for i, step in enumerate(stages) for name in step.outputs}
    takes: list[dict[str, int]] = [{} for _ in range(turns.steps)]
    for i, step in enumerate(stages):
        for name in step.inputs:
            head = i
            while (tail := turns.via.get((head, maker.get(name, -1)))) is not None:
                takes[head][name] = tail
                head = tail
            if head != i:
                takes[head][name] = maker[name]
    steps = [replace(step, takes=takes[i]) for i, step in enumerate(stages)]
    carriers = {t.step: Carrier(t.time_s if emulate else None) for t in turns.transfers}
    for i in range(len(stages), turns.steps):
        name = turns.name(i)
        if i in carriers:
            worker = Worker(name, carriers[i], stop=carriers[i].stop)
            steps.append(Step(name, tuple(takes[i]), (), (worker,), takes[i]))
        else:
            steps.append(Step(name, (), (), (Worker(name, _nothing),)))
    return Crew(tuple(steps), tuple(carriers.values()), turns)
