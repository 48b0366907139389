"""Weights that operators far apart read, such as those of an embedding and of the logits.

Such operators have one colour: they share a device. Then all that is between them does, too, unless
they are in stages that all devices share: there each device has its part of the weights, wherever
in the pipeline they are read. So there are several sets of items, for each colour two: its
operators and what is between them are one item; or they are apart, and only shared stages may hold
them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, item_choices
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Bools, Graph, Ints

MOST_TIED = 3
"""Colours of which both ways are looked at, all with all."""


class Divided(NamedTuple):
    """Items of a split."""

    items: Items
    shared_only: Bools | None = None
    """bool[count], items that only shared stages may hold; None: there are none."""


def divided_choices(problem: SplitProblem) -> list[Divided]:
    """The items of a split, with the operators of each colour in one of them or apart.

    Raises
    ------
    UsageError
        Too many colours hold operators with others between them.
    """
    graph, units = problem.graph, problem.units
    found = [Divided(items) for items in problem.item_choices]
    tied = tied_colors(graph, units, problem.items)
    if len(tied) > MOST_TIED:
        raise UsageError(
            f"--shared-stages: {len(tied)} colours hold operators with others between them; at "
            f"most {MOST_TIED} may"
        )
    for count in range(1, len(tied) + 1):
        for some in combinations(tied, count):
            apart = replace(graph, color=_apart(graph, units, some))
            inside = np.isin(graph.color, some)
            for items in item_choices(apart, units):
                only = np.zeros(items.count, dtype=np.bool_)
                only[items.label[inside]] = True
                found.append(Divided(items, only))
    return found


def tied_colors(graph: Graph, units: Clustering, items: Items) -> list[int]:
    """Colours with operators in several units of the forward pass, and others between them.

    Those of which it is not stated whose gradients their backward nodes compute are left out.
    """
    found = []
    ahead = ~graph.backward
    for color in np.unique(graph.color[graph.color >= 0]).tolist():
        inside = graph.color == color
        mine = np.unique(units.label[inside & ahead])
        if len(mine) < 2:
            continue
        late = inside & graph.backward
        if late.any() and (graph.twin is None or (graph.twin[late] < 0).any()):
            continue
        same = np.isin(items.label, np.unique(items.label[inside])) & ahead
        if len(np.unique(units.label[same])) > len(mine):
            found.append(int(color))
    return found


def _apart(graph: Graph, units: Clustering, colors: tuple[int, ...]) -> Ints:
    """Colours of nodes where those of some colours have one for each unit of the forward pass."""
    color = graph.color.copy()
    free = int(color.max()) + 1
    for one in colors:
        inside = np.flatnonzero(graph.color == one)
        ahead = inside
        if graph.twin is not None:
            ahead = np.where(graph.backward[inside], graph.twin[inside], inside)
        color[inside] = free + units.label[ahead]
        free += units.g
    return color
