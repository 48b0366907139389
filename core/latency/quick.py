"""Bounds and splits of either execution, and those that take little work: they serve methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnp.core.cost.latency import (
    TRIES,
    Invocations,
    LatencyProblem,
    LatencySolution,
    Placement,
    Split,
)
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem, shortage
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.model.text import shown_bytes

LatencyMethod = Callable[[LatencyProblem, MethodOptions, SearchContext], LatencySolution]
"""Plans one sample; raises InfeasibleError, where that is proven, or LimitError."""

EFFORT = 0.1
"""Of what serves another method, whatever effort is asked of that one."""


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
    if latency.options.execution == "blocks" and machine.is_cpu.any():
        supported[machine.is_cpu] = supported[int(np.argmax(machine.is_cpu))]
    alone = np.flatnonzero(~supported.any(axis=0))
    if len(alone):
        unit = int(problem.units.group_ids[alone[0]])
        raise InfeasibleError(f"infeasible: {what} {unit} is not supported on any device")
    needed = tasks.memory if latency.live is None else tasks.memory + latency.live.floor
    fits = supported & (needed <= machine.capacity[:, None] * (1 + MARGIN))
    large = np.flatnonzero(~fits.any(axis=0))
    if len(large):
        unit = int(problem.units.group_ids[large[0]])
        need = float(needed[large[0]])
        most = float(machine.capacity[supported[:, large[0]]].max())
        raise InfeasibleError(
            f"infeasible: {what} {unit} needs {shown_bytes(need, 6)}, the largest device that "
            f"supports it has {shown_bytes(most, 6)}"
        )
    impossible = shortage(float(tasks.memory.sum()), "the tasks", problem.devices)
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
    """`critical_path`, and its name: the one of operators else counts transfers, too."""
    blocks = problem.options.execution == "blocks"
    name = "critical path" if blocks else "critical path without transfers"
    return critical_path(problem), name


def quick(run: SearchContext) -> SearchContext:
    """The same run with little effort."""
    return replace(run.alone(), effort=EFFORT)


def simple_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> tuple[float, str]:
    """A lower bound of the latency without an integer program, and the argument for it.

    `upper` is the latency of a known split.
    """
    if problem.options.execution == "blocks":
        from dnnp.core.latency.blocks.bound import path_of_blocks

        bound, name = first_bound(problem)
        longest = path_of_blocks(problem, run)
        return min(max(bound, longest), upper), "path of blocks" if longest > bound else name
    from dnnp.core.latency.operators.best_bound import operators_bound

    return operators_bound(problem, upper=upper, run=run)


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
    """Ask what knows no live tensors for operators, again with less room where they do not fit.

    The first answer that fits, or else the last; what it says of a bound is not that of `problem`.
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
