"""The bound `ideal`: what the exact search over order ideals proves; for clusters, the search with
contiguous clusters.

A search that goes on from a better split comes further; so the orders are sliced first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.bounds.claim import LIMIT, REFUSED, SOLVED, Claim, Known, whole_of
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.ideals.search import IdealResult, ideal_search
from dnnp.core.split.slices import best_slicing

STEPS, MOST_STEPS = 8, 10_000_000
"""Steps of a checker for each block that the search walks, mostly; and how many it surely takes."""

SUMS = 4 * ROUNDING
"""What a bound may be above loads that are added up in another order, relatively."""


def ideal_claim(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound for ordered splits; a better split, if it finds one."""
    if known.validity != "ordered":
        return Claim(0.0, REFUSED, "holds for ordered splits only")
    if problem.clustered:
        from dnnp.core.split.hierarchy import hierarchy_split

        blocks, bound = hierarchy_split(problem, run)
        certificate = {"argument": "ideal", "clusters": True, "checkable": False}
        return Claim(bound, SOLVED, "", certificate, blocks)
    better, value = _sliced(problem, known, run)
    run.stands(value=value)
    found = ideal_search(problem, incumbent=value, floor=known.floor, run=run)
    better = better if found.blocks is None else found.blocks
    size = f"{found.ideals} ideals" if found.ideals else "too many ideals"
    run.tell(
        f"{size}, {found.walked} blocks: {run.shown(found.value)}, bound {run.shown(found.bound)}"
    )
    solved = found.bound >= found.value * (1 - ROUNDING)
    # A floor is not its own: then it has proven nothing above it.
    proven = found.bound if solved or found.bound > known.floor else 0.0
    claim = _certified(problem, proven, found, run)
    if solved:
        return replace(claim, blocks=better)
    why = "stopped" if run.stop() else f"{size}, more than the effort allows"
    return replace(claim, status=LIMIT, reason=why, blocks=better)


def _certified(problem: SplitProblem, bound: float, found: IdealResult, run: Run) -> Claim:
    """The claim of a bound in whole quanta where that says the same: `dnnp-check` walks ideals too.

    In whole numbers a stage is less than its roundings, and the rounding of sums, below its load.
    What they do not know: peaks of memory, but where these change nothing, what replicas
    synchronise, and passes of `gpipe`.
    """
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
    return Claim(bound, certificate={"argument": "ideal", **told, "checkable": False})


def _sliced(problem: SplitProblem, known: Known, run: Run) -> tuple[list[Block] | None, float]:
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
