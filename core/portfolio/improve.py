"""The methods `heuristic` and `anneal`: a better split from a given one, without a proof.

There are evolved orders, annealing, slices and windows. The start is the best slicing of the usual
orders, and the bound of `heuristic` one that costs little.

Small graphs get an evolved order beside the split, large ones are split by levels. What is best
then is annealed, sliced anew and searched through windows; as long as there is time, from other
seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.ideal import window_search
from dnnp.core.local.anneal import anneal
from dnnp.core.local.resplit import resplit
from dnnp.core.model.asked import Asked, Evolution, Solution
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.exact import SLICED, incumbent, quick_bound, start
from dnnp.core.portfolio.multilevel import multilevel
from dnnp.core.portfolio.orders import OrderSpace, evolved_order
from dnnp.core.portfolio.slices import best_slicing, slice_order

LARGE = 10_000
"""Units from which a graph is split by levels, and not searched through windows."""

EVOLVED_ITEMS = 2_000_000
"""Items that are put in order by evolution at effort 1, over all its orders."""

LEAST_GENERATIONS = 5
"""Evolution is not worth its while for fewer."""

WINDOW_EFFORT = 0.02
"""Effort of one window search, of the effort asked for."""

WIDTHS = (6, 10)

EVOLVED, REFINED = 0.2, 0.9
"""Shares of the whole work at the ends of evolution, and of annealing; windows are the rest."""

STARTED = 0.2
"""Share of the whole work that `anneal` takes for the search for a split to start from."""

ANNEALED = 0.95
"""Share of annealing in what is done to refine a split."""


def heuristic(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """All heuristics, and a bound that costs little.

    Raises
    ------
    InfeasibleError
        No split that fits was found.
    """
    try:
        blocks = slice_order(problem, asked, run.begin("slicing", 0.0, SLICED)).blocks
    except InfeasibleError:
        begun = start(problem, asked, run.without_shares())[0]
        if begun is None:
            raise
        blocks = begun
    value = problem.value(blocks)
    run.keep(blocks, value, "slice")
    run.tell(f"start: {run.shown(value)}")
    if run.stop():
        return Solution(blocks, method="slice")
    run.stands("bounding")
    floor = quick_bound(problem, simple_bound(problem), value)
    run.stands(bound=floor)
    part = run.begin("evolving orders", SLICED, 1.0)
    return Solution(improved(problem, blocks, value, floor * (1 + ROUNDING), part)[0], floor)


def annealed(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The better of the best ordered split and what annealing makes of it.

    Raises
    ------
    InfeasibleError
        No split that fits was found.
    LimitError
        Too many devices for so many tensors, and no ordered split was found.
    """
    ordered = asked.validity == "ordered"
    begun = run.begin("looking for a start", 0.0, STARTED)
    if ordered:
        first, made = incumbent(problem, asked, begun)[0], "slice"
    else:
        first, made = start(problem, asked, begun)
    try:
        part = run.begin("annealing", STARTED, 1.0)
        blocks = anneal(problem, ordered=ordered, start=first, run=part)
    except (InfeasibleError, LimitError) as error:
        if first is None:
            raise
        if isinstance(error, LimitError):
            run.warn(f"{error}; this is the best ordered split")
        return Solution(first, method=made)
    if first is not None and problem.value(first) < problem.value(blocks):
        # It may have replicas, or need the order of a stage's nodes to fit.
        return Solution(first, method=made)
    return Solution(blocks, method="anneal")


def refined(
    problem: SplitProblem, blocks: list[Block], value: float, run: Run, *, by_levels: bool = True
) -> tuple[list[Block], float]:
    """Anneal an ordered split, slice what comes out anew; never worse.

    `by_levels`: large graphs are annealed by levels.
    """
    part = run.begin("annealing", 0.0, ANNEALED)
    blocks, value = _annealed(problem, blocks, value, part, by_levels=by_levels)
    return _resliced(problem, blocks, value, run.begin("slicing", ANNEALED, 1.0))


