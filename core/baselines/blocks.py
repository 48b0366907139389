"""From orders, intervals or parts of items to blocks, for every method that splits items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dnnp.core.cost.items import Items, Line, steps_of
from dnnp.core.cost.load_formula import WORTHWHILE
from dnnp.core.cost.problem import SplitProblem, unplaceable_nodes
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Graph, Ints, distinct
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext, Solution
from dnnp.core.split.slicing.slice import Slicing, slice_line


def slots_of(devices: tuple[DeviceClass, ...], *, all_kinds: bool = False) -> Ints:
    """Class of every device a baseline fills, in the order offered: i64[slots].

    Accelerators, or the CPUs where there are none; `all_kinds`: both.
    """
    kinds = [d for d in devices if not d.is_cpu and d.count] or [d for d in devices if d.count]
    wanted = devices if all_kinds else kinds
    counts = [d.count if d in wanted else 0 for d in devices]
    return np.repeat(np.arange(len(devices), dtype=np.int64), counts)


def interval_blocks(
    graph: Graph, line: Line, bounds: Ints, classes: Ints, devices: tuple[DeviceClass, ...]
) -> list[Block]:
    """Blocks of the intervals `bounds[i]..bounds[i + 1]` of a line, on class `classes[i]`.

    `devices` are those offered; a line counts no more of a class than it has items.
    """
    blocks = [line.nodes[line.node_ptr[a] : line.node_ptr[b]] for a, b in pairwise(bounds.tolist())]
    if graph.backward.any():
        # An item holds nodes of both passes, which run far apart in time.
        blocks = [nodes[np.argsort(graph.rank[nodes])] for nodes in blocks]
    return [Block(nodes, devices[c]) for nodes, c in zip(blocks, classes.tolist(), strict=True)]


def part_blocks(
    graph: Graph, items: Items, part: Ints, slots: Ints, devices: tuple[DeviceClass, ...]
) -> list[Block]:
    """Blocks of a split that need not be contiguous.

    Parameters
    ----------
    part
        i64[items], slot of each item.
    slots
        Class of each slot (`slots_of`); where its devices form clusters, a slot keeps its number.
    """
    slot_of = part[items.label]
    blocks = []
    for slot in distinct(slot_of).tolist():
        nodes = np.flatnonzero(slot_of == slot)
        device = devices[slots[slot]]
        first = int(np.searchsorted(slots, slots[slot]))
        number = slot - first if device.cluster_size else -1
        blocks.append(Block(nodes[np.argsort(graph.rank[nodes])], device, 1, number))
    return blocks


def checked(problem: SplitProblem, blocks: list[Block]) -> Solution:
    """A split by a method that knows no memory, or not the order of a stage's nodes.

    Raises
    ------
    InfeasibleError
        It does not fit; the message says what.
    """
    problem.value(blocks)
    return Solution(blocks)


def unplaceable(problem: SplitProblem, line: Line) -> InfeasibleError | None:
    """Why no split of a line into intervals can exist, if an item alone fits no device."""
    nowhere = np.flatnonzero((line.reach < np.arange(line.n)).all(axis=0))
    if not len(nowhere):
        return None
    nodes = line.nodes[line.node_ptr[nowhere[0]] : line.node_ptr[nowhere[0] + 1]]
    runs = [d for c, d in enumerate(line.devices) if np.isfinite(line.work[c, nowhere[0]])]
    return unplaceable_nodes(problem, nodes, runs)


def sliced_orders(
    problem: SplitProblem,
    items: Items,
    orders: Sequence[Callable[[Items], Ints]],
    run: SearchContext,
    stopped: str = "",
) -> tuple[Line, Ints, Slicing]:
    """The order of some items whose slicing is best: its line, itself, and the slicing.

    `stopped` is what the run is warned of where not all orders are tried.

    Raises
    ------
    InfeasibleError
        No slicing of these orders meets the capacities.
    """
    options = problem.options
    limited = any(np.isfinite(d.memory_bytes) for d in problem.devices)
    streamed = options.memory_mode == "overflow" and limited
    found: tuple[Line, Ints, Slicing] | None = None
    failure: InfeasibleError | None = None
    for number, make_order in enumerate(orders):
        if number:
            run.report_progress(share=number / len(orders))
        if found is not None and run.stop():
            if stopped:
                run.warn(stopped)
            break
        order = make_order(items)
        line = problem.line(items, order)
        steps = steps_of(problem.graph, line, options) if streamed else None
        below = found[2].value * (1 - WORTHWHILE) if found else np.inf
        # The first slicing takes a moment, unless there are classes or streams to tell apart.
        hasty = found is not None or streamed or len(problem.devices) > 1
        try:
            better = slice_line(line, options.comm, steps, below, run if hasty else PLAIN)
        except InfeasibleError as error:
            failure = failure or unplaceable(problem, line) or error
        else:
            found = found if better is None else (line, order, better)
    if found is None:
        raise failure or InfeasibleError("infeasible")
    return found
