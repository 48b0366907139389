"""Depth-first searches: kernels that go on for some steps, their results, and what they prove.

The state of a search is a tuple of arrays. `now` (i64[2]) has its level, -1 when no state is left,
and the steps so far; `choice` (i64[l]) has the choice made at each level, from -1 on, and `low`
(f64[l]) a lower bound of the state before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, SearchProof, Split
from dnnp.core.model.errors import DnnpError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import SearchContext

ENDED, OPEN, FOUND = 0, 1, 2
"""Reasons why a kernel returns: no state is left; it made its steps; a split is complete."""

CHUNK = 20_000
"""Steps between two looks at the clock."""


def search_depth_first(
    problem: LatencyProblem,
    state: Any,
    last: Ints,
    go_on: Callable[[float, int], int],
    split_of: Callable[[], Split],
    *,
    name: str,
    upper: float,
    most: int,
    run: SearchContext,
) -> SearchProof:
    """Search until no state is left or a limit is reached, which leaves a weaker bound.

    Parameters
    ----------
    last
        i64[l], last choice of each level.
    go_on
        The kernel: from a target and the number of steps that it may come to.
    split_of
        The split of a complete state; the cost model decides whether it fits.
    name
        Name of the bound.
    upper
        Latency of a known split.
    most
        Steps at effort 1.
    """
    value, best, bound, status = upper, None, 0.0, OPEN
    most = int(most * run.effort)
    while status != ENDED and state.now[1] < most and not run.stop():
        status = go_on(value * (1 - CLOSED / 2), min(int(state.now[1]) + CHUNK, most))
        found = valid_latency(problem, split := split_of()) if status == FOUND else np.inf
        if found < value:
            value, best = found, split
            run.report_incumbent(split, value, name)
        bound = value * (1 - CLOSED / 2)
        if status != ENDED:
            levels = int(state.now[0]) + 1
            left = state.low[:levels][state.choice[:levels] < last[:levels]]
            bound = min(bound, float(left.min(initial=np.inf)))
        run.report_progress(value=value, bound=bound, by=name)
        if bound >= value * (1 - run.wide_gap) and run.wide_gap:
            break
    return SearchProof(bound, best, more=status != ENDED)


def valid_latency(problem: LatencyProblem, split: Split) -> float:
    """Latency of a split; inf if it is not valid, as by the rounding of bytes."""
    try:
        return problem.value(split)
    except DnnpError:
        return np.inf
