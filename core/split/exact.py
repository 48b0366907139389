"""The exact search over order ideals, as the method `exact` and as the bound `ideal`.

A few orders are sliced, then all order ideals are searched from that incumbent, which prunes the
search; what it cannot finish it leaves with a bound. `least_sum` is for the latency of a sequence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.load import stage_memory
from dnnp.core.cost.load_formula import ROOM, ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import offered
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import PARAMETER, Ints, distinct, place_of
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.split.ideals.linked import linked_search
from dnnp.core.split.ideals.search import IdealResult, ideal_search
from dnnp.core.split.peak import with_least_peak
from dnnp.core.split.slices import SLICED, best_slicing, incumbent, slice_order

if TYPE_CHECKING:
    from dnnp.core.bounds.lower_bound import BoundTask, LowerBound

STEPS, MOST_STEPS = 8, 10_000_000
"""Steps of a checker for each block that the search walks, mostly; and how many it surely takes."""

TRIES = 5_000
"""Searches for the least sum of loads, times the units of a graph of 100 units or more."""

PACKED = 0.01
"""Share of the whole work that packing is taken for."""

SUMS = 4 * ROUNDING
"""Relative tolerance between a bound and loads that are added up in another order."""


def exact(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Slice for an incumbent, then search all order ideals; for clusters, contiguous clusters.

    Raises what `auto` does.
    """
    if problem.clustered:
        from dnnp.core.split.hierarchy import hierarchy_split

        return hierarchy_split(problem, run)
    blocks, value = incumbent(problem, asked, run.phase("slicing", 0.0, SLICED))
    floor = simple_bound(problem)
    blocks, value, floor = packed(problem, "ordered", blocks, value, floor, run)
    if blocks is not None and (run.stop() or value <= floor * (1 + ROUNDING)):
        return Solution(blocks, floor, "slice")
    found = search_ideals(problem, asked, value, floor, run.phase("ideals", SLICED, 1.0))
    blocks = found.blocks or blocks
    if blocks is None:
        raise nothing_found(run)
    return Solution(blocks, max(floor, found.bound))


