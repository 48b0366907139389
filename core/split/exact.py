"""The methods `exact` and `ip`, and what other methods start from.

A few orders are sliced, then the order ideals are searched with that incumbent: it prunes the
exact search, which mostly ends with a proof. What the search cannot finish it leaves with a
bound; then heuristics improve the split, and the search goes on with the better incumbent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import offered
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CLOSED, Block
from dnnp.core.model.request import Asked, Solution
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.ideals.search import coarse_search, ideal_search
from dnnp.core.split.slices import slice_order

STEPS = ((0.05, (4, 6, 8)), (1.0, (10, 12, 14)))
"""What the exact search does: efforts, each followed by windows of these widths around the best
split if that is not proven. A better incumbent makes the next effort go further."""

COARSE_EFFORT = 0.1
"""Effort of the search with chains as one, of the effort asked for."""

REFINE_UNITS = 20_000
"""Units from which it gets less effort the more there are."""

CLOSE_ENOUGH = 0.02
"""Relative gap up to which a large graph is not annealed within `auto`."""

SMALL_UNITS = 300
"""Units up to which the exact search comes before the quick bounds: it mostly ends at once."""

MOST_RETRIED = 5_000
"""Units up to which the exact search tries again with a better incumbent, where the ideals were
too many."""

REFINE_EFFORT = 0.25
"""Effort of annealing within `auto`, of the effort asked for."""

START_EFFORT = 0.1
"""Effort of the search for a split to start from, of the effort asked for."""

SLICED = 0.05
"""Share of the whole work that slicing is taken for."""

OFTEN = ((SLICED, 0.15, 0.3), (0.3, 0.6, 1.0))
"""And the exact search and what follows it, of each step: shares at the begin of the one, between
both and at the end of the other."""

ONCE = ((SLICED, 0.2, 0.95), (0.95, 0.97, 1.0))
"""The same where it is mostly tried once."""

CHAINED, REFINED = 0.1, 0.8
"""What follows the exact search: shares at the ends of chains as one, and of annealing; windows are
the rest."""

CHAIN_SHARE = 0.02
"""Share of the work up to which a chain is searched as one item."""


def exact(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
    """The ideal search; and what it could not finish, by windows around the best split.

    For clusters of devices: the search with contiguous clusters.

    Raises
    ------
    InfeasibleError
        It is proven that no ordered split fits; for clusters: none that was tried does.
    LimitError
        A limit was reached before there was any split.
    """
    if problem.clustered:
        from dnnp.core.split.hierarchy import hierarchy_split

        return Solution(*hierarchy_split(problem, run))
    return _searched(problem, asked, simple_bound(problem), run)


def ip(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> Solution:
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
    from dnnp.core.split.ip.solve import solve_ip

    run = run.without_shares()
    begun, made = start(problem, asked, run)
    run.stands("integer program")
    result = solve_ip(
        problem, asked.validity or "ordered", solver=asked.solver, incumbent=begun, run=run
    )
    if result.failure:
        run.warn(f"the solver {result.solver} failed ({result.failure}): the best split so far")
    if result.blocks is None:
        raise _nothing(run)
    bound = max(simple_bound(problem), result.bound)
    ran = result.asked
    if result.failure and begun is not None:
        ran = problem.value(result.blocks) < problem.value(begun)
    return Solution(result.blocks, bound, "ip" if ran else made)


def start(problem: SplitProblem, asked: Asked, run: Run) -> tuple[list[Block] | None, str]:
    """The best ordered split, found with little effort, and what made it."""
    if problem.clustered:
        return None, ""
    try:
        # Without a bound to begin with: a split is wanted, not a proof.
        part = run.scaled(START_EFFORT).without_bounds()  # splits of another kind may be better
        found = _searched(problem, replace(asked, method="exact"), 0.0, part)
    except (InfeasibleError, LimitError):
        return None, ""
    return found.blocks, found.method or "exact"


def incumbent(problem: SplitProblem, asked: Asked, run: Run) -> tuple[list[Block] | None, float]:
    """The best slicing and its value, if there is one; and why not, otherwise."""
    try:
        blocks = slice_order(problem, asked, run).blocks
    except InfeasibleError as error:
        # Slicing knows no replicas and keeps an order; an item that fits nowhere is the end.
        run.tell(str(error))
        return None, np.inf
    value = problem.value(blocks)
    run.keep(blocks, value, "slice")
    run.tell(f"slicing: {run.shown(value)}")
    return blocks, value


def quick_bound(problem: SplitProblem, floor: float, value: float) -> float:
    """The best of the bounds that cost little; `floor` is one that is known, `value` a split's."""
    from dnnp.core.bounds.chain import chain_bound
    from dnnp.core.bounds.node_cut import node_cut_bound
    from dnnp.core.bounds.zone_cut import zone_cut_bound

    floor = max(floor, chain_bound(problem))
    floor = max(floor, node_cut_bound(problem, above=floor))
    if floor >= value * (1 - CLOSED):
        return floor
    return max(floor, zone_cut_bound(problem, above=floor, below=value))


def _nothing(run: Run) -> LimitError:
    """No split is known, and it is not known whether there is one."""
    if run.stop():
        return LimitError("no split that fits was found before the search was stopped")
    return LimitError(
        "no split that fits was found, but it is not proven that there is none (a larger --effort "
        "may help)"
    )


