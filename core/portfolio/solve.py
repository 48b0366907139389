"""From a method's name to a split with a bound; `auto` is the portfolio.

`auto` slices a few orders, then searches the order ideals with that incumbent: it prunes the
exact search, which mostly ends with a proof. What the search cannot finish it leaves with a
bound; then windows around the best split are searched, wider as long as that pays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dnnp.core.baselines.table import BASELINES, Settings
from dnnp.core.bound.simple import simple_bound
from dnnp.core.cost.plan import make_plan
from dnnp.core.dp.ideal import ROUNDING, ideal_search, window_search
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.portfolio.slices import best_slicing

WINDOWS = (4, 6, 8, 10, 12, 14)
"""Widths of the windows around the best split."""

WINDOW_EFFORT = 0.1
"""Effort of one window search, of the effort asked for."""

MAX_WINDOW_NODES = 5_000
"""Nodes up to which windows are searched."""


@dataclass(frozen=True)
class Request(Settings):
    """What a solver is told besides the problem; each heeds what concerns it."""

    method: str = "auto"
    order: str = "best"
    validity: str = "ordered"
    """What is asked of the split: `ordered`, `convex` or `free`."""
    solver: str = "cbc"
    time_limit: float | None = None
    """Seconds that are left; None: no limit."""
    progress: Callable[[float], None] = lambda share: None
    """Told the share of a long step that is done."""
    tell: Callable[[str], None] = lambda message: None
    """Told what was found on the way."""


@dataclass(frozen=True)
class Solution:
    """A split, and what was proven about it."""

    blocks: list[Block]
    bound: float
    """No split of the validity asked for has a smaller objective."""
    method: str


@dataclass(frozen=True)
class Problem:
    """What is split."""

    graph: Graph
    units: Clustering
    devices: tuple[DeviceClass, ...]
    options: CostOptions

    def value(self, blocks: list[Block]) -> float:
        """Objective of a split."""
        plan = make_plan(
            self.graph, self.units, blocks, self.devices, self.options,
            method="", bound=0.0, digest="",
        )  # fmt: skip
        return plan.value

    @property
    def clustered(self) -> bool:
        """Whether some devices form clusters."""
        return any(d.cluster_size for d in self.devices)


def solve(problem: Problem, request: Request) -> Solution:
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
    _check(problem, request)
    floor = simple_bound(problem.graph, problem.units, problem.devices, problem.options)
    if not problem.graph.n:
        return Solution([], 0.0, request.method)
    if request.method == "auto" and request.validity != "ordered":
        method = "anneal" if request.validity == "free" else "ip"
        return _SOLVERS[method](problem, request, floor)
    if problem.clustered and request.method in ("auto", "exact"):
        return _clusters(problem, request)
    solver = _SOLVERS.get(request.method, _baseline)
    return solver(problem, request, floor)


def _check(problem: Problem, request: Request) -> None:
    """Refuse what no method, or not this one, defines."""
    options, method = problem.options, request.method
    training = bool(problem.graph.backward.any())
    if options.objective == "gpipe" and not training:
        raise UsageError("--objective gpipe needs a graph with a backward pass")
    limited = any(np.isfinite(d.memory_bytes) for d in problem.devices)
    if options.objective == "gpipe" and options.memory_mode == "overflow" and limited:
        raise UsageError("--objective gpipe is not defined with --memory-mode overflow")
    if options.memory_model == "peak" and training:
        raise UsageError("--memory-model peak is not defined for a graph with a backward pass")
    allowed = {
        "auto": ("ordered", "convex", "free"), "ip": ("ordered", "convex", "free"),
        "anneal": ("free",),
    }.get(method, ("ordered",))  # fmt: skip
    known = method in (*_SOLVERS, "auto", "exact")
    if (
        known
        and request.validity not in allowed
        and not (method == "anneal" and request.validity == "ordered")
    ):
        raise UsageError(
            f"--method {method} finds {allowed[0]} splits; for {request.validity} ones use "
            "--method ip or auto"
        )


def _slice(problem: Problem, request: Request, floor: float) -> Solution:
    """The best slicing of some orders."""
    blocks = best_slicing(
        problem.graph, problem.units, problem.devices, problem.options, request.order,
        request.stop,
    )  # fmt: skip
    return Solution(blocks, floor, request.method)


def _dpl(problem: Problem, request: Request, floor: float) -> Solution:
    """The paper's linearisation heuristic: slice a depth-first order (section 5.1.2)."""
    blocks = best_slicing(
        problem.graph, problem.units, problem.devices, problem.options, "dfs", request.stop
    )
    return Solution(blocks, floor, "dpl")


