"""The bound `ideal`: what the exact search over order ideals proves; for clusters, the search with
contiguous clusters.

A search that goes on from a better split comes further; so the orders are sliced first.
"""

from __future__ import annotations

from dnnp.core.bound.claim import LIMIT, REFUSED, SOLVED, Claim
from dnnp.core.bound.known import Known
from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.ideal import ideal_search
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.slices import best_slicing


def ideal_claim(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound, without a certificate, for ordered splits; a better split, if it finds one."""
    if known.validity != "ordered":
        return Claim(0.0, REFUSED, "holds for ordered splits only")
    if problem.clustered:
        return _clusters(problem, run)
    better, value = _sliced(problem, known, run)
    run.stands(value=value)
    found = ideal_search(
        problem,
        incumbent=value,
        floor=known.floor,
        run=run,
    )
    better = better if found.blocks is None else found.blocks
    size = f"{found.ideals} ideals" if found.ideals else "too many ideals"
    run.tell(f"{size}, {found.walked} blocks: {found.value:.6g}, bound {found.bound:.6g}")
    certificate = {
        "argument": "ideal",
        "ideals": found.ideals,
        "walked": found.walked,
        "checkable": False,
    }
    if found.bound >= found.value * (1 - ROUNDING):
        return Claim(found.bound, SOLVED, "", certificate, better)
    why = "stopped" if run.stop() else f"{size}, more than the effort allows"
    # A floor is not its own: then it has proven nothing above it.
    proven = found.bound if found.bound > known.floor else 0.0
    return Claim(proven, LIMIT, why, certificate, better)


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


def _clusters(problem: SplitProblem, run: Run) -> Claim:
    from dnnp.core.portfolio.hierarchy import hierarchy_split

    blocks, bound = hierarchy_split(problem, run)
    certificate = {"argument": "ideal", "clusters": True, "checkable": False}
    return Claim(bound, SOLVED, "", certificate, blocks)
