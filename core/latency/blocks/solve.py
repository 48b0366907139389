"""Methods `auto` and `anneal` for blocks: a bound, then searches until one meets it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import Invocations, LatencyProblem, LatencySolution
from dnnp.core.latency.blocks.anneal import anneal_blocks, check_feasible
from dnnp.core.latency.blocks.bound import blocks_bound
from dnnp.core.latency.blocks.items import block_items
from dnnp.core.latency.ideals.search import ARGUMENT, ideal_latency
from dnnp.core.latency.quick import EFFORT, quick
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.request import Asked
from dnnp.core.model.search_context import Run

BOUNDED, FIRST, WARM, SEARCHED = 0.05, 0.15, 0.3, 0.6
"""Shares of the whole work at the ends of the bound, of the first search over ideals, of a little
annealing, and of the second search."""

FIRST_EFFORT = 0.08
"""Of the search over ideals that comes first: most graphs take less, and all that follows is in
vain where it ends."""

ENDLESS = 1000.0
"""Effort of the second one where time is what limits it."""

TIMED = 0.6
"""Share of the time left that it may take then."""


class _Known(NamedTuple):
    """What is known so far."""

    bound: float
    argument: str
    split: Invocations | None = None
    value: float = np.inf

    @property
    def proven(self) -> bool:
        """Whether no split is better."""
        return self.value <= self.bound * (1 + CLOSED)


def auto(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Search over ideals if they are few, anneal, and search again below what that found.

    For the errors see `anneal`.
    """
    known = _bounded(problem, run)
    first = run.begin("ideals", BOUNDED, FIRST).scaled(FIRST_EFFORT)
    known, more = _searched(problem, known, first)
    if not known.proven:
        known = _annealed(problem, known, run.begin("annealing", FIRST, WARM))
    if more and not known.proven:
        second = run.begin("ideals", WARM, SEARCHED)
        if run.left() is not None:
            second = replace(second.part(TIMED), effort=ENDLESS)
        known, _ = _searched(problem, known, second)
    return _refined(problem, known, run.begin("annealing", SEARCHED, 1.0))


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
    known = _annealed(problem, _bounded(problem, run), run.begin("annealing", BOUNDED, WARM))
    return _refined(problem, known, run.begin("annealing", WARM, 1.0))


def _bounded(problem: LatencyProblem, run: Run) -> _Known:
    """A bound, before there is a split."""
    check_feasible(problem, block_items(problem))
    run.tell("bounding")
    bound, name = blocks_bound(problem, run=run.begin("bounding", 0.0, BOUNDED))
    if bound == np.inf:
        raise InfeasibleError("infeasible: no split into blocks fits the devices")
    run.stands(bound=bound, by=name)
    return _Known(bound, name)


def _searched(problem: LatencyProblem, known: _Known, run: Run) -> tuple[_Known, bool]:
    """Search over ideals for something better; and whether with more effort there is more to it."""
    proof = ideal_latency(problem, upper=known.value, run=run)
    if proof.reason:
        run.tell(f"ideals: {proof.reason}")
    if proof.bound == np.inf:
        raise InfeasibleError("infeasible: no split into blocks fits the devices")
    if proof.split is not None:
        known = known._replace(split=proof.split, value=problem.value(proof.split))
    if proof.bound > known.bound:
        known = known._replace(bound=proof.bound, argument=ARGUMENT)
    return known, proof.more


def _annealed(problem: LatencyProblem, known: _Known, run: Run) -> _Known:
    """Anneal a little."""
    run.tell("annealing")
    start = known.split or _invoked_once(problem, run)
    found = anneal_blocks(problem, start=start, run=run.scaled(EFFORT))
    value = problem.value(found)
    run.keep(found, value, "anneal")
    return known._replace(split=found, value=value)


def _refined(problem: LatencyProblem, known: _Known, run: Run) -> LatencySolution:
    """Anneal as asked, and as long as there is time, until the bound is met."""
    steps = [(run, False)]
    if run.left() is not None:
        steps.append((replace(run, effort=1.0), True))
    for step, endless in steps:
        if known.proven or run.stop():
            break
        found = anneal_blocks(problem, start=known.split, endless=endless, run=step)
        known = known._replace(split=found, value=problem.value(found))
        run.keep(found, known.value, "anneal")
    if known.split is None:
        raise LimitError("annealing found no split into blocks that fits; offer more memory")
    return LatencySolution(known.split, known.bound, known.argument)


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
