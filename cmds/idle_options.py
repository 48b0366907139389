"""Options of dnnp-partition that a method makes no use of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnnp.cmds.context import Context

_ORDERS = ("random", "brkga", "mla", "mla-weighted")
_EVOLUTION = ("population", "generations", "elite", "mutants", "bias")

_HEEDED: dict[str, tuple[str, ...]] = {
    "order": (
        "exact", "heuristic", "slice", "ip", "anneal", "greedy", "uniform", "params", "single",
    ),
    "solver": ("ip",),
    "effort": ("exact", "heuristic", *_ORDERS, "ip", "anneal", "local-search"),
    "seed": ("exact", "heuristic", *_ORDERS, "anneal", "local-search", "metis"),
    "samples": ("random",),
    **dict.fromkeys(_EVOLUTION, _ORDERS[1:]),
    "max_replicas": ("", "exact", "heuristic", "ip", "anneal", "pipedream"),
}  # fmt: skip
"""Option -> methods that heed it; "" stands for --eval."""

_HEEDED_BY_LATENCY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_HEEDED, ()),
    "solver": ("ip", "getf-milp"),
    "effort": ("auto", "anneal", "placeto", "max-load"),
    "seed": ("auto", "anneal", "placeto", "cpsat"),
}
"""The same for the objective latency, which names its methods as they are."""


def name_idle_options(args: argparse.Namespace, context: Context) -> None:
    """Say which of the options given the method makes no use of."""
    from dnnp.core.portfolio.methods import resolved

    latency = args.objective == "latency"
    method = args.method if latency else resolved(args.method, args.validity)
    method = "" if args.eval is not None else method
    heeded = _HEEDED_BY_LATENCY if latency else _HEEDED
    idle = [o for o, by in heeded.items() if getattr(args, o) is not None and method not in by]
    if method == "" and args.validity is not None and not latency:
        idle.append("validity")
    if latency and args.comm != "sum":
        idle.append("comm")
    for option in idle:
        user = f"method {args.method}" if method else "--eval"
        context.note(f"--{option.replace('_', '-')} has no effect with {user}")
