"""From a method's name to a split with a bound; `auto` is the portfolio.

`auto` slices a few orders, then searches the order ideals with that incumbent: it prunes the
exact search, which mostly ends with a proof. What the search cannot finish it leaves with a
bound; then heuristics improve the split, and the search goes on with the better incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dnnp.core.baselines.descent import descend
from dnnp.core.baselines.table import BASELINES, Settings
from dnnp.core.bound.chain import chain_bound
from dnnp.core.bound.flows import max_flow
from dnnp.core.bound.node_cut import node_cut_bound
from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.dp.fast import decide_plain
from dnnp.core.dp.ideal import coarse_search, ideal_search
from dnnp.core.dp.sweep import sweep_for
from dnnp.core.model.asked import Solution
from dnnp.core.model.beside import beside
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.run import Run
from dnnp.core.peak.order import with_least_peak
from dnnp.core.portfolio.first import FIRST_FIT, first_split
from dnnp.core.portfolio.methods import (
    check_options,
    method_asked,
    unplaceable_part,
)
from dnnp.core.portfolio.problem import Kept, Request
from dnnp.core.portfolio.slices import best_slicing

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

CHAIN_SHARE = 0.02
"""Share of the work up to which a chain is searched as one item."""


def solve(problem: SplitProblem, request: Request) -> Solution:
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
    method, validity = method_asked(request.method, request.validity, clustered=problem.clustered)
    request = replace(request, validity=validity)
    if not problem.graph.n:
        return Solution([], 0.0, request.method)
    floor = simple_bound(problem)
    kept: Kept[list[Block]] = Kept()
    request = replace(request, keep=kept.keep)

    def instead() -> Solution | None:
        if kept.split is not None:
            return Solution(kept.split, floor, kept.method)
        blocks = first_split(problem)
        return None if blocks is None else Solution(blocks, floor, FIRST_FIT)

    return beside(lambda: _found(problem, request, method, floor), request.stop, instead)


def _found(problem: SplitProblem, request: Request, method: str, floor: float) -> Solution:
    """What a method finds, or else what fits in another order of the nodes within the stages."""
    try:
        if problem.clustered and method == "exact":
            found = _clusters(problem, request)
        else:
            found = _SOLVERS.get(method, _baseline)(problem, request, floor)
    except (InfeasibleError, LimitError) as error:
        reason = unplaceable_part(
            problem,
            request.validity or "ordered",
        )
        rescued = None if reason else _softly(problem, request)
        if rescued is None:
            raise reason or error from None
        found = Solution(rescued, floor, "slice")
    if problem.options.memory_model == "peak":
        return replace(found, blocks=_with_least_peak(problem, request, found.blocks))
    return found


def _with_least_peak(problem: SplitProblem, request: Request, blocks: list[Block]) -> list[Block]:
    """Let the nodes of each stage run in an order of small peak, where that matters."""
    wanted = request.least_peak
    if not wanted:
        try:
            wanted = any(stage.overflow_s > 0 for stage in problem.plan(blocks).stages)
        except InfeasibleError:
            wanted = True
    return with_least_peak(
        problem.graph,
        blocks,
        effort=request.effort if wanted else 0.0,
        stop=request.stop,
        runs=request.runs,
    )


def _softly(problem: SplitProblem, request: Request) -> list[Block] | None:
    """A split that fits once its stages run in an order of small peak, if one is found.

    Every method judges peak memory in the order that it has at hand, so this looks for splits
    with as little above the capacities as there can be.
    """
    options = problem.options
    if options.memory_model != "peak" or options.memory_mode != "hard" or problem.clustered:
        return None
    if options.objective != "throughput" or request.stop():
        return None
    if all(np.isinf(d.memory_bytes) for d in problem.devices):
        return None
    soft = problem.with_options(replace(options, memory_mode="overflow"))
    try:
        blocks = _slice(soft, replace(request, method="slice"), 0.0).blocks
        blocks = with_least_peak(problem.graph, blocks, stop=request.stop, runs=request.runs)
        problem.value(blocks)
    except (InfeasibleError, LimitError):
        return None
    request.tell("it fits in another order of the nodes within the stages")
    return blocks


def _slice(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """The best slicing of some orders, or of the one that is given."""
    _announce_slicing(problem, request)
    blocks = best_slicing(
        problem,
        _order_asked(problem, request),
        request.stop,
    )
    return Solution(blocks, floor, request.method)


def _order_asked(problem: SplitProblem, request: Request) -> str | Ints:
    """The order of the items that is given, or the name of one.

    Raises
    ------
    FormatError
        A given order is none of all units, or does not keep to the precedence among them.
    """
    from dnnp.core.portfolio.orders import given_order, prioritised_order

    if request.sequence is not None:
        return given_order(problem, request.sequence)
    if request.priorities is not None:
        return prioritised_order(problem, request.priorities)
    return request.order


def _search_orders(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """The best slicing of many orders (MTPP section 3.3)."""
    from dnnp.core.order.appraise import LENGTH, SLICING, values_of_rows
    from dnnp.core.portfolio.orders import OrderSpace, evolved_order, random_order

    request.runs([values_of_rows])
    _announce_slicing(problem, request)
    space = OrderSpace(
        problem,
        weighted=request.method != "mla",
    )
    if request.method == "random":
        samples = max(round(request.samples * request.effort), 1)
        order = random_order(space, samples, request.seed, request.stop, request.progress)
    else:
        generations = max(round(request.evolution.generations * request.effort), 1)
        order = evolved_order(
            space,
            replace(request.evolution, generations=generations),
            SLICING if request.method == "brkga" else LENGTH,
            request.seed,
            request.stop,
            request.progress,
        )
    if order is None:
        try:
            return _slice(problem, replace(request, method="slice", order="kahn"), floor)
        except InfeasibleError as error:
            if "no slicing" not in str(error):
                raise
            tried = "infeasible: no slicing of any order that was tried fits"
            raise InfeasibleError(tried) from None
    blocks = best_slicing(problem, order)
    return Solution(blocks, floor, request.method)


def _heuristic(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """All heuristics, and a bound that costs little."""
    from dnnp.core.portfolio.heuristic import heuristic

    try:
        blocks = _slice(problem, request, floor).blocks
    except InfeasibleError:
        start = _start(problem, request)[0]
        if start is None:
            raise
        blocks = start
    value = problem.value(blocks)
    request.keep(blocks, value, "slice")
    request.tell(f"start: {value:.6g}")
    if request.stop():
        return Solution(blocks, floor, "slice")
    floor = _quick_bound(problem, request, floor)
    goal = floor * (1 + ROUNDING)
    return Solution(heuristic(problem, request, blocks, value, goal)[0], floor, request.method)


def _dpl(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """The paper's linearisation heuristic: slice a depth-first order (section 5.1.2)."""
    _announce_slicing(problem, request)
    blocks = best_slicing(problem, "dfs", request.stop)
    return Solution(blocks, floor, "dpl")


