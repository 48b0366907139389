"""What must share a stage with two items: everything on the paths between them.

If a block of a split holds items u and v, it holds

`ordered`
    every item on a path of the item graph between them: each lies in one stage, and the stages
    have an order that all edges respect.
`convex`
    every item with a node on a path of nodes of one pass between nodes of u and v, in either
    direction (Definition 3.1 of the 2020 paper, each pass by itself). Splits that are `ordered`
    are convex; so this serves them too where there is a backward pass.
`free`
    nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Bools, Graph, Ints, distinct, totals


class Between(NamedTuple):
    """Item label[x] lies between u and v if x is after one of them and before one of them."""

    label: Ints
    """i64[m], item of each thing that paths are made of: items, or nodes."""
    after: Bools
    """bool[n, m]: what each item reaches, itself included."""
    before: Bools
    """bool[n, m]: what reaches each item, itself included."""
    nested: bool
    """Whether two items of such a set have nothing between them that is not in it."""

    def holds(self, u: int, v: int) -> Ints:
        """Items that share a stage with u and v if these share one, both included; ascending."""
        inside = (self.after[u] | self.after[v]) & (self.before[u] | self.before[v])
        return distinct(np.append(self.label[inside], [u, v]))


def mixes_passes(problem: SplitProblem) -> bool:
    """Whether some unit holds nodes of both passes; then its edges say little about order."""
    units = problem.units
    late = totals(units.label, problem.graph.backward, units.g)
    size = np.diff(units.member_ptr)
    return bool(((late > 0) & (late < size)).any())


def items_for(problem: SplitProblem, validity: str) -> Items:
    """What every split of this validity keeps whole.

    With a backward pass there is more than one way to order items; then only colours count.
    """
    if validity == "ordered" and not problem.graph.backward.any():
        return problem.items
    return problem.free_items


def between_of(graph: Graph, items: Items, validity: str) -> Between:
    """What lies between the items of `items_for`. O(items * edges)."""
    if validity == "free":
        own = np.eye(items.count, dtype=np.bool_)
        return Between(np.arange(items.count), own, own, True)
    nested = validity == "ordered" and not graph.backward.any()
    if nested:
        label = np.arange(items.count, dtype=np.int64)
        order, tail, head = items.order, items.tail, items.head
    else:
        label = items.label
        order = graph.order
        tail, head = graph.edges
        same = graph.backward[tail] == graph.backward[head]
        tail, head = tail[same], head[same]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    ahead = np.argsort(rank[tail], kind="stable")
    after = closure(items.count, label, tail[ahead], head[ahead])
    back = np.argsort(-rank[head], kind="stable")
    before = closure(items.count, label, head[back], tail[back])
    return Between(label, after, before, nested)


def closure(count: int, label: Ints, tail: Ints, head: Ints) -> Bools:
    """bool[count, m]: from which items each thing is reached, itself included.

    Of the edges, those into a thing come before those out of it.
    """
    reached = np.zeros((len(label), count), dtype=np.bool_)
    reached[np.arange(len(label)), label] = True
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        reached[v] |= reached[u]
    return np.ascontiguousarray(reached.T)
