"""Run the method that dnnp-partition was asked for, until it ends, the time is over, or Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from dnnp.core.model.errors import FormatError, LimitError

if TYPE_CHECKING:
    from dnnp.cmds.shell.context import Context
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.asked import Evolution, Solution
    from dnnp.core.model.graph import Floats, Ints
    from dnnp.core.model.plan import Block
    from dnnp.core.portfolio.problem import Request


def find_split(args: argparse.Namespace, context: Context, problem: SplitProblem) -> Solution:
    """Find a split by the options of dnnp-partition.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before there was any split.
    """
    from dnnp.core.portfolio.solve import solve

    with request_of(args, context, problem) as request:
        return solve(problem, request)


@contextmanager
def request_of(
    args: argparse.Namespace, context: Context, problem: SplitProblem
) -> Iterator[Request]:
    """What the options ask of a solver, with a progress bar while it works.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before there was any split.
    """
    from dnnp.core.portfolio.problem import Request

    limit: float | None = args.time_limit
    end = None if limit is None else monotonic() + limit

    def time_left() -> float | None:
        return None if end is None else max(end - monotonic(), 0.0)

    sequence, priorities = _order_files(args, context, problem)
    bar = context.progress("searching", 100)
    runs = compilation_notice(context)
    request = Request(
        order=args.order or "best",
        sequence=sequence,
        priorities=priorities,
        samples=args.samples or Request.samples,
        evolution=evolution_of(args),
        seed=args.seed or 0,
        effort=1.0 if args.effort is None else args.effort,
        stop=lambda: context.interrupted or time_left() == 0.0,
        method=args.method,
        validity=args.validity,
        solver=args.solver or "cbc",
        least_peak=args.memory_model == "peak",
        time_left=time_left,
        progress=lambda share: bar.update(int(100 * share)),
        tell=context.detail,
        warn=context.warn,
        runs=runs,
        programs={"scotch": _scotch},
    )
    context.release()
    try:
        yield request
    except LimitError:
        if context.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        bar.close()


def evolution_of(args: argparse.Namespace) -> Evolution:
    """How an order evolves, by the options that are given."""
    from dnnp.core.model.asked import Evolution

    names = ("population", "generations", "elite", "mutants", "bias")
    given = {name: getattr(args, name) for name in names}
    return Evolution(**{name: value for name, value in given.items() if value is not None})


def _order_files(
    args: argparse.Namespace, context: Context, problem: SplitProblem
) -> tuple[Ints | None, Floats | None]:
    """What --sequence and --priorities hold."""
    from dnnp.core.portfolio.orders import given_order
    from dnnp.formats.orders import read_priorities, read_sequence

    units, sequence, priorities = problem.units, None, None
    if args.sequence is not None:
        data = context.read_input(args.sequence)
        sequence = read_sequence(data, args.sequence, units.group_ids)
        try:
            given_order(problem, sequence)
        except FormatError as error:
            raise FormatError(str(error), args.sequence) from None
    if args.priorities is not None:
        data = context.read_input(args.priorities)
        priorities = read_priorities(data, args.priorities, units.g)
    return sequence, priorities


def _scotch(problem: SplitProblem, request: Request) -> list[Block]:
    """Split with the program that comes with Scotch."""
    from dnnp.cmds.external import scotch

    return scotch(problem, request.stop)


def compilation_notice(context: Context) -> Callable[[Sequence[Callable[..., Any]]], None]:
    """A function that is told which kernels run next, and says once when they are compiled.

    That they are not on disk is not enough: small problems run without compiling.
    """
    from dnnp.core.cost.kernel import is_cold, when_compiling

    waiting = False

    def say() -> None:
        context.note("compiling kernels; this happens once and takes up to a minute")

    def tell(kernels: Sequence[Callable[..., Any]]) -> None:
        nonlocal waiting
        if not waiting and is_cold(kernels):
            waiting = True
            when_compiling(say)

    return tell