def _announce_slicing(problem: SplitProblem, request: Request) -> None:
    """Name the kernel that slicing uses for the devices at hand."""
    streamed = problem.options.memory_mode == "overflow"
    request.runs([sweep_for(problem.devices, streamed=streamed)])


def _incumbent(problem: SplitProblem, request: Request) -> tuple[list[Block] | None, float]:
    """The best slicing and its value, if there is one; and why not, otherwise."""
    try:
        blocks = _slice(problem, request, 0.0).blocks
    except InfeasibleError as error:
        # Slicing knows no replicas and keeps an order; an item that fits nowhere is the end.
        request.tell(str(error))
        return None, np.inf
    value = problem.value(blocks)
    request.keep(blocks, value, "slice")
    request.tell(f"slicing: {value:.6g}")
    return blocks, value


def _exact(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """The ideal search; and what it could not finish, by windows if the method is `auto`."""
    blocks, value = _incumbent(problem, request)
    sliced = "slice" if request.method == "exact" else request.method
    if blocks is not None and request.stop():
        return Solution(blocks, floor, sliced)
    small = problem.units.g <= SMALL_UNITS
    if blocks is not None and not small and value > floor * (1 + ROUNDING):
        floor = _quick_bound(problem, request, floor)
    if blocks is not None and value <= floor * (1 + ROUNDING):
        return Solution(blocks, floor, sliced)
    request.runs([decide_plain])
    bound = floor
    for effort, widths in STEPS:
        found = ideal_search(
            problem,
            incumbent=value,
            floor=bound,
            effort=request.effort * effort,
            stop=request.stop,
            progress=request.progress,
        )
        bound = max(bound, found.bound)
        if found.blocks is not None:
            blocks, value = found.blocks, found.value
            request.keep(blocks, value, "exact")
        if small and bound < value * (1 - ROUNDING):
            bound, small = _quick_bound(problem, request, bound), False
        size = f"{found.ideals} ideals" if found.ideals else "too many ideals"
        request.tell(f"{size}, {found.walked} blocks: {value:.6g}, bound {bound:.6g}")
        if blocks is None and found.bound == np.inf:
            raise _why(problem, request)
        if blocks is not None and bound < value * (1 - ROUNDING):
            blocks, value = _coarse(problem, request, blocks, value)
            blocks, value = _near(problem, request, blocks, value, bound, widths)
            request.keep(blocks, value, "heuristic")
        if bound >= value * (1 - ROUNDING) or request.stop():
            break
        if not found.ideals and problem.units.g > MOST_RETRIED:
            break
    if blocks is None:
        raise _nothing(request)
    if request.time_left() is not None and bound < value * (1 - ROUNDING):
        from dnnp.core.portfolio.heuristic import heuristic

        goal = bound * (1 + ROUNDING)
        blocks, value = heuristic(problem, request, blocks, value, goal)
    return Solution(blocks, bound, request.method)


def _quick_bound(problem: SplitProblem, request: Request, floor: float) -> float:
    """The best of the bounds that cost little."""
    request.runs([max_flow])
    floor = max(floor, chain_bound(problem))
    return max(floor, node_cut_bound(problem, above=floor))


def _near(
    problem: SplitProblem,
    request: Request,
    blocks: list[Block],
    value: float,
    bound: float,
    widths: Sequence[int],
) -> tuple[list[Block], float]:
    """Improve a split by annealing, and by search through windows around it."""
    from dnnp.core.portfolio.heuristic import LARGE, refined, windows

    large = problem.units.g > LARGE
    goal = bound * (1 + (CLOSE_ENOUGH if large else ROUNDING))
    if value > goal and problem.options.max_replicas == 1 and not request.stop():
        share = REFINE_EFFORT * min(1.0, (REFINE_UNITS / problem.units.g) ** 2)
        quick = replace(request, effort=request.effort * share)
        blocks, value = refined(problem, quick, blocks, value, request.seed)
    return windows(problem, request, blocks, value, widths)


def _why(problem: SplitProblem, request: Request) -> InfeasibleError:
    """What slicing says about the reason; the exact search has proven that there is no split."""
    try:
        _slice(problem, request, 0.0)
    except InfeasibleError as error:
        if "no slicing" not in str(error):
            return error
    offered = ", ".join(
        f"{d.count} x {d.name}"
        + (f" of {d.memory_bytes:.0f} bytes" if np.isfinite(d.memory_bytes) else "")
        for d in problem.devices
    )
    return InfeasibleError(f"infeasible: no ordered split fits {offered}")


def _nothing(request: Request) -> LimitError:
    """No split is known, and it is not known whether there is one."""
    if request.stop():
        return LimitError("no split that fits was found before the search was stopped")
    return LimitError(
        "no split that fits was found, but it is not proven that there is none (a larger --effort "
        "may help)"
    )


def _coarse(
    problem: SplitProblem, request: Request, blocks: list[Block], value: float
) -> tuple[list[Block], float]:
    """Search with chains of items as one."""
    from dnnp.core.portfolio.heuristic import LARGE

    if problem.units.g > LARGE or request.stop():
        return blocks, value
    found = coarse_search(
        problem,
        incumbent=value,
        share=CHAIN_SHARE,
        effort=request.effort * COARSE_EFFORT,
        stop=request.stop,
    )
    if found.blocks is None:
        return blocks, value
    request.tell(f"chains as one: {found.value:.6g}")
    return found.blocks, found.value


def _clusters(problem: SplitProblem, request: Request) -> Solution:
    from dnnp.core.dp.segments import probe
    from dnnp.core.portfolio.hierarchy import hierarchy_split

    request.runs([probe])
    blocks, bound = hierarchy_split(
        problem,
        stop=request.stop,
        effort=request.effort,
        warn=request.warn,
    )
    return Solution(blocks, bound, request.method)


def _anneal(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """Annealing from the best ordered split, with or without order; the better of the two."""
    from dnnp.core.local.anneal import anneal
    from dnnp.core.local.sweep import sweep

    ordered = request.validity == "ordered"
    start, made = (
        (_incumbent(problem, request)[0], "slice") if ordered else _start(problem, request)
    )
    request.runs([sweep])
    try:
        blocks = anneal(
            problem,
            ordered=ordered,
            start=start,
            seed=request.seed,
            effort=request.effort,
            stop=request.stop,
            progress=request.progress,
        )
    except (InfeasibleError, LimitError) as error:
        if start is None:
            raise
        if isinstance(error, LimitError):
            request.warn(f"{error}; this is the best ordered split")
        return Solution(start, floor, made)
    if start is not None and problem.value(start) < problem.value(blocks):
        # It may have replicas, or need the order of a stage's nodes to fit.
        return Solution(start, floor, made)
    return Solution(blocks, floor, "anneal")


def _ip(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """An integer program, warm-started with the best split known."""
    from dnnp.core.mip.split.solve import solve_ip

    start, made = _start(problem, request)
    result = solve_ip(
        problem,
        request.validity or "ordered",
        solver=request.solver,
        incumbent=start,
        run=Run(interrupted=request.stop).within(request.time_left()),
    )
    if result.failure:
        request.warn(f"the solver {result.solver} failed ({result.failure}): the best split so far")
    if result.blocks is None:
        raise _nothing(request)
    method = "ip" if result.asked else made
    return Solution(result.blocks, max(floor, result.bound), method)


def _start(problem: SplitProblem, request: Request) -> tuple[list[Block] | None, str]:
    """The best ordered split, found with little effort, and what made it."""
    if problem.clustered:
        return None, ""
    quick = replace(request, method="exact", effort=request.effort * START_EFFORT)
    try:
        found = _exact(problem, quick, 0.0)
        return found.blocks, found.method
    except (InfeasibleError, LimitError):
        return None, ""


def _baseline(problem: SplitProblem, request: Request, floor: float) -> Solution:
    """A method of others."""
    if request.method in request.programs:
        blocks = request.programs[request.method](problem, request)
        problem.value(blocks)  # partitioners know no memory: say what does not fit
        return Solution(blocks, floor, request.method)
    order = "kahn" if request.order == "best" else request.order
    settings = Settings(order, request.seed, request.effort, request.stop, request.warn)
    run = BASELINES[request.method]
    if request.method == "local-search":
        request.runs([descend])
    blocks = run(problem, settings)
    problem.value(blocks)
    return Solution(blocks, floor, request.method)


_SOLVERS: dict[str, Callable[[SplitProblem, Request, float], Solution]] = {
    "exact": _exact,
    "slice": _slice,
    "dpl": _dpl,
    "random": _search_orders,
    "brkga": _search_orders,
    "mla": _search_orders,
    "mla-weighted": _search_orders,
    "heuristic": _heuristic,
    "anneal": _anneal,
    "ip": _ip,
}
