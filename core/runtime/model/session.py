"""ONNX Runtime sessions of a stage or a whole model, called by tensor names; values and seeds.

Tensors between stages are numpy arrays, lists of them, or OrtValues. Random operators without a
seed draw by the seed of the process and their number in ONNX Runtime: each new session of a process
draws the same numbers.
"""

from __future__ import annotations

import ctypes
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
from dnnp.core.runtime.model.providers import (
    CPU,
    MEMORIES,
    RECORD,
    SessionConfig,
    Target,
    blame_provider,
    first_line,
    left_to_cpu,
    not_started,
    ort_errors,
    provider_name,
    require_provider,
)
from dnnp.core.runtime.model.weights import read_weight, supplied_weights, use_weights
from dnnp.core.runtime.usage import large_blocks_apart, resident_bytes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


Values = dict[str, Any]
"""Tensor name -> numpy array, list of arrays, or OrtValue; or what lies with workers elsewhere and
has a method `fetch`."""

_BY_NUMPY_ONLY_AS_BYTES = frozenset(range(16, 27))
"""ONNX element types without numpy counterpart: bfloat16, float8, and those of 4 and 2 bits.

ONNX Runtime hands out no arrays of them."""

AS_BYTES = ("bfloat16", "float8", "float4", "int4", "int2")
"""Substrings of the names of these types."""


def to_ort_value(value: Any) -> Any:
    """An OrtValue on the CPU; it shares the array's memory if a byte holds no two elements."""
    import onnxruntime

    if not isinstance(value, np.ndarray):
        return value
    array = np.asarray(value, order="C")
    if not is_added(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    from onnx import helper, numpy_helper

    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = numpy_helper.from_array(array).raw_data
    if len(raw) < array.nbytes:
        packed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element)
        ctypes.memmove(packed.data_ptr(), raw, len(raw))
        return packed
    plain = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, element)


def is_added(dtype: np.dtype[Any]) -> bool:
    """True for types that a package adds to numpy, such as bfloat16 and int4."""
    return dtype.isbuiltin == 2 or dtype.kind == "V"


def to_numpy(value: Any) -> Any:
    """Convert an output of a stage to an array; lists and arrays stay as they are."""
    if hasattr(value, "fetch"):
        return value.fetch()
    if isinstance(value, np.ndarray | list) or not hasattr(value, "data_ptr"):
        return value
    element = value.element_type() if value.is_tensor() else 0
    value = on_host(value, element)
    if element in _BY_NUMPY_ONLY_AS_BYTES:
        from onnx import TensorProto, numpy_helper

        raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
        tensor = TensorProto(data_type=element, dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(tensor)
    return value.numpy()


def on_host(value: Any, element: int) -> Any:
    """Copy of an OrtValue in host memory, if numpy cannot copy it itself."""
    if element not in _BY_NUMPY_ONLY_AS_BYTES or value.device_name().lower() == "cpu":
        return value
    import onnxruntime

    copy = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape(), element)
    copy.update_inplace(value)
    return copy


def to_device(value: Any, device: str, number: int) -> Any:
    """Copy an array to the memory of a device as an OrtValue; other values stay."""
    import onnxruntime

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    array = np.asarray(value, order="C")
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device, number)


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


def make_session(
    model: ModelProto,
    folder: Path,
    config: SessionConfig,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
    profile: str = "",
) -> Any:
    """Make an `onnxruntime.InferenceSession` for a model or stage.

    Parameters
    ----------
    model
        A whole model or one stage; initializers may be external data.
    folder
        Where the model's external data are.
    config
        Provider, optimisation, threads; GPU and cores.
    weights
        Values for initializers declared as external data, in place of a file; the session
        uses their memory, so keep them as long as it.
    profile
        Beginning of a file name: profile the session, into a file that starts like this.

    Raises
    ------
    UnavailableError
        ONNX Runtime did not use the requested provider, or not for all nodes.
    UsageError
        The provider does not know an option.
    InputFileError
        Weights are missing, or ONNX Runtime cannot load the model.
    """
    require_provider(config.provider)
    supplied = supplied_weights(model, folder, weights or {})
    data = model_bytes(model)
    return open_session(data, folder, config, supplied, profile=profile)


def open_session(
    model: bytes,
    folder: Path,
    config: SessionConfig,
    supplied: Mapping[str, NDArray[np.generic]] | None = None,
    *,
    profile: str = "",
    tune: Callable[[Any], None] = lambda options: None,
    without: Collection[str] = (),
) -> Any:
    """`make_session` of the bytes of a model, with weights that it all wants.

    `tune` changes the session's options; `without` names optimisers that are left out.
    """
    import onnxruntime

    require_provider(config.provider)
    onnxruntime.set_default_logger_severity(_SILENT)
    if config.seed is not None:
        onnxruntime.set_seed(config.seed)
    options = _options(config)
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
        providers.insert(0, (name, provider_options(config)))
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
    # It would keep the bytes for a restart with other providers, which is not used.
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
    """Resident memory of this process after a session of one operator."""
    session = open_session(_EMPTY, Path(), SessionConfig())
    session.run(None, {"x": np.zeros(4, dtype=np.float32)})
    return resident_bytes()


