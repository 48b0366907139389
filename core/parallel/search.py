"""The best parallel plan: the least limit below which the devices suffice.

Over all sets of items at which stages may end this is exact, as Piper's dynamic program over pairs
of such sets is. That one tabulates the least load by devices and replicas; here the least devices
are tabulated for some thirty limits of the load: a limit bounds the work of every stage and of the
rest, so that few pairs are visited. Graphs with too many such sets are cut along topological
orders, without proof: the bound is the work over all devices then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROOM, ROUNDING
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Bools, Ints
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN as PLAIN_RUN
from dnnp.core.model.search_context import SearchContext, narrowed
from dnnp.core.parallel.cover import (
    Covering,
    all_ends,
    cover,
    ends_of_orders,
    family_of,
    faster_again,
    fewest_swaps,
    last_stage,
    least_work,
    nets_for,
    new_scratch,
    rules_of,
    swaps_of,
    teams_of,
)
from dnnp.core.parallel.problem import (
    METHOD,
    HybridBlock,
    HybridProblem,
    block_cost,
    costs_of,
    in_flight,
)
from dnnp.core.split.ideals.lattice import words_of

MOST_SETS = 40_000
"""Sets of items up to which all are taken; the same as in Piper's program."""

MOST_NUMBERS = 50_000_000
"""Sets times devices up to which all are taken; 4 bytes each."""

CLOSE = 1e-3
"""Relative distance of value and bound from which on the next limit is just below the value."""

NEAR = 1e-4
"""The same without proof: the search ends at it."""

SETTLED = 1e8
"""Pairs of sets, over all limits tried, after which a small gap need not be closed."""

GROWTH = 2.0
"""Factor of the distance to the bound from one limit that is too low to the next."""

FIRST_STEP = 0.01
"""The first such distance, relative."""


@dataclass(frozen=True)
class HybridSolution:
    """Stages in the order of the pipeline, and a bound."""

    blocks: list[HybridBlock]
    value: float
    """Load of the busiest device."""
    bound: float
    """No plan has a smaller one."""


@dataclass(frozen=True, eq=False)
class Space:
    """A family, and all that a cover needs besides."""

    problem: HybridProblem
    member: Bools
    """bool[I, n], items of each set."""
    arrays: Covering
    top: float
    """No load of a stage exceeds it."""
    complete: bool
    """True: the family holds all sets, so that infeasible limits are proven."""


def simple_bound(problem: HybridProblem) -> float:
    """All work shared by all devices.

    Raises InfeasibleError: no device can run some item.
    """
    work = least_work(problem)
    if not np.isfinite(work).all():
        item = int(np.flatnonzero(~np.isfinite(work))[0])
        raise InfeasibleError(f"infeasible: unit {item} runs at no tensor-parallel degree")
    return float(work.sum()) / problem.devices


