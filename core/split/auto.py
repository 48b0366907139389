"""The default method `auto`: what it tries, in which order, and when it stops; and `solve`.

========= ==========================================================================================
validity  tried
========= ==========================================================================================
free      `anneal`, then `ip` where it pays (`dnnp.core.split.heuristic`)
convex    `anneal`, then `ip` (likewise)
ordered   1. slicing of a few orders; for many units also the bounds that cost little
          2. the search over order ideals from the best split, with little effort
          3. for few units: now the bounds that cost little
          4. the same with chains of units as one; annealing; windows around the best split
          5. branch and bound for two stages, by minimum cuts
          6. steps 2 and 4 again, with full effort
          7. for what is left of a time limit: orders that evolve, annealing and windows again
             (`dnnp.core.split.improve`)
========= ==========================================================================================

It stops as soon as value and bound meet, or the run is to stop. For clusters it is the search with
contiguous clusters (`dnnp.core.split.hierarchy`). With links it plans by the best link of each
class first; then searches that heed every link follow (`solve_linked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from dnnp.core.baselines.blocks import unplaceable
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.placing import fewest_stages
from dnnp.core.cost.problem import SplitProblem, check_options, over_capacity
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CLOSED, Block
from dnnp.core.model.search_context import (
    NOTHING,
    PLAIN,
    Incumbent,
    MethodOptions,
    SearchContext,
    Solution,
    run_with_fallback,
)
from dnnp.core.split.peak import with_least_peak
from dnnp.core.split.slices import SLICED, incumbent, slice_order

SMALL_UNITS = 300
"""Units up to which the exact search comes before the quick bounds: it mostly ends at once."""

MOST_RETRIED = 5_000
"""Units up to which the exact search tries again with a better incumbent, where the ideals were
too many."""

STEPS = ((0.05, (4, 6, 8)), (1.0, (6, 10, 12, 14)))
"""Efforts of the exact search, each followed by windows of these widths around the best split if
that is not proven. A better incumbent makes the next effort go further."""

NEAR_EFFORT = 0.1
"""Effort of the exact search where the optimum is expected somewhere, of the effort asked for."""

CLOSING_UNITS = 300
"""Units up to which a small gap is closed all the same: it mostly takes a moment."""

OFTEN = ((SLICED, 0.12, 0.25), (0.3, 0.6, 1.0))
"""Shares of the whole work at the begin of each step, after the exact search, and at its end; two
stages are searched between both."""

CUT = 0.3
"""Share of these bounds at the end of cuts around single units."""

BOUNDED = 0.15
"""Share of the whole work at the end of the bounds of large graphs."""

ONCE = ((SLICED, 0.2, 0.95), (0.95, 0.97, 1.0))
"""The same where the exact search is mostly tried once."""

CHAINED, REFINED = 0.1, 0.8
"""Shares of the work after the exact search at the ends of chains as one, and of annealing; windows
are the rest."""

COARSE_EFFORT, CHAIN_SHARE = 0.1, 0.02
"""Effort of the search with chains as one, of the effort asked for; and the share of the work up to
which a chain is one item."""

CLOSE_ENOUGH = 0.02
"""Relative gap up to which a large graph is not annealed."""

REFINE_EFFORT, REFINE_UNITS = 0.25, 20_000
"""Effort of annealing, of the effort asked for; and the units from which on it gets less of it the
more there are."""

START_EFFORT = 0.1
"""Effort of the search for a split to start from, of the effort asked for."""

PLANNED = 0.7
"""With links: share of the work, and of the time, before the searches that heed them."""

LINKS = "links"
"""Name of these searches, in records."""

SLICING_S = 10.0
"""Time limit of the slicing that stands in for a method which found nothing in its time."""


def auto(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
    """Find an ordered split by one search after the other, until value and bound meet.

    Raises
    ------
    InfeasibleError
        It is proven that no ordered split fits; for clusters: none that was tried does.
    LimitError
        A limit was reached before there was any split.
    """
    if problem.clustered:
        from dnnp.core.split.hierarchy import hierarchy_split

        return hierarchy_split(problem, run)
    floor = simple_bound(problem)
    if asked.near:
        from dnnp.core.split.exact import search_ideals

        part = run.phase("ideals", 0.0, SLICED).scaled(NEAR_EFFORT)
        value, low = problem.value(asked.known.blocks), max(floor, asked.known.bound)
        found = search_ideals(problem, asked, value, low, part, asked.near)
        if found.bound >= found.value * (1 - ROUNDING):
            return Solution(found.blocks or asked.known.blocks, found.bound)
    # What is known is kept beside, and changes no step: so the answer is no worse than without it.
    return replace(_ordered(problem, asked, floor, run), method="")


def start(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext
) -> tuple[list[Block] | None, str]:
    """Find an ordered split to start from with little effort, and what made it."""
    if problem.clustered:
        return None, ""
    try:
        # Without a bound to begin with: a split is wanted, not a proof.
        part = run.scaled(START_EFFORT).without_bounds()  # splits of another kind may be better
        found = _ordered(problem, asked, 0.0, part)
    except (InfeasibleError, LimitError):
        return None, ""
    return found.blocks, found.method


@dataclass
class _Best:
    """The best split so far, what made it, and what is proven."""

    problem: SplitProblem
    blocks: list[Block]
    """Empty: there is none."""
    value: float
    bound: float
    widest: float
    """Width from which on windows take too long in vain."""
    method: str = "exact"

    @property
    def proven(self) -> bool:
        """True if value and bound are the same but for rounding; `closed`: but for little."""
        return self.bound >= self.value * (1 - ROUNDING)

    @property
    def closed(self) -> bool:
        return self.bound >= self.value * (1 - CLOSED)

    def take(
        self, blocks: list[Block] | None, value: float, method: str, run: SearchContext
    ) -> None:
        """Keep a split if it is better."""
        if blocks is not None and value < self.value:
            self.blocks, self.value, self.method = blocks, value, method
            run.report_incumbent(blocks, value, method)


def _ordered(
    problem: SplitProblem, asked: MethodOptions, floor: float, run: SearchContext
) -> Solution:
    """Find an ordered split, and what made it; `floor` is a bound that is known."""
    from dnnp.core.split.exact import nothing_found, packed, search_ideals

    rules = tuple(rule for rule in problem.rules if rule.rule != "exactly")
    if count := sum(rule.stages for rule in problem.rules if rule not in rules):
        devices = tuple(replace(d, count=min(d.count, count)) for d in problem.devices)
        solved = _ordered(replace(problem, devices=devices, rules=rules), asked, floor, run.alone())
        if len(solved.blocks) == count:  # no split of at most so many stages is better
            return solved
    blocks, value = incumbent(problem, asked, run.phase("slicing", 0.0, SLICED))
    blocks, value, floor = packed(problem, "ordered", blocks, value, floor, run)
    best = _Best(problem, blocks or [], value, floor, asked.known.widest)
    small, often = problem.units.g <= SMALL_UNITS, problem.units.g <= MOST_RETRIED
    closing = problem.units.g <= CLOSING_UNITS and not run.wide_gap
    if blocks is not None:
        if run.stop():
            return Solution(blocks, floor, "slice")
        if not small and value > floor * (1 + ROUNDING):
            best.bound = quick_bound(problem, floor, value, run.phase("bounding", SLICED, BOUNDED))
            run.report_progress(bound=best.bound)
        if value <= best.bound * (1 + max(ROUNDING, run.wide_gap)):
            return Solution(blocks, best.bound, "slice")
    shares = OFTEN if often else ONCE
    for (effort, widths), (begin, middle, end) in zip(STEPS, shares, strict=True):
        part = run.phase("ideals", begin, middle).scaled(effort)
        found = search_ideals(problem, asked, best.value, best.bound, part)
        best.take(found.blocks, found.value, "exact", run)
        best.bound = max(best.bound, found.bound)
        if small and not best.proven:
            best.bound, small = quick_bound(problem, best.bound, best.value), False
        settled = run.gap_reached(best.value, best.bound) and not closing
        if best.blocks and not (best.proven or settled):
            _improve(best, widths, run.phase("chains as one", middle, end))
        if best.closed or settled or run.stop():
            break
        if best.blocks and effort < 1:
            part = run.phase("two stages", end, shares[1][0])
            two = two_stages(problem, best.blocks, best.value, best.bound, part)
            best.bound = two[2]
            best.take(*two[:2], "exact", run)
        if best.closed or not (found.ideals or often):
            break
    if not best.blocks:
        raise nothing_found(run)
    if run.time_left() is not None and not run.gap_reached(best.value, best.bound):
        from dnnp.core.split.improve import improved

        goal = best.bound * (1 + max(ROUNDING, run.max_gap))
        best.take(*improved(problem, best.blocks, best.value, goal, run), "heuristic", run)
    return Solution(best.blocks, best.bound, best.method, widest=best.widest)


def quick_bound(
    problem: SplitProblem, floor: float, value: float, run: SearchContext = PLAIN
) -> float:
    """The best of the bounds that cost little; `floor` is one that is known, `value` a split's."""
    from dnnp.core.bounds.chain import chain_bound
    from dnnp.core.bounds.node_cut import node_cut_bound
    from dnnp.core.bounds.zone_cut import zone_cut_bound

    floor = max(floor, chain_bound(problem, floor))
    cuts = run.phase("bounding", 0.0, CUT)
    floor = max(floor, node_cut_bound(problem, above=floor, run=cuts))
    if floor >= value * (1 - CLOSED):
        return floor
    zones = run.phase("bounding", CUT, 1.0)
    return max(floor, zone_cut_bound(problem, above=floor, below=value, run=zones))