def least_sum(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Find the ordered split of the least sum of loads, and a bound; for errors see `auto`.

    Slicing over few devices comes first. Where live tensors are too much for a stage that is found
    over ideals, what holds its items is refused, and they are searched again.
    """
    base, bound, method = problem.unlinked, simple_bound(problem), "slice"
    best = _of_few(problem, asked, run.phase("slicing", 0.0, SLICED))
    value = problem.value(best) if best else inf
    graph, item = problem.graph.in_memory, base.line().item_of_node
    own = graph.touched(np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0))
    proves, refused = True, list[tuple[Ints, float]]()
    for _ in range(1 + int(run.effort * TRIES / max(problem.units.g, 100))):
        if run.gap_reached(value, bound):
            break
        found = linked_search(problem, value, run.phase("ideals", SLICED, 1.0), refused=refused)
        bound = max(bound, found.bound * proves)
        if found.blocks is None:
            break
        blocks, known = with_least_peak(problem.graph, found.blocks, run=run), len(refused)
        for nodes, device, *_ in blocks:
            step = place_of(nodes, problem.graph.n)
            held, peak = stage_memory(problem.graph, nodes, step, problem.options)
            room = inf if device.is_cpu else device.memory_bytes * ROOM
            if held > room:
                refused.append((distinct(item[nodes]), device.memory_bytes))
                # In some other order less may be live, but not less than one node takes.
                proves &= held - (peak or 0.0) + float(own[nodes].max()) > room
        if len(refused) == known:
            if problem.value(blocks) < value:
                best, method = blocks, "exact" * (found.bound > 0)
            break
    if not best:
        other = base.with_options(replace(base.options, objective="throughput"))
        best, bound = problem.own(exact(other, asked, run.unvalued()).blocks), 0.0
    return Solution(best, bound, method)


def _of_few(problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> list[Block]:
    """The best slicing over 1, 2, 4, ... devices of one class, or over all; none, if none fits."""
    base, found = problem.unlinked, list[list[Block]]()
    few = [(d, min(2**i, d.count)) for d in base.devices for i in range(d.count.bit_length() + 1)]
    for devices in (*([replace(d, count=n)] for d, n in few), base.devices):
        with suppress(InfeasibleError):
            found.append(problem.own(slice_order(base.with_devices(*devices), asked, run).blocks))
    return min(found, key=problem.value, default=[])


def packed(
    problem: SplitProblem,
    validity: str,
    blocks: list[Block] | None,
    value: float,
    floor: float,
    run: SearchContext,
) -> tuple[list[Block] | None, float, float]:
    """The better of a split and of a packing of its items, its value, and the larger bound."""
    from dnnp.core.bounds.lower_bound import BoundTask
    from dnnp.core.bounds.packing import packing_claim

    if value <= floor * (1 + ROUNDING) or run.stop():
        return blocks, value, floor
    part = run.phase("packing", SLICED, SLICED + PACKED)
    claim = packing_claim(problem, BoundTask(validity, blocks, value, floor), part)
    ruled = problem.stage_rules is not None  # it knows no rules
    if claim.blocks is not None and not ruled and problem.value(claim.blocks) < value:
        blocks, value = claim.blocks, problem.value(claim.blocks)
        run.report_incumbent(blocks, value, "exact")
        run.log(f"packing: {run.shown(value)}, bound {run.shown(claim.value)}")
    return blocks, value, max(floor, min(claim.value, value))


def search_ideals(
    problem: SplitProblem,
    asked: MethodOptions,
    value: float,
    floor: float,
    run: SearchContext,
    near: float = 0.0,
) -> IdealResult:
    """Search the order ideals for a split below `value`; `floor` is a bound that is known.

    `near`: where the optimum is expected; 0: unknown.

    Raises InfeasibleError: it is proven that no ordered split fits.
    """
    found = ideal_search(problem, incumbent=value, floor=floor, near=near, run=run)
    if found.blocks is not None:
        run.report_incumbent(found.blocks, found.value, "exact")
    bound = max(found.bound, floor)
    run.report_progress(value=found.value, bound=min(bound, found.value))
    _tell(found, bound, run)
    if found.value == found.bound == np.inf:
        raise _reason(problem, asked, run)
    return found


def _size(found: IdealResult) -> str:
    return f"{found.ideals} ideals" if found.ideals else "too many ideals"


def _tell(found: IdealResult, bound: float, run: SearchContext) -> None:
    run.log(
        f"{_size(found)}, {found.walked} blocks: {run.shown(found.value)}, bound {run.shown(bound)}"
    )


def _reason(problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> InfeasibleError:
    """The reason why no split fits, as slicing says it; the exact search has proven it."""
    try:
        slice_order(problem, asked, run)
    except InfeasibleError as error:
        if "no slicing" not in str(error):
            return error
    return InfeasibleError(f"infeasible: no ordered split fits {offered(problem.devices)}")


def nothing_found(run: SearchContext) -> LimitError:
    """No split is known, and it is not known whether there is one."""
    if run.stop():
        return LimitError("no split that fits was found before the search was stopped")
    return LimitError(
        "no split that fits was found, but it is not proven that there is none (a larger --effort "
        "may help)"
    )


def ideal_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound for ordered splits; a better split, if it finds one."""
    from dnnp.core.bounds.lower_bound import LIMIT, REFUSED, SOLVED, LowerBound

    if known.validity != "ordered":
        return LowerBound(0.0, REFUSED, "holds for ordered splits only")
    if problem.clustered:
        from dnnp.core.split.hierarchy import hierarchy_split

        split = hierarchy_split(problem, run)
        certificate = {"argument": "ideal", "clusters": True, "checkable": False}
        return LowerBound(split.bound, SOLVED, "", certificate, split.blocks)
    better, value = _sliced(problem, known, run)
    run.report_progress(value=value)
    found = ideal_search(problem, incumbent=value, floor=known.floor, run=run)
    better = better if found.blocks is None else found.blocks
    _tell(found, found.bound, run)
    solved = found.bound >= found.value * (1 - ROUNDING)
    # The known bound is not a result of this search.
    proven = found.bound if solved or found.bound > known.floor else 0.0
    claim = _certified(problem, proven, found, run)
    if solved:
        return replace(claim, blocks=better)
    why = "stopped" if run.stop() else f"{_size(found)}, more than the effort allows"
    return replace(claim, status=LIMIT, reason=why, blocks=better)


def _certified(
    problem: SplitProblem, bound: float, found: IdealResult, run: SearchContext
) -> LowerBound:
    """Lower bound with a certificate in whole quanta, for which `dnnp-check` walks the ideals.

    In whole quanta the load of a stage is lower by less than a quantum for each rounded number, and
    the rounding of sums. Peaks of memory that matter, synchronisation of replicas and `gpipe` are
    not covered: the certificate then cannot be checked.
    """
    from dnnp.core.bounds.lower_bound import LowerBound, whole_of

    told = {"ideals": found.ideals, "walked": found.walked}
    options = problem.options
    endless = all(d.is_cpu or np.isinf(d.memory_bytes) for d in problem.devices if d.count > 0)
    synchronised = options.max_replicas > 1 and problem.graph.backward.any()
    known = options.memory_model == "sum" or endless
    if not known and bound > 0:
        bare = problem.with_options(
            replace(options, memory_model="sum", memory_mode="ignore")
        ).searched
        free = ideal_search(bare, incumbent=bound, floor=0.0, run=run.alone())
        known, found = free.bound >= bound * (1 - ROUNDING), free
    if known and options.objective == "throughput" and not synchronised and np.isfinite(bound):
        whole = whole_of(problem, "ordered")
        roundings = problem.units.g + len(whole.tensors) + 1
        units = int(bound * (1 - SUMS) / whole.quantum) - roundings
        if units > 0:
            steps = STEPS * found.walked + 2 * found.ideals * whole.items.count
            return replace(whole.claim("ideal", units, {}), long=steps > MOST_STEPS)
    return LowerBound(bound, certificate={"argument": "ideal", **told, "checkable": False})


def _sliced(
    problem: SplitProblem, known: BoundTask, run: SearchContext
) -> tuple[list[Block] | None, float]:
    """The best slicing, if it is better than the split known, and the better value of both."""
    if known.value <= known.floor * (1 + ROUNDING):
        return None, known.value
    try:
        blocks = best_slicing(problem, run=run)
        value = problem.value(blocks)
    except InfeasibleError:
        return None, known.value
    better = value < known.value * (1 - ROUNDING)
    return (blocks, value) if better else (None, known.value)
