"""Splits of the largest throughput by integer programming (2020 paper, section 5.1.3).

The solver's solutions are priced by the cost model like any other split; what the program did
not know of them (live activations) comes back as a constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.validity import VALIDITIES
from dnnp.core.mip.child import SolverProcess
from dnnp.core.mip.search import solve_slices, status_of
from dnnp.core.mip.slices import Slices, attempted, refuse_unknown
from dnnp.core.mip.split.best import best_split
from dnnp.core.mip.split.contiguity import cells_of
from dnnp.core.mip.split.loop import Loop
from dnnp.core.mip.split.storage import item_of_node, storage_of, synchronised
from dnnp.core.mip.split.task import Task
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run


@dataclass(frozen=True)
class IpResult:
    """What an integer program found."""

    blocks: list[Block] | None
    """The best split known, be it the incumbent that was given."""
    bound: float
    """Proven lower bound of the objective over all splits of the validity asked for."""
    status: str
    """`optimal`, `feasible`, or `limit`: no split is known yet."""
    solver: str
    failure: str = ""
    """Why the search ended early, if it was no limit and no interrupt."""
    asked: bool = True
    """Whether a program was given to the solver; otherwise the incumbent did not need one, or the
    program was too large or too late."""


def solve_ip(
    problem: SplitProblem,
    validity: str,
    *,
    solver: str = "cbc",
    incumbent: Sequence[Block] | None = None,
    run: Run = PLAIN,
) -> IpResult:
    """Find the split with the least objective by integer programming.

    Parameters
    ----------
    problem
        What is split. Memory that is not a sum over nodes, with the `peak` model, is learned from
        solutions, which may take many solves where it binds.
    validity
        `ordered`, `convex` or `free`.
    solver
        `cbc` or `highs`.
    incumbent
        A split to start from; one that is invalid or too weak is not used.
    run
        When to end with what there is.

    Raises
    ------
    UsageError
        The program cannot express this: device clusters, or `gpipe` without a backward pass.
    InfeasibleError
        It is proven that no split fits.
    LimitError
        The solver failed before any split was known.
    UnavailableError
        The solver is not installed.
    """
    _refuse(problem, validity, solver)
    if problem.graph.n == 0:
        return IpResult([], 0.0, "optimal", solver)
    problem = problem.with_devices(*(d for d in problem.devices if d.count > 0))
    if not problem.devices:
        raise InfeasibleError("infeasible: no devices are offered")
    choices = problem.item_choices if validity == "ordered" else (problem.free_items,)
    best = best_split(problem, validity)
    if incumbent is not None:
        best.offer(list(incumbent))
    bound, closed, failure, asked = np.inf, True, "", False
    for number, items in enumerate(choices):
        part = run.part(1 / (len(choices) - number))
        if len(choices) > 1:
            part = part.without_bounds()
        loop = Loop(problem, best, task_of(problem, validity, items), part)

        def work(process: SolverProcess, loop: Loop = loop, part: Run = part) -> bool:
            loop.failure = ""
            return solve_slices(loop, Slices(solver, process, part))

        done = attempted(work, lambda _, loop=loop: loop.failure, run)  # type: ignore[misc]
        asked |= loop.asked
        bound, closed, failure = min(bound, loop.low), closed and done, failure or loop.failure
    nothing = f"no {validity} split fits the devices offered"
    status = status_of(best, failure, closed=closed, nothing=nothing)
    return IpResult(best.solution, min(bound, best.value), status, solver, failure, asked)


def task_of(problem: SplitProblem, validity: str, items: Items) -> Task:
    """The problem in terms of one choice of items, laid out in a line."""
    graph, options = problem.graph, problem.options
    line = problem.line(items)
    item = item_of_node(graph, line)
    cells = cells_of(graph, problem.units) if validity == "convex" else None
    synchronise = options.max_replicas > 1 and bool(graph.backward.any())
    return Task(
        line=line,
        devices=problem.devices,
        options=options,
        ordered=validity == "ordered",
        cells=cells,
        cell_item=item[cells.node] if cells else item[:0],
        storage=storage_of(graph, line, options),
        weights=synchronised(graph, line) if synchronise else None,
    )


def _refuse(problem: SplitProblem, validity: str, solver: str) -> None:
    """Raise for what the programs cannot express."""
    if validity not in VALIDITIES:
        raise UsageError(f"'{validity}' is not a validity; there are {', '.join(VALIDITIES)}")
    refuse_unknown(solver)
    if problem.options.objective == "gpipe" and not problem.graph.backward.any():
        raise UsageError("the objective 'gpipe' needs a graph with a backward pass")
    if any(d.cluster_size and d.count > 1 for d in problem.devices):
        raise UsageError(
            "the integer programs know no clusters of devices; the method 'exact' does"
        )
