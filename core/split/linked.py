"""Splits where links are stated: methods that know the best link of each class, then a search.

What such methods prove is a bound: no load is smaller over the links than at the best link of its
class. A method that is asked for by name is left at that, and its plan says so; `auto` goes on
with a search that heeds every link (`dnnp.core.split.annealing.linked`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.plan import Block
from dnnp.core.model.request import Asked, Solution
from dnnp.core.model.search_context import Run

PLANNED = 0.7
"""Share of the work, and of the time, before the search that heeds links."""

METHOD = "links"
"""Name of that search, in records."""

Solve = Callable[[SplitProblem, Asked, Run], Solution]


def solve_linked(problem: SplitProblem, asked: Asked, run: Run, solve: Solve) -> Solution:
    """Split a graph over devices that links join.

    `solve` splits one over devices without links; this raises what it does.
    """
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
        known = f"method {found.method} knows the best link of each class only"
        run.warn(f"{known}: planned by that, then priced with the links")
        return replace(found, blocks=blocks, planned_by="classes")
    run.keep(blocks, problem.value(blocks), found.method)
    planned = problem.value(blocks)
    run.tell(f"planned by classes: {run.shown(planned)} with links, bound {run.shown(found.bound)}")
    if planned <= found.bound * (1 + ROUNDING):
        return replace(found, blocks=blocks)
    better, bound = _heeding(problem, blocks, found.bound, asked, run.begin("links", PLANNED, 1.0))
    if problem.value(better) < planned * (1 - ROUNDING):
        return Solution(better, bound, METHOD)
    return replace(found, blocks=better, bound=bound)


def _heeding(
    problem: SplitProblem, blocks: list[Block], bound: float, asked: Asked, run: Run
) -> tuple[list[Block], float]:
    """A split that heeds links, no worse than the one given, and the larger bound."""
    from dnnp.core.split.annealing.linked import heed_links
    from dnnp.core.split.ideals.linked import linked_search

    starts, value = [blocks], problem.value(blocks)
    if (asked.validity or "ordered") == "ordered" and problem.options.objective == "throughput":
        part = run.begin("ideals over links", 0.0, 0.5)
        for straight in (True, False):
            answer = linked_search(problem, value, part, straight=straight)
            bound = max(bound, answer.bound)
            if answer.blocks is not None:
                starts.append(answer.blocks)
        run.tell(f"ideals over links: bound {run.shown(bound)}")
    for start in reversed(starts):
        try:
            start_value = problem.value(start)
        except InfeasibleError:  # its memory was not counted
            continue
        better = start
        if start_value > bound * (1 + ROUNDING):
            better = heed_links(problem, start, run.begin("heeding links", 0.5, 1.0))
        if problem.value(better) < value * (1 - ROUNDING):
            blocks, value = better, problem.value(better)
            run.keep(blocks, value, METHOD)
        run.tell(f"heeding links: {run.shown(start_value)} -> {run.shown(value)}")
        if value <= bound * (1 + ROUNDING):
            break
    return blocks, bound
