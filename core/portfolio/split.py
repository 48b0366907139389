"""From a method's name to stages: orders, slicing, baselines, and a split that is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dnnp.core.baselines.cuts import by_parameters, single, uniform
from dnnp.core.cost.items import items_of
from dnnp.core.cost.line import Line, make_line, steps_of
from dnnp.core.cost.load import stage_load
from dnnp.core.dp.slice import Slicing, slice_line
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.order.orders import ORDERS

WORTHWHILE = 1e-9
"""Relative gain for which another order is searched through."""


def split(
    graph: Graph,
    units: Clustering,
    devices: tuple[DeviceClass, ...],
    options: CostOptions,
    method: str,
    order: str = "best",
    stop: Callable[[], bool] = lambda: False,
) -> list[Block]:
    """Split the graph by `slice`, `uniform`, `params` or `single`.

    `order` is a name in `ORDERS`, or `best`: the one whose slicing is best. The baselines use
    the Kahn order for `best`. The blocks come in pipeline order. Once `stop` says so, the best
    split so far is returned.

    Raises
    ------
    InfeasibleError
        No split of this kind meets the capacities.
    """
    items = items_of(graph, units)
    names = [order] if order != "best" else (list(ORDERS) if method == "slice" else ["kahn"])
    found: tuple[Line, Slicing] | None = None
    failure: InfeasibleError | None = None
    for name in names:
        if found is not None and stop():
            break
        line = make_line(graph, units, items, ORDERS[name](items), devices, options)
        try:
            below = found[1].value * (1 - WORTHWHILE) if found else np.inf
            better = _cut(graph, line, options, method, below, stop)
        except InfeasibleError as error:
            failure = failure or _explained(graph, units, line, options) or error
        else:
            found = found if better is None else (line, better)
    if found is None:
        raise failure or InfeasibleError("infeasible")
    line, best = found
    blocks = [line.nodes[line.node_ptr[a] : line.node_ptr[b]] for a, b in pairwise(best.bounds)]
    if graph.backward.any():
        # An item holds nodes of both passes, which run far apart in time.
        blocks = [nodes[np.argsort(graph.rank[nodes])] for nodes in blocks]
    return [Block(nodes, devices[c]) for nodes, c in zip(blocks, best.classes, strict=True)]


def _cut(
    graph: Graph,
    line: Line,
    options: CostOptions,
    method: str,
    below: float,
    stop: Callable[[], bool],
) -> Slicing | None:
    """Cut one line by a method; None if slicing finds nothing below a value."""
    if method == "slice":
        streamed = options.memory_mode == "overflow" and any(
            np.isfinite(d.memory_bytes) for d in line.devices
        )
        steps = steps_of(graph, line, options) if streamed else None
        return slice_line(line, options.comm, steps, below, stop)
    if method == "params":
        return by_parameters(graph, line)
    return {"uniform": uniform, "single": single}[method](line)


def _explained(
    graph: Graph, units: Clustering, line: Line, options: CostOptions
) -> InfeasibleError | None:
    """What no device can hold even alone, if that is the reason."""
    nowhere = np.flatnonzero((line.reach < np.arange(line.n)).all(axis=0))
    if not len(nowhere):
        return None
    item = int(nowhere[0])
    nodes = line.nodes[line.node_ptr[item] : line.node_ptr[item + 1]]
    name = f"node {graph.node_ids[nodes[0]]} ('{graph.node_names[nodes[0]]}')"
    if len(nodes) > 1:
        name = f"{name} and {len(nodes) - 1} more that belong with it"
    runs = [d for c, d in enumerate(line.devices) if np.isfinite(line.work[c, item])]
    if not runs:
        return InfeasibleError(f"infeasible: {name} cannot run on any device offered")
    need = stage_load(graph, units, nodes, runs[0], options).memory_bytes
    most = max(d.memory_bytes for d in runs)
    return InfeasibleError(
        f"infeasible: {name} needs {need:.0f} bytes; the largest device has {most:.0f}"
    )
