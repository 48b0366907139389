"""Splits where links are stated: methods that know the best link of each class, then a search.

What such methods prove is a bound: no load is smaller over the links than at the best link of its
class. A method that is asked for by name is left at that, and its plan says so; `auto` goes on
with a search that heeds every link (`dnnp.core.local.linked`).
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.run import Run

PLANNED = 0.7
"""Share of the work, and of the time, before the search that heeds links."""

METHOD = "links"
"""Name of that search, in records."""

NOTICE = (
    "method {} knows the best link of each class only: planned by that, then priced with the links"
)


def solve_linked(problem: SplitProblem, asked: Asked, run: Run) -> Solution:
    """Split a graph over devices that links join; raises what `solve` does."""
    from dnnp.core.local.linked import heed_links
    from dnnp.core.portfolio.solve import peak_ordered, solve

    heeds = asked.method == "auto"
    part = run.begin("planning by classes", 0.0, PLANNED) if heeds else run
    # What is found on the way has not been priced with links.
    shown = part.watch
    part = replace(part, watch=lambda s: shown(s._replace(value=inf)), keep=lambda *_: None)
    if heeds and run.left() is not None:
        part = part.part(PLANNED)
    found = solve(problem.unlinked, asked, part)
    blocks = problem.own(found.blocks)
    if not heeds:
        run.warn(NOTICE.format(found.method))
        return replace(found, blocks=blocks, planned_by="classes")
    run.keep(blocks, problem.value(blocks), found.method)
    planned = problem.value(blocks)
    run.tell(f"planned by classes: {planned:.6g} with links, bound {found.bound:.6g}")
    if planned <= found.bound * (1 + ROUNDING):
        return replace(found, blocks=blocks)
    better = heed_links(problem, blocks, run.begin("heeding links", PLANNED, 1.0))
    value = problem.value(better)
    run.tell(f"heeding links: {value:.6g}")
    if value < planned * (1 - ROUNDING):
        if problem.options.memory_model == "peak":
            better = peak_ordered(problem, asked, better, run)
        return Solution(better, found.bound, METHOD)
    return replace(found, blocks=better)
