"""Methods `auto` and `anneal` of the objective latency, and quick splits and bounds for others.

    blocks      a bound; the search over ideals, briefly; the exact search for few items; a little
                annealing; the search over ideals again, below the value known by then; annealing at
                the effort asked for
    operators   the exact search where transfers do not wait and nothing is live; list schedules of
                others (`STARTS`); the exact search of small problems, briefly; placements of alike
                layers put together (again after all annealing); a little annealing from the best so
                far; a bound, which its value sharpens; the exact search again; annealing at the
                effort asked for; the bound again

`anneal` leaves out exact searches and list schedules. Either ends as soon as the value meets the
bound; `auto` after a little annealing also where the gap need not be closed. With a time limit
annealing goes on until it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dnnp.core.cost.latency import (
    TRIES,
    Invocations,
    LatencyProblem,
    LatencySolution,
    Placement,
    SearchProof,
    Split,
)
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import shortage
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.model.text import counted, shown_bytes

if TYPE_CHECKING:
    from dnnp.core.latency.blocks.bound import SolvedPaths

LatencyMethod = Callable[[LatencyProblem, MethodOptions, SearchContext], LatencySolution]
"""Plans one sample; raises InfeasibleError, where that is proven, or LimitError."""

EFFORT = 0.1
"""Effort of searches that serve another method, for any effort of that one."""


def refuse_impossible(problem: LatencyProblem) -> None:
    """Refuse a problem that no split can solve, naming the scarce resource.

    Raises InfeasibleError: a unit that no device supports or can hold, or more memory needed
    than there is.
    """
    tasks, machine, whole = problem.tasks, problem.machine, problem.whole
    if whole is None:
        return
    what = "node" if whole.units.g == whole.graph.n else "group"
    supported = np.isfinite(tasks.time)
    if problem.options.execution == "blocks" and machine.is_cpu.any():
        supported[machine.is_cpu] = supported[int(np.argmax(machine.is_cpu))]
    alone = np.flatnonzero(~supported.any(axis=0))
    if len(alone):
        unit = int(whole.units.group_ids[alone[0]])
        raise InfeasibleError(f"infeasible: {what} {unit} is not supported on any device")
    needed = tasks.memory if problem.live is None else tasks.memory + problem.live.floor
    fits = supported & (needed <= machine.capacity[:, None] * (1 + MARGIN))
    large = np.flatnonzero(~fits.any(axis=0))
    if len(large):
        unit = int(whole.units.group_ids[large[0]])
        need = float(needed[large[0]])
        most = float(machine.capacity[supported[:, large[0]]].max())
        raise InfeasibleError(
            f"infeasible: {what} {unit} needs {shown_bytes(need, 6)}, the largest device that "
            f"supports it has {shown_bytes(most, 6)}"
        )
    impossible = shortage(float(tasks.memory.sum()), "the tasks", whole.devices)
    if impossible is not None and np.isfinite(machine.capacity).all():
        raise impossible


def critical_path(problem: LatencyProblem) -> float:
    """Longest path where every task runs on the device that is fastest at it, without transfers."""
    tasks, machine = problem.tasks, problem.machine
    if not tasks.n:
        return 0.0
    runs = np.ones(len(machine.is_cpu), dtype=np.bool_)
    if problem.options.execution == "blocks" and machine.is_cpu.any():
        runs = ~machine.is_cpu
        runs[int(np.argmax(machine.is_cpu))] = True
    least = tasks.time[runs].min(axis=0)
    end = np.zeros(tasks.n)
    maker = tasks.maker.tolist()
    for v in tasks.order.tolist():
        flows = tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist()
        ready = max((end[maker[f]] for f in flows if maker[f] >= 0), default=0.0)
        end[v] = ready + least[v]
    return float(end.max())


def first_bound(problem: LatencyProblem) -> tuple[float, str]:
    """`critical_path` and its name, which tells it from the one of operators with transfers."""
    blocks = problem.options.execution == "blocks"
    name = "critical path" if blocks else "critical path without transfers"
    return critical_path(problem), name


def quick(run: SearchContext) -> SearchContext:
    """The same search context with reduced effort."""
    return replace(run.alone(), effort=EFFORT)


def simple_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> tuple[float, str]:
    """A lower bound of the latency without an integer program, and its method.

    `upper`: latency of a known split.
    """
    return bound_and_paths(problem, upper, run)[:2]


def bound_and_paths(
    problem: LatencyProblem, upper: float, run: SearchContext
) -> tuple[float, str, SolvedPaths | None]:
    """The same, and of blocks the paths that were solved for it."""
    if problem.options.execution == "operators":
        from dnnp.core.latency.operators.bound import operators_bound

        return *operators_bound(problem, upper=upper, run=run), None
    from dnnp.core.latency.blocks.bound import paths_of

    bound, name = first_bound(problem)
    paths = paths_of(problem, run)
    if paths is not None and paths.longest > bound:
        bound, name = paths.longest, "path of blocks"
    return min(bound, upper), name, paths


def anneal_split(
    problem: LatencyProblem,
    *,
    start: Split | None = None,
    endless: bool = False,
    run: SearchContext = PLAIN,
) -> Split:
    """Anneal a split; see `anneal_blocks` and `anneal_operators`, which have the errors, too."""
    if problem.options.execution == "blocks":
        from dnnp.core.latency.blocks.anneal import anneal_blocks

        first = start if isinstance(start, Invocations) else None
        return anneal_blocks(problem, start=first, endless=endless, run=run)
    from dnnp.core.latency.operators.anneal import anneal_operators

    placed = start if isinstance(start, Placement) else None
    return anneal_operators(problem, start=placed, endless=endless, run=run)


def quick_split(problem: LatencyProblem, run: SearchContext = PLAIN) -> Split | None:
    """Anneal a little; None: no split was found."""
    try:
        return anneal_split(problem, run=quick(run))
    except LimitError:
        return None


def with_room(
    problem: LatencyProblem, method: LatencyMethod, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Run a method of operators that counts no live tensors, again with less memory until they fit.

    Returns the first solution that fits, or else the last; its bound is none of `problem`.
    """
    bare = problem.relaxed
    found = method(bare, asked, run)
    for _ in range(TRIES - 1):
        if problem.live is None or run.stop() or problem.fits(found.split):
            break
        bare = problem.tightened(found.split, bare)
        try:
            found = method(bare, asked, run)
        except (InfeasibleError, LimitError):
            break
    return found


