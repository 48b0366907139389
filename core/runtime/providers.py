"""Execution providers of ONNX Runtime: names, whether they are there, what CUDA's needs."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
from dataclasses import dataclass
from functools import cache

from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.core.model.similar import instead
from dnnp.core.runtime.fallback import CPU

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
    """What a device of a plan is on this machine."""

    provider: str
    number: int | None = None
    """Of the GPU; None: they are taken in turn."""

    @property
    def is_numbered(self) -> bool:
        """Whether its devices have numbers."""
        return self.provider in NUMBERED

    @property
    def on_cuda(self) -> bool:
        """Whether it is a GPU of the CUDA driver."""
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
    text = _RUNNING.sub(r"\1 node '\2': ", text)
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
    known = {short_name(name): name for name in names}
    if short_name(provider) not in known:
        hint = instead(short_name(provider), sorted(known)) or "; known: " + ", ".join(known)
        raise UsageError(f"unknown provider '{provider}'{hint}")
    return known[short_name(provider)]


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

    available = onnxruntime.get_available_providers()
    cuda = provider_name(provider) == PROVIDERS["cuda"]
    if provider_name(provider) not in available:
        have = ", ".join(sorted(map(short_name, available), key=lambda name: (name != "cpu", name)))
        hint = f"; {how_to_install()}" if cuda else ""
        raise UnavailableError(
            f"provider '{provider}' is not in this build of onnxruntime (it has: {have}){hint}"
        )
    if short_name(provider_name(provider)) in MEMORIES:
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
    """What to do about a module without the CUDA provider, by the packages that are installed."""
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
    """What the CUDA driver calls a GPU; empty if it shows none."""
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
