"""ONNX Runtime sessions of a stage or a whole model, and how they are called by tensor names."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError, UnavailableError, UsageError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import counted
from dnnp.core.runtime.model.memory import large_blocks_apart, resident_bytes
from dnnp.core.runtime.model.providers import (
    CPU,
    MEMORIES,
    RECORD,
    Target,
    blame_provider,
    count_gpus,
    first_line,
    left_to_cpu,
    not_started,
    ort_errors,
    provider_name,
    require_provider,
)
from dnnp.core.runtime.model.weights import supplied_weights
from dnnp.core.runtime.values import AS_BYTES, Values, is_added, to_device, to_numpy, to_ort_value

if TYPE_CHECKING:
    from onnx import ModelProto


OPTIMIZATIONS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_GRAPH = "a graph would read the memory of its first sample again, and every sample has its own"
_REFUSED = {
    "enable_cuda_graph": _GRAPH,
    "trt_cuda_graph_enable": _GRAPH,
    "user_compute_stream": "every session has a stream of its own",
}
"""Options that would make results wrong -> why."""
_KERNELS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains whose kernels go before functions of the same name in a model."""
_SILENT = 4
"""ONNX Runtime's log level for fatal messages only: failures come as exceptions anyway."""


@dataclass(frozen=True)
class SessionConfig:
    """Settings of all sessions of a run."""

    provider: str = "cpu"
    """Short name, such as `cpu` or `cuda`; of places that name no other."""
    optimization: str = "all"
    """Graph optimisation level: a key of `OPTIMIZATIONS`."""
    threads: int = 1
    """Threads of one stage."""
    pin: bool = True
    """Keep the threads of a stage on cores of their own."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    """Device classes, and devices, of the plan that are not for `provider`."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the provider, by name; none go to that of the CPU."""
    allow_fallback: bool = False
    """Nodes that the provider leaves to the CPU may run there."""
    as_listed: bool = True
    """Run nodes as the model lists them, as far as no fusion moves one; else in ONNX Runtime's
    default order, in which what waits for nothing but weights comes first."""
    overlap: bool = False
    """Threads of stages on the CPU copy what goes to and from GPUs, while these compute; else the
    threads of the GPUs' stages do, so that their loads contain it."""
    seed: int | None = None
    """Of random operators without one; None: that of the process, which sessions share."""

    def at(self, place: Place | None) -> SessionConfig:
        """The configuration with the provider of a place."""
        provider = (place.provider if place is not None else "") or self.provider
        return replace(self, provider=provider)


@dataclass(frozen=True)
class Place:
    """Provider, GPU and cores of one session."""

    device_id: int = 0
    """Number of the GPU; 0 on the CPU."""
    cores: tuple[int, ...] = ()
    """Logical processors of its threads; empty: wherever the system puts them."""
    provider: str = ""
    """Empty: that of the configuration."""

    @property
    def memory(self) -> str:
        """Name of the memory that its tensors may stay in; empty: that of the host."""
        return MEMORIES.get(self.provider, "")


def places(
    count: int, config: SessionConfig, what: str = "stage", targets: Sequence[Target] = ()
) -> tuple[list[Place], list[str]]:
    """Places of `count` sessions, and notices about what they have to share.

    Sessions on GPUs whose number is not given take these in turn; threads go to cores in order.
    Both wrap around. `what` the sessions are is for the notices. Without `targets` all are for the
    provider of the configuration.

    Raises
    ------
    UnavailableError
        There is no such GPU.
    """
    targets = targets or [Target(config.provider)] * count
    numbers, notices = _gpu_numbers(targets, what)
    cores = available_cores()
    width = min(config.threads, len(cores))
    if count * config.threads > len(cores):
        notices.append(
            f"{counted(count, what)} of {counted(config.threads, 'thread')} share "
            f"{counted(len(cores), 'core')}; measured loads include waiting for each other"
        )
    result = []
    for i, (target, number) in enumerate(zip(targets, numbers, strict=True)):
        mine = tuple(cores[(i * width + j) % len(cores)] for j in range(width))
        result.append(Place(number, mine if config.pin else (), target.provider))
    return result, notices


