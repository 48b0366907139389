"""From a graph to a parallel plan: items, a search, and stages priced from the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, components, item_choices
from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.cost.problem import SplitProblem, shortage
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Bools, Clustering, Graph, Ints, csr, totals
from dnnp.core.model.plan import CLOSED, HybridOptions, Plan, Stage
from dnnp.core.model.search_context import SearchContext
from dnnp.core.model.text import shown_bytes
from dnnp.core.parallel.problem import (
    METHOD,
    HybridBlock,
    HybridProblem,
    check_hybrid,
    costs_of,
    degrees_of,
    exchange_times,
    hybrid_problem,
    memory_of,
    value_of,
)
from dnnp.core.parallel.search import plan_hybrid
from dnnp.core.parallel.shared import plan_shared
from dnnp.core.split.slicing.orders import ORDERS

MOST_TIED = 3
"""Colours with both ways tried, in all combinations."""


class _Found(NamedTuple):
    problem: HybridProblem
    items: Items
    blocks: list[HybridBlock]
    value: float
    bound: float


def solve_hybrid(problem: SplitProblem, options: HybridOptions, run: SearchContext) -> Plan:
    """Find the best parallel plan of a graph.

    A graph with a backward pass has items for each of its directions; with shared stages also items
    where operators that read the same weights are apart. The best plan of all is returned, with the
    least bound.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        Nothing was found that fits, and nothing is proven.
    UsageError
        Options without parallel plans.
    """
    check_hybrid(problem, options)
    found: list[_Found] = []
    errors: list[InfeasibleError | LimitError] = []
    find = plan_shared if options.shared_stages else plan_hybrid
    choices = [Divided(items) for items in problem.item_choices]
    if options.shared_stages:
        choices = divided_choices(problem)
    for items, only in choices:
        one = hybrid_problem(problem, items, options, only)
        try:
            refuse_excess(one, problem.devices[0])
            best = find(one, _orders(items), run)
        except (InfeasibleError, LimitError) as error:
            errors.append(error)
        else:
            found.append(_Found(one, items, best.blocks, best.value, best.bound))
    if not found:
        raise next((e for e in errors if isinstance(e, LimitError)), errors[0])
    best_found = min(found, key=lambda f: f.value)
    unproven = any(isinstance(error, LimitError) for error in errors)
    bound = 0.0 if unproven else min(f.bound for f in found)
    return make_hybrid_plan(problem, best_found, bound)


def refuse_excess(hybrid: HybridProblem, device: DeviceClass) -> None:
    """Refuse items that need more memory than there is, at the degrees and ways that need least.

    A stage of degree t has t devices or more, each of which holds the memory of its items at it;
    a shared one has all there are.

    Raises InfeasibleError: all items, or one of them, need more.
    """
    allowed = degrees_of(hybrid) + [hybrid.whole] * (hybrid.whole >= 0)  # of shared stages
    if not allowed:
        return
    least = (hybrid.fixed + hybrid.held)[:, allowed].min(axis=0)
    memory = np.stack([totals(hybrid.part, row, hybrid.n) for row in least])
    together = (memory * hybrid.degrees[allowed][:, None]).min(axis=0)
    usable = replace(device, count=hybrid.devices, memory_bytes=hybrid.memory)
    impossible = shortage(float(together.sum()), "the nodes", [usable])
    alone = memory.min(axis=0).max(initial=0.0)
    if impossible is None and alone > hybrid.memory * (1 + MARGIN):
        impossible = InfeasibleError(
            f"infeasible: nodes that belong together need {shown_bytes(alone, 6)} on a device, "
            f"which has {shown_bytes(hybrid.memory, 6)}"
        )
    if impossible is not None:
        raise impossible


def _orders(items: Items) -> list[Ints]:
    """Topological orders of items that are numbered by `items.order`."""
    place = np.argsort(items.order)
    renumbered = Items(items.label, items.count, place[items.tail], place[items.head])
    return [order(renumbered) for order in ORDERS.values()]


def make_hybrid_plan(problem: SplitProblem, found: _Found, bound: float) -> Plan:
    """Stages of blocks, with devices numbered from the widest stages on.

    So the shards of a replica are in one cluster where its size is a multiple of their number.
    """
    (device,) = problem.devices
    hybrid, blocks = found.problem, found.blocks
    degrees = hybrid.degrees.tolist()
    wide = sorted(range(len(blocks)), key=lambda b: -degrees[blocks[b].degree])
    number, free = dict.fromkeys(wide, 0), 0
    for b in (b for b in wide if not blocks[b].shared):
        number[b] = free
        free += degrees[blocks[b].degree] * blocks[b].replicas
    rows = _nodes(problem, found)
    costs = costs_of(hybrid, blocks)
    exchanged = exchange_times(problem.graph, device)
    stages = []
    for b, (block, cost) in enumerate(zip(blocks, costs, strict=True)):
        nodes, again = rows[b]
        once = float(exchanged[block.degree, nodes].sum())
        twice = 0.0 if hybrid.partwise else float(exchanged[block.degree, again].sum())
        stages.append(
            Stage(
                device=f"{device.name}/{number[b]}",
                device_class=device.name,
                nodes=tuple(problem.graph.node_ids[nodes].tolist()),
                overflow_s=0.0,
                replicas=block.replicas,
                shards=degrees[block.degree],
                collective_s=once + twice,
                recomputed=tuple(problem.graph.node_ids[again].tolist()),
                shared=block.shared,
                **cost._asdict(),
            )
        )
    value = value_of(blocks, costs)
    excess = memory_of(blocks, costs) - device.memory_bytes * ROOM
    proven = bound >= value * (1 - CLOSED)
    status = "optimal" if proven else "feasible"
    return Plan(
        stages=tuple(stages),
        k=device.count,
        method=METHOD,
        validity="ordered",
        value=value,
        bound=value if proven else min(bound, value),
        status="infeasible" if excess > 0 else status,
        options=problem.options,
        devices=problem.devices,
        digest="",
        hybrid=hybrid.options,
        excess_bytes=max(excess, 0.0),
    )


def _nodes(problem: SplitProblem, found: _Found) -> list[tuple[Ints, Ints]]:
    """Nodes of each block in execution order, and those that run otherwise to hold less: as they
    state, or forward passes that run again."""
    graph, items = problem.graph, found.items
    place = np.argsort(items.order)
    ptr, nodes = csr(place[items.label][graph.order], graph.order, items.count)
    rows = []
    for block in found.blocks:
        mine = _gathered(ptr, nodes, block.items, graph.rank)
        again = mine[np.isin(mine, block.recomputed)]
        if not found.problem.partwise:
            again = mine[~graph.backward[mine]] if len(block.recomputed) else mine[:0]
        rows.append((mine, again))
    return rows


def _gathered(ptr: Ints, nodes: Ints, items: Sequence[int] | Ints, rank: Ints) -> Ints:
    parts = [nodes[ptr[i] : ptr[i + 1]] for i in items]
    found: Ints = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return found[np.argsort(rank[found], kind="stable")]


class Divided(NamedTuple):
    """Items of a split."""

    items: Items
    shared_only: Bools | None = None
    """bool[count], items that only shared stages may hold; None: there are none."""


def divided_choices(problem: SplitProblem) -> list[Divided]:
    """The items of a split, with the operators of each colour in one of them or apart.

    Operators that read the same weights, such as those of an embedding and of the logits, have one
    colour: they share a device with all operators between them, unless they are in stages that all
    devices share. There each device has its part of the weights, wherever in the pipeline they are
    read. So there are two sets of items for each colour: its operators and those between them are
    one item; or they are apart, and only shared stages may hold them.

    Raises UsageError: too many colours hold operators with others between them.
    """
    graph, units = problem.graph, problem.units
    found = [Divided(items) for items in problem.item_choices]
    tied = tied_colors(graph, units)
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


def tied_colors(graph: Graph, units: Clustering) -> list[int]:
    """Colours with operators in several units of the forward pass, and others between them.

    Colours with backward nodes that state no forward node are left out.
    """
    found = []
    ahead = ~graph.backward
    onward = ahead[graph.edges[0]] & ahead[graph.edges[1]]
    tail, head = (units.label[ends[onward]] for ends in graph.edges)
    for color in np.unique(graph.color[graph.color >= 0]).tolist():
        inside = graph.color == color
        mine = np.unique(units.label[inside & ahead])
        if len(mine) < 2:
            continue
        late = inside & graph.backward
        twin = np.full(graph.n, -1) if graph.twin is None else graph.twin
        if (twin[late] < 0).any() or not inside[twin[late]].all():
            continue
        label = np.arange(units.g)
        label[mine] = mine[0]
        joined = components(label, tail, head)
        if (joined == joined[mine[0]]).sum() > len(mine):
            found.append(color)
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