def _improve(best: _Best, widths: Sequence[int], run: SearchContext) -> None:
    """Search with chains as one, anneal, and search windows of these widths around the best."""
    from dnnp.core.split.ideals.search import coarse_search
    from dnnp.core.split.improve import LARGE, refined, windows

    problem, large = best.problem, best.problem.units.g > LARGE
    if not large and not run.stop():
        part = run.phase("chains as one", 0.0, CHAINED).scaled(COARSE_EFFORT)
        found = coarse_search(problem, incumbent=best.value, share=CHAIN_SHARE, run=part)
        if found.blocks is not None:
            run.log(f"chains as one: {run.shown(found.value)}")
        best.take(found.blocks, found.value, "heuristic", run)
    goal = best.bound * (1 + (CLOSE_ENOUGH if large else ROUNDING))
    if best.value > goal and problem.options.max_replicas == 1 and not run.stop():
        share = REFINE_EFFORT * min(1.0, (REFINE_UNITS / problem.units.g) ** 2)
        part = run.phase("annealing", CHAINED, 1.0 if large else REFINED).scaled(share)
        best.take(*refined(problem, best.blocks, best.value, part), "heuristic", run)
    last = run.phase("windows", REFINED, 1.0)
    narrow = [width for width in widths if width < best.widest]
    blocks, value, cut = windows(problem, best.blocks, best.value, narrow, last)
    best.take(blocks, value, "heuristic", run)
    best.widest = min(best.widest, cut)


