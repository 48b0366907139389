"""PipeDream's optimiser: a chain of layers over accelerators, with replicated stages.

It plans over a linear chain, so branchings are contracted first (`branches`). Without replicas
and clusters the chain is sliced; otherwise the dynamic programs of `chain` and `levels` run.
The 2020 paper compares with it in section 6.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from dnnp.core.baselines.blocks import checked, interval_blocks, unplaceable
from dnnp.core.baselines.branches import contract_branches
from dnnp.core.baselines.chain import Stage, chain_of, cut_chain
from dnnp.core.baselines.levels import cut_levels
from dnnp.core.cost.combine import MARGIN, WORTHWHILE
from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line, steps_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.slice import Slicing, slice_line
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Ints, distinct
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.order.orders import ORDERS

MAX_STEPS = 500_000_000
"""Stages times ways to run them that the programs may try; a second or two."""


def pipedream(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """Split the chain that is left of the graph when its branchings are contracted.

    Side branches that remain, such as inputs read here and there, are laid out by the
    topological order whose slicing is best. For stages with replicas, and for one class of
    devices in clusters, a chain too long for the programs is shortened by joining neighbours
    with little work. The `gpipe` objective is replaced by the largest load, as in PipeDream. The
    run is warned of both, and where the slicing alone is left.

    Raises
    ------
    InfeasibleError
        No cut of the chain fits the memory of the devices.
    """
    graph, devices, options = problem.graph, problem.devices, problem.options
    if options.objective == "gpipe":
        run.warn("pipedream: plans for the largest load, whatever gpipe would have")
    fine = problem.items
    line = problem.line(fine, np.arange(fine.count))
    chain = contract_branches(fine, line)
    line, order, slicing = _best_slicing(problem, chain, run)
    clusters = [c for c, d in enumerate(devices) if d.cluster_size and d.count]
    leveled = len(clusters) == 1 and not math.isnan(devices[clusters[0]].inner_factor)
    sliced = interval_blocks(graph, line, slicing.bounds, slicing.classes, devices)
    if options.max_replicas == 1 and not leveled:
        return checked(problem, sliced)
    if run.stop():
        run.warn("pipedream: stopped before replicas and clusters were tried")
        return checked(problem, sliced)
    level = clusters if leveled else []
    short = _shortened(chain, line, order, _longest(problem, level))
    program = line
    if short is not chain:
        run.warn(
            f"pipedream: a chain of {chain.count} was shortened to {short.count} by joining "
            "neighbours"
        )
        program = problem.line(short, np.arange(short.count))
    stages = _cut(problem, program, level, slicing.value)
    if stages is None:
        if leveled or short is not chain:
            run.warn("pipedream: its program found nothing better than a slicing without replicas")
        return checked(problem, sliced)
    bounds = np.array([0, *(stage.end for stage in stages)], dtype=np.int64)
    classes = np.array([stage.device_class for stage in stages], dtype=np.int64)
    blocks = interval_blocks(graph, program, bounds, classes, devices)
    blocks = [
        block._replace(replicas=stage.replicas, number=stage.number)
        for block, stage in zip(blocks, stages, strict=True)
    ]
    return checked(problem, blocks)


def _best_slicing(problem: SplitProblem, chain: Items, run: Run) -> tuple[Line, Ints, Slicing]:
    """The order whose slicing is best: its line, itself, and the slicing."""
    options = problem.options
    found: tuple[Line, Ints, Slicing] | None = None
    failure: InfeasibleError | None = None
    limited = any(math.isfinite(d.memory_bytes) for d in problem.devices)
    for make_order in ORDERS.values():
        if found is not None and run.stop():
            run.warn("pipedream: stopped before all orders of its chain were tried")
            break
        order = make_order(chain)
        line = problem.line(chain, order)
        streamed = options.memory_mode == "overflow" and limited
        steps = steps_of(problem.graph, line, options) if streamed else None
        below = found[2].value * (1 - WORTHWHILE) if found else np.inf
        try:
            slicing = slice_line(line, options.comm, steps, below, run)
        except InfeasibleError as error:
            failure = failure or unplaceable(problem, line) or error
        else:
            found = found if slicing is None else (line, order, slicing)
    if found is None:
        raise failure or InfeasibleError("infeasible: no cut of the chain fits the devices")
    return found


def _cut(
    problem: SplitProblem, line: Line, clusters: list[int], value: float
) -> list[Stage] | None:
    """The best stages with replicas and clusters, if they can reach `value`."""
    devices = problem.devices
    m = chain_of(problem, line)
    bound = value * (1 + MARGIN)
    if not clusters:
        counts = np.array([d.count for d in devices], dtype=np.int64)
        return cut_chain(m, 0, line.n, (m.cost, m.cost), counts, bound)
    if not devices[clusters[0]].inner_factor <= 1:
        bound = np.inf
    starts = line.pin_ptr[:-1]
    pins = line.pins[starts], line.pins[line.pin_ptr[1:] - 1]
    return cut_levels(m, pins, devices, clusters[0], bound)


def _longest(problem: SplitProblem, clusters: list[int]) -> int:
    """Items for which the programs stay within MAX_STEPS."""
    devices = problem.devices
    ways = sum(min(d.count, problem.options.max_replicas) for d in devices)
    if clusters:
        size = devices[clusters[0]].cluster_size
        return max(8, min(300, int((24 * MAX_STEPS / (ways * (size + 1))) ** 0.25)))
    states = math.prod(d.count + 1 for d in devices)
    return max(8, int((2 * MAX_STEPS / (ways * states)) ** 0.5))


def _shortened(chain: Items, line: Line, order: Ints, longest: int) -> Items:
    """Join the neighbours in `order` with the least work until `longest` items are left.

    The items that come out are numbered along the order.
    """
    if chain.count <= longest:
        return chain
    work = np.where(np.isfinite(line.work), line.work, 0.0).max(axis=0).tolist()
    after, before = [*range(1, line.n), -1], [-1, *range(line.n - 1)]
    heap = [(work[i] + work[i + 1], i, i + 1) for i in range(line.n - 1)]
    heapq.heapify(heap)
    heads = np.ones(line.n, dtype=np.bool_)
    left = line.n
    while left > longest:
        total, i, j = heapq.heappop(heap)
        if not (heads[i] and after[i] == j and total == work[i] + work[j]):
            continue
        heads[j] = False
        work[i] = total
        after[i] = after[j]
        if after[j] >= 0:
            before[after[j]] = i
            heapq.heappush(heap, (work[i] + work[after[i]], i, after[i]))
        if before[i] >= 0:
            heapq.heappush(heap, (work[before[i]] + work[i], before[i], i))
        left -= 1
    place = np.cumsum(heads) - 1
    at = np.empty(chain.count, dtype=np.int64)
    at[order] = place
    tail, head = at[chain.tail], at[chain.head]
    pairs = distinct((tail * left + head)[tail != head])
    return Items(at[chain.label], left, pairs // left, pairs % left)
