"""Blocks from orders, intervals or parts of items; and simple cuts of one topological order.

The cuts are equal shares, and greedy filling (2020 paper, section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dnnp.core.cost.items import Items, LinearizedItems, steps_of
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import MARGIN, WORTHWHILE
from dnnp.core.cost.problem import SplitProblem, unplaceable_nodes
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import PARAMETER, Floats, Graph, Ints, distinct, place_of, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.model.text import shown_bytes
from dnnp.core.split.slicing.orders import PUBLISHED, order_named
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
    problem: SplitProblem, line: LinearizedItems, bounds: Ints, classes: Ints
) -> list[Block]:
    """Blocks of the intervals `bounds[i]..bounds[i + 1]` of a line, on class `classes[i]`.

    A line counts no more devices of a class than it has items; blocks name those offered.
    """
    graph, devices = problem.graph, problem.devices
    blocks = [line.nodes[line.node_ptr[a] : line.node_ptr[b]] for a, b in pairwise(bounds.tolist())]
    if graph.backward.any():
        # An item holds nodes of both passes, which run far apart in time.
        blocks = [nodes[np.argsort(graph.rank[nodes])] for nodes in blocks]
    return [Block(nodes, devices[c]) for nodes, c in zip(blocks, classes.tolist(), strict=True)]


def part_blocks(problem: SplitProblem, items: Items, part: Ints, slots: Ints) -> list[Block]:
    """Blocks of a split that need not be contiguous.

    Parameters
    ----------
    part
        i64[items], slot of each item.
    slots
        Class of each slot (`slots_of`); where its devices form clusters, a slot keeps its number.
    """
    graph, devices, slot_of = problem.graph, problem.devices, part[items.label]
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

    Raises InfeasibleError: it does not fit; the message says what.
    """
    problem.value(blocks)
    return Solution(blocks)


def unplaceable(problem: SplitProblem, line: LinearizedItems) -> InfeasibleError | None:
    """The reason why no split exists, if an item fits no device, whatever shares its stage.

    None: each of them may. Of its tensors no more need be live than one of its nodes takes.
    """
    graph = problem.graph.in_memory
    own = graph.touched(np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0))
    for item in np.flatnonzero((line.reach < np.arange(line.n)).all(axis=0)).tolist():
        nodes = line.nodes[line.node_ptr[item] : line.node_ptr[item + 1]]
        runs = [d for c, d in enumerate(line.devices) if np.isfinite(line.work[c, item])]
        if not runs:
            return unplaceable_nodes(problem, nodes, runs)
        load = stage_load(problem.graph, problem.units, nodes, runs[0], problem.options)
        least = load.memory_bytes
        if load.peak_bytes is not None:
            least += float(own[nodes].max()) - load.peak_bytes
        if least > max(d.memory_bytes for d in runs) * (1 + MARGIN):
            return unplaceable_nodes(problem, nodes, runs, least)
    return None


def sliced_orders(
    problem: SplitProblem,
    items: Items,
    orders: Sequence[Callable[[Items], Ints]],
    run: SearchContext,
    stopped: str = "",
) -> tuple[LinearizedItems, Ints, Slicing]:
    """The order of some items whose slicing is best: its line, itself, and the slicing.

    `stopped` is what the run is warned of where not all orders are tried.

    Raises InfeasibleError: no slicing of these orders meets the capacities.
    """
    options = problem.options
    limited = any(np.isfinite(d.memory_bytes) for d in problem.devices)
    streamed = options.memory_mode == "overflow" and limited
    found: tuple[LinearizedItems, Ints, Slicing] | None = None
    failure: InfeasibleError | None = None
    for number, make_order in enumerate(orders):
        if number:
            run.report_progress(share=number / len(orders))
        if found is not None and run.stop():
            if stopped:
                run.warn(stopped)
            break
        order = by_label(problem, items, make_order(items))
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


def by_label(problem: SplitProblem, items: Items, order: Ints) -> Ints:
    """The order with items that lead to those of a small label before others; topological, too."""
    place, last, rules = place_of(order), np.iinfo(np.int64).max, problem.stage_rules
    for row in () if rules is None else rules.labels_of(items.label, items.count):
        least = np.where(row > 0, row, last)
        for e in np.argsort(-place[items.tail], kind="stable").tolist():
            u = items.tail[e]
            least[u] = min(least[u], least[items.head[e]])
        order = order[np.argsort(least[order], kind="stable")]
    return order


