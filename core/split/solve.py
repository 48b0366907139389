"""From a method's name to a split with a bound."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.capacity import over_capacity
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods import SPLITS
from dnnp.core.model.deadline import NOTHING, Kept, beside
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import Block
from dnnp.core.model.request import Asked, Solution
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.checks import check_options, method_asked, unplaceable_part
from dnnp.core.split.slices import slice_order


def solve(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """Split a graph by the method that is asked for.

    Raises
    ------
    InfeasibleError
        It is proven that no split fits, or the method found none.
    LimitError
        A limit was reached before there was any split.
    UnavailableError
        The method needs a program or a package that is missing.
    UsageError
        The method does not know what is asked for.
    """
    check_options(problem)
    if (impossible := over_capacity(problem)) is not None:
        raise impossible
    if problem.links and problem.graph.n:
        from dnnp.core.split.linked import METHOD, solve_linked

        found = solve_linked(problem, asked, run, solve)
        if found.method == METHOD and problem.options.memory_model == "peak":
            return replace(found, blocks=with_small_peak(problem, asked, found.blocks, run))
        return found
    method, validity = method_asked(asked.method, asked.validity, clustered=problem.clustered)
    asked = replace(asked, validity=validity)
    if not problem.graph.n:
        return Solution([], 0.0, asked.method)
    floor = simple_bound(problem)
    kept: Kept[list[Block]] = Kept()
    run = kept.told_by(run)
    run.stands(bound=floor)

    def instead() -> Solution | None:
        if kept.split is not None:
            return Solution(kept.split, method=kept.method)
        return _rather(problem, asked, run)

    try:
        found = beside(lambda: _found(problem, asked, method, run), run.stop, instead)
    except LimitError:
        other = instead() if run.stop() else None
        if other is None:
            raise
        found = other
    found = replace(found, method=found.method or asked.method)
    if kept.beats(_value(problem, found.blocks)) and kept.split is not None:
        found = replace(found, blocks=kept.split, method=kept.method)
    return replace(found, bound=max(found.bound, kept.proven(), floor))


def _value(problem: SplitProblem, blocks: list[Block]) -> float:
    """Objective of a split; inf: it does not fit as it is."""
    try:
        return problem.value(blocks)
    except InfeasibleError:
        return inf


SLICING_S = 10.0
"""How long the slicing may take that stands in for a method which found nothing in its time."""


def _rather(problem: SplitProblem, asked: Asked, run: Run) -> Solution | None:
    """Stand in for a method that was stopped before it found anything: by `slice` for one that
    was asked for by name; None: nothing that is found at once fits."""
    from dnnp.core.split.first import FIRST_FIT, first_split

    def first() -> Solution | None:
        blocks = first_split(problem)
        return None if blocks is None else Solution(blocks, method=FIRST_FIT)

    if asked.method in ("auto", "slice"):
        return first()
    patient = replace(PLAIN.within(SLICING_S), in_seconds=run.in_seconds)
    try:
        found = beside(lambda: slice_order(problem, Asked(), patient), patient.stop, first)
    except InfeasibleError:
        return first()
    if found is not None:
        run.warn(f"{asked.method}: {NOTHING}; this split is by {found.method}")
    return found


def _found(problem: SplitProblem, asked: Asked, method: str, run: Run) -> Solution:
    """What a method finds, or else what fits in another order of the nodes within the stages."""
    try:
        found: Solution = SPLITS[method].function()(problem, asked, run)
    except (InfeasibleError, LimitError) as error:
        reason = unplaceable_part(problem, asked.validity or "ordered")
        rescued = None if reason else _softly(problem, asked, run)
        if rescued is None:
            raise reason or error from None
        if asked.method not in ("auto", "exact", "slice"):
            run.warn(f"{asked.method}: {error}; this split is by slice")
        found = Solution(rescued, method="slice")
    if problem.options.memory_model == "peak":
        return replace(found, blocks=with_small_peak(problem, asked, found.blocks, run))
    return found


def with_small_peak(
    problem: SplitProblem, asked: Asked, blocks: list[Block], run: Run
) -> list[Block]:
    """Let the nodes of each stage run in an order of small peak, where that matters."""
    from dnnp.core.split.peak.order import with_least_peak

    wanted = asked.least_peak
    if not wanted:
        try:
            wanted = any(stage.overflow_s > 0 for stage in problem.plan(blocks).stages)
        except InfeasibleError:
            wanted = True
    if not wanted:
        return with_least_peak(problem.graph, blocks, run=run.scaled(0.0))
    run.stands("ordering nodes")
    return with_least_peak(problem.graph, blocks, run=run)


def _softly(problem: SplitProblem, asked: Asked, run: Run) -> list[Block] | None:
    """A split that fits once its stages run in an order of small peak, if one is found.

    Every method judges peak memory in the order that it has at hand, so this looks for splits
    with as little above the capacities as there can be.
    """
    options = problem.options
    if options.memory_model != "peak" or options.memory_mode != "hard" or problem.clustered:
        return None
    if options.objective != "throughput" or run.stop():
        return None
    if all(np.isinf(d.memory_bytes) for d in problem.devices):
        return None
    from dnnp.core.split.peak.order import with_least_peak

    soft = problem.with_options(replace(options, memory_mode="overflow"))
    try:
        blocks = slice_order(soft, asked, run).blocks
        blocks = with_least_peak(problem.graph, blocks, run=replace(run, effort=1.0))
        problem.value(blocks)
    except (InfeasibleError, LimitError):
        return None
    run.tell("it fits in another order of the nodes within the stages")
    return blocks
