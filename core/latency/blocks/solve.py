"""Methods `auto` and `anneal` for blocks: a bound, then annealing until it meets that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.cost.invocations import Invocations
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.blocks.anneal import anneal_blocks, check_feasible
from dnnp.core.latency.blocks.bound import blocks_bound
from dnnp.core.latency.blocks.items import block_items
from dnnp.core.latency.quick import EFFORT, quick
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.run import Run

BOUNDED, WARM = 0.1, 0.3
"""Shares of the whole work at the ends of the bound, and of a little annealing."""


def anneal(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Anneal splits into blocks: a little, as asked, and as long as there is time.

    With a time limit first as if there were none: mostly that is enough.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        No split was found.
    """
    check_feasible(problem, block_items(problem))
    run.tell("bounding")
    bound, name = blocks_bound(problem, run=run.begin("bounding", 0.0, BOUNDED))
    if bound == np.inf:
        raise InfeasibleError("infeasible: no split into blocks fits the devices")
    run.tell("annealing")
    run.stands(bound=bound)
    part = run.begin("annealing", BOUNDED, WARM).scaled(EFFORT)
    found = anneal_blocks(problem, start=_invoked_once(problem, run), run=part)
    run = run.begin("annealing", WARM, 1.0)
    steps = [(run, False)]
    if run.left() is not None:
        steps.append((replace(run, effort=1.0), True))
    for step, endless in steps:
        value = problem.value(found)
        run.keep(found, value, "anneal")
        if run.stop() or value <= bound * (1 + CLOSED):
            break
        found = anneal_blocks(problem, start=found, endless=endless, run=step)
    return LatencySolution(found, bound, name)


def _invoked_once(problem: LatencyProblem, run: Run) -> Invocations | None:
    """Where accelerators may be invoked again: a split without that, to start from.

    There is less to choose, as colours join more.
    """
    if problem.options.invocations == 1:
        return None
    once = replace(problem, options=replace(problem.options, invocations=1))
    try:
        return anneal_blocks(once, run=quick(run))
    except (InfeasibleError, LimitError):
        return None
