"""Splits that need no search: what people do by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnnp.core.baselines.blocks import checked, interval_blocks, unplaceable
from dnnp.core.cost.line import Line
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.slice import Slicing
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import PARAMETER, Floats, Graph, distinct, totals
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.model.text import shown_bytes
from dnnp.core.order.orders import order_named


def cut_order(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """Cut the topological order that is asked for; the method is a name in `CUTS`.

    Raises
    ------
    InfeasibleError
        A device cannot hold or run its share.
    """
    graph = problem.graph
    items = problem.items
    line = problem.line(items, order_named(asked.order)(items))
    try:
        found = CUTS[asked.method](graph, line)
    except InfeasibleError as error:
        raise unplaceable(problem, line) or error from None
    blocks = interval_blocks(graph, line, found.bounds, found.classes, problem.devices)
    return checked(problem, blocks)


def equal_shares(line: Line, weight: Floats) -> Slicing:
    """Cut where the running sum of `weight` (f64[n]) passes equal shares of the total.

    Accelerators are used in the order offered; CPUs only when there is no accelerator.
    Intervals that would be empty are left out, so there may be fewer.
    """
    slots = [c for c, d in enumerate(line.devices) for _ in range(d.count) if not d.is_cpu]
    if not slots:
        slots = [c for c, d in enumerate(line.devices) for _ in range(d.count)]
    total = float(weight.sum())
    running = np.cumsum(weight) if total > 0 else np.arange(1.0, line.n + 1)
    goals = running[-1] * np.arange(1, len(slots)) / len(slots)
    # An item belongs to the share in which its middle lies.
    middle = running - (weight / 2 if total > 0 else 0.5)
    cuts = np.searchsorted(middle, goals)
    bounds = distinct(np.concatenate([[0], cuts, [line.n]])).astype(np.int64)
    return _checked(line, bounds, np.array(slots[: len(bounds) - 1], dtype=np.int64))


def uniform(line: Line) -> Slicing:
    """The same number of items for every device."""
    return equal_shares(line, np.ones(line.n))


def by_parameters(graph: Graph, line: Line) -> Slicing:
    """The same number of parameter bytes for every device; a shared one counts at first use.

    Where the graph has no parameters, its nodes' stated memory stands for them.
    """
    item = np.empty(graph.n, dtype=np.int64)
    item[line.nodes] = np.repeat(np.arange(line.n), np.diff(line.node_ptr))
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    static = graph.tensor_kind[tensor] >= PARAMETER
    if not static.any():
        return equal_shares(line, totals(item, np.nan_to_num(graph.node_bytes), line.n))
    first = np.full(graph.m, line.n, dtype=np.int64)
    np.minimum.at(first, tensor[static], item[graph.use_idx[static]])
    used = first < line.n
    size = graph.tensor_bytes[used]
    return equal_shares(line, totals(first[used], size, line.n))


def single(line: Line) -> Slicing:
    """Everything on the first device offered."""
    first = next(c for c, d in enumerate(line.devices) if d.count)
    return _checked(line, np.array([0, line.n], dtype=np.int64), np.array([first]))


def _checked(line: Line, bounds: np.ndarray, classes: np.ndarray) -> Slicing:
    """Refuse intervals that a device cannot hold."""
    for i, (first, end, c) in enumerate(zip(bounds[:-1], bounds[1:], classes, strict=True)):
        if line.reach[c, first] < end - 1:
            device, nodes = line.devices[c], line.node_ptr[end] - line.node_ptr[first]
            raise InfeasibleError(
                f"infeasible: stage {i} of the split, with {int(nodes)} nodes, does not fit a "
                f"device of class '{device.name}' ({shown_bytes(device.memory_bytes, 6)}), or has "
                "a node that is not supported there"
            )
    return Slicing(bounds, classes, float("nan"))


CUTS: dict[str, Callable[[Graph, Line], Slicing]] = {
    "uniform": lambda _, line: uniform(line),
    "params": by_parameters,
    "single": lambda _, line: single(line),
}