def improved(
    problem: SplitProblem, blocks: list[Block], value: float, floor: float, run: Run
) -> tuple[list[Block], float]:
    """Improve an ordered split by all there is, until it meets `floor` or the time is over.

    Without a time limit every part has its turn once.
    """
    found = _evolved(problem, run.begin("evolving orders", 0.0, EVOLVED))
    if found is not None and found[1] < value:
        blocks, value = found
        run.tell(f"evolved order: {run.shown(value)}")
    if len(blocks) == 2:  # then it ends at the optimum
        blocks, value = paired(problem, blocks, value, run)
    rounds = 0
    while value > floor and not run.stop():
        run.stands(value=value)
        again = replace(run.begin("annealing", EVOLVED, REFINED), seed=run.seed + rounds)
        blocks, value = refined(problem, blocks, value, again, by_levels=rounds == 0)
        last = run.begin("windows", REFINED, 1.0)
        blocks, value = paired(problem, blocks, value, last)
        blocks, value = windows(problem, blocks, value, WIDTHS, last)
        rounds += 1
        if run.left() is None:
            break
    return blocks, value


def paired(
    problem: SplitProblem, blocks: list[Block], value: float, run: Run
) -> tuple[list[Block], float]:
    """Split pairs of neighbouring stages anew."""
    run.stands("pairs of stages", value=value)
    try:
        found = resplit(problem, blocks, run)
        better = problem.value(found)
    except InfeasibleError:
        return blocks, value
    if better >= value:
        return blocks, value
    run.tell(f"pairs of stages: {run.shown(better)}")
    return found, better


def windows(
    problem: SplitProblem, blocks: list[Block], value: float, widths: Sequence[int], run: Run
) -> tuple[list[Block], float]:
    """Search ever wider windows around the best split."""
    if problem.units.g > LARGE:
        return blocks, value
    for number, width in enumerate(widths):
        while not run.stop():
            run.stands(f"windows of {width}", value=value, share=number / len(widths))
            part = run.scaled(WINDOW_EFFORT)
            near = window_search(problem, blocks, incumbent=value, width=width, run=part)
            if near.blocks is None:
                break
            blocks, value = near.blocks, near.value
            run.tell(f"windows of {width}: {run.shown(value)}")
    return blocks, value


def _evolved(problem: SplitProblem, run: Run) -> tuple[list[Block], float] | None:
    """The best slicing of an evolved order, if there is one."""
    how = Evolution()
    generations = int(run.effort * EVOLVED_ITEMS / (how.population * max(problem.units.g, 1)))
    if generations < LEAST_GENERATIONS:
        return None
    how = Evolution(generations=min(generations, how.generations))
    space = OrderSpace(problem)
    if not space.compiled:
        return None  # it would be slow
    order = evolved_order(space, how, run=replace(run, warn=PLAIN.warn))
    if order is None:
        return None
    return _sliced(problem, order, run)


def _annealed(
    problem: SplitProblem, blocks: list[Block], value: float, run: Run, *, by_levels: bool
) -> tuple[list[Block], float]:
    """Anneal, by levels where the graph is large."""
    try:
        if problem.units.g >= LARGE and by_levels:
            found = multilevel(problem, blocks, run)
        else:
            found = anneal(problem, ordered=True, start=blocks, run=run)
        better = problem.value(found)
    except (InfeasibleError, LimitError):
        return blocks, value
    if better < value:
        run.tell(f"annealing: {run.shown(better)}")
        return found, better
    return blocks, value


def _resliced(
    problem: SplitProblem, blocks: list[Block], value: float, run: Run
) -> tuple[list[Block], float]:
    """Slice the order of the split itself."""
    items = problem.items
    at = np.empty(items.count, dtype=np.int64)
    for b, one in enumerate(blocks):
        at[items.label[one.nodes]] = b
    if (at[items.tail] > at[items.head]).any():
        return blocks, value
    rank = np.argsort(items.order)
    found = _sliced(problem, np.lexsort((rank, at)), run)
    if found is None or found[1] >= value:
        return blocks, value
    run.tell(f"sliced anew: {run.shown(found[1])}")
    return found


def _sliced(problem: SplitProblem, order: np.ndarray, run: Run) -> tuple[list[Block], float] | None:
    try:
        blocks = best_slicing(problem, order, run)
    except InfeasibleError:
        return None
    return blocks, problem.value(blocks)
