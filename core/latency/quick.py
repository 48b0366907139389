"""A bound and a split that take little work: they serve other methods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, Split
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


def quick_split(problem: LatencyProblem, run: Run = PLAIN) -> Split | None:
    """A split by a little annealing; None: none was found."""
    try:
        if problem.options.execution == "blocks":
            from dnnp.core.latency.blocks.anneal import anneal_blocks

            return anneal_blocks(problem, run=quick(run))
        from dnnp.core.latency.operators.anneal import anneal_operators

        return anneal_operators(problem, run=quick(run))
    except LimitError:
        return None
