"""Execution providers of ONNX Runtime, and the places of sessions on this machine.

Providers: names, whether they are available, what CUDA's needs, and the nodes that a provider
leaves to the CPU. ONNX Runtime records which provider each node was given when it divides the
graph, right after the basic optimisations, not why. Nodes that compute shapes are kept on the CPU
on purpose, since a GPU would have to be waited for; they are recognised by their inputs.

Places: device classes of a plan -> providers, GPUs and cores, and from these how tensors get from
one stage to another.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import counted, instead

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.model.plan import Stage


RECORD = "session.record_ep_graph_assignment_info"
"""Entry of a session's configuration that makes ONNX Runtime record it."""
CPU = "CPUExecutionProvider"
SMALL = 100
"""Largest constant that ONNX Runtime treats as part of a shape, elements."""
WHOLE = frozenset({6, 7})
"""ONNX element types int32 and int64: those of shapes."""
_NAMED = 4
"""Nodes that a message names."""

Key = tuple[str, str]
"""Name and operator of a node."""


class CpuFallback(NamedTuple):
    """Nodes that a provider left to the CPU."""

    nodes: tuple[str, ...] = ()
    """Names such as `MatMul 'a'`, without nodes that compute shapes."""
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


def left_to_cpu(session: Any, model: Callable[[], ModelProto]) -> CpuFallback | None:
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
    return CpuFallback(left, sum(len(nodes) for _, nodes in parts), len(keys) - len(left))


def note_provider(
    name: str,
    provider: str,
    session: Any,
    model: ModelProto,
    options: Iterable[str],
    note: Callable[[str], None],
) -> CpuFallback:
    """Note nodes that a provider left to the CPU, and unconfirmed options.

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
        return CpuFallback()
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
    return left or CpuFallback()


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
"""Provider -> memory of its devices, where tensors may stay there."""
NUMBERED = (*MEMORIES, "rocm", "migraphx", "dml", "cann")
"""Providers whose option `device_id` is the number of a device."""
_ENDING = "ExecutionProvider"
_PLACE = re.compile(r"/\S+\.(?:cc|cpp|h|cu|cuh):\d+ ")
"""Source position of a check of ONNX Runtime."""
_RUNNING = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' "
                      r"Status Message: ")  # fmt: skip
_OPTION = re.compile(r"((?:Unknown provider|Failed to parse provider|Invalid \w+ EP) option[ :].*)")
"""Message of ONNX Runtime about options."""
_FAILURE = re.compile(r"CUDA failure \d+: [^;]*[^; ]")
"""Its message about CUDA, between names of functions."""


@dataclass(frozen=True)
class Target:
    """Provider, and number of the GPU, for a device of a plan."""

    provider: str
    number: int | None = None
    """Number of the GPU; None: assigned in turn."""

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
        # Of a failed check in the C++ code, keep its message, not its function and condition.
        rest = text[place.end() :]
        end = next((e for e in (" was false. ", "] ", ") ") if e in rest), None)
        text = text[: place.start()] + (rest.partition(end)[2] if end else rest)
    return text.strip()


def provider_name(provider: str) -> str:
    """ONNX Runtime's name of a provider, from a name of any case, with or without ending.

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
    """Check that this build of ONNX Runtime has a provider, and load its libraries.

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
    """Raise the error that fits, if the provider is the cause and not the model.

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

    Raises `UnavailableError` if there is no driver, or it shows none.
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
    """The error about a provider that is installed but does not start."""
    missing = load_libraries() if provider == "cuda" else ""
    more = f"; {missing}; {INSTALL} has its libraries" if missing else ""
    if provider == "cuda" and not missing:
        # ONNX Runtime reports a missing driver in its log alone.
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


@dataclass(frozen=True)
class SessionConfig:
    """Settings of the sessions of a run; with a place, of one of them."""

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
    """Copies to and from GPUs run in threads of CPU stages, beside computation. Else they run in
    threads of GPU stages and count in their loads."""
    seed: int | None = None
    """Seed of random operators without one; None: that of the process."""

    place: Place = Place()
    """GPU and cores of a session."""
    alone: bool = False
    """No other session runs meanwhile: threads may spin while they wait within a run."""

    def at(self, place: Place) -> SessionConfig:
        """The configuration of a session at a place."""
        return replace(self, provider=place.provider or self.provider, place=place)