def _incumbent(problem: Problem, request: Request) -> tuple[list[Block] | None, float]:
    """The best slicing and its value, if there is one; and why not, otherwise."""
    try:
        blocks = _slice(problem, request, 0.0).blocks
    except InfeasibleError as error:
        # Slicing knows no replicas and keeps an order; an item that fits nowhere is the end.
        request.tell(str(error))
        return None, np.inf
    value = problem.value(blocks)
    request.tell(f"slicing: {value:.6g}")
    return blocks, value


def _exact(problem: Problem, request: Request, floor: float) -> Solution:
    """The ideal search; and what it could not finish, by windows if the method is `auto`."""
    blocks, value = _incumbent(problem, request)
    if value <= floor * (1 + ROUNDING):
        return Solution(blocks or [], floor, request.method)
    found = ideal_search(
        problem.graph, problem.units, problem.devices, problem.options, incumbent=value,
        floor=floor, effort=request.effort, stop=request.stop, progress=request.progress,
    )  # fmt: skip
    bound = max(floor, found.bound)
    if found.ideals:
        request.tell(
            f"{found.ideals} ideals, {found.walked} blocks: {found.value:.6g}, bound {bound:.6g}"
        )
    else:
        request.tell("too many ideals for the exact search")
    if found.blocks is not None:
        blocks, value = found.blocks, found.value
    if blocks is None:
        if found.bound == np.inf:
            raise _why(problem, request)
        raise InfeasibleError("infeasible: no split was found; not all were tried")
    if request.method == "auto" and bound < value * (1 - ROUNDING):
        blocks = _windows(problem, request, blocks, value)
    return Solution(blocks, bound, request.method)


def _why(problem: Problem, request: Request) -> InfeasibleError:
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


def _windows(problem: Problem, request: Request, blocks: list[Block], value: float) -> list[Block]:
    """Search ever wider windows around the best split."""
    if problem.graph.n > MAX_WINDOW_NODES:
        return blocks
    for width in WINDOWS:
        while not request.stop():
            near = window_search(
                problem.graph, problem.units, problem.devices, problem.options, blocks,
                incumbent=value, width=width, effort=request.effort * WINDOW_EFFORT,
                stop=request.stop,
            )  # fmt: skip
            if near.blocks is None:
                break
            blocks, value = near.blocks, near.value
            request.tell(f"windows of {width}: {value:.6g}")
    return blocks


def _clusters(problem: Problem, request: Request) -> Solution:
    from dnnp.core.portfolio.hierarchy import hierarchy_split

    blocks, bound = hierarchy_split(
        problem.graph, problem.units, problem.devices, problem.options,
        stop=request.stop, effort=request.effort,
    )  # fmt: skip
    return Solution(blocks, bound, request.method)


def _anneal(problem: Problem, request: Request, floor: float) -> Solution:
    """Search without order, from the best ordered split."""
    from dnnp.core.local.anneal import anneal

    start = _start(problem, request)
    blocks = anneal(
        problem.graph, problem.units, problem.devices, problem.options, start=start,
        seed=request.seed, effort=request.effort, stop=request.stop,
    )  # fmt: skip
    return Solution(blocks, floor, "anneal")


def _ip(problem: Problem, request: Request, floor: float) -> Solution:
    """An integer program, warm-started with the best split known."""
    from dnnp.core.mip.solve import solve_ip

    start = _start(problem, request)
    result = solve_ip(
        problem.graph, problem.units, problem.devices, problem.options, request.validity,
        solver=request.solver, incumbent=start, time_limit=request.time_limit, stop=request.stop,
    )  # fmt: skip
    if result.failure:
        request.tell(f"{result.solver} failed: {result.failure}")
    if result.blocks is None:
        raise InfeasibleError("infeasible: no split was found; not all were tried")
    return Solution(result.blocks, max(floor, result.bound), "ip")


def _start(problem: Problem, request: Request) -> list[Block] | None:
    """The best ordered split, found with little effort."""
    if problem.clustered:
        return None
    try:
        return _exact(problem, request, 0.0).blocks
    except InfeasibleError:
        return None


def _baseline(problem: Problem, request: Request, floor: float) -> Solution:
    order = "kahn" if request.order == "best" else request.order
    settings = Settings(order, request.seed, request.effort, request.stop)
    run = BASELINES[request.method]
    blocks = run(problem.graph, problem.units, problem.devices, problem.options, settings)
    return Solution(blocks, floor, request.method)


_SOLVERS: dict[str, Callable[[Problem, Request, float], Solution]] = {
    "auto": _exact,
    "exact": _exact,
    "slice": _slice,
    "dpl": _dpl,
    "anneal": _anneal,
    "ip": _ip,
}
