"""Options of dnnp-partition that a method makes no use of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dnnp.core.methods import LATENCY, SPLITS

if TYPE_CHECKING:
    from dnnp.cmds.shell.context import Context

OPTIONS = (
    "order", "solver", "effort", "seed", "samples", "population", "generations", "elite", "mutants",
    "bias", "max-replicas",
)  # fmt: skip
"""Options that not every method heeds."""

HEEDED_BY_EVAL = ("max-replicas",)


def name_idle_options(args: argparse.Namespace, context: Context) -> None:
    """Say which of the options given the method makes no use of."""
    latency, given = args.objective == "latency", args.eval is not None
    heeded = _heeded(args)
    idle = [
        option
        for option in OPTIONS
        if getattr(args, option.replace("-", "_")) is not None and option not in heeded
    ]
    if given and args.validity is not None and not latency:
        idle.append("validity")
    if latency and args.comm != "sum":
        idle.append("comm")
    user = "--eval" if given else f"method {args.method}"
    for option in idle:
        context.note(f"--{option} has no effect with {user}")


def _heeded(args: argparse.Namespace) -> tuple[str, ...]:
    """What the method heeds, or --eval does."""
    from dnnp.core.portfolio.methods import resolved

    if args.objective == "latency":
        return () if args.eval is not None else LATENCY[args.method].heeds
    if args.eval is not None:
        return HEEDED_BY_EVAL
    return SPLITS[resolved(args.method, args.validity)].heeds