def plan_hybrid(
    problem: HybridProblem, orders: Sequence[Ints], run: SearchContext = PLAIN_RUN
) -> HybridSolution:
    """Find stages, how many devices each takes, and what runs its forward pass again.

    `orders`: topological orders of the items to cut where the sets are too many to take all.
    Raises what `solve_hybrid` does.
    """
    bound = simple_bound(problem)
    run.report_progress("orders", bound=bound)
    found: HybridSolution | None = None
    for i, order in enumerate(orders):
        if run.stop() and found is not None:
            break
        run.report_progress("orders", share=0.3 * i / len(orders))
        space = space_of(problem, ends_of_orders([order]), complete=False)
        found = _better(found, _descend(space, bound, found, run))
        if found is not None:
            run.report_incumbent(found.blocks, found.value, METHOD)
            run.report_progress(value=found.value)
            if found.value <= bound * (1 + ROUNDING):
                return replace(found, bound=found.value)
    if run.stop() and found is not None:
        return replace(found, bound=bound)
    part = run.phase("ideals", 0.3, 1.0)
    numbers = problem.devices * (problem.exactly + 1)
    every = all_ends(problem, min(MOST_SETS, MOST_NUMBERS // numbers))
    if every is None:
        run.log("too many sets in which stages may end: cut along orders")
        if len(orders) > 1 and sum(len(o) + 1 for o in orders) <= MOST_SETS // 10:
            space = space_of(problem, ends_of_orders(orders), complete=False)
            found = _better(found, _descend(space, bound, found, run))
        if found is None:
            raise LimitError(
                "no parallel plan that fits was found along some orders of the graph, but it is "
                "not proven that there is none; dnnp-coarsen leaves fewer units"
            )
        return replace(found, bound=bound)
    space = space_of(problem, every, complete=True)
    exact = _descend(space, bound, found, part)
    best = _better(found, exact)
    if best is None:
        if run.stop():
            raise LimitError("no parallel plan was found before the search was stopped")
        raise InfeasibleError("infeasible: no parallel plan fits into the memory of the devices")
    return replace(best, bound=exact.bound if exact is not None else bound)


def _better(a: HybridSolution | None, b: HybridSolution | None) -> HybridSolution | None:
    """The better of two solutions, at ties the first."""
    return min((x for x in (a, b) if x is not None), key=lambda x: x.value, default=None)


def space_of(problem: HybridProblem, member: Bools, *, complete: bool) -> Space:
    """A family of sets (bool[I, n], by size), and all that a cover needs besides."""
    finite = np.where(np.isfinite(problem.time), problem.time, 0.0)
    top = float(
        finite.max(axis=(0, 1)).sum()
        + problem.in_s.max(axis=0, initial=0.0).sum()
        + problem.out_s.max(axis=0, initial=0.0).sum()
        + problem.sync_s * problem.weight.max(axis=0).sum()
        + problem.sync_s * problem.read.max(axis=0, initial=0.0).sum()
    )
    rules = rules_of(problem, top)
    family, swaps = family_of(problem, member), swaps_of(problem, rules.most_replicas)
    scratch = new_scratch(family, swaps)
    arrays = Covering(family, nets_for(problem), swaps, teams_of(problem), rules, scratch)
    return Space(problem, member, arrays, top, complete)


def _descend(
    space: Space, low: float, start: HybridSolution | None, run: SearchContext
) -> HybridSolution | None:
    """Try limits from below, then between infeasible limits and the best value.

    The bound of the result is proven if the space is complete, else it is `low`; None: nothing
    fits, or nothing was found in time.

    Raises LimitError: nothing was found, and infeasibility is not proven.
    """
    best = start
    refused, step, known = low, FIRST_STEP, space.complete
    goal, pairs = CLOSED if space.complete else NEAR, 0
    last = best.value if best is not None else space.top
    while not run.stop():
        if best is None:
            limit = min(low * (1 + step), last) if low > 0 else last
            step *= GROWTH
        elif best.value * (1 - goal) <= refused or (
            pairs >= SETTLED and run.gap_reached(best.value, refused)
        ):
            break
        elif best.value <= refused * (1 + CLOSE):
            limit = best.value * (1 - goal)
        else:
            limit = min((refused + best.value) / 2, refused + step * max(low, ROUNDING))
            step *= GROWTH
        limit = max(limit, float(np.nextafter(refused, np.inf)))
        blocks, sure = _within(space, limit)
        pairs += len(space.member) ** 2
        if best is not None and space.complete:
            width = max(best.value - refused, 0.0) / best.value
            run.report_progress(share=narrowed(1.0, width, max(goal, run.max_gap)))
        known = known and sure
        if blocks is not None:
            value = max(cost.load_s for cost in costs_of(space.problem, blocks))
            if best is None or value < best.value:
                best = HybridSolution(blocks, value, 0.0)
                run.report_incumbent(blocks, value, METHOD)
                run.report_progress(value=value)
                continue
            break  # rounding: it is no better than what was known
        refused = max(refused, limit)
        if known:
            run.report_progress(bound=refused)
        if best is None and limit >= last:
            if space.complete and not known:
                raise LimitError(
                    "no parallel plan that fits was found; the search for what to run again gave up"
                )
            return None
    if best is None:
        return None
    proven = min(refused, best.value) if known else low
    if known and best.value * (1 - CLOSED) <= refused:
        proven = best.value
    return replace(best, bound=proven)


def _within(space: Space, limit: float) -> tuple[list[HybridBlock] | None, bool]:
    """Stages below a limit, in the order of the pipeline; and whether there are none for sure."""
    arrays, problem, at = space.arrays, space.problem, len(space.member) - 1
    stages, shape = problem.exactly, (problem.exactly + 1, arrays.rules.most_replicas + 1)
    least = np.full((at + 1, *shape), problem.devices + 1, dtype=np.int32)
    least[0, 0, 0] = 0
    known = cover(arrays, limit, least)
    if least[at, stages].min() > problem.devices:
        return None, bool(known)
    replicas = int(np.argmin(least[at, stages]))
    blocks: list[HybridBlock] = []
    while at:
        before, team = last_stage(arrays, limit, least, at, stages, replicas)
        items = items_between(space, before, at)
        degree, d = int(arrays.teams.degree[team]), int(arrays.teams.replicas[team])
        later = replicas - d
        block = HybridBlock(items, degree, d, items[:0])
        blocks.append(fastest(space, block, later, problem.memory * ROOM))
        at, stages, replicas = before, max(stages - 1, 0), later
    return blocks, True


def items_between(space: Space, small: int, large: int) -> Ints:
    """Items of a set that a smaller one does not have."""
    return np.flatnonzero(space.member[large] & ~space.member[small])


def fastest(space: Space, block: HybridBlock, later: int, room: float) -> HybridBlock:
    """The stage with those forward passes run again that leave it fastest in `room` bytes."""
    problem, rules, swaps = space.problem, space.arrays.rules, space.arrays.swaps
    items, scratch = block.items, space.arrays.scratch
    every = problem.parts(items)
    if not rules.partwise:
        last = every if problem.ahead[items].any() else every[:0]
        ways = [block._replace(recomputed=again) for again in (every[:0], last)]
        ways = ways[rules.first : rules.last + 1]
        costs = [block_cost(problem, way, later) for way in ways]
        fits = [c.load_s if c.memory_bytes <= room else np.inf for c in costs]
        return ways[int(np.argmin(fits))]
    i = block.degree
    fastest = faster_again(problem)[i]
    start = block._replace(recomputed=every[fastest[every]])
    cost = block_cost(problem, start, later)
    need, y = cost.memory_bytes - room, in_flight(block.replicas, later)
    if need <= 0:
        return start
    budget, chosen = np.inf, None
    scratch.block[:] = np.bitwise_or.reduce(words_of(items, problem.n))
    while fewest_swaps(swaps, scratch, i, y, need, budget) == 1:
        chosen = scratch.took[1 : scratch.took[0] + 1].copy()
        spent = float(swaps.cost[i, chosen].sum())
        if spent <= 0:
            break
        budget = spent * (1 - MARGIN)
    if chosen is None:  # it was found before
        return start
    again = fastest.copy()
    again[swaps.part[chosen]] ^= True
    return block._replace(recomputed=every[again[every]])
