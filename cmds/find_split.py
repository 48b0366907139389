"""Run the method that dnnp-partition was asked for, until it ends, the time is over, or Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dnnp.core.model.errors import FormatError, LimitError

if TYPE_CHECKING:
    from dnnp.cmds.shell.context import Context
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.asked import Asked, Evolution, Solution
    from dnnp.core.model.graph import Floats, Ints
    from dnnp.core.model.run import Run


def find_split(args: argparse.Namespace, context: Context, problem: SplitProblem) -> Solution:
    """Find a split by the options of dnnp-partition.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before there was any split.
    """
    from dnnp.core.portfolio.solve import solve

    with asked_of(args, context, problem) as (asked, run):
        return solve(problem, asked, run)


@contextmanager
def asked_of(
    args: argparse.Namespace, context: Context, problem: SplitProblem
) -> Iterator[tuple[Asked, Run]]:
    """What the options ask of a method, and how it is to run, with a progress bar meanwhile.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before there was any split.
    """
    from dnnp.core.model.asked import Asked
    from dnnp.core.model.run import Run

    run = Run(
        seed=args.seed or 0,
        effort=1.0 if args.effort is None else args.effort,
        interrupted=lambda: context.interrupted,
        tell=context.detail,
        warn=context.warn,
    ).within(args.time_limit)
    sequence, priorities = _order_files(args, context, problem)
    asked = Asked(
        method=args.method,
        validity=args.validity,
        order=args.order or "best",
        sequence=sequence,
        priorities=priorities,
        samples=args.samples or Asked.samples,
        evolution=evolution_of(args),
        solver=args.solver or "cbc",
        least_peak=args.memory_model == "peak",
    )
    bar = context.progress("searching", 100)
    note_compiling(context)
    context.release()
    try:
        yield asked, replace(run, progress=lambda share: bar.update(int(100 * share)))
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


def note_compiling(context: Context) -> None:
    """Say once when kernels are compiled from now on."""
    from dnnp.core.cost.kernel import when_compiling

    when_compiling(
        lambda: context.note("compiling kernels; this happens once and takes up to a minute")
    )
