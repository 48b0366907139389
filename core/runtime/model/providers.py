"""Execution providers of ONNX Runtime: names, whether they are there, what CUDA's needs.

Nodes that a provider leaves to the CPU, and which of them are no fallback. ONNX Runtime records
which provider each node was given when it divides the graph, right after the basic optimisations.
It does not record why. Nodes that compute shapes are kept on the CPU on purpose, since a GPU would
have to be waited for; they are told by what they read.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.core.model.text import counted, instead

if TYPE_CHECKING:
    from onnx import ModelProto

RECORD = "session.record_ep_graph_assignment_info"
"""Entry of a session's configuration that makes ONNX Runtime record it."""
CPU = "CPUExecutionProvider"
SMALL = 100
"""Elements of a constant up to which ONNX Runtime takes it for a part of a shape."""
WHOLE = frozenset({6, 7})
"""ONNX element types int32 and int64: those of shapes."""
_NAMED = 4
"""Nodes that a message names."""

Key = tuple[str, str]
"""Name and operator of a node."""


class Left(NamedTuple):
    """Nodes that a provider left to the CPU."""

    nodes: tuple[str, ...] = ()
    """Such as `MatMul 'a'`, without those that compute shapes."""
    of: int = 0
    """Nodes that ONNX Runtime divided among the providers."""
    shapes: int = 0
    """Nodes on the CPU that compute shapes."""

    def words(self, provider: str) -> str:
        """One line about it."""
        more = f" and {len(self.nodes) - _NAMED} more" if len(self.nodes) > _NAMED else ""
        return (
            f"provider '{provider}' leaves {len(self.nodes)} of {counted(self.of, 'node')} to the "
            f"CPU: {', '.join(self.nodes[:_NAMED])}{more}"
        )


def left_to_cpu(session: Any, model: Callable[[], ModelProto]) -> Left | None:
    """Find the nodes that the provider of a session left to the CPU.

    None: this version of ONNX Runtime does not tell. The session must have been made with
    `RECORD`; `model` gives its model, where that is needed.
    """
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    if tell is None:
        return None
    parts = [(part.ep_name, part.get_nodes()) for part in tell()]
    on_cpu = [node for provider, nodes in parts if provider == CPU for node in nodes]
    keys = [(str(node.name), str(node.op_type)) for node in on_cpu]
    shapes = shape_nodes(model()) if keys else set()
    left = tuple(
        f"{op} '{name}'" if name and not name.startswith(f"{op}:") else name or op
        for name, op in keys
        if (name, op) not in shapes
    )
    return Left(left, sum(len(nodes) for _, nodes in parts), len(keys) - len(left))


def note_provider(
    name: str,
    provider: str,
    session: Any,
    model: ModelProto,
    options: Iterable[str],
    note: Callable[[str], None],
) -> Left:
    """Note nodes that a provider left to the CPU, and options that it may not have taken.

    Parameters
    ----------
    name
        Of the stage, for the notes.
    provider
        Its short name.
    options
        Names of those that the provider was given.
    """
    if provider == "cpu":
        return Left()
    told = session.get_provider_options().items()
    taken = {key for own, values in told if own != CPU for key in values}
    unsaid = [option for option in options if option not in taken]
    if unsaid:
        note(f"{name}: provider '{provider}' does not say whether it took {', '.join(unsaid)}")
    left = left_to_cpu(session, lambda: model)
    if left is None:
        note(f"{name}: this onnxruntime does not tell what '{provider}' leaves to the CPU")
    elif left.nodes:
        note(f"{name}: {left.words(provider)}")
    return left or Left()


def shape_nodes(model: ModelProto) -> set[Key]:
    """Nodes that compute shapes.

    `Shape` and `Size`, and what reads nothing but their results, results of such nodes, small
    constants and inputs of the model that are whole numbers, and at least one of the first two.
    Nodes that share name and operator with one that is no such node are not among them.
    """
    from dnnp.formats.onnx.scope import reads, writes

    graph = model.graph
    plain = {v.name for v in graph.input if v.type.tensor_type.elem_type in WHOLE}
    plain |= {t.name for t in graph.initializer if math.prod(t.dims) <= SMALL}
    derived: set[str] = set()
    found: set[Key] = set()
    others: set[Key] = set()
    for node in graph.node:
        names = reads(node)
        if node.op_type in ("Shape", "Size") or (
            any(name in derived for name in names)
            and all(name in derived or name in plain for name in names)
        ):
            derived.update(writes(node))
            found.add((node.name, node.op_type))
            continue
        others.add((node.name, node.op_type))
        if node.op_type == "Constant" and all(
            math.prod(a.t.dims) <= SMALL for a in node.attribute if a.name == "value"
        ):
            plain.update(writes(node))
    return found - others


PROVIDERS = {"cpu": CPU, "cuda": "CUDAExecutionProvider"}
MEMORIES = {"cuda": "cuda", "tensorrt": "cuda"}
"""Provider -> name of the memory of its devices, for those whose tensors may stay there."""
NUMBERED = (*MEMORIES, "rocm", "migraphx", "dml", "cann")
"""Providers whose option `device_id` is the number of a device."""
_ENDING = "ExecutionProvider"
_PLACE = re.compile(r"/\S+\.(?:cc|cpp|h|cu|cuh):\d+ ")
"""Where a check of ONNX Runtime stands in its source."""
_RUNNING = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' "
                      r"Status Message: ")  # fmt: skip
_OPTION = re.compile(r"((?:Unknown provider|Failed to parse provider|Invalid \w+ EP) option[ :].*)")
"""What ONNX Runtime says of options."""
_FAILURE = re.compile(r"CUDA failure \d+: [^;]*[^; ]")
"""What it says of CUDA, between the names of its functions."""


