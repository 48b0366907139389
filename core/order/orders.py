"""Topological orders of items to slice: by a rule, or by a sequence or priorities of units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Evolution
from dnnp.core.model.cluster import Clustering, contract
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats, Ints, csr
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.appraise import kahn_with_priorities


def kahn_order(items: Items) -> Ints:
    """Kahn order with the least item first (MTPP Algorithm 3 with node order as priority)."""
    return items.order


def dfs_order(items: Items) -> Ints:
    """Reverse postorder of a depth-first search: an item, then all that only follows from it.

    The linearisation of the 2020 paper (section 5.1.2).
    """
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets = ptr.tolist(), successors.tolist()
    indegree = np.bincount(items.head, minlength=items.count).tolist()
    seen = [False] * items.count
    finished: list[int] = []
    for root in range(items.count):
        if indegree[root]:
            continue
        seen[root] = True
        path = [(root, starts[root])]
        while path:
            u, edge = path.pop()
            if edge == starts[u + 1]:
                finished.append(u)
                continue
            path.append((u, edge + 1))
            v = targets[edge]
            if not seen[v]:
                seen[v] = True
                path.append((v, starts[v]))
    return np.array(finished[::-1], dtype=np.int64)


def stack_order(items: Items) -> Ints:
    """Kahn's order that takes what became ready last, as the programs of the 2020 paper do.

    Its greedy algorithm and its linearisation go by it (sections 5.1.2 and 7). Of several that
    become ready at once, the one whose first node comes last in the stream goes first.
    """
    first = np.full(items.count, len(items.label), dtype=np.int64)
    np.minimum.at(first, items.label, np.arange(len(items.label)))
    ptr, successors = csr(items.tail, items.head, items.count)
    starts, targets, rank = ptr.tolist(), successors.tolist(), first.tolist()
    waits = np.bincount(items.head, minlength=items.count).tolist()
    ready = [v for v in np.argsort(first, kind="stable").tolist() if not waits[v]]
    order = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in sorted(targets[starts[u] : starts[u + 1]], key=rank.__getitem__):
            waits[v] -= 1
            if not waits[v]:
                ready.append(v)
    return np.array(order, dtype=np.int64)


def _reversed(order: Callable[[Items], Ints]) -> Callable[[Items], Ints]:
    """The order that goes backwards from the outputs."""

    def from_outputs(items: Items) -> Ints:
        mirrored = replace(items, tail=items.head, head=items.tail)
        return order(mirrored)[::-1].copy()

    return from_outputs


def order_named(name: str) -> Callable[[Items], Ints]:
    """The order of a name, for methods that cut one order: Kahn's for `best`."""
    return stack_order if name == PUBLISHED else ORDERS["kahn" if name == "best" else name]


ORDERS: dict[str, Callable[[Items], Ints]] = {
    "kahn": kahn_order,
    "dfs": dfs_order,
    "kahn-reverse": _reversed(kahn_order),
    "dfs-reverse": _reversed(dfs_order),
}
"""Those that methods choose from."""

PUBLISHED = "published"
"""Name of the order of the 2020 paper's programs."""


def given_order(problem: SplitProblem, sequence: Ints) -> Ints:
    """Order of the items by a sequence of units (i64[g]); an item comes where its first unit does.

    What an item needs for its other units comes before it, too.

    Raises
    ------
    FormatError
        The sequence is not topological; the message names two units.
    """
    items, units = problem.items, problem.units
    at = np.empty(units.g, dtype=np.int64)
    at[sequence] = np.arange(units.g)
    item = _item_of_unit(items, units)
    tail, head = contract(problem.graph, units).edges
    wrong = np.flatnonzero((at[tail] > at[head]) & (item[tail] != item[head]))
    if len(wrong):
        first, needs = units.group_ids[[head[wrong[0]], tail[wrong[0]]]]
        raise FormatError(
            f"the order is not topological: {first} comes before {needs}, which it needs"
        )
    place = np.full(items.count, units.g, dtype=np.int64)
    np.minimum.at(place, item, at)
    return kahn_with_priorities(items.tail, items.head, -place.astype(np.float64))


def prioritised_order(problem: SplitProblem, priorities: Floats) -> Ints:
    """Kahn's order of the items by priorities of the units, f64[g] (MTPP Algorithm 3).

    An item has the largest priority of its units; ties go to the first item.
    """
    items = problem.items
    best = np.full(items.count, -np.inf)
    item = _item_of_unit(items, problem.units)
    np.maximum.at(best, item, priorities)
    return kahn_with_priorities(items.tail, items.head, best)


def _item_of_unit(items: Items, units: Clustering) -> Ints:
    return items.label[units.member_idx[units.member_ptr[:-1]]]


MOST_KEYS = 500_000_000
"""Priorities of a generation; 8 bytes each, a few times."""

Fitness = Callable[[Floats], Floats]
"""Values of the rows of f64[c, n], each row a chromosome; less is better."""


def brkga(fitness: Fitness, n: int, how: Evolution, run: Run = PLAIN) -> tuple[Floats, float]:
    """Evolve `n` keys in [0, 1): the best chromosome f64[n] and its value.

    The first generation is random; each further one keeps the elite, draws mutants, and mates
    the rest, one parent from the elite and one from the others. Once the run is to stop, the best
    so far is returned, after one generation at least.

    Raises
    ------
    UsageError
        See `Evolution.check`; or a population that would not fit in memory.
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
