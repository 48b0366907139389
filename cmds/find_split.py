"""Run the method that dnnp-partition was asked for, until it ends, the time is over, or Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from dnnp.core.model.errors import LimitError

if TYPE_CHECKING:
    from dnnp.cmds.cli import Context
    from dnnp.core.model.plan import Block
    from dnnp.core.portfolio.solve import Problem, Request, Solution


def find_split(args: argparse.Namespace, context: Context, problem: Problem) -> Solution:
    """Find a split by the options of dnnp-partition.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before there was any split.
    """
    from dnnp.core.portfolio.solve import Request, solve

    limit: float | None = args.time_limit
    end = None if limit is None else monotonic() + limit

    def time_left() -> float | None:
        return None if end is None else max(end - monotonic(), 0.0)

    bar = context.progress("searching", 100)
    request = Request(
        order=args.order or "best",
        seed=args.seed or 0,
        effort=1.0 if args.effort is None else args.effort,
        stop=lambda: context.interrupted or time_left() == 0.0,
        method=args.method,
        validity=args.validity,
        solver=args.solver or "cbc",
        time_left=time_left,
        progress=lambda share: bar.update(int(100 * share)),
        tell=context.detail,
        warn=context.warn,
        runs=_compilation_notice(context),
        programs={"scotch": _scotch},
    )
    try:
        return solve(problem, request)
    except LimitError:
        if context.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        bar.close()


def _scotch(problem: Problem, request: Request) -> list[Block]:
    """Split with the program that comes with Scotch."""
    from dnnp.cmds.external import scotch

    return scotch(problem.graph, problem.units, problem.devices, problem.options, request.stop)


def _compilation_notice(context: Context) -> Callable[[Sequence[Callable[..., Any]]], None]:
    """A function that says once if some kernel is about to be compiled."""
    from dnnp.core.cost.kernel import is_cold

    said = False

    def tell(kernels: Sequence[Callable[..., Any]]) -> None:
        nonlocal said
        if not said and is_cold(kernels):
            said = True
            context.note("compiling kernels; this happens once and takes some seconds")

    return tell
