"""Topological orders that are given: as a sequence of units, or by priorities of them."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.cluster import Clustering, contract
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.order.appraise import kahn_with_priorities


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