def _searched(problem: SplitProblem, asked: Asked, floor: float, run: Run) -> Solution:
    """The ideal search without clusters; `floor` is a bound that is known."""
    blocks, value = incumbent(problem, asked, run.begin("slicing", 0.0, SLICED))
    sliced = "slice" if asked.method == "exact" else ""
    if blocks is not None and run.stop():
        return Solution(blocks, floor, sliced)
    small = problem.units.g <= SMALL_UNITS
    if blocks is not None and not small and value > floor * (1 + ROUNDING):
        run.stands("bounding", share=SLICED)
        floor = quick_bound(problem, floor, value)
        run.stands(bound=floor)
    if blocks is not None and value <= floor * (1 + ROUNDING):
        return Solution(blocks, floor, sliced)
    bound = floor
    often = problem.units.g <= MOST_RETRIED
    for (effort, widths), shares in zip(STEPS, OFTEN if often else ONCE, strict=True):
        part = run.begin("ideals", *shares[:2]).scaled(effort)
        found = ideal_search(problem, incumbent=value, floor=bound, run=part)
        bound = max(bound, found.bound)
        if found.blocks is not None:
            blocks, value = found.blocks, found.value
            run.keep(blocks, value, "exact")
        if small and bound < value * (1 - ROUNDING):
            bound, small = quick_bound(problem, bound, value), False
        size = f"{found.ideals} ideals" if found.ideals else "too many ideals"
        run.tell(f"{size}, {found.walked} blocks: {run.shown(value)}, bound {run.shown(bound)}")
        run.stands(value=value, bound=min(bound, value))
        if blocks is None and found.bound == np.inf:
            raise _why(problem, asked, run)
        if blocks is not None and bound < value * (1 - ROUNDING):
            near = run.begin("chains as one", *shares[1:])
            blocks, value = _coarse(problem, blocks, value, near)
            blocks, value = _near(problem, blocks, value, bound, widths, near)
            run.keep(blocks, value, "heuristic")
        if bound >= value * (1 - CLOSED) or run.stop():
            break
        if blocks is not None and effort < 1:
            blocks, value, bound = _halved(problem, blocks, value, bound, run)
        if bound >= value * (1 - CLOSED) or (not found.ideals and not often):
            break
    if blocks is None:
        raise _nothing(run)
    if run.left() is not None and bound < value * (1 - CLOSED):
        from dnnp.core.split.improve import improved

        blocks, value = improved(problem, blocks, value, bound * (1 + ROUNDING), run)
    return Solution(blocks, bound)


def _halved(
    problem: SplitProblem, blocks: list[Block], value: float, bound: float, run: Run
) -> tuple[list[Block], float, float]:
    """Search two stages by minimum cuts; split, value and bound, better or as they were."""
    from dnnp.core.bounds.claim import Known
    from dnnp.core.bounds.searches import halves_claim

    claim = halves_claim(problem, Known("ordered", blocks, value, bound), run)
    bound = max(bound, min(claim.value, value))
    try:
        better = value if claim.blocks is None else problem.value(claim.blocks)
    except InfeasibleError:  # memory, of which it knows nothing
        return blocks, value, bound
    if claim.value:
        run.tell(f"two stages: {run.shown(better)}, bound {run.shown(bound)}")
    if better < value and claim.blocks is not None:
        blocks, value = claim.blocks, better
        run.keep(blocks, value, "exact")
    return blocks, value, bound


def _near(
    problem: SplitProblem,
    blocks: list[Block],
    value: float,
    bound: float,
    widths: Sequence[int],
    run: Run,
) -> tuple[list[Block], float]:
    """Improve a split by annealing, and by search through windows around it."""
    from dnnp.core.split.improve import LARGE, refined, windows

    large = problem.units.g > LARGE
    goal = bound * (1 + (CLOSE_ENOUGH if large else ROUNDING))
    if value > goal and problem.options.max_replicas == 1 and not run.stop():
        share = REFINE_EFFORT * min(1.0, (REFINE_UNITS / problem.units.g) ** 2)
        part = run.begin("annealing", CHAINED, 1.0 if large else REFINED).scaled(share)
        blocks, value = refined(problem, blocks, value, part)
    return windows(problem, blocks, value, widths, run.begin("windows", REFINED, 1.0))


def _coarse(
    problem: SplitProblem, blocks: list[Block], value: float, run: Run
) -> tuple[list[Block], float]:
    """Search with chains of items as one."""
    from dnnp.core.split.improve import LARGE

    if problem.units.g > LARGE or run.stop():
        return blocks, value
    part = run.scaled(COARSE_EFFORT)
    found = coarse_search(problem, incumbent=value, share=CHAIN_SHARE, run=part)
    if found.blocks is None:
        return blocks, value
    run.tell(f"chains as one: {run.shown(found.value)}")
    return found.blocks, found.value


def _why(problem: SplitProblem, asked: Asked, run: Run) -> InfeasibleError:
    """What slicing says about the reason; the exact search has proven that there is no split."""
    try:
        slice_order(problem, asked, run)
    except InfeasibleError as error:
        if "no slicing" not in str(error):
            return error
    return InfeasibleError(f"infeasible: no ordered split fits {offered(problem.devices)}")
