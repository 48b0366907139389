"""Split neural networks over several devices: what the commands do, for Python.

A model is read into a `Graph`. Every step takes a graph and returns another, which also holds what
the step found; options are named as those of the command, errors are the same:

    import dnnp

    graph = dnnp.load("model.onnx")
    graph = dnnp.profile(dnnp.coarsen(graph))
    graph = dnnp.bound(dnnp.split(graph, k=2))
    print(graph.plan.value, graph.plan.gap, [stage.load for stage in graph.stages])
    dnnp.export(graph, "stages")
    dnnp.run(graph, verify=True)

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnnp.bounding import bound
    from dnnp.callbacks import Bar, Callbacks, DnnpWarning
    from dnnp.checking import Findings, check
    from dnnp.coarsening import coarsen
    from dnnp.core.model.errors import (
        DnnpError,
        FormatError,
        GateError,
        InfeasibleError,
        InputFileError,
        LimitError,
        UnavailableError,
        UsageError,
        VerificationError,
    )
    from dnnp.core.model.search_context import Progress
    from dnnp.exporting import export
    from dnnp.formats.header import __version__ as __version__
    from dnnp.graph import Graph
    from dnnp.loading import generate, load
    from dnnp.profiling import profile
    from dnnp.running import run
    from dnnp.scheduling import schedule
    from dnnp.splitting import split
    from dnnp.stage_loading import Stages, load_stages
    from dnnp.sweeping import sweep
    from dnnp.viewing import view

_ERRORS = (
    "DnnpError", "FormatError", "GateError", "InfeasibleError", "InputFileError", "LimitError",
    "UnavailableError", "UsageError", "VerificationError",
)  # fmt: skip

_HOMES = {
    "__version__": "dnnp.formats.header",
    "Bar": "dnnp.callbacks",
    "Callbacks": "dnnp.callbacks",
    "DnnpWarning": "dnnp.callbacks",
    "Findings": "dnnp.checking",
    "Graph": "dnnp.graph",
    "Stages": "dnnp.stage_loading",
    "Progress": "dnnp.core.model.search_context",
    "bound": "dnnp.bounding",
    "check": "dnnp.checking",
    "coarsen": "dnnp.coarsening",
    "export": "dnnp.exporting",
    "generate": "dnnp.loading",
    "load": "dnnp.loading",
    "load_stages": "dnnp.stage_loading",
    "profile": "dnnp.profiling",
    "run": "dnnp.running",
    "schedule": "dnnp.scheduling",
    "split": "dnnp.splitting",
    "sweep": "dnnp.sweeping",
    "view": "dnnp.viewing",
    **dict.fromkeys(_ERRORS, "dnnp.core.model.errors"),
}
"""Public name -> the module that has it."""

__all__ = [
    "Bar", "Callbacks", "DnnpError", "DnnpWarning", "Findings", "FormatError", "GateError",
    "Graph", "InfeasibleError", "InputFileError", "LimitError", "Progress", "Stages",
    "UnavailableError", "UsageError", "VerificationError", "bound", "check", "coarsen", "export",
    "generate", "load", "load_stages", "profile", "run", "schedule", "split", "sweep", "view",
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
