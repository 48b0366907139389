"""Splits for clusters of accelerators with faster links inside (2020 paper, Appendix C.3).

The best split that gives every cluster one contiguous segment of the pipeline
(`dnnp.core.split.clusters.hierarchy`): over all ideals where they are not too many, else over
several topological orders.

A cluster that comes back to the pipeline after another one can do better than any such split,
so the bound is one of all ordered splits: the optimum with every transfer between stages on the
inner link. It is the optimum itself where every split is of this kind, or as good as one that
is: there is only one cluster, clusters of one device, or no difference between the links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dnnp.core.bounds.apart import apart_bound
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.items import LinearizedItems, steps_of
from dnnp.core.cost.load import transfer_times
from dnnp.core.cost.load_formula import ROUNDING, WORTHWHILE
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.search_context import PLAIN, SearchContext, Solution
from dnnp.core.split.clusters.hierarchy import (
    ClusterCase,
    ClusterSplit,
    LatticeOutcome,
    Part,
    better,
    priced,
    search,
)
from dnnp.core.split.ideals.lattice import Lattice, make_lattice
from dnnp.core.split.ideals.problem import may_bind
from dnnp.core.split.ideals.search import ideal_search
from dnnp.core.split.slices import SLICED
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.core.split.slicing.slice import slice_line

MAX_IDEALS = 20_000
"""Ideals up to which all of them are searched."""

MAX_ITEMS = 10_000
"""Items up to which an order is searched; longer ones are only sliced."""

MAX_STEPS = 1_000_000_000
"""Blocks tried in the segments of one lattice or order, at effort 1; nanoseconds each."""

BOUND_EFFORT = 0.1
"""Effort of the ideal search that finds the bound of larger lattices."""


def hierarchy_split(problem: SplitProblem, run: SearchContext = PLAIN) -> Solution:
    """Split for one class of accelerators in clusters, and CPUs if there are any.

    Parameters
    ----------
    run
        Its effort scales the work after which a search ends with the best split so far. It is
        warned of what was not searched since it is too large, whatever the effort.

    Returns
    -------
    Blocks in pipeline order with their device numbers, a lower bound of all ordered splits, and one
    of those with contiguous clusters, if they are of one size.

    Raises
    ------
    UsageError
        Other device classes, or links without bandwidths.
    InfeasibleError
        No split that was looked at meets the capacities.
    """
    case = ClusterCase(problem.with_devices(*_checked(problem)), MAX_STEPS * run.effort, run)
    best: ClusterSplit | None = None
    failure: InfeasibleError | None = None
    bound, among, left_out = np.inf, np.inf, ""
    levels, turns = _levels(case.accelerator), len(problem.item_choices)
    for turn, items in enumerate(problem.item_choices):
        # Several topological orders, each once.
        orders = {order.tobytes(): order for order in (make(items) for make in ORDERS.values())}
        lines = [case.problem.line(items, order) for order in orders.values()]
        part = run.phase("slicing", turn / turns, (turn + 1) / turns)
        for number, line in enumerate(lines):
            if best is not None and run.stop():
                break
            share = SLICED * number / len(lines)
            part.report_progress(
                "slicing", value=np.inf if best is None else best.value, share=share
            )
            try:
                best = better(best, _sliced(case, line, best))
                if best is not None:
                    run.report_incumbent(best.blocks, best.value, "slice")
            except InfeasibleError as error:
                failure = failure or error
        lattice = make_lattice(items.count, lines[0].tail, lines[0].head, MAX_IDEALS)
        low = together = 0.0
        for number, level in enumerate(levels):
            begin, end = (SLICED + (1 - SLICED) * i / len(levels) for i in (number, number + 1))
            at = replace(case, level=level, run=part.phase("clusters", begin, end))
            if lattice is None or lattice.size > items.count + 1:
                best = _over_orders(at, lines, best)
            outcome = _over_ideals(at, lines[0], lattice, best)
            if outcome is None:
                left_out = _left_out(items.count)
                continue
            best = outcome.best
            if at.level == levels[0]:
                low, together = outcome.flat, outcome.low
                low = together if _all_alike(at) else low
        bound, among = min(bound, low), min(among, together)
    if best is None:
        raise failure or InfeasibleError("infeasible: no split that was tried meets the capacities")
    floor = simple_bound(problem)
    bound = max(floor, bound * (1 - ROUNDING))
    run.report_progress("bounding", value=best.value, bound=min(bound, best.value))
    if bound == floor < best.value * (1 - ROUNDING) and not run.stop():
        bound = _flat_bound(case, best.value, floor)
    if left_out and bound < best.value * (1 - ROUNDING):
        run.warn(left_out)
    among = 0.0 if len(case.accelerator.levels) > 1 else among * (1 - ROUNDING)
    if max(bound, among) < best.value * (1 - ROUNDING) and not run.stop():
        among = apart_bound(problem.with_devices(*_checked(problem)), max(bound, among), best.value)
    return Solution(best.blocks, min(bound, best.value), contiguous_bound=min(among, best.value))


def _levels(device: DeviceClass) -> list[int]:
    """The levels of clusters whose links differ from those beyond; the first one in any case."""
    factors = device.link_factors
    return [i for i in range(len(device.levels)) if factors[i] < factors[i + 1]] or [0]


def _left_out(items: int) -> str:
    """The warning that not all ideals were searched."""
    searched = "only those of a few orders were searched"
    if items > MAX_ITEMS:
        searched = f"and items, {items}, for a search of orders: these were only sliced"
    return f"clusters: there are too many ideals, {searched}; --effort does not change that"


def _all_alike(case: ClusterCase) -> bool:
    """True if no ordered split does better than those with contiguous clusters."""
    if case.problem.options.max_replicas > 1 and case.cpus > 1:
        return False  # inside a cluster no stage runs on several CPUs
    flat = len(case.accelerator.levels) == 1
    return case.accelerator.count <= case.size or (case.size == 1 and flat)


def _checked(problem: SplitProblem) -> list[DeviceClass]:
    """The accelerator class, and the CPU class if there is one."""
    devices = problem.devices
    accelerators = [d for d in devices if not d.is_cpu and d.count > 0]
    cpus = [d for d in devices if d.is_cpu and d.count > 0]
    if len(accelerators) != 1 or not accelerators[0].cluster_size or len(cpus) > 1:
        names = ", ".join(d.name for d in (*accelerators, *cpus))
        raise UsageError(
            "clusters are for one class of accelerators, with at most one class of CPUs beside "
            f"it; offered: {names} (--link joins several classes, and keeps their clusters)"
        )
    factors = accelerators[0].link_factors
    if not (factors[0] >= 0 and all(a <= b for a, b in pairwise(factors))):
        raise UsageError(
            f"the clusters of '{accelerators[0].name}' need an outer bandwidth, and an inner one "
            "that is not below it, nor below that of a larger cluster"
        )
    return [*accelerators, *cpus]


def _sliced(
    case: ClusterCase, line: LinearizedItems, best: ClusterSplit | None
) -> ClusterSplit | None:
    """Slicing with every transfer on the outer link; the clusters only make it cheaper."""
    options = case.problem.options
    streamed = options.memory_mode == "overflow" and np.isfinite(case.accelerator.memory_bytes)
    steps = steps_of(case.problem.graph, line, options) if streamed else None
    below = np.inf if best is None else best.value * (1 - WORTHWHILE)
    slicing = slice_line(line, options.comm, steps, below, case.run)
    if slicing is None:
        return None
    numbers = [0, 0]
    parts = []
    for c, (a, b) in zip(slicing.classes.tolist(), pairwise(slicing.bounds.tolist()), strict=True):
        parts.append(Part(range(a, b), c, numbers[c]))
        numbers[c] += 1
    return priced(case, line, parts)[0]


def _over_orders(
    case: ClusterCase, lines: Sequence[LinearizedItems], best: ClusterSplit | None
) -> ClusterSplit | None:
    """Search the intervals of each order."""
    for line in lines:
        if line.n > MAX_ITEMS or (best is not None and case.run.stop()):
            break
        position = np.arange(line.n, dtype=np.int64)
        chain = make_lattice(line.n, position[:-1], position[1:], line.n + 1)
        outcome = None if chain is None else search(case, line, chain, best)
        best = best if outcome is None else outcome.best
    return best


def _over_ideals(
    case: ClusterCase, line: LinearizedItems, lattice: Lattice | None, best: ClusterSplit | None
) -> LatticeOutcome | None:
    """Search all ideals; None: there are too many."""
    outcome = None if lattice is None else search(case, line, lattice, best)
    if outcome is None:
        return None
    graph, options = case.problem.graph, case.problem.options
    if options.memory_model == "peak" and may_bind(graph, line, options):
        # Another order of a block's nodes may take less memory.
        return LatticeOutcome(outcome.best, 0.0, 0.0)
    return outcome


def _flat_bound(case: ClusterCase, value: float, floor: float) -> float:
    """Bound of all ordered splits from the ideal search, every transfer on the inner link."""
    device, options = case.accelerator, case.problem.options
    times = device.inner_factor * transfer_times(case.problem.graph, device)
    flat = replace(device, cluster_size=0, inner_bandwidth_bytes_per_s=np.inf)
    if options.max_replicas > 1:
        # They synchronise on the inner link too.
        flat = replace(flat, bandwidth_bytes_per_s=device.inner_bandwidth_bytes_per_s)
    problem = replace(
        case.problem,
        graph=replace(case.problem.graph, transfer_s=times),
        devices=(flat, *case.problem.devices[1:]),
    )
    run = case.run.scaled(BOUND_EFFORT).alone()
    search = ideal_search(problem, incumbent=value, floor=floor, run=run)
    return max(floor, search.bound * (1 - ROUNDING))