def places(
    count: int, config: SessionConfig, what: str = "stage", targets: Sequence[Target] = ()
) -> tuple[list[Place], list[str]]:
    """Places of `count` sessions, and notices about what they have to share.

    Sessions on GPUs whose number is not given take these in turn; threads go to cores in order.
    Both wrap around. `what` the sessions are is for the notices. Without `targets` all are for the
    provider of the configuration.

    Raises `UnavailableError` if there is no such GPU.
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


def parse_places(words: Sequence[str]) -> dict[str, Target]:
    """Rules such as `t4=cuda` or `t4/1=cuda:0`: a class, or a device, and where it is.

    Raises `UsageError` if a rule is malformed or there twice, or ONNX Runtime has never heard of
    the provider.
    """
    rules: dict[str, Target] = {}
    for word in words:
        name, equals, where = word.partition("=")
        provider, colon, number = where.partition(":")
        if not (name and equals and provider) or (colon and not number.isdecimal()):
            raise UsageError(f"--place {word}: write CLASS=PROVIDER or CLASS=PROVIDER:NUMBER")
        if name in rules:
            raise UsageError(f"--place {word}: '{name}' is there twice")
        try:
            provider = short_name(provider_name(provider))
        except UsageError as error:
            raise UsageError(f"--place {word}: {error}") from None
        target = Target(provider, int(number) if colon else None)
        if target.number is not None and not target.is_numbered:
            raise UsageError(
                f"--place {word}: nothing is known of numbers of devices of {provider}; "
                "--provider-option may choose one"
            )
        rules[name] = target
    return rules


def parse_options(words: Sequence[str], providers: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Options of providers, such as `use_tf32=0`.

    Raises `UsageError` if one is malformed or there twice, or all providers are the CPU's, which
    has none.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise UsageError(f"--provider-option {word}: write NAME=VALUE")
        if name in found:
            raise UsageError(f"--provider-option {word}: '{name}' is there twice")
        found[name] = value
    if found and all(provider == "cpu" for provider in providers):
        raise UsageError(f"--provider-option {words[0]}: the provider 'cpu' has no options")
    return tuple(found.items())


def may_use_tf32(homes: Sequence[Sequence[Place]], config: SessionConfig) -> bool:
    """True if CUDA may compute products of float32 as TF32."""
    return "cuda" in providers_of(homes, config) and ("use_tf32", "0") not in config.options


def homes_of(
    stages: Sequence[Stage], config: SessionConfig
) -> tuple[list[tuple[Place, ...]], list[str]]:
    """Places of each stage, one a replica; and notices about what is shared.

    Stages of one device have the same. What `config.targets` says of a device counts before what it
    says of its class; devices that it does not name are those of `config.provider`.

    Raises
    ------
    UsageError
        A target is for a class or device that the stages do not use.
    UnavailableError
        There is no such GPU.
    """
    rules = config.targets
    targets: dict[str, Target] = {}
    used: dict[str, None] = {}
    # Where single devices have limits of their own, it matters which GPU each is.
    alike = all(s.device.rpartition("/")[0] == s.device_class for s in stages)
    for stage in stages:
        kind = stage.device.rpartition("/")[0] or stage.device_class
        for one in stage.homes:
            used |= {kind: None, one: None}
            other = Target(config.provider)
            if other.on_cuda and not alike:
                other = replace(other, number=int(one.rpartition("/")[2]))
            targets[one] = rules.get(one) or rules.get(kind) or other
    for name in rules:
        if name not in used:
            raise UsageError(f"--place {name}: the plan does not use it{instead(name, used)}")
    count = sum(stage.replicas for stage in stages)
    what = "stage replica" if count > len(stages) else "stage"
    spots, notices = places(
        len(targets), config, what if count == len(targets) else "device", list(targets.values())
    )
    place = dict(zip(targets, spots, strict=True))
    return [tuple(place[one] for one in stage.homes) for stage in stages], notices


def copied_outputs(
    targets: Mapping[str, Sequence[int]], homes: Sequence[Sequence[Place]], *, overlap: bool
) -> tuple[list[str], dict[str, tuple[str, int]]]:
    """Outputs that a stage copies to the host, and those that it copies to a GPU.

    The first are for stages on a GPU, and are read by the host alone; the second, each with its
    memory and number, for stages on the CPU. With `overlap` stages on the CPU copy by themselves
    what comes from a GPU.

    Parameters
    ----------
    targets
        Output -> stages that read it; below 0 is the end.
    homes
        Places of each stage.
    """
    host: list[str] = []
    ahead: dict[str, tuple[str, int]] = {}
    for name, readers in targets.items():
        places = [place for i in readers if i >= 0 for place in homes[i]]
        memories = {(place.memory, place.device_id) for place in places}
        at_end = any(i < 0 for i in readers)
        if not any(memory for memory, _ in memories):
            if at_end or not overlap:
                host.append(name)
        elif overlap and len(memories) == 1 and not at_end:
            ahead[name] = memories.pop()
    return host, ahead


def providers_of(homes: Sequence[Sequence[Place]], config: SessionConfig) -> tuple[str, ...]:
    """The providers that places name, without repetition; the configuration's where none does."""
    found = dict.fromkeys(p.provider or config.provider for spots in homes for p in spots)
    return tuple(found) or (config.provider,)


def reference_config(homes: Sequence[Sequence[Place]], config: SessionConfig) -> SessionConfig:
    """The configuration for a whole model to compare outputs with: the CPU's for a mixed run."""
    providers = providers_of(homes, config)
    return replace(config, provider=providers[0] if len(providers) == 1 else "cpu")


def main_config(homes: Sequence[Sequence[Place]], config: SessionConfig) -> SessionConfig:
    """The configuration for the whole model beside a pipeline: that of its first GPU, if any."""
    providers = providers_of(homes, config)
    return replace(config, provider=next((p for p in providers if p != "cpu"), providers[0]))
