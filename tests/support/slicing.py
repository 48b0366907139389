"""Slicing one order by trying all cuts, and by the ideal search that is kept to that order."""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.check.graph import tables_of
from dnnp.core.check.load import footprint_of, price
from dnnp.core.check.violation import above
from dnnp.core.cost.items import LinearizedItems, items_of
from dnnp.core.cost.problem import make_line
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.plan import Block
from dnnp.core.split.ideals.search import window_search
from dnnp.core.split.slicing.decoder import kahn_with_priorities
from support.brute import brute_force
from support.cases import Case


def random_order_of(case: Case, seed: int) -> Ints:
    """A topological order of the items, by random priorities."""
    items = items_of(case.graph, case.units)
    keys = np.random.default_rng(seed).random(items.count)
    return kahn_with_priorities(items.tail, items.head, keys)


def line_of(case: Case, order: Ints) -> LinearizedItems:
    """The items laid out in an order."""
    items = items_of(case.graph, case.units)
    return make_line(case.problem, items, order)


def best_cuts(case: Case, order: Ints) -> float:
    """Least largest load over all cuts of an order and all classes; inf if nothing fits.

    The loads are those of the checker.
    """
    line, tables = line_of(case, order), tables_of(case.graph)
    label = case.units.label
    costs: dict[tuple[int, int, int], float] = {}

    def load(a: int, b: int, c: int) -> float:
        if (a, b, c) not in costs:
            device = case.devices[c]
            nodes = line.nodes[line.node_ptr[a] : line.node_ptr[b]]
            if case.graph.backward.any():
                nodes = nodes[np.argsort(case.graph.rank[nodes])]
            times = case.units.times.get(device.name, np.full(case.units.g, math.inf))
            work = float(times[np.unique(label[nodes])].sum())
            held = footprint_of(tables, nodes.tolist(), case.options)
            full = not device.is_cpu and above(held.memory_bytes, device.memory_bytes)
            hard = full and case.options.memory_mode == "hard"
            cost = price(tables, held, (work, 0.0), device, case.options)
            costs[a, b, c] = math.inf if hard else cost.load_s
        return costs[a, b, c]

    def rest(start: int, left: tuple[int, ...]) -> float:
        if start == line.n:
            return 0.0
        best = math.inf
        for c, count in enumerate(left):
            if count == 0:
                continue
            fewer = (*left[:c], count - 1, *left[c + 1 :])
            for end in range(start + 1, line.n + 1):
                best = min(best, max(load(start, end, c), rest(end, fewer)))
        return best

    return rest(0, tuple(d.count for d in case.devices))


def searched_in_order(case: Case, order: Ints) -> float:
    """Value that the ideal search finds if it must keep to an order; inf if nothing fits."""
    line = line_of(case, order)
    single = [
        Block(line.nodes[line.node_ptr[i] : line.node_ptr[i + 1]], case.devices[0])
        for i in range(line.n)
    ]
    found = window_search(case.problem, single, incumbent=math.inf, width=1)
    return found.value if found.blocks is not None else math.inf


def optimum_and_priorities(case: Case) -> tuple[float, Floats | None]:
    """The optimum of a graph, and priorities of its units from an optimal split (Theorem 3.4).

    A unit has k minus the place of its block in the pipeline. None if nothing fits.
    """
    optimum, blocks = brute_force(case.problem)
    if not blocks:
        return optimum, None
    items = items_of(case.graph, case.units)
    owner = np.empty(items.count, dtype=np.int64)
    for b, block in enumerate(blocks):
        owner[items.label[block.nodes]] = b
    waiting, place = set(range(len(blocks))), np.empty(len(blocks), dtype=np.int64)
    tail, head = owner[items.tail], owner[items.head]
    for position in range(len(blocks)):
        blocked = {b for a, b in zip(tail, head, strict=True) if a != b and a in waiting}
        place[next_block := min(waiting - blocked)] = position
        waiting.remove(next_block)
    block_of_unit = np.empty(case.units.g, dtype=np.int64)
    for b, block in enumerate(blocks):
        block_of_unit[case.units.label[block.nodes]] = b
    k = sum(d.count for d in case.devices)
    return optimum, (k - place[block_of_unit]).astype(np.float64)
