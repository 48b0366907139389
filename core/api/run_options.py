"""What can be asked of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dnnp.choices import ENGINES, OPTIMIZATIONS, PROVIDERS, WORKERS
from dnnp.core.model.errors import UsageError
from dnnp.step import Options, option

SWEEP = "sweep"
"""In place of a rate: a table for many rates."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """What is run, how, and what is checked."""

    provider: str = option("cpu")
    """Execution provider of ONNX Runtime, by any name that it has; `cuda`: stages and replicas go
    to GPUs in turn."""
    place: Sequence[str] = option(())
    """Where devices of the plan are if not with `provider`, such as `t4=cuda` or `t4/1=cuda:0`."""
    provider_option: Sequence[str] = option(())
    """Options of providers other than the CPU's, such as `use_tf32=0`."""
    allow_fallback: bool = option(False)
    """Let nodes that a provider cannot run run on the CPU, which is an error otherwise."""
    samples: int | None = option(least=1, most=10_000_000)
    """Samples to send through and measure; None: those of the schedule, or what takes a second, by
    the rate of the warm-up, and at least 32."""
    warmup: int | None = option(least=0, most=1_000_000)
    """Samples before them for each replica of a stage; None: until the rate is steady."""
    duration: float | None = option(above=0, most=1e6)
    """Seconds in which samples set out, or arrive, in place of a number of them."""
    rate: float | str | None = option()
    """Samples that arrive a second, whatever becomes of those before them; `sweep`: a table for
    rates from 10 to 120 % of what the pipeline can do. None: each is there when there is room."""
    arrivals: str = option("poisson", choices=("poisson", "uniform"))
    """How they arrive: at random, or at equal distances."""
    inputs: Sequence[str] = option(())
    """Files of one sample each: .npz, .npy, .pb or a folder of input_0.pb, ...; or one folder of
    many, each of which goes through once; none: random inputs."""
    null: bool = option(False)
    """Names on standard input end with a NUL byte, not with a line."""
    outputs: str | None = option()
    """Folder for the outputs of each input, in a file of its name; what is there is skipped."""
    keep_going: bool = option(False)
    """Say which inputs fail, and go on with the others."""
    seed: int = option(0, least=0)
    """Of random inputs, and of arrivals at random."""
    random_weights: int | None = option(least=0)
    """Seed to draw the weights that the model makes from one constant, or that are missing."""
    model: str | None = option()
    """The ONNX model, if it is not where the graph says."""
    verify: bool = option(False)
    """Compare all outputs with those of the unsplit model."""
    rtol: float | None = option(least=0)
    """Allowed error relative to each value; None: by the model's precision."""
    atol: float | None = option(least=0)
    """Allowed error relative to the largest value of an output; None: likewise."""
    compare: bool = option(False)
    """Also time the whole model on all cores, and replicas of it on one core each."""
    choose: bool = option(False)
    """Compare them, until it is clear which is the fastest of those that fit the devices, and say
    what to deploy."""
    save_outputs: str | None = option()
    """File to write the outputs of each distinct sample to, as .npz."""
    trace: str | None = option()
    """File to write a timeline of what was measured to, in the Trace Event Format."""
    calibrate: str | None = option()
    """File to write what the run tells of the costs of operators to, for dnnp-profile."""
    threads: int = option(1, least=1, most=1024)
    """Threads of a stage, or of each replica."""
    queue: int = option(2, least=1)
    """Samples that may wait between neighbouring stages."""
    no_pin: bool = option(False)
    """Let the system move threads between cores."""
    workers: str = option("thread", choices=WORKERS)
    """What computes a stage: a thread of this process, or a process of its own."""
    engine: str = option("local", choices=ENGINES)
    """Where stages run: here, by `workers`, or as actors on a Ray cluster."""
    ray_address: str | None = option()
    """The Ray cluster, as `host:port`, or `auto`; None: one that is started, and shut down."""
    retries: int = option(0, least=0, most=1000)
    """How often a worker that is lost is started again; what it had is computed again."""
    emulate_links: bool = option(False)
    """Let transfers of the schedule take as long as it says, instead of copying."""
    optimization: str = option("all", choices=OPTIMIZATIONS)
    """ONNX Runtime's graph optimization level."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        for flag, value in (("--place", self.place), ("--provider-option", self.provider_option)):
            if isinstance(value, str):
                raise UsageError(f"{flag} {value!r}: give a list")
        if self.provider not in PROVIDERS or self.place:
            from dnnp.core.runtime.placing import parse_places
            from dnnp.core.runtime.providers import provider_name

            provider_name(self.provider)
            parse_places(self.place)
        if isinstance(self.inputs, str):
            raise UsageError(f"--inputs {self.inputs!r}: give a list of files")
        self._check_inputs()
        self._check_load()
        if any(x is not None and not math.isfinite(x) for x in (self.rtol, self.atol)):
            raise UsageError("--rtol and --atol: must be finite")
        self._check_workers()

    @property
    def kind(self) -> str:
        """What computes a stage: a thread, a process or an actor of Ray."""
        return "ray" if self.engine == "ray" else self.workers

    def _check_workers(self) -> None:
        """Refuse what does not go with the kind of workers."""
        if self.ray_address is not None and self.engine != "ray":
            raise UsageError("--ray-address: is for --engine ray")
        if self.engine == "ray" and self.workers != "thread":
            raise UsageError(f"--workers {self.workers}: with --engine ray stages are actors")
        if self.allow_fallback and self.kind != "thread":
            raise UsageError("--allow-fallback: only threads say what a provider leaves to the CPU")
        if self.retries and self.kind == "thread":
            raise UsageError("--retries: a thread cannot be lost; say --workers process")

    def _check_inputs(self) -> None:
        """Refuse inputs and outputs that do not go together."""
        if "-" in self.inputs and len(self.inputs) > 1:
            raise UsageError("--inputs -: names come from standard input alone, or are all given")
        if self.null and "-" not in self.inputs:
            raise UsageError("--null: only with --inputs -")
        if self.outputs is None:
            return
        if not self.inputs:
            raise UsageError("--outputs: give --inputs to read")
        for flag, given in (
            ("--save-outputs", self.save_outputs),
            ("--compare", self.compare),
            ("--choose", self.choose),
            ("--duration", self.duration),
            ("--rate", self.rate),
        ):
            if given:
                raise UsageError(f"{flag} and --outputs: each input goes through once, not {flag}")

    def _check_load(self) -> None:
        """Refuse arrivals and times that do not go together."""
        if self.rate is None and self.arrivals != "poisson":
            raise UsageError(f"--arrivals {self.arrivals}: only with --rate")
        if isinstance(self.rate, str):
            if self.rate != SWEEP:
                raise UsageError(f"--rate {self.rate!r}: must be a number or {SWEEP}")
        elif self.rate is not None and not 0 < self.rate <= 1e9:
            raise UsageError(f"--rate {self.rate}: must be above 0 and at most 1e+09")
        if self.rate is not None and (self.compare or self.choose):
            raise UsageError("--rate: compare ways to run a model without it")
        if self.duration is not None and self.samples is not None:
            raise UsageError("--duration and -n: give one of them")
