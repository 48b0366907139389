"""Bounds and splits of either execution, and those that take little work: they serve methods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.cost.latency import Invocations, LatencyProblem, Placement, Split
from dnnp.core.model.errors import LimitError
from dnnp.core.model.search_context import PLAIN, Run

EFFORT = 0.1
"""Of what serves another method, whatever effort is asked of that one."""


def quick(run: Run) -> Run:
    """The same run with little effort."""
    return replace(run.alone(), effort=EFFORT)


def simple_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: Run = PLAIN
) -> tuple[float, str]:
    """A lower bound of the latency without an integer program, and the argument for it.

    `upper` is the latency of a known split.
    """
    if problem.options.execution == "blocks":
        from dnnp.core.latency.blocks.bound import blocks_bound

        return blocks_bound(problem, upper=upper, run=run)
    from dnnp.core.latency.operators.bound import operators_bound

    return operators_bound(problem, upper=upper, run=run)


def anneal_split(
    problem: LatencyProblem, *, start: Split | None = None, endless: bool = False, run: Run = PLAIN
) -> Split:
    """Anneal a split; see `anneal_blocks` and `anneal_operators`, which have the errors, too."""
    if problem.options.execution == "blocks":
        from dnnp.core.latency.blocks.anneal import anneal_blocks

        first = start if isinstance(start, Invocations) else None
        return anneal_blocks(problem, start=first, endless=endless, run=run)
    from dnnp.core.latency.operators.anneal import anneal_operators

    placed = start if isinstance(start, Placement) else None
    return anneal_operators(problem, start=placed, endless=endless, run=run)


def quick_split(problem: LatencyProblem, run: Run = PLAIN) -> Split | None:
    """Anneal a little; None: no split was found."""
    try:
        return anneal_split(problem, run=quick(run))
    except LimitError:
        return None