def cut_order(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Cut the topological order that is asked for; the method is a name in `CUTS`.

    Raises InfeasibleError: a device cannot hold or run its share.
    """
    graph = problem.graph
    items = problem.items
    line = problem.line(items, order_named(asked.order)(items))
    try:
        found = CUTS[asked.method](graph, line)
    except InfeasibleError as error:
        raise unplaceable(problem, line) or error from None
    blocks = interval_blocks(problem, line, found.bounds, found.classes)
    return checked(problem, blocks)


def equal_shares(line: LinearizedItems, weight: Floats) -> Slicing:
    """Cut where the running sum of `weight` (f64[n]) passes equal shares of the total.

    Accelerators are used in the order offered; CPUs only when there is no accelerator.
    Intervals that would be empty are left out, so there may be fewer.
    """
    slots = slots_of(line.devices)
    total = float(weight.sum())
    running = np.cumsum(weight) if total > 0 else np.arange(1.0, line.n + 1)
    goals = running[-1] * np.arange(1, len(slots)) / len(slots)
    # An item belongs to the share in which its middle lies.
    middle = running - (weight / 2 if total > 0 else 0.5)
    cuts = np.searchsorted(middle, goals)
    bounds = distinct(np.concatenate([[0], cuts, [line.n]])).astype(np.int64)
    return _checked(line, bounds, slots[: len(bounds) - 1])


def by_parameters(graph: Graph, line: LinearizedItems) -> Slicing:
    """The same number of parameter bytes for every device; a shared one counts at first use.

    Where the graph has no parameters, its nodes' stated memory stands for them.
    """
    item = line.item_of_node
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    static = graph.tensor_kind[tensor] >= PARAMETER
    if not static.any():
        return equal_shares(line, totals(item, np.nan_to_num(graph.node_bytes), line.n))
    first = np.full(graph.m, line.n, dtype=np.int64)
    np.minimum.at(first, tensor[static], item[graph.use_idx[static]])
    used = first < line.n
    size = graph.tensor_bytes[used]
    return equal_shares(line, totals(first[used], size, line.n))


def single(_: Graph, line: LinearizedItems) -> Slicing:
    """Everything on the first device offered."""
    first = next(c for c, d in enumerate(line.devices) if d.count)
    return _checked(line, np.array([0, line.n], dtype=np.int64), np.array([first]))


def _checked(line: LinearizedItems, bounds: np.ndarray, classes: np.ndarray) -> Slicing:
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


CUTS: dict[str, Callable[[Graph, LinearizedItems], Slicing]] = {
    "uniform": lambda _, line: equal_shares(line, np.ones(line.n)),
    "params": by_parameters,
    "single": single,
}


def greedy(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Contract colours and cycles, fix an order, fill accelerator after accelerator.

    As published, an accelerator takes as many items as its memory holds, and CPUs take what is
    left. That balances nothing where memory is ample, so but for the order `published` an
    accelerator also stops at its share of the work that is left; only if memory then runs out is
    it filled up, of which the run is warned. A CPU also takes items that the next accelerator
    cannot run or hold.

    Raises InfeasibleError: an item fits nowhere, or no device is left for one.
    """
    from dnnp.core.split.slicing.decoder import given_order

    items = problem.items
    given = asked.sequence
    order = order_named(asked.order)(items) if given is None else given_order(problem, given)
    line = problem.line(items, order)
    stages = None if asked.order == PUBLISHED else _fill(line, shared=True)
    if stages is None:
        stages = _fill(line, shared=False)
        if stages is not None and asked.order != PUBLISHED:
            run.warn("greedy: equal shares of the work do not fit; devices are filled up instead")
    if stages is None:
        raise unplaceable(problem, line) or InfeasibleError(
            "infeasible: the devices are full before every node has a place"
        )
    bounds = np.array([0, *(end for end, _ in stages)], dtype=np.int64)
    classes = np.array([c for _, c in stages], dtype=np.int64)
    blocks = interval_blocks(problem, line, bounds, classes)
    return checked(problem, blocks)


def _fill(line: LinearizedItems, *, shared: bool) -> list[tuple[int, int]] | None:
    """Fill the devices in the order offered, CPUs last; None if items are left.

    Returned are end and class of every stage. `shared`: a device stops at its share of the work
    that is left.
    """
    fast = [c for c, d in enumerate(line.devices) if not d.is_cpu for _ in range(d.count)]
    slow = [c for c, d in enumerate(line.devices) if d.is_cpu for _ in range(d.count)]
    # Running sums of the work where an accelerator does it, and where a CPU does.
    fast_work, slow_work = (
        np.append(0.0, np.cumsum(np.where(np.isfinite(line.work[c]), line.work[c], 0.0)))
        if (c := next(iter(kind), None)) is not None
        else np.zeros(line.n + 1)
        for kind in (fast, slow)
    )
    stages: list[tuple[int, int]] = []
    at = 0
    while at < line.n:
        if fast and line.reach[fast[0], at] >= at:
            c = fast.pop(0)
            end = int(line.reach[c, at]) + 1
            if shared:
                end = min(end, _share(fast_work, at, len(fast) + 1))
        elif slow and line.reach[slow[0], at] >= at:
            c = slow.pop(0)
            end = int(line.reach[c, at]) + 1
            if fast:
                # Only what the next accelerator cannot take.
                takes = np.flatnonzero(line.reach[fast[0], at:end] >= np.arange(at, end))
                end = at + int(takes[0]) if len(takes) else end
            else:
                end = min(end, _share(slow_work, at, len(slow) + 1))
        elif fast:
            # Another class may take what this one cannot.
            fast.pop(0)
            continue
        else:
            return None
        stages.append((end, c))
        at = end
    return stages


def _share(running: Floats, at: int, parts: int) -> int:
    """End of the first of `parts` equal shares of the work from `at` on; one item at least.

    An item belongs to the share in which its middle lies.
    """
    if parts == 1:
        return len(running) - 1
    goal = running[at] + (running[-1] - running[at]) / parts
    middle = (running[at:-1] + running[at + 1 :]) / 2
    return at + max(1, int(np.searchsorted(middle, goal)))