def _gpu_numbers(targets: Sequence[Target], what: str) -> tuple[list[int], list[str]]:
    """Number of the GPU of each target, 0 for others; and a notice if some share one."""
    there = count_gpus() if any(target.on_cuda for target in targets) else 0
    numbers, turn = [], 0
    for target in targets:
        if target.number is None:
            numbers.append(turn % there if target.on_cuda else 0)
            turn += target.on_cuda
            continue
        if target.on_cuda and target.number >= there:
            raise UnavailableError(
                f"{target.provider}:{target.number}: the last of {counted(there, 'GPU')} is number "
                f"{there - 1}"
            )
        numbers.append(target.number)
    taken = [n for n, target in zip(numbers, targets, strict=True) if target.on_cuda]
    gpus = len(set(taken))
    shared = [f"{len(taken)} {what}s share {counted(gpus, 'GPU')}"] if len(taken) > gpus else []
    return numbers, shared


def make_session(
    model: ModelProto,
    folder: Path,
    config: SessionConfig,
    place: Place | None = None,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    alone: bool = False,
    profile: str = "",
) -> Any:
    """Make an `onnxruntime.InferenceSession` for a model or stage.

    Parameters
    ----------
    model
        A whole model or one stage; initializers may be external data.
    folder
        Where the model's external data are.
    config, place
        Provider, optimisation, threads; GPU and cores.
    weights
        Values for initializers declared as external data, in place of a file; the session
        uses their memory, so keep them as long as it.
    alone
        Nothing else runs at the same time: threads may spin while they wait within a run.
    profile
        Beginning of a file name: profile the session, into a file that starts like this.

    Raises
    ------
    UnavailableError
        ONNX Runtime did not use the provider that was asked for, or not for all nodes.
    UsageError
        The provider does not know an option.
    InputFileError
        Weights are missing, or ONNX Runtime cannot load the model.
    """
    require_provider(config.at(place).provider)
    supplied = supplied_weights(model, folder, weights or {})
    data = model_bytes(model)
    return open_session(data, folder, config, place, supplied, alone=alone, profile=profile)


def open_session(
    model: bytes,
    folder: Path,
    config: SessionConfig,
    place: Place | None = None,
    supplied: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    alone: bool = False,
    profile: str = "",
    tune: Callable[[Any], None] = lambda options: None,
    without: Collection[str] = (),
) -> Any:
    """`make_session` of the bytes of a model, with weights that it all wants.

    `tune` changes the session's options; `without` names optimisers that are left out.
    """
    import onnxruntime

    config, place = config.at(place), place or Place()
    require_provider(config.provider)
    onnxruntime.set_default_logger_severity(_SILENT)
    if config.seed is not None:
        onnxruntime.set_seed(config.seed)
    options = _options(config, place, alone)
    tune(options)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    keep = {name: to_ort_value(value) for name, value in (supplied or {}).items()}
    if keep:
        options.add_external_initializers(list(keep), list(keep.values()))
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", os.path.realpath(folder)
    )
    name = provider_name(config.provider)
    providers: list[Any] = [CPU]
    if name != CPU:
        providers.insert(0, (name, provider_options(config, place)))
        options.add_session_config_entry(RECORD, "1")
    try:
        with warnings.catch_warnings(), large_blocks_apart():
            warnings.simplefilter("ignore")  # about a provider that is absent: checked below
            more = {"disabled_optimizers": {*without}} if without else {}
            session = onnxruntime.InferenceSession(
                model, options, providers=providers, enable_fallback=0, **more
            )
    except ort_errors() as error:
        if name != CPU:
            blame_provider(config.provider, error)
        raise InputFileError(f"ONNX Runtime cannot load the model: {first_line(error)}") from None
    # It would keep the bytes, to begin again with other providers, which nobody asks it to.
    session._model_bytes = None
    used = session.get_providers()[0]
    if used != name:
        raise not_started(config.provider, f"ONNX Runtime uses {used} instead")
    if name != CPU and not config.allow_fallback:
        from onnx import load_model_from_string

        left = left_to_cpu(session, partial(load_model_from_string, model))
        if left is not None and left.nodes:
            raise UnavailableError(
                f"{left.words(config.provider)}; --allow-fallback lets them run there"
            )
    return session