@dataclass(frozen=True)
class Target:
    """Provider, and number of the GPU, that stand for a device of a plan."""

    provider: str
    number: int | None = None
    """Of the GPU; None: they are taken in turn."""

    @property
    def is_numbered(self) -> bool:
        """True if its devices have numbers."""
        return self.provider in NUMBERED

    @property
    def on_cuda(self) -> bool:
        """True for a GPU of the CUDA driver."""
        return MEMORIES.get(self.provider) == "cuda"


def ort_errors() -> tuple[type[Exception], ...]:
    """Every exception that ONNX Runtime raises on its own account."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [
        kind
        for _, kind in sorted(vars(state).items())
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    return (*own, RuntimeError, ValueError, TypeError)


def first_line(error: BaseException) -> str:
    """The first line of ONNX Runtime's message, without its code."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = _RUNNING.sub(r"\1 node '\2': ", text).replace(" node '': ", ": ", 1)
    place = _PLACE.search(text)
    if place is not None:
        # Of a check in the C++ code, what it says is enough: not its function and condition.
        rest = text[place.end() :]
        end = next((e for e in (" was false. ", "] ", ") ") if e in rest), None)
        text = text[: place.start()] + (rest.partition(end)[2] if end else rest)
    return text.strip()


def provider_name(provider: str) -> str:
    """ONNX Runtime's own name of a provider, which may be given without its ending, in any case.

    Raises
    ------
    UsageError
        ONNX Runtime has never heard of it.

    >>> provider_name("cuda"), provider_name("tensorrt")
    ('CUDAExecutionProvider', 'TensorrtExecutionProvider')
    """
    if provider in PROVIDERS:
        return PROVIDERS[provider]
    import onnxruntime

    names = [
        *PROVIDERS.values(),
        *onnxruntime.get_all_providers(),
        *onnxruntime.get_available_providers(),
    ]
    known, short = {short_name(name): name for name in names}, short_name(provider)
    if short not in known:
        hint = instead(short, sorted(known)) or "; known: " + ", ".join(known)
        raise UsageError(f"unknown provider '{provider}'{hint}")
    return known[short]


def short_name(provider: str) -> str:
    """A provider's name in small letters, without its ending."""
    return provider.removesuffix(_ENDING).lower()


def require_provider(provider: str) -> None:
    """Check that this build of ONNX Runtime has a provider, and load the libraries it needs.

    Raises
    ------
    UsageError
        ONNX Runtime has never heard of it.
    UnavailableError
        This build has not got it.
    """
    import onnxruntime

    name, available = provider_name(provider), onnxruntime.get_available_providers()
    if name not in available:
        have = ", ".join(sorted(map(short_name, available), key=lambda name: (name != "cpu", name)))
        hint = f"; {how_to_install()}" if name == PROVIDERS["cuda"] else ""
        raise UnavailableError(
            f"provider '{provider}' is not in this build of onnxruntime (it has: {have}){hint}"
        )
    if short_name(name) in MEMORIES:
        load_libraries()


def ort_version() -> str:
    """Version of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


def blame_provider(provider: str, error: BaseException) -> None:
    """Raise what fits, if the provider and not the model is at fault.

    Raises
    ------
    UsageError
        It does not know an option, or cannot read its value.
    UnavailableError
        It does not start.
    """
    text = str(error)
    option = _OPTION.search(text)
    if option and "CUDA failure" not in text:
        raise UsageError(f"--provider-option: provider '{provider}': {option[1]}") from None
    if any(word in text.lower() for word in ("cuda", "cudnn", "cublas", provider)):
        failure = _FAILURE.search(text)
        raise not_started(provider, failure[0] if failure else first_line(error)) from None


PACKAGES = ("onnxruntime", "onnxruntime-gpu")
"""Without the CUDA provider, and with it. Both install the module `onnxruntime`."""

INSTALL = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
"""Installs the provider with CUDA and cuDNN."""


def how_to_install() -> str:
    """Say how to get the CUDA provider, by the packages that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            version(package)
            found.append(package)
    remove = f"pip uninstall {' '.join(found)}, then " if found else ""
    both = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: "
    return f"{both if len(found) > 1 else ''}{remove}{INSTALL}"


def count_gpus() -> int:
    """Number of GPUs that the CUDA driver shows.

    Raises
    ------
    UnavailableError
        There is no driver, or it shows none.
    """
    number = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"no CUDA driver: {error}") from None
    if status or number.value < 1:
        raise UnavailableError("the CUDA driver shows no GPU")
    return number.value


def gpu_name(number: int = 0) -> str:
    """Name of a GPU by the CUDA driver; empty if it shows none."""
    text = ctypes.create_string_buffer(256)
    try:
        count_gpus()
        status = ctypes.CDLL("libcuda.so.1").cuDeviceGetName(text, len(text), number)
    except (UnavailableError, OSError, AttributeError):
        return ""
    return "" if status else text.value.decode(errors="replace")


def not_started(provider: str, reason: str) -> UnavailableError:
    """The error about a provider that is there but does not start."""
    missing = load_libraries() if provider == "cuda" else ""
    more = f"; {missing}; {INSTALL} has its libraries" if missing else ""
    if provider == "cuda" and not missing:
        # Of a driver that is missing ONNX Runtime tells only its log.
        try:
            count_gpus()
        except UnavailableError as error:
            more = f"; {error}"
    return UnavailableError(f"provider '{provider}' does not start: {reason}{more}")


@cache
def load_libraries() -> str:
    """Load CUDA's libraries, from packages of NVIDIA or the system; why that failed, or nothing.

    ONNX Runtime itself looks only where the system does.
    """
    import onnxruntime

    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return ""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        preload()
    lines = [line for line in said.getvalue().splitlines() if line.startswith("Failed")]
    return lines[0] if lines else ""
