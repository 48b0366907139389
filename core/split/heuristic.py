"""The methods `heuristic`, `anneal` and `ip`: they start from a split that is found quickly.

`auto` for convex and free splits is `anneal`, then `ip` from what that found where it pays.
"""

from __future__ import annotations

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.split.annealing.anneal import anneal
from dnnp.core.split.auto import quick_bound, start, two_stages
from dnnp.core.split.exact import nothing_found
from dnnp.core.split.improve import improved
from dnnp.core.split.slices import SLICED, incumbent, slice_order

FEW_UNITS = 16
"""Units up to which `auto` gives free splits that annealing leaves unproven to a program that
nothing limits; under a time limit any number of units."""

STARTED, ANNEALED = 0.2, 0.9
"""Shares of the whole work at the ends of the search for a split to start from, and of annealing;
bounds are the rest."""


def heuristic(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """All heuristics, and a bound that costs little.

    Raises InfeasibleError: no split that fits was found.
    """
    try:
        blocks = slice_order(problem, asked, run.phase("slicing", 0.0, SLICED)).blocks
    except InfeasibleError:
        begun = start(problem, asked, run.without_shares())[0]
        if begun is None:
            raise
        blocks = begun
    value = problem.value(blocks)
    run.report_incumbent(blocks, value, "slice")
    run.log(f"start: {run.shown(value)}")
    if run.stop():
        return Solution(blocks, method="slice")
    part = run.phase("bounding", SLICED, STARTED)
    floor = quick_bound(problem, simple_bound(problem), value, part)
    part = run.phase("two stages", STARTED, STARTED)
    blocks, value, floor = two_stages(problem, blocks, value, floor, part)
    run.report_progress(value=value, bound=floor)
    part = run.phase("evolving orders", STARTED, 1.0)
    return Solution(improved(problem, blocks, value, floor * (1 + ROUNDING), part)[0], floor)


def annealed(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """The better of the best ordered split and what annealing makes of it; for `auto` a program
    goes on from there.

    Raises
    ------
    InfeasibleError
        No split that fits was found.
    LimitError
        Too many devices for so many tensors, and no ordered split was found.
    """
    ordered = asked.validity == "ordered"
    begun = run.phase("looking for a start", 0.0, STARTED)
    if ordered:
        first, made = incumbent(problem, asked, begun)[0], "slice"
    else:
        first, made = start(problem, asked, begun)
    try:
        part = run.phase("annealing", STARTED, ANNEALED)
        convex = asked.validity == "convex"
        blocks = anneal(problem, ordered=ordered, convex=convex, start=first, run=part)
    except (InfeasibleError, LimitError) as error:
        if first is None:
            raise
        if isinstance(error, LimitError):
            run.warn(f"{error}; this is the best ordered split")
        blocks, made = first, made
    else:
        if first is not None and problem.value(first) < problem.value(blocks):
            # It may have replicas, or need the order of a stage's nodes to fit.
            blocks = first
        else:
            made = "anneal"
    part = run.phase("bounding", ANNEALED, 1.0)
    bound, few = _cut_bound(problem, asked, blocks, part), problem.units.g <= FEW_UNITS
    goes_on = few or convex or run.time_left() is not None
    if asked.method != "auto" or not goes_on or run.gap_reached(problem.value(blocks), bound):
        return Solution(blocks, bound, made)
    found = _by_program(problem, asked, (blocks, made), run.without_shares())
    return Solution(found.blocks, max(found.bound, bound), found.method)


def _cut_bound(
    problem: SplitProblem, asked: MethodOptions, blocks: list[Block], run: SearchContext
) -> float:
    """The largest of bounds by minimum cuts; they hold for splits without order too."""
    from dnnp.core.bounds.column_generation import cover_cut_claim
    from dnnp.core.bounds.lower_bound import BoundTask
    from dnnp.core.bounds.node_cut import cpu_cut_claim, node_cut_claim
    from dnnp.core.bounds.packing import packing_claim

    unlinked = problem.unlinked
    value, floor = unlinked.value(unlinked.own(blocks)), simple_bound(unlinked)
    if asked.validity is None or value <= floor * (1 + ROUNDING) or run.stop():
        return floor
    run.report_progress("bounding", bound=floor)
    ordered = asked.validity == "ordered"
    arguments = (packing_claim, node_cut_claim, cpu_cut_claim, cover_cut_claim)
    for number, argument in enumerate(arguments[: 3 if ordered else 4]):
        if run.gap_reached(value, floor):
            break
        part = run.phase("bounding", number / len(arguments), (number + 1) / len(arguments))
        known = BoundTask(asked.validity, unlinked.own(blocks), value, floor, asked.solver)
        floor = max(floor, min(argument(unlinked, known, part).value, value))
    return floor


def ip(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """The best split by an integer program, and its bound.

    Raises
    ------
    InfeasibleError
        It is proven that no split fits.
    LimitError
        A limit was reached before there was any split.
    UnavailableError
        The solver is not installed.
    """
    run = run.without_shares()
    return _by_program(problem, asked, start(problem, asked, run), run)


def _by_program(
    problem: SplitProblem,
    asked: MethodOptions,
    begun_by: tuple[list[Block] | None, str],
    run: SearchContext,
) -> Solution:
    """The same from a split, or None, and what made it."""
    from dnnp.core.split.ip.solve import solve_ip

    begun, made = begun_by
    run.report_progress("integer program")
    result = solve_ip(
        problem, asked.validity or "ordered", solver=asked.solver, incumbent=begun, run=run
    )
    if result.failure:
        run.warn(f"the solver {result.solver} failed ({result.failure}): the best split so far")
    if result.solution is None:
        raise nothing_found(run)
    bound = max(simple_bound(problem), result.bound)
    ran = result.asked
    if result.failure and begun is not None:
        ran = problem.value(result.solution) < problem.value(begun)
    return Solution(result.solution, bound, "ip" if ran else made)
