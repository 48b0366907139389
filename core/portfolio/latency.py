"""The methods of the objective latency, and which of them is tried when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dnnp.core.cost.combine import ROOM
from dnnp.core.cost.invocations import POOL, Invocations
from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.timeline import Placement
from dnnp.core.latency.critical_path import first_bound
from dnnp.core.methods import LATENCY
from dnnp.core.model.asked import Asked
from dnnp.core.model.beside import beside
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.portfolio.first import FIRST_FIT, first_latency
from dnnp.core.portfolio.problem import Kept

if TYPE_CHECKING:
    from dnnp.core.mip.latency.loop import ExactResult

Split = Invocations | Placement
S = TypeVar("S", Invocations, Placement)

BLOCKS, OPERATORS = "blocks", "operators"

QUICK = 0.1
"""Effort of what serves another method."""

ENDLESS = 0.0
"""Stands for the effort of a search that ends with the time."""

ANNEALED, STARTED = 0.7, 0.1
"""Shares of a time limit that annealing before the last bound, and one list schedule to start
from, may take."""

STARTS = ("heft", "heft-congested", "m-etf", "single", "m-sct", "getf")
"""Methods that `auto` never falls behind, as long as there is time for them."""


@dataclass(frozen=True)
class LatencySolution:
    """A split, and what was proven about the latency of any."""

    split: Split
    bound: float
    bound_method: str
    method: str


def check_method(method: str, execution: str) -> None:
    """Refuse a method that cannot plan this execution.

    Raises
    ------
    UsageError
        The method is for throughput, or for the other execution.
    """
    if method not in LATENCY:
        known = ", ".join(LATENCY)
        raise UsageError(f"method {method} is not for --objective latency, which has: {known}")
    executions = LATENCY[method].kinds
    if execution not in executions:
        raise UsageError(f"method {method} is for --execution {executions[0]}")


class Request:
    """What is asked, and how to run."""

    def __init__(self, asked: Asked, run: Run) -> None:
        self.asked, self.run = asked, run
        self.method, self.solver = asked.method, asked.solver
        self.seed, self.effort = run.seed, run.effort
        self.stop, self.time_left = run.stop, run.left
        self.tell, self.warn, self.keep = run.tell, run.warn, run.keep


def solve_latency(problem: SplitProblem, asked: Asked, run: Run = PLAIN) -> LatencySolution:
    """Find a split for the latency of one sample.

    Raises
    ------
    UsageError
        The method does not go with the execution.
    InfeasibleError
        No split fits the devices.
    LimitError
        A limit came before there was any split.
    """
    execution = problem.options.execution
    check_method(asked.method, execution)
    latency = latency_problem(problem)
    refuse_impossible(problem, latency)
    solve = _solve_blocks if execution == BLOCKS else _solve_operators
    kept: Kept[Split] = Kept()
    request = Request(asked, replace(run, keep=kept.keep))

    def instead() -> LatencySolution | None:
        split, method = kept.split, kept.method
        if split is None:
            split, method = first_latency(latency), FIRST_FIT
        return None if split is None else LatencySolution(split, *first_bound(latency), method)

    return beside(lambda: solve(problem, latency, request), request.stop, instead)


def split_of_homes(problem: LatencyProblem, home: Ints) -> Split:
    """Turn a device for each task (i64[n], `POOL`: a CPU) into a split of the execution asked."""
    if problem.options.execution == BLOCKS:
        from dnnp.core.latency.blocks.homes import split_of_homes as blocks_of_homes

        return blocks_of_homes(problem, home)
    from dnnp.core.baselines.placing.schedule import schedule_homes

    return schedule_homes(problem, home)


def refuse_impossible(problem: SplitProblem, latency: LatencyProblem) -> None:
    """Refuse what no split can place, naming what is short.

    Raises
    ------
    InfeasibleError
        A unit that no device supports or can hold, or more memory needed than there is.
    """
    tasks, machine = latency.tasks, latency.machine
    what = "node" if problem.units.g == problem.graph.n else "group"
    supported = np.isfinite(tasks.time)
    if latency.options.execution == BLOCKS and machine.is_cpu.any():
        supported[machine.is_cpu] = supported[int(np.argmax(machine.is_cpu))]
    alone = np.flatnonzero(~supported.any(axis=0))
    if len(alone):
        unit = int(problem.units.group_ids[alone[0]])
        raise InfeasibleError(f"infeasible: {what} {unit} is not supported on any device")
    fits = supported & (tasks.memory <= machine.capacity[:, None] * ROOM)
    large = np.flatnonzero(~fits.any(axis=0))
    if len(large):
        unit = int(problem.units.group_ids[large[0]])
        need = float(tasks.memory[large[0]])
        most = float(machine.capacity[supported[:, large[0]]].max())
        raise InfeasibleError(
            f"infeasible: {what} {unit} needs {need:.6g} bytes, the largest device that supports "
            f"it has {most:.6g}"
        )
    need, there = float(tasks.memory.sum()), float(machine.capacity.sum())
    if need > there * ROOM:
        raise InfeasibleError(
            f"infeasible: the model needs {need:.6g} bytes, all devices together have "
            f"{there:.6g}: {need - there:.6g} bytes short"
        )


def quick_bound(
    latency: LatencyProblem,
    stop: Callable[[], bool],
    *,
    effort: float = QUICK,
    upper: float = np.inf,
) -> tuple[float, str]:
    """A lower bound without an integer program, and the argument for it.

    `upper` is the latency of a known split.
    """
    if latency.options.execution == BLOCKS:
        from dnnp.core.latency.blocks.bound import blocks_bound

        return blocks_bound(latency, stop=stop, upper=upper)
    from dnnp.core.latency.operators.bound import operators_bound

    return operators_bound(latency, effort=effort, stop=stop, upper=upper)


def _solve_blocks(
    problem: SplitProblem, latency: LatencyProblem, request: Request
) -> LatencySolution:
    from dnnp.core.latency.blocks.bound import blocks_bound

    method, stop = request.method, request.stop
    if method in ("ip", "cpsat"):
        return _exact(latency, request, _start(latency, request))
    split: Split
    bound, name = 0.0, ""
    if method in ("auto", "anneal"):
        from dnnp.core.latency.blocks.anneal import anneal_blocks, check_feasible
        from dnnp.core.latency.blocks.items import block_items

        check_feasible(latency, block_items(latency))
        request.tell("bounding")
        bound, name = blocks_bound(latency, stop=stop)
        if bound == np.inf:
            raise InfeasibleError("infeasible: no split into blocks fits the devices")
        request.tell("annealing")
        least, found = bound, _invoked_once(latency, request)
        quick, rest = _efforts(request)
        # With a limit, first as if there were none: mostly that is enough.
        for effort in (quick, rest) if rest else (quick, request.effort, rest):
            found = anneal_blocks(
                latency,
                seed=request.seed,
                effort=effort or 1.0,
                stop=stop,
                start=found,
                endless=effort == ENDLESS,
            )
            value = latency.block_value(found)
            request.keep(found, value, "anneal")
            if stop() or value <= least * (1 + CLOSED):
                break
        split = _known(found)
    elif method == "greedy":
        from dnnp.core.baselines.placing.greedy_blocks import greedy_blocks

        split = greedy_blocks(latency)
    elif method == "single":
        split = _single_block(latency)
    else:
        split = _by_throughput(problem, latency, request)
    if not name:
        bound, name = blocks_bound(latency, stop=stop)
    return LatencySolution(split, bound, name, method)


def _invoked_once(latency: LatencyProblem, request: Request) -> Invocations | None:
    """Where accelerators may be invoked again: a split without that, to start from.

    There is less to choose, as colours join more.
    """
    if latency.options.invocations == 1:
        return None
    from dnnp.core.latency.blocks.anneal import anneal_blocks

    once = replace(latency, options=replace(latency.options, invocations=1))
    try:
        return anneal_blocks(once, seed=request.seed, effort=QUICK, stop=request.stop)
    except (InfeasibleError, LimitError):
        return None


def _solve_operators(
    problem: SplitProblem, latency: LatencyProblem, request: Request
) -> LatencySolution:
    from dnnp.core.baselines.placing.table import PLACERS
    from dnnp.core.latency.operators.bound import operators_bound

    method, stop = request.method, request.stop
    if method in ("ip", "cpsat"):
        return _exact(latency, request, _start(latency, request))
    if method in ("auto", "anneal"):
        return _annealed(latency, request)
    split: Split
    if method in PLACERS:
        split = PLACERS[method](latency, seed=request.seed, effort=request.effort, stop=stop)
    else:
        split = _by_throughput(problem, latency, request)
    bound, name = operators_bound(latency, effort=QUICK, stop=stop)
    made_by = split.made_by if isinstance(split, Placement) else ""
    if made_by:
        request.warn(f"{method}: its program is too large, or was not solved in time: {made_by}")
    return LatencySolution(split, bound, name, made_by or method)


def _annealed(latency: LatencyProblem, request: Request) -> LatencySolution:
    """Annealing, for `auto` from the best list schedule of others; and a bound.

    The bound comes after a little annealing, since a good value sharpens it, and ends the search
    where it meets the value.
    """
    from dnnp.core.latency.operators.anneal import anneal_operators
    from dnnp.core.latency.operators.bound import operators_bound

    stop = request.stop
    best = _listed(latency, request) if request.method == "auto" else None
    request.tell("annealing")
    bound, name = 0.0, "critical path"
    for effort in _efforts(request):
        until = _until(request, ANNEALED) if effort == ENDLESS else stop
        best = anneal_operators(
            latency,
            seed=request.seed,
            effort=effort or 1.0,
            stop=until,
            start=best,
            endless=effort == ENDLESS,
        )
        value = latency.value(best)
        request.keep(best, value, "anneal")
        if bound < value * (1 - CLOSED):
            request.tell("bounding")
            found, argument = operators_bound(
                latency, effort=request.effort, stop=stop, upper=value
            )
            if found > bound:
                bound, name = found, argument
        if stop() or value <= bound * (1 + CLOSED):
            break
    placement = _known(best)
    closed = latency.value(placement) <= bound * (1 + CLOSED)
    if request.time_left() is not None and not stop() and not closed:
        placement = anneal_operators(
            latency, seed=request.seed + 1, stop=stop, endless=True, start=placement
        )
    return LatencySolution(placement, bound, name, request.method)


def _efforts(request: Request) -> tuple[float, float]:
    """A little annealing, then the rest: what is asked for, or as long as there is time."""
    rest = request.effort if request.time_left() is None else ENDLESS
    return (QUICK * request.effort, rest)


def _known(split: S | None) -> S:
    if split is None:
        raise LimitError("a limit came before there was any split")
    return split


def _listed(latency: LatencyProblem, request: Request) -> Placement | None:
    """The best of the list schedules that `auto` starts from, if any fits."""
    from dnnp.core.baselines.placing.table import PLACERS

    best: Placement | None = None
    least = np.inf
    for name in STARTS:
        if request.stop():
            break
        try:
            found = PLACERS[name](latency, seed=request.seed, stop=_until(request, STARTED))
        except (InfeasibleError, LimitError):
            continue
        value = latency.value(found)
        request.keep(found, value, name)
        if value < least:
            best, least = found, value
    return best


def _start(latency: LatencyProblem, request: Request) -> Split | None:
    """A split for an exact model to start from, by a little annealing; None: none was found."""
    try:
        if latency.options.execution == BLOCKS:
            from dnnp.core.latency.blocks.anneal import anneal_blocks

            return anneal_blocks(latency, seed=request.seed, effort=QUICK, stop=request.stop)
        from dnnp.core.latency.operators.anneal import anneal_operators

        return anneal_operators(latency, seed=request.seed, effort=QUICK, stop=request.stop)
    except LimitError:
        return None


def _exact(latency: LatencyProblem, request: Request, start: Split | None) -> LatencySolution:
    """Solve by an integer program, or by CP-SAT."""
    bound, name = quick_bound(latency, request.stop)
    found = solve_exactly(
        latency,
        request.method,
        start,
        request.solver,
        request.time_left(),
        bound=bound,
        seed=request.seed,
        stop=request.stop,
    )
    if found.failure:
        request.warn(f"the solver ended early: {found.failure}")
    if found.split is None:
        raise LimitError("a limit came before the solver found any split")
    if found.bound > bound * (1 + CLOSED):
        bound, name = found.bound, found.solver
    return LatencySolution(found.split, bound, name, request.method if found.asked else "anneal")


def solve_exactly(
    latency: LatencyProblem,
    method: str,
    start: Split | None,
    solver: str,
    seconds: float | None,
    *,
    bound: float = 0.0,
    seed: int = 0,
    stop: Callable[[], bool],
) -> ExactResult[Invocations] | ExactResult[Placement]:
    """Solve by an integer program (`ip`, with CBC or HiGHS) or as intervals (`cpsat`).

    `bound` is a lower bound that is proven already.
    """
    if latency.options.execution == BLOCKS:
        split = _blocks(start)
        if method == "ip":
            from dnnp.core.mip.latency.ip import latency_ip

            return latency_ip(
                latency, solver=solver, start=split, bound=bound, seconds=seconds, stop=stop
            )
        from dnnp.core.mip.latency.cpsat import cpsat_blocks

        return cpsat_blocks(
            latency, start=split, bound=bound, seconds=seconds, seed=seed, stop=stop
        )
    placement = _placement(start)
    if method == "ip":
        from dnnp.core.mip.latency.moirai import moirai

        return moirai(
            latency, solver=solver, start=placement, bound=bound, seconds=seconds, stop=stop
        )
    from dnnp.core.mip.latency.cpsat import cpsat_operators

    return cpsat_operators(
        latency, start=placement, bound=bound, seconds=seconds, seed=seed, stop=stop
    )


def _single_block(latency: LatencyProblem) -> Invocations:
    """Everything on one accelerator, or in the pool: whichever is fastest.

    Raises
    ------
    InfeasibleError
        Nothing holds it all.
    """
    best: Invocations | None = None
    least, reason = np.inf, InfeasibleError("infeasible: there is no device")
    for device in [POOL, *np.flatnonzero(~latency.machine.is_cpu).tolist()]:
        split = _blocks(split_of_homes(latency, np.full(latency.tasks.n, device)))
        if split is None:
            continue
        try:
            value = latency.block_value(split)
        except InfeasibleError as error:
            reason = error
            continue
        if best is None or value < least:
            best, least = split, value
    if best is None:
        raise reason
    return best


def _by_throughput(problem: SplitProblem, latency: LatencyProblem, request: Request) -> Split:
    """What is best or made for throughput: max-load DP, Scotch (2020 paper, Section 7)."""
    from dnnp.core.baselines.placing.given import homes_of_blocks
    from dnnp.core.portfolio.solve import solve

    alone = problem.options.memory_model == "weights" and not problem.graph.backward.any()
    counted = "peak" if alone else "sum"
    options = replace(problem.options, objective="throughput", memory_model=counted)
    method = "exact" if request.method == "max-load" else request.method
    found = solve(problem.with_options(options), replace(request.asked, method=method), request.run)
    blocks = [block for block in found.blocks if len(block.nodes)]
    return split_of_homes(latency, homes_of_blocks(latency, problem.units.label, blocks))


def _until(request: Request, share: float) -> Callable[[], bool]:
    """A stop that also comes when this share of the time that is left is over."""
    left = request.time_left()
    if left is None:
        return request.stop
    least = left * (1 - share)
    return lambda: request.stop() or (request.time_left() or 0.0) <= least


def _blocks(split: Split | None) -> Invocations | None:
    return split if isinstance(split, Invocations) else None


def _placement(split: Split | None) -> Placement | None:
    return split if isinstance(split, Placement) else None
