"""From a graph to a parallel plan: items, a search, and stages priced from the nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, islice, permutations
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, components, item_choices
from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.cost.placing import fewest_stages
from dnnp.core.cost.problem import SplitProblem, shortage
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Bools, Clustering, Graph, Ints, csr, row_of, totals
from dnnp.core.model.plan import CLOSED, HybridOptions, Plan, Stage
from dnnp.core.model.search_context import SearchContext
from dnnp.core.model.text import counted, shown_bytes
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
from dnnp.core.parallel.search import HybridSolution, plan_hybrid
from dnnp.core.parallel.shared import plan_shared
from dnnp.core.split.slicing.orders import ORDERS

MOST_ORDERS = 5040
"""Orders of stages along the devices that are tried where some are pinned."""

MOST_TIED = 3
"""Colours with both ways tried, in all combinations."""


class _Found(NamedTuple):
    problem: HybridProblem
    items: Items
    best: HybridSolution


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
    for items, only in divided_choices(problem, shared=bool(options.shared_stages)):
        one = hybrid_problem(problem, items, options, only)
        try:
            refuse_excess(one, problem.devices[0])
            most = min(options.micro_batches, one.devices + options.shared_stages)
            if max(one.exactly, fewest_stages(one.labels, problem.rules)[0]) > most:
                raise InfeasibleError(f"infeasible: more than {counted(most, 'stage')} needed")
            best = find(one, _orders(items), run)
            found.append(_numbered(_Found(one, items, best), problem.devices[0].count, run))
        except (InfeasibleError, LimitError) as error:
            errors.append(error)
    if not found:
        why = next((e for e in errors if isinstance(e, LimitError)), errors[0])
        raise type(why)(", with ".join([str(why), *(rule.words for rule in problem.rules)]))
    best_found = min(found, key=lambda f: f.best.value)
    unproven = any(isinstance(error, LimitError) for error in errors)
    bound = 0.0 if unproven else min(f.best.bound for f in found)
    return make_hybrid_plan(problem, best_found, bound)


def _numbered(found: _Found, count: int, run: SearchContext) -> _Found:
    """A plan whose devices can have the numbers of pins, by narrower stages if need be.

    Raises LimitError: no such plan was found.
    """
    problem, best, bound = found.problem, found.best, found.best.bound
    while not first_devices(problem, best.blocks, count):
        problem = replace(problem, widest=min(problem.widest, problem.devices) // 2)
        try:
            best = plan_hybrid(problem, _orders(found.items), run)
        except InfeasibleError:
            raise LimitError("no devices have these numbers") from None
    return found._replace(best=replace(best, bound=bound))


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
    if (impossible := shortage(float(together.sum()), "the nodes", [usable])) is not None:
        raise impossible
    alone = memory.min(axis=0).max(initial=0.0)
    if alone > hybrid.memory * (1 + MARGIN):
        raise InfeasibleError(
            f"infeasible: nodes that belong together need {shown_bytes(alone, 6)} on a device, "
            f"which has {shown_bytes(hybrid.memory, 6)}"
        )


def _orders(items: Items) -> list[Ints]:
    """Topological orders of items that are numbered by `items.order`."""
    place = np.argsort(items.order)
    renumbered = Items(items.label, items.count, place[items.tail], place[items.head])
    return [order(renumbered) for order in ORDERS.values()]


def make_hybrid_plan(problem: SplitProblem, found: _Found, bound: float) -> Plan:
    """Stages of blocks, priced."""
    (device,) = problem.devices
    hybrid, blocks = found.problem, found.best.blocks
    degrees, number = hybrid.degrees.tolist(), first_devices(hybrid, blocks, device.count)
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
        rules=problem.rules,
        hybrid=hybrid.options,
        excess_bytes=max(excess, 0.0),
    )


def first_devices(hybrid: HybridProblem, blocks: list[HybridBlock], count: int) -> dict[int, int]:
    """First devices of stages, of shared ones 0; empty: none found that pins leave room for.

    They are numbered from the widest stages on, so that the shards of a replica are in one cluster
    where its size is a multiple of their number. Pins are for devices without clusters.
    """
    degree = [int(hybrid.degrees[block.degree]) for block in blocks]
    size = [*(t * b.replicas for t, b in zip(degree, blocks, strict=True)), count + 1]
    used = [hybrid.pinned[np.isin(hybrid.pinned[:, 1], b.items), 0].tolist() for b in blocks]
    pinned = sorted((use[0], use[-1], b) for b, use in enumerate(used) if use)
    wide = sorted(range(len(blocks)), key=lambda b: -degree[b])
    free = [b for b in wide if not (used[b] or blocks[b].shared)]
    for order in islice(permutations(free), MOST_ORDERS):
        number, at, fits, due = dict.fromkeys(wide, 0), 0, True, pinned[:]
        for b in (*order, len(blocks)):
            while due and at + size[b] > due[0][0]:  # what fits before does no harm there
                low, high, other = due.pop(0)
                number[other] = max(at, high - size[other] + 1)
                fits &= number[other] <= low
                at = number[other] + size[other]
            number[b], at = at, at + size[b]
        if fits and number[len(blocks)] <= count:
            return number
    return {}


def _nodes(problem: SplitProblem, found: _Found) -> list[tuple[Ints, Ints]]:
    """Nodes of each block in execution order, and those that run otherwise to hold less: as they
    state, or forward passes that run again."""
    graph, items = problem.graph, found.items
    block_of = row_of((items.order[block.items] for block in found.best.blocks), items.count)
    ptr, nodes = csr(block_of[items.label[graph.order]], graph.order, len(found.best.blocks))
    rows = []
    for b, block in enumerate(found.best.blocks):
        mine = nodes[ptr[b] : ptr[b + 1]]
        again = mine[np.isin(mine, block.recomputed)]
        if not found.problem.partwise:
            again = mine[~graph.backward[mine]] if len(block.recomputed) else mine[:0]
        rows.append((mine, again))
    return rows


class Divided(NamedTuple):
    """Items of a split."""

    items: Items
    shared_only: Bools | None = None
    """bool[count], items that only shared stages may hold; None: there are none."""


def divided_choices(problem: SplitProblem, *, shared: bool) -> list[Divided]:
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
    tied = tied_colors(graph, units) if shared else []
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
    free, ahead = int(color.max()) + 1, np.arange(graph.n)
    if graph.twin is not None:
        ahead = np.where(graph.backward, graph.twin, ahead)
    for one in colors:
        inside = np.flatnonzero(graph.color == one)
        color[inside] = free + units.label[ahead[inside]]
        free += units.g
    return color