BOUNDED, FIRST, ORDERED, WARM, SEARCHED = 0.05, 0.15, 0.2, 0.3, 0.6
"""Blocks: shares of the whole work at the ends of the bound, of the first search over ideals, of
the exact search for few items, of a little annealing, and of the second search over ideals."""

FIRST_EFFORT = 0.08
"""Effort of the first search over ideals: most graphs take less, and a search that ends makes all
further steps needless."""

ENDLESS = 1000.0
"""Effort of the second one under a time limit."""

TIMED = 0.6
"""Share of the remaining time that it may take then."""

FEWER = 0.4
"""Blocks: share of the whole work, and of a time limit, for splits with an invocation less."""

STARTS = ("heft", "heft-congested", "m-etf", "single", "m-sct")
"""Operators: methods that bound the result of `auto` from above, as long as there is time for them.
The last, with a program that may take long, is tried under a time limit alone. Without the others
latencies were up to 0.3 % longer on 4 of 44 small cases, and once shorter."""

LISTED, TRIED, LAYERED = 0.1, 0.12, 0.3
"""Shares of the whole work at the ends of list schedules, of the first exact search, and of
putting layers together."""

LAYERED_PART = 0.4
"""Share of a time limit that the last may take."""

TRIED_EFFORT = 0.05
"""Effort of that search, which solves most problems of up to ten tasks."""

