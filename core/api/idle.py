"""Options of a split that its method makes no use of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dnnp.core.methods import LATENCY, SPLITS

if TYPE_CHECKING:
    from dnnp.split_options import SplitOptions

OPTIONS = (
    "order", "solver", "effort", "seed", "samples", "population", "generations", "elite", "mutants",
    "bias", "max-replicas",
)  # fmt: skip
"""Options that not every method heeds."""

HEEDED_BY_EVAL = ("max-replicas",)


def name_idle_options(options: SplitOptions) -> None:
    """Say which of the options given the method makes no use of."""
    latency, given = options.objective == "latency", options.eval is not None
    heeded = {name for method in options.methods for name in _heeded(options, method)}
    idle = [
        name
        for name in OPTIONS
        if getattr(options, name.replace("-", "_")) is not None and name not in heeded
    ]
    if given and options.validity is not None and not latency:
        idle.append("validity")
    if latency and options.comm != "sum":
        idle.append("comm")
    several = "s" if len(options.methods) > 1 else ""
    user = "--eval" if given else f"method{several} {', '.join(options.methods)}"
    for name in idle:
        options.caller.note(f"--{name} has no effect with {user}")


def _heeded(options: SplitOptions, method: str) -> tuple[str, ...]:
    """What a method heeds, or a given split does."""
    from dnnp.core.portfolio.methods import resolved

    if options.objective == "latency":
        return () if options.eval is not None else LATENCY[method].heeds
    if options.eval is not None:
        return HEEDED_BY_EVAL
    return SPLITS[resolved(method, options.validity or "ordered")].heeds
