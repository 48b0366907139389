"""Split neural networks over several devices: what the commands do, for Python.

A model is read into a `Graph`. Every step takes a graph and returns another, which also holds what
the step found; options are named as those of the command, errors are the same:

    import dnnp

    graph = dnnp.load("model.onnx")

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnp.core.model.errors import (
        DnnpError,
        FormatError,
        GapError,
        InfeasibleError,
        InputFileError,
        LimitError,
        UnavailableError,
        UsageError,
        VerificationError,
    )
    from dnnp.graph import Graph
    from dnnp.listener import DnnpWarning, Listener
    from dnnp.loading import load

_ERRORS = (
    "DnnpError", "FormatError", "GapError", "InfeasibleError", "InputFileError", "LimitError",
    "UnavailableError", "UsageError", "VerificationError",
)  # fmt: skip

_HOMES = {
    "DnnpWarning": "dnnp.listener",
    "Graph": "dnnp.graph",
    "Listener": "dnnp.listener",
    "load": "dnnp.loading",
    **dict.fromkeys(_ERRORS, "dnnp.core.model.errors"),
}
"""Public name -> the module that has it."""

__all__ = [
    "DnnpError", "DnnpWarning", "FormatError", "GapError", "Graph", "InfeasibleError",
    "InputFileError", "LimitError", "Listener", "UnavailableError", "UsageError",
    "VerificationError", "load",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dnnp' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