_EMPTY = bytes.fromhex(
    "08093a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020804620f0a0179120a0a08"
    "080112040a02080442040a001012"
)
"""A model of one Relu (IR version 9, operator set 18)."""


def empty_session_bytes() -> int:
    """Resident memory of this process with ONNX Runtime in it, after a session of one operator."""
    session = open_session(_EMPTY, Path(), SessionConfig())
    session.run(None, {"x": np.zeros(4, dtype=np.float32)})
    return resident_bytes()


def provider_options(config: SessionConfig, place: Place) -> dict[str, str]:
    """Options for ONNX Runtime of a provider that is not the CPU's.

    Raises
    ------
    UsageError
        With one of the options nothing would be right.
    """
    options = dict(config.options)
    for name, reason in _REFUSED.items():
        if options.get(name, "0").lower() not in ("0", "false"):
            raise UsageError(f"--provider-option {name}: {reason}")
    if Target(config.provider).is_numbered:
        if "device_id" in options:
            raise UsageError("--provider-option device_id: --place says which device is which GPU")
        options["device_id"] = str(place.device_id)
    return options


def _options(config: SessionConfig, place: Place, alone: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, OPTIMIZATIONS[config.optimization]
    )
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    # A plan of the memory of a run takes a block of its own, beside what the first run took.
    options.enable_mem_pattern = False
    if config.as_listed:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if alone:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if len(place.cores) == config.threads > 1:
        # The first thread is the caller's own; processors count from 1 here.
        groups = ";".join(str(core + 1) for core in place.cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", groups)
    return options


def model_bytes(model: ModelProto) -> bytes:
    """A model for ONNX Runtime; `InputFileError` where one message, or memory, cannot hold it.

    Its own functions are inlined, as ONNX Runtime would list their nodes after all others, where
    they are of the model's operator sets.
    """
    from google.protobuf.message import EncodeError

    try:
        if own := [(f.domain, f.name) for f in model.functions if f.domain not in _KERNELS]:
            from onnx import inliner

            with suppress(RuntimeError):  # other operator sets
                model = inliner.inline_selected_functions(model, own)
        return model.SerializeToString()
    except EncodeError:
        raise InputFileError("no memory for a copy of the model, or it is above 2 GiB") from None
    except ValueError as error:
        raise InputFileError(f"ONNX Runtime cannot load the model: {error}") from None


Memory = tuple[str, int] | str | None
"""Where the tensors of a stage lie: None for the host's own, a memory and the number of its device,
or `host` where a provider takes them from the host."""


@dataclass
class CpuStage:
    """Runs a session with tensors on the CPU: name -> array in, name -> array out."""

    session: Any
    outputs: tuple[str, ...]
    ahead: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Outputs that are copied to a device as soon as they are there: its memory and number."""
    memory: Memory = None
    """`host`: the session is of a provider whose memory ONNX Runtime lends nobody, or its inputs or
    outputs cannot be bound (strings, sequences)."""
    _options: Any = field(init=False)
    _boxed: bool = field(init=False)

    def __post_init__(self) -> None:
        import onnxruntime

        self._options = onnxruntime.RunOptions()
        types = {o.name: o.type for o in self.session.get_outputs()}
        self._boxed = any(name in types[n] for n in self.outputs for name in AS_BYTES)

    def __call__(self, feeds: Mapping[str, Any]) -> Values:
        """Run one sample; `InputFileError` with ONNX Runtime's reason if it fails."""
        names = list(self.outputs)
        try:
            if self._boxed:
                boxed = {name: to_ort_value(to_numpy(value)) for name, value in feeds.items()}
                values = self.session.run_with_ort_values(names, boxed, self._options)
            else:
                plain = {name: _for_numpy_run(value) for name, value in feeds.items()}
                values = self.session.run(names, plain, self._options)
        except ort_errors() as error:
            raise InputFileError(f"ONNX Runtime fails: {first_line(error)}") from None
        made = dict(zip(names, values, strict=True))
        return made | {n: to_device(made[n], *where) for n, where in self.ahead.items()}

    def stop(self) -> None:
        """Make a run that is under way end soon."""
        self._options.terminate = True


def _for_numpy_run(value: Any) -> Any:
    """Bring a value to the host, boxed if ONNX Runtime takes its type from numpy only so."""
    value = to_numpy(value)
    boxed = isinstance(value, np.ndarray) and is_added(value.dtype)
    return to_ort_value(value) if boxed else value


class _Gate:
    """Lets the runs of a device go side by side, and some of them alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def passed(self, alone: bool) -> Iterator[None]:
        """Wait until a run may begin; it ends with the context."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                self._changed.wait_for(lambda: not self._inside)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if alone:
                    self._alone = False
                self._changed.notify_all()


_GATES: defaultdict[tuple[str, int], _Gate] = defaultdict(_Gate)
"""Memory and number of a device -> what its runs pass through."""


@dataclass
class BoundStage:
    """Runs a session with inputs and outputs bound to a device.

    Outputs stay on the device, except those in `host`, which come to the CPU. An input that
    lies elsewhere, on the CPU or on another GPU, is copied when it is bound. Each session has a
    stream of its own, and a run ends when its stream is done: what another session, in another
    thread, reads is there. Nothing waits for the whole device, which others use too.

    The first run with inputs of some shapes has the device for itself: cuDNN tries convolutions
    then, by capturing graphs, which fails if another thread waits or allocates meanwhile, and by
    timing them.
    """

    session: Any
    outputs: tuple[str, ...]
    host: frozenset[str]
    device: str = "cuda"
    device_id: int = 0
    _options: Any = field(init=False)
    _gate: _Gate = field(init=False)
    _known: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)
    """Shapes of inputs that were run."""

    @property
    def memory(self) -> Memory:
        """Memory of its tensors."""
        return self.device, self.device_id

    def __post_init__(self) -> None:
        import onnxruntime

        self._options = onnxruntime.RunOptions()
        self._gate = _GATES[self.device, self.device_id]

    def __call__(self, feeds: Mapping[str, Any]) -> Values:
        """Run one sample; `InputFileError` with ONNX Runtime's reason if it fails."""
        try:
            held = {name: to_ort_value(value) for name, value in feeds.items()}
            shapes = tuple(tuple(value.shape()) for value in held.values())
            with self._gate.passed(alone=shapes not in self._known):
                values = self._run(held)
            self._known.add(shapes)
        except ort_errors() as error:
            raise InputFileError(f"ONNX Runtime fails: {first_line(error)}") from None
        return dict(zip(self.outputs, values, strict=True))

    def _run(self, held: Mapping[str, Any]) -> Sequence[Any]:
        binding = self.session.io_binding()
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            if name in self.host:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, self.device, self.device_id)
        self.session.run_with_iobinding(binding, self._options)
        return binding.get_outputs()

    def stop(self) -> None:
        """Make a run that is under way end soon."""
        self._options.terminate = True


def make_stage(
    session: Any,
    outputs: Sequence[str],
    host: Iterable[str],
    config: SessionConfig,
    place: Place,
    ahead: Mapping[str, tuple[str, int]] | None = None,
) -> CpuStage | BoundStage:
    """Wrap a session for its provider.

    `host` names the outputs that only the host reads, and `ahead` those that a stage on the CPU
    copies to a device by itself.
    """
    names, provider = tuple(outputs), config.at(place).provider
    if provider == "cpu":
        return CpuStage(session, names, ahead or {})
    types = [x.type for x in (*session.get_inputs(), *session.get_outputs())]
    bindable = all(t.startswith("tensor(") and t != "tensor(string)" for t in types)
    if provider in MEMORIES and bindable:
        return BoundStage(session, names, frozenset(host), MEMORIES[provider], place.device_id)
    return CpuStage(session, names, memory="host")