def two_stages(
    problem: SplitProblem, blocks: list[Block], value: float, bound: float, run: SearchContext
) -> tuple[list[Block], float, float]:
    """Search two stages by minimum cuts, where that is the problem: split, its value, the bound."""
    from dnnp.core.bounds.lower_bound import BoundTask
    from dnnp.core.bounds.searches import bisection_bound

    claim = bisection_bound(problem, BoundTask("ordered", blocks, value, bound), run)
    bound = max(bound, min(claim.value, value))
    found = inf if claim.blocks is None else _value(problem, claim.blocks)
    if claim.value:
        run.log(f"two stages: {run.shown(min(found, value))}, bound {run.shown(bound)}")
    if claim.blocks is None or found >= value:  # it knows nothing of memory
        return blocks, value, bound
    return claim.blocks, found, bound


def solve_linked(problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> Solution:
    """Split a graph over devices that links join.

    What is proven with the best link of each class is a bound: no load is smaller over the links. A
    method that is asked for by name is left at its split, and the plan says so; `auto` goes on with
    searches that heed every link. For the errors see `solve`.
    """
    heeds = asked.method == "auto"
    part = run.phase("planning by classes", 0.0, PLANNED) if heeds else run
    # What is found on the way has not been priced with links.
    shown = part.watch
    part = replace(
        part, watch=lambda s: shown(s._replace(value=inf)), report_incumbent=lambda *_: None
    )
    if heeds and run.time_left() is not None:
        part = part.part(PLANNED)
    found = solve(problem.unlinked, asked, part)
    blocks = problem.own(found.blocks)
    if not heeds:
        known = f"method {found.method} knows the best link of each class only"
        run.warn(f"{known}: planned by that, then priced with the links")
        return replace(found, blocks=blocks, planned_by="classes")
    run.report_incumbent(blocks, problem.value(blocks), found.method)
    planned = problem.value(blocks)
    run.log(f"planned by classes: {run.shown(planned)} with links, bound {run.shown(found.bound)}")
    if run.gap_reached(planned, found.bound):
        return replace(found, blocks=blocks)
    better, bound = _over_links(
        problem, blocks, found.bound, asked, run.phase("links", PLANNED, 1.0)
    )
    if problem.value(better) < planned * (1 - ROUNDING):
        return Solution(better, bound, LINKS)
    return replace(found, blocks=better, bound=bound)


def _over_links(
    problem: SplitProblem,
    blocks: list[Block],
    bound: float,
    asked: MethodOptions,
    run: SearchContext,
) -> tuple[list[Block], float]:
    """A split that heeds links, no worse than the one given, and the larger bound."""
    from dnnp.core.split.annealing.linked import heed_links
    from dnnp.core.split.ideals.linked import linked_search

    starts, value = [blocks], problem.value(blocks)
    if (asked.validity or "ordered") == "ordered" and problem.options.objective == "throughput":
        part = run.phase("ideals over links", 0.0, 0.5)
        for straight in (True, False):
            answer = linked_search(problem, value, part, straight=straight)
            bound = max(bound, answer.bound)
            if answer.blocks is not None:
                starts.append(answer.blocks)
        run.log(f"ideals over links: bound {run.shown(bound)}")
    for begun in reversed(starts):
        try:
            before = problem.value(begun)
        except InfeasibleError:  # its memory was not counted
            continue
        better = begun
        if before > bound * (1 + ROUNDING):
            better = heed_links(problem, begun, run.phase("heeding links", 0.5, 1.0))
        if problem.value(better) < value * (1 - ROUNDING):
            blocks, value = better, problem.value(better)
            run.report_incumbent(blocks, value, LINKS)
        run.log(f"heeding links: {run.shown(before)} -> {run.shown(value)}")
        if value <= bound * (1 + ROUNDING):
            break
    return blocks, bound


def resolved(method: str, validity: str) -> str:
    """The method that does the work, where a split of this validity is asked for."""
    if method != "auto":
        return method
    return "auto" if validity == "ordered" else "anneal"


def validity_asked(method: str, validity: str | None) -> str:
    """The validity that is asked for; by default the method's own.

    Raises UsageError: the method makes no use of this validity.
    """
    found = SPLITS[method].kinds
    if validity is None or validity in found:
        return validity or found[0]
    others = ", ".join(name for name, other in SPLITS.items() if validity in other.kinds)
    raise UsageError(f"method {method} makes {found[0]} splits; {validity} ones come from {others}")


HEED_RULES = (
    "auto", "exact", "heuristic", "slice", "dpl", "random", "brkga", "mla", "mla-weighted", "ip",
    "anneal",
)  # fmt: skip
"""Methods that heed rules about what a stage holds."""


def method_asked(
    method: str, validity: str | None, *, clustered: bool, rules: Sequence[Rule] = ()
) -> tuple[str, str]:
    """The method that does the work, and the validity that is asked for.

    Raises UsageError: the method does not make such splits, or knows no clusters or no such rules.
    """
    validity = validity_asked(method, validity)
    ruled = [rule.words for rule in rules if rule.by_stage]
    if ruled and (method not in HEED_RULES or clustered):
        what = "with clusters of devices" if clustered else f"by the method {method}"
        raise UsageError(f"{ruled[0]}: not heeded {what}; {', '.join(HEED_RULES)} heed it")
    method = resolved(method, validity)
    if clustered and method in ("anneal", "heuristic", "ip"):
        raise UsageError(
            f"method {method} knows no clusters of devices; splits for them come from auto and "
            "exact, and are ordered"
        )
    return method, validity


def solve(problem: SplitProblem, asked: MethodOptions, run: SearchContext = PLAIN) -> Solution:
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
    if problem.stage_rules is not None:
        needed, words = fewest_stages(problem.line(problem.free_items).labels, problem.rules)
        if needed > sum(d.count for d in problem.devices):
            raise InfeasibleError(f"infeasible: {needed} devices are needed for {words}")
    if (impossible := over_capacity(problem)) is not None:
        raise impossible
    if problem.links and problem.graph.n and problem.options.objective != "sequence":
        found = solve_linked(problem, asked, run)
        if found.method == LINKS and problem.options.memory_model == "peak":
            return replace(found, blocks=with_small_peak(problem, asked, found.blocks, run))
        return found
    clustered, rules = problem.clustered, problem.rules
    method, validity = method_asked(asked.method, asked.validity, clustered=clustered, rules=rules)
    asked = replace(asked, validity=validity)
    if not problem.graph.n:
        return Solution([], 0.0, asked.method)
    known = asked.known
    floor = max(simple_bound(problem), known.bound)
    kept: Incumbent[list[Block]] = Incumbent()
    run = kept.told_by(run)
    if known.blocks:
        run.report_incumbent(known.blocks, problem.value(known.blocks), known.method)
        if kept.value <= floor * (1 + ROUNDING):
            return replace(known, bound=floor)
    run.report_progress(bound=floor)

    def instead() -> Solution | None:
        if kept.split is not None:
            return Solution(kept.split, method=kept.method)
        return _stand_in(problem, asked, run)

    try:
        found = run_with_fallback(
            lambda: _by_method(problem, asked, method, run), run.stop, instead
        )
    except LimitError:
        other = instead() if run.stop() else None
        if other is None:
            raise
        found = other
    found = replace(found, method=found.method or asked.method)
    if kept.split is not None and kept.beats(_value(problem, found.blocks)):
        found = replace(found, blocks=kept.split, method=kept.method)
    return replace(found, bound=max(found.bound, kept.proven(), floor))


def _value(problem: SplitProblem, blocks: list[Block]) -> float:
    """Objective of a split; inf: it does not fit as it is."""
    try:
        return problem.value(blocks)
    except InfeasibleError:
        return inf


def _stand_in(problem: SplitProblem, asked: MethodOptions, run: SearchContext) -> Solution | None:
    """Stand in for a method that was stopped before it found anything: by `slice` for one that
    was asked for by name; None: nothing that is found at once fits."""
    from dnnp.core.split.first import FIRST_FIT, first_split

    def first() -> Solution | None:
        blocks = None if problem.stage_rules else first_split(problem)
        return None if blocks is None else Solution(blocks, method=FIRST_FIT)

    if asked.method in ("auto", "slice"):
        return first()
    patient = replace(PLAIN.within(SLICING_S), in_seconds=run.in_seconds)
    try:
        found = run_with_fallback(
            lambda: slice_order(problem, MethodOptions(), patient), patient.stop, first
        )
    except InfeasibleError:
        return first()
    if found is not None:
        run.warn(f"{asked.method}: {NOTHING}; this split is by {found.method}")
    return found


def _by_method(
    problem: SplitProblem, asked: MethodOptions, method: str, run: SearchContext
) -> Solution:
    """Run a method; where nothing fits, try other orders of the nodes within the stages."""
    try:
        part, function = run.until_gap(np.inf, simple_bound(problem)), SPLITS[method].function()
        if problem.options.objective == "sequence":
            from dnnp.core.split.exact import least_sum as function
        found: Solution = function(problem, asked, part)
    except (InfeasibleError, LimitError) as error:
        reason = unplaceable_part(problem, asked.validity or "ordered")
        rescued = None if reason else _in_another_order(problem, asked, run)
        if rescued is None:
            error, words = reason or error, " and ".join(rule.words for rule in problem.rules)
            raise type(error)(f"{error}" + f", with {words}" * bool(words)) from None
        if asked.method not in ("auto", "exact", "slice"):
            run.warn(f"{asked.method}: {error}; this split is by slice")
        found = Solution(rescued, method="slice")
    if problem.options.memory_model == "peak":
        return replace(found, blocks=with_small_peak(problem, asked, found.blocks, run))
    return found


def unplaceable_part(problem: SplitProblem, validity: str) -> InfeasibleError | None:
    """The error for nodes that belong together and fit no device, if there are any."""
    choices = [problem.free_items]
    if validity == "ordered" and not problem.graph.backward.any():
        choices.append(problem.items)
    for items in choices:
        line = problem.line(items)
        reason = unplaceable(problem, line)
        if reason is not None:
            return reason
    return None


def with_small_peak(
    problem: SplitProblem, asked: MethodOptions, blocks: list[Block], run: SearchContext
) -> list[Block]:
    """Let the nodes of each stage run in an order of small peak, where that matters."""
    wanted = asked.least_peak
    if not wanted:
        try:
            wanted = any(stage.overflow_s > 0 for stage in problem.plan(blocks).stages)
        except InfeasibleError:
            wanted = True
    if not wanted:
        return with_least_peak(problem.graph, blocks, run=run.scaled(0.0))
    run.report_progress("ordering nodes")
    return with_least_peak(problem.graph, blocks, run=run)


def _in_another_order(
    problem: SplitProblem, asked: MethodOptions, run: SearchContext
) -> list[Block] | None:
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
    soft = problem.with_options(replace(options, memory_mode="overflow"))
    try:
        blocks = slice_order(soft, asked, run).blocks
        blocks = with_least_peak(problem.graph, blocks, run=replace(run, effort=1.0))
        problem.value(blocks)
    except (InfeasibleError, LimitError):
        return None
    run.log("it fits in another order of the nodes within the stages")
    return blocks