PROVEN = 0.3
"""Share of the whole work, before list schedules, of the exact search where transfers do not wait;
of a time limit `TIMED`."""

STARTED = 0.1
"""Share of a time limit that one of them may take."""

LARGE, EARLY = 1000, 0.15
"""Tasks above which a bound comes before all annealing where time is limited, and its share."""

A_LITTLE, SHARPENED, SEQUENCED, COLD = 0.1, 0.2, 0.3, 0.9
"""Shares of the work after that, at the ends of a little annealing, of the first bound, of the
second exact search, and of all annealing; the second bound is the rest."""

ANNEALED = 0.7
"""Share of a time limit that annealing before the last bound may take."""


class _Best(NamedTuple):
    """Best split and bound so far."""

    split: Split | None = None
    value: float = np.inf
    bound: float = 0.0
    bound_method: str = "critical path"
    paths: SolvedPaths | None = None
    """Those of blocks that the bound is of."""

    @property
    def proven(self) -> bool:
        """True if no split is better."""
        return self.value <= self.bound * (1 + CLOSED)


def auto_blocks(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Search over ideals, or exactly if items are few, anneal, and search again below that value.

    For the errors see `anneal_blocks`.
    """
    from dnnp.core.latency.blocks.ideals import BOUND, ideal_latency
    from dnnp.core.latency.blocks.orders import BOUND as ORDERS
    from dnnp.core.latency.blocks.orders import order_latency

    run, start = _with_fewer(problem, asked, auto_blocks, run)
    known = _bounded_start(problem, start, run.phase("bounding", 0.0, BOUNDED))
    first = run.phase("ideals", BOUNDED, FIRST).scaled(FIRST_EFFORT)
    over_ideals = partial(ideal_latency, paths=known.paths)
    known, more = _searched(problem, known, first, over_ideals, BOUND)
    if not known.proven:
        part = run.phase("exact search", FIRST, ORDERED)
        known, _ = _searched(problem, known, part, order_latency, ORDERS)
    if not known.proven:
        known = _annealed_briefly(problem, known, run.phase("annealing", ORDERED, WARM))
    if more and not run.gap_reached(known.value, known.bound):
        second = run.phase("ideals", WARM, SEARCHED)
        if run.time_left() is not None:
            second = replace(second.part(TIMED), effort=ENDLESS)
        known, _ = _searched(problem, known, second, over_ideals, BOUND)
    return _refined(problem, known, run.phase("annealing", SEARCHED, 1.0))


def anneal_blocks(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Anneal splits into blocks: a little, at the given effort, and as long as there is time.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        No split was found.
    """
    run, start = _with_fewer(problem, asked, anneal_blocks, run)
    known = _bounded_start(problem, start, run.phase("bounding", 0.0, BOUNDED))
    known = _annealed_briefly(problem, known, run.phase("annealing", BOUNDED, WARM))
    return _refined(problem, known, run.phase("annealing", WARM, 1.0))


def auto_operators(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Search exactly; anneal placements, from the best list schedule.

    For the errors see `anneal_blocks`.
    """
    from dnnp.core.latency.exact.solve import BOUND as BRANCHES
    from dnnp.core.latency.exact.solve import prove, unfit
    from dnnp.core.latency.operators.contended import BOUND, sequence_latency

    known = _Best()
    more = problem.live is not None or problem.options.congestion != "none" or bool(unfit(problem))
    if not more:
        part = run.phase("exact search", 0.0, PROVEN).part(TIMED)
        known, _ = _searched(problem, known, part, prove, BRANCHES)
        if run.gap_reached(known.value, known.bound):
            return _answer(known)
        run = run.phase("list schedules", PROVEN, 1.0)
    start = _listed(problem, asked, run.phase("list schedules", 0.0, LISTED))
    if start is not None and problem.value(start) < known.value:
        known = known._replace(split=start, value=problem.value(start))
    if more:
        first = run.phase("exact search", LISTED, TRIED).scaled(TRIED_EFFORT)
        known, more = _searched(problem, known, first, sequence_latency, BOUND)
    if known.proven or run.gap_reached(known.value, known.bound):
        return _answer(known)
    if run.time_left() is not None and problem.tasks.n > LARGE:
        early = run.phase("bounding", TRIED, TRIED).part(EARLY)
        known = _bounded(problem, known, early)  # while there is time
    known = _layered(problem, known, run.phase("layers", TRIED, LAYERED))
    step = run.phase("annealing", LAYERED, 1.0)
    return _placed(problem, known, step, exact=more, layers=True)


def anneal_operators(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Anneal placements; for the errors see `anneal_blocks`."""
    return _placed(problem, _Best(), run)


def _layered(problem: LatencyProblem, known: _Best, run: SearchContext) -> _Best:
    """Put alike layers together, from those of the best placement, too."""
    from dnnp.core.latency.operators.layers import layered

    start = known.split if isinstance(known.split, Placement) else None
    found = layered(problem, start, run.part(LAYERED_PART))
    if found is None or (value := problem.value(found)) >= known.value:
        return known
    run.report_incumbent(found, value, "auto")
    return known._replace(split=found, value=value)


def _placed(
    problem: LatencyProblem,
    known: _Best,
    run: SearchContext,
    *,
    exact: bool = False,
    layers: bool = False,
) -> LatencySolution:
    """Anneal operators from a placement, if there is one; `exact`: search exactly on the way;
    `layers`: put the best layers together at the end."""
    run.log("annealing")
    part = run.phase("annealing", 0.0, A_LITTLE).scaled(EFFORT)
    known = _annealed(problem, known, part)
    known = _bounded(problem, known, run.phase("bounding", A_LITTLE, SHARPENED))
    if exact and not (run.gap_reached(known.value, known.bound) or run.stop()):
        from dnnp.core.latency.operators.contended import BOUND, sequence_latency

        part = run.phase("exact search", SHARPENED, SEQUENCED).part(TIMED)
        known, _ = _searched(problem, known, part, sequence_latency, BOUND)
    limited = run.time_left() is not None
    if not (run.gap_reached(known.value, known.bound) or run.stop()):
        step = run.phase("annealing", SEQUENCED if exact else SHARPENED, COLD)
        step = replace(step, effort=1.0).part(ANNEALED) if limited else step
        known = _annealed(problem, known, step, endless=limited)
        if layers:
            known = _layered(problem, known, run)
        known = _bounded(problem, known, run.phase("bounding", COLD, 1.0))
    if limited and not (run.gap_reached(known.value, known.bound) or run.stop()):
        run.report_progress("annealing")
        last = replace(run, effort=1.0, seed=run.seed + 1)
        known = _annealed(problem, known, last, endless=True)
    return _answer(known)


def _listed(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> Split | None:
    """The best of the list schedules that `auto` starts from, if any fits."""
    best: Split | None = None
    least = np.inf
    # Any replacement of a method is as good a start as the method.
    quiet = replace(run.alone(), effort=1.0, warn=PLAIN.warn)
    for number, name in enumerate(STARTS if run.time_left() is not None else STARTS[:-1]):
        if run.stop():
            break
        run.report_progress(f"list schedules, {name}", share=number / len(STARTS))
        try:
            method, part = LATENCY[name].function("operators"), quiet.part(STARTED)
            found = with_room(problem, method, asked, part).split
            value = problem.value(found)
        except (InfeasibleError, LimitError):
            continue
        run.report_incumbent(found, value, "auto")
        if value < least:
            best, least = found, value
    return best


def _bounded_start(problem: LatencyProblem, start: Split | None, run: SearchContext) -> _Best:
    """Bound the latency of blocks; `start` is a known split."""
    from dnnp.core.latency.blocks.items import block_items, check_feasible

    check_feasible(block_items(problem))
    value = np.inf if start is None else problem.value(start)
    return _bounded(problem, _Best(start, value), run)


def _bounded(problem: LatencyProblem, known: _Best, run: SearchContext) -> _Best:
    """Bound the latency of all splits, unless it is proven already."""
    if known.proven:
        return known
    run.log("bounding")
    bound, name, paths = bound_and_paths(problem, known.value, run)
    if bound == np.inf:
        raise InfeasibleError("infeasible: no split into blocks fits the devices")
    if bound > known.bound:
        known = known._replace(bound=bound, bound_method=name)
    run.report_progress(bound=known.bound, by=known.bound_method)
    return known._replace(paths=paths)


Search = Callable[..., SearchProof]
"""An exact search: `search(problem, upper=..., run=...)`."""


def _searched(
    problem: LatencyProblem, known: _Best, run: SearchContext, search: Search, name: str
) -> tuple[_Best, bool]:
    """Search for a better split, to prove a bound of this name; True: more effort gets further."""
    proof = search(problem, upper=known.value, run=run)
    if proof.reason:
        run.log(f"{name}: {proof.reason}")
    if proof.bound == np.inf:
        raise InfeasibleError("infeasible: no split fits the devices")
    if proof.split is not None:
        known = known._replace(split=proof.split, value=problem.value(proof.split))
    if proof.bound > known.bound:
        known = known._replace(bound=proof.bound, bound_method=name)
    return known, proof.more


def _annealed_briefly(problem: LatencyProblem, known: _Best, run: SearchContext) -> _Best:
    """Anneal blocks a little; a later step may find a split where this finds none."""
    run.log("annealing")
    try:
        return _annealed(problem, known, run.scaled(EFFORT))
    except LimitError:
        return known


def _refined(problem: LatencyProblem, known: _Best, run: SearchContext) -> LatencySolution:
    """Anneal blocks at the given effort, then as long as there is time, until the bound is met.

    Under a time limit first as if there were none: mostly that is enough.
    """
    steps = [(run, False)]
    if run.time_left() is not None:
        steps.append((replace(run, effort=1.0), True))
    for step, endless in steps:
        if run.gap_reached(known.value, known.bound) or run.stop():
            break
        known = _annealed(problem, known, step, endless=endless)
    return _answer(known)


def _annealed(
    problem: LatencyProblem, known: _Best, run: SearchContext, *, endless: bool = False
) -> _Best:
    """Anneal from the best split so far."""
    found = anneal_split(problem, start=known.split, endless=endless, run=run)
    value = problem.value(found)
    run.report_incumbent(found, value, "anneal")
    return known._replace(split=found, value=value)


def _answer(known: _Best) -> LatencySolution:
    """Solution of the best split; LimitError: there is none."""
    if known.split is None:
        raise LimitError("annealing found no split into blocks that fits; offer more memory")
    return LatencySolution(known.split, known.bound, known.bound_method)


def _with_fewer(
    problem: LatencyProblem,
    asked: MethodOptions,
    method: Callable[[LatencyProblem, MethodOptions, SearchContext], LatencySolution],
    run: SearchContext,
) -> tuple[SearchContext, Split | None]:
    """Find a start with one invocation of each accelerator less, by the same method.

    That space is smaller, as colours join more; and more invocations are never worse than fewer.
    Returns the context of the remaining work, and the split.
    """
    most = problem.options.invocations
    if most == 1:
        return run, None
    fewer = replace(problem, options=replace(problem.options, invocations=most - 1))
    part = run.phase(counted(most - 1, "invocation"), 0.0, FEWER).without_bounds()
    try:
        found = method(
            fewer, asked, part.part(FEWER) if run.time_left() is not None else part
        ).split
    except (InfeasibleError, LimitError):
        return run, None
    run.report_incumbent(found, problem.value(found), asked.method)
    return run.phase("bounding", FEWER, 1.0), found
