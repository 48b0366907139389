"""What ONNX Runtime's CUDA provider needs: the right package, and CUDA's libraries."""

from __future__ import annotations

import contextlib
import ctypes
import io
from functools import cache

from dnnp.core.model.errors import UnavailableError

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
