"""Search over topological orders, each valued by its best slicing (MTPP section 3.3): `random`,
`brkga`, `mla` and `mla-weighted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnp.core.baselines.blocks import by_label
from dnnp.core.cost.items import Items, steps_of
from dnnp.core.cost.problem import SplitProblem, make_line
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.search_context import (
    NOTHING,
    PLAIN,
    Evolution,
    MethodOptions,
    SearchContext,
    Solution,
)
from dnnp.core.split.ideals.problem import may_bind
from dnnp.core.split.slices import best_slicing, slice_order
from dnnp.core.split.slicing.decoder import (
    LENGTH,
    SLICING,
    OrderProblem,
    kahn_with_priorities,
    order_problem,
    values_of_orders,
)
from dnnp.core.split.slicing.slice import slice_line

MOST_KEYS = 500_000_000
"""Priorities of a generation; 8 bytes each, a few times."""

Fitness = Callable[[Floats], Floats]
"""Values of the rows of f64[c, n], each row a chromosome; less is better."""

BATCH_ITEMS = 50_000
"""Items that are put in order between two questions whether to stop."""

SLOWER = 25
"""Fewer of them where orders are not valued by compiled code alone."""

MOST_BATCH = 1_024
"""Orders between two such questions, at most."""


def brkga(
    fitness: Fitness, n: int, how: Evolution, run: SearchContext = PLAIN
) -> tuple[Floats, float]:
    """Evolve `n` keys in [0, 1): the best chromosome f64[n] and its value.

    The first generation is random; each further one keeps the elite, draws mutants, and mates
    the rest, one parent from the elite and one from the others. Once the run is to stop, the best
    so far is returned, after one generation at least.

    Raises UsageError: See `Evolution.check`; or a population that would not fit in memory.
    """
    how.check()
    if how.population * n > MOST_KEYS:
        raise UsageError(
            f"a population of {how.population} with {n} priorities each takes too much memory"
        )
    rng = np.random.default_rng(run.seed)
    keys = rng.random((how.population, n))
    values = fitness(keys)
    for _ in range(1, how.generations):
        if run.stop():
            break
        rank = np.argsort(values, kind="stable")
        keys, values = keys[rank], values[rank]
        children = how.population - how.kept - how.drawn
        good = keys[rng.integers(how.kept, size=children)]
        other = keys[rng.integers(how.kept, how.population, size=children)]
        mated = np.where(rng.random((children, n)) < how.bias, good, other)
        fresh = np.concatenate([mated, rng.random((how.drawn, n))])
        keys = np.concatenate([keys[: how.kept], fresh])
        values = np.concatenate([values[: how.kept], fitness(fresh)])
    best = int(values.argmin())
    return keys[best], float(values[best])


class OrderSpace:
    """The topological orders of the items of a graph, by node priorities."""

    def __init__(self, problem: SplitProblem, *, weighted: bool = True, threads: int = 0) -> None:
        """`weighted`: whether the length of an edge counts its transfer time, or 1."""
        self.problem = problem
        self.items: Items = problem.items
        self.base = problem.line(self.items)
        limited, comm = may_bind(problem.graph, self.base, problem.options), problem.options.comm
        self._streamed = limited and problem.options.memory_mode == "overflow"
        self._arrays: OrderProblem = order_problem(self.base, comm, weighted=weighted)
        one = len(self.base.devices) == 1 and bool(np.isfinite(self.base.work).all())
        one = one and problem.stage_rules is None
        self.compiled = one and not limited and self.base.n > 0
        self._threads = threads

    @property
    def n(self) -> int:
        """Number of items, and of priorities."""
        return self.base.n

    def order(self, priorities: Floats) -> Ints:
        """Kahn's order of the items by priorities, f64[n] in the items' own Kahn order."""
        place = kahn_with_priorities(self.base.tail, self.base.head, priorities)
        return by_label(self.problem, self.items, self.items.order[place])

    def values(
        self,
        priorities: Floats,
        goal: int = SLICING,
        below: float = np.inf,
        *,
        reject: bool = False,
    ) -> Floats:
        """Values of orders by `values_of_orders`; inf where no slicing meets the limits."""
        if goal == LENGTH or self.compiled:
            return values_of_orders(
                self._arrays, priorities, goal, below, reject=reject, threads=self._threads
            )
        graph, options = self.problem.graph, self.problem.options
        values = np.full(len(priorities), np.inf)
        for row, keys in enumerate(priorities):
            # Each order is seen once: nothing to remember.
            line = make_line(self.problem, self.items, self.order(keys))
            steps = steps_of(graph, line, options) if self._streamed else None
            try:
                found = slice_line(line, options.comm, steps, below if reject else np.inf)
            except InfeasibleError:
                continue
            if found is not None:
                values[row] = found.value
                below = min(below, found.value)
        return values


def random_order(space: OrderSpace, samples: int, run: SearchContext = PLAIN) -> Ints | None:
    """The best of `samples` orders by random priorities (random-T); None if none can be sliced.

    Raises UsageError: not even one sample.
    """
    if samples < 1:
        raise UsageError(f"{samples} samples are too few: at least 1")
    rng = np.random.default_rng(run.seed)
    best, value = None, np.inf
    size = _batch(space)
    for first in range(0, samples, size):
        if run.stop():
            run.warn(f"random: stopped after {first} of {samples} orders")
            break
        run.report_progress("random orders", value=value, share=first / samples)
        keys = rng.random((min(size, samples - first), space.n))
        values = space.values(keys, SLICING, value, reject=True)
        if values.min() < value:
            best, value = keys[int(values.argmin())], float(values.min())
            run.report_incumbent(best_slicing(space.problem, space.order(best)), value, "random")
    return None if best is None else space.order(best)


def evolved_order(
    space: OrderSpace, how: Evolution, goal: int = SLICING, run: SearchContext = PLAIN
) -> Ints | None:
    """The order that evolution finds; None if it was stopped before it had any.

    `goal` is what is minimised: `SLICING` or `LENGTH` (minimum linear arrangement).
    """
    size = _batch(space)
    what = "length" if goal == LENGTH else ""
    total = how.population + (how.generations - 1) * (how.population - how.kept)
    seen, least = 0, np.inf

    def fitness(keys: Floats) -> Floats:
        nonlocal seen, least
        values = np.full(len(keys), np.inf)
        for first in range(0, len(keys), size):
            if run.stop():
                break
            run.report_progress("evolving orders", value=least, share=seen / total, what=what)
            values[first : first + size] = space.values(keys[first : first + size], goal)
            if values.min() < least:
                best, least = keys[int(values.argmin())], float(values.min())
                if goal == SLICING:
                    run.report_incumbent(
                        best_slicing(space.problem, space.order(best)), least, "brkga"
                    )
            seen += len(values[first : first + size])
        return values

    keys, value = brkga(fitness, space.n, how, run)
    if seen < total:
        run.warn(f"evolution: stopped after {seen} of {total} orders")
    return space.order(keys) if value < np.inf else None


def _batch(space: OrderSpace) -> int:
    items = BATCH_ITEMS if space.compiled else BATCH_ITEMS // SLOWER
    return min(max(items // max(space.n, 1), 1), MOST_BATCH)


def search_orders(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN
) -> Solution:
    """The best slicing of many orders: drawn at random, or evolved for what the method minimises.

    Raises
    ------
    UsageError
        Too few samples, or no evolution (`Evolution.check`).
    InfeasibleError
        No slicing of any order that was tried meets the capacities.
    """
    space = OrderSpace(problem, weighted=asked.method != "mla")
    if asked.method == "random":
        order = random_order(space, max(round(asked.samples * run.effort), 1), run)
    else:
        generations = max(round(asked.evolution.generations * run.effort), 1)
        how = replace(asked.evolution, generations=generations)
        order = evolved_order(space, how, SLICING if asked.method == "brkga" else LENGTH, run)
    if order is None:
        if run.stop():
            raise LimitError(NOTHING)
        run.warn(f"{asked.method}: none of its orders can be sliced; this split is by slice")
        try:
            return slice_order(problem, replace(asked, order="best"), run)
        except InfeasibleError as error:
            if "no slicing" not in str(error):
                raise
            tried = "infeasible: no slicing of any order that was tried fits"
            raise InfeasibleError(tried) from None
    return Solution(best_slicing(problem, order))