def provider_options(config: SessionConfig) -> dict[str, str]:
    """Options for ONNX Runtime of a provider that is not the CPU's.

    Raises `UsageError` for an option that would make results wrong.
    """
    options = dict(config.options)
    for name, reason in _REFUSED.items():
        if options.get(name, "0").lower() not in ("0", "false"):
            raise UsageError(f"--provider-option {name}: {reason}")
    if Target(config.provider).is_numbered:
        if "device_id" in options:
            raise UsageError("--provider-option device_id: --place says which device is which GPU")
        options["device_id"] = str(config.place.device_id)
    return options


def _options(config: SessionConfig) -> Any:
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
    if config.alone:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if len(config.place.cores) == config.threads > 1:
        # The first thread is the caller's own; processors count from 1 here.
        groups = ";".join(str(core + 1) for core in config.place.cores[1:])
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


def self_contained(model: ModelProto, folder: Path, weights: Mapping[str, Any]) -> bytes:
    """A model that holds its weights, `weights` or from files in `folder`; see `model_bytes`."""
    from onnx import TensorProto, numpy_helper

    from dnnp.formats.onnx.scope import held_tensors
    from dnnp.formats.onnx.weights import span_of

    model = use_weights(model, weights)
    for tensor in held_tensors(model):
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
        elif (span := span_of(tensor)) is not None:
            raw = TensorProto(name=tensor.name, data_type=2, dims=[span.size_bytes])
            tensor.raw_data = read_weight(raw, span, folder / span.location).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return model_bytes(model)


Memory = tuple[str, int] | str | None
"""Memory of a stage's tensors: None for the host, (memory, device number), or `host` for a provider
that copies from the host."""


@dataclass
class CpuStage:
    """Runs a session with tensors on the CPU: name -> array in, name -> array out."""

    session: Any
    outputs: tuple[str, ...]
    ahead: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Outputs copied to a device as soon as they are computed: its memory and number."""
    memory: Memory = None
    """`host`: the provider's memory is not accessible, or inputs or outputs cannot be bound
    (strings, sequences)."""
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
    """Copy a value to the host, as an OrtValue if its type is not one of numpy."""
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
    ahead: Mapping[str, tuple[str, int]] | None = None,
) -> CpuStage | BoundStage:
    """Wrap a session for its provider.

    `host` names the outputs that only the host reads, and `ahead` those that a stage on the CPU
    copies to a device by itself.
    """
    names, provider = tuple(outputs), config.provider
    if provider == "cpu":
        return CpuStage(session, names, ahead or {})
    types = [x.type for x in (*session.get_inputs(), *session.get_outputs())]
    bindable = all(t.startswith("tensor(") and t != "tensor(string)" for t in types)
    if provider in MEMORIES and bindable:
        number = config.place.device_id
        return BoundStage(session, names, frozenset(host), MEMORIES[provider], number)
    return CpuStage(session, names, memory="host")


SPACING = 1_000_003
"""From the seed of one session to that of the next: more than there are nodes."""


def drawing_nodes(model: ModelProto) -> list[NodeProto]:
    """List the nodes that draw numbers, those of bodies and local functions too."""
    from onnx import numpy_helper

    from dnnp.formats.onnx.scope import UNREPEATABLE, all_nodes

    found = [node for node in all_nodes(model) if node.op_type in UNREPEATABLE]
    if not any(node.op_type == "Dropout" for node in found):
        return found
    stored = [(t.name, t) for t in model.graph.initializer if t.data_type == t.BOOL]
    for node in all_nodes(model):
        if node.op_type == "Constant":
            stored += [(node.output[0], a.t) for a in node.attribute if a.t.data_type == a.t.BOOL]
    training = {name for name, t in stored if numpy_helper.to_array(t).any()}
    off = {"", *(name for name, _ in stored)} - training
    # Without its third input, or where that is false, Dropout hands its input on.
    return [n for n in found if n.op_type != "Dropout" or not {*n.input[2:3]} <= off]


def named(nodes: Sequence[NodeProto]) -> list[str]:
    """Names of nodes for messages: `RandomNormal 'a'`."""
    return [f"{node.op_type} '{node.name or node.output[0]}'" for node in nodes]


def seeded(
    config: SessionConfig,
    model: ModelProto,
    number: int,
    replica: int = 0,
    base: Callable[[], int] = lambda: 0,
) -> tuple[SessionConfig, ModelProto]:
    """Give session `number` of several a seed of its own, counted from `base`.

    In the model of a replica after the first one the seeds that nodes have are changed too.
    """
    if not drawing_nodes(model):
        return config, model
    own = type(model)()
    own.CopyFrom(model)
    seeds = [a for node in drawing_nodes(own) for a in node.attribute if a.name == "seed"]
    for seed in seeds:
        kind = "i" if seed.type == seed.INT else "f"
        setattr(seed, kind, getattr(seed, kind) + replica * SPACING)
    config = replace(config, seed=base() + number * SPACING)
    return config, own if replica and seeds else model


def own_seed() -> int:
    """Draw a seed by that of the process: `onnxruntime.set_seed` or else the clock decides."""
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> seed () => (double[1] y)'
        "{ y = RandomUniform <dtype: int = 11, high: float = 2147483648.0, shape: ints = [1]> () }"
    )
    session = open_session(model.SerializeToString(), Path(), SessionConfig())
    return int(session.run(None, {})[0][0])
