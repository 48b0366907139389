"""The best split that can be found without a proof: slices, orders, annealing, windows.

The start is the best slicing of the usual orders. Small graphs get an evolved order beside it,
large ones are split by levels. What is best then is annealed, sliced anew and searched through
windows; as long as there is time, from other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.ideal import window_search
from dnnp.core.local.anneal import anneal
from dnnp.core.local.sweep import sweep
from dnnp.core.model.asked import Evolution
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import Block
from dnnp.core.portfolio.multilevel import multilevel
from dnnp.core.portfolio.orders import OrderSpace, evolved_order
from dnnp.core.portfolio.problem import Request
from dnnp.core.portfolio.slices import best_slicing

LARGE = 10_000
"""Units from which a graph is split by levels, and not searched through windows."""

EVOLVED_ITEMS = 2_000_000
"""Items that are put in order by evolution at effort 1, over all its orders."""

LEAST_GENERATIONS = 5
"""Evolution is not worth its while for fewer."""

WINDOW_EFFORT = 0.02
"""Effort of one window search, of the effort asked for."""

WIDTHS = (6, 10)


def refined(
    problem: SplitProblem, request: Request, blocks: list[Block], value: float, seed: int
) -> tuple[list[Block], float]:
    """Anneal an ordered split, slice what comes out anew; never worse."""
    request.runs([sweep])
    blocks, value = _annealed(problem, request, blocks, value, seed)
    return _resliced(problem, request, blocks, value)


def heuristic(
    problem: SplitProblem, request: Request, blocks: list[Block], value: float, floor: float
) -> tuple[list[Block], float]:
    """Improve an ordered split by all there is, until it meets `floor` or the time is over.

    Without a time limit every part has its turn once.
    """
    found = _evolved(problem, request)
    if found is not None and found[1] < value:
        blocks, value = found
        request.tell(f"evolved order: {value:.6g}")
    seed = request.seed
    while value > floor and not request.stop():
        blocks, value = refined(problem, request, blocks, value, seed)
        blocks, value = windows(problem, request, blocks, value, WIDTHS)
        seed += 1
        if request.time_left() is None:
            break
    return blocks, value


def windows(
    problem: SplitProblem,
    request: Request,
    blocks: list[Block],
    value: float,
    widths: Sequence[int],
) -> tuple[list[Block], float]:
    """Search ever wider windows around the best split."""
    if problem.units.g > LARGE:
        return blocks, value
    for width in widths:
        while not request.stop():
            near = window_search(
                problem,
                blocks,
                incumbent=value,
                width=width,
                effort=request.effort * WINDOW_EFFORT,
                stop=request.stop,
            )
            if near.blocks is None:
                break
            blocks, value = near.blocks, near.value
            request.tell(f"windows of {width}: {value:.6g}")
    return blocks, value


def _evolved(problem: SplitProblem, request: Request) -> tuple[list[Block], float] | None:
    """The best slicing of an evolved order, if there is one."""
    how = Evolution()
    generations = int(request.effort * EVOLVED_ITEMS / (how.population * max(problem.units.g, 1)))
    if generations < LEAST_GENERATIONS:
        return None
    how = Evolution(generations=min(generations, how.generations))
    space = OrderSpace(problem)
    if not space.compiled:
        return None  # it would be slow
    order = evolved_order(space, how, seed=request.seed, stop=request.stop)
    if order is None:
        return None
    return _sliced(problem, request, order)


def _annealed(
    problem: SplitProblem, request: Request, blocks: list[Block], value: float, seed: int
) -> tuple[list[Block], float]:
    """Anneal, by levels where the graph is large."""
    try:
        if problem.units.g >= LARGE and seed == request.seed:
            found = multilevel(
                problem,
                blocks,
                seed=seed,
                effort=request.effort,
                stop=request.stop,
                progress=request.progress,
            )
        else:
            found = anneal(
                problem,
                ordered=True,
                start=blocks,
                seed=seed,
                effort=request.effort,
                stop=request.stop,
                progress=request.progress,
            )
        better = problem.value(found)
    except (InfeasibleError, LimitError):
        return blocks, value
    if better < value:
        request.tell(f"annealing: {better:.6g}")
        return found, better
    return blocks, value


def _resliced(
    problem: SplitProblem, request: Request, blocks: list[Block], value: float
) -> tuple[list[Block], float]:
    """Slice the order of the split itself."""
    items = problem.items
    at = np.empty(items.count, dtype=np.int64)
    for b, one in enumerate(blocks):
        at[items.label[one.nodes]] = b
    if (at[items.tail] > at[items.head]).any():
        return blocks, value
    rank = np.argsort(items.order)
    found = _sliced(problem, request, np.lexsort((rank, at)))
    if found is None or found[1] >= value:
        return blocks, value
    request.tell(f"sliced anew: {found[1]:.6g}")
    return found


def _sliced(
    problem: SplitProblem, request: Request, order: np.ndarray
) -> tuple[list[Block], float] | None:
    try:
        blocks = best_slicing(problem, order, request.stop)
    except InfeasibleError:
        return None
    return blocks, problem.value(blocks)
