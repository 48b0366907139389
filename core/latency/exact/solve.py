"""Exact search for the latency of placements whose transfers do not wait for each other.

Searches of one problem share its limit, which is just below the best latency that is known: forward
and backward in time; of parts of the tasks, whose optima are bounds (connected components, and of
these the tasks on the longest paths); and below latencies in the middle of the gap. They take turns
of nodes that double. One of the whole that ends proves the optimum, as does one of a part that ends
without a schedule.

State space and order: after the list schedules of Sinnen, Reducing the solution space of optimal
task scheduling, 2014; bounds by least and latest times, and by load, are of common knowledge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dnnp.core.cost.latency import (
    LatencyProblem,
    LatencySolution,
    Placement,
    SearchProof,
    lazy_events,
)
from dnnp.core.latency.depth_first import valid_latency
from dnnp.core.latency.exact.net import Grid, TaskNet, edges_of, grid_of, part_of, turned
from dnnp.core.latency.exact.search import (
    DEPTH,
    FOUND,
    LIMIT,
    MOST_DEVICES,
    MOST_TASKS,
    NODES,
    SearchState,
    advance,
    new_search,
    with_windows,
)
from dnnp.core.latency.ip.formulation import serial_latency
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import connected
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext

BOUND = "branch and bound"
"""Name of the bound that it proves."""

WORK = 3e8
"""Nodes times tasks times devices at effort 1."""

FIRST, MOST = 500, 1e7
"""Nodes of the first turn; nodes times tasks times devices of a turn, at most."""

ROWS, FEW_ROWS = 1 << 17, 1 << 12
"""States that a search of all tasks remembers, and one of a part, or a short one."""

GROUPS = 3
"""Connected components that are searched by themselves."""

CORES = (0.3, 0.45, 0.6, 0.8)
"""Parts of the first of them: shares of its tasks."""


@dataclass
class _Search:
    """A search of all tasks or of some, forward or backward."""

    net: TaskNet
    state: SearchState
    whole: bool = False
    backward: bool = False

    def ended(self) -> bool:
        """True if no schedule is left within its limit."""
        return bool(self.state.at[DEPTH] < 0)


def exact(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Find an optimal placement, or the best that the effort finds, and a bound.

    Where transfers wait for each other, it is the one that is optimal if they did not.

    Raises
    ------
    UsageError
        Too many tasks or devices, or inputs of the model that cost transfers.
    InfeasibleError
        No placement fits.
    LimitError
        None was found that fits.
    """
    reason = unfit(problem)
    if reason:
        raise UsageError(f"method exact is not for {reason}")
    proof = prove(problem, run=run)
    if proof.bound == np.inf:
        raise InfeasibleError("infeasible: no placement fits the memory of the devices")
    if proof.split is None:
        raise LimitError("no placement was found that fits; give more effort or memory")
    return LatencySolution(proof.split, proof.bound, BOUND)


def unfit(problem: LatencyProblem) -> str:
    """The part of a problem that is beyond the search; empty: there is none."""
    if problem.tasks.n > MOST_TASKS:
        return f"{problem.tasks.n} tasks, at most {MOST_TASKS}"
    if problem.machine.count > MOST_DEVICES:
        return f"{problem.machine.count} devices, at most {MOST_DEVICES}"
    if (problem.tasks.maker < 0).any():
        return "--charge-io"
    return ""


def prove(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> SearchProof:
    """Prove that no placement takes less than a known one, or find the best.

    Where transfers wait for each other, it is the best if they did not, and a bound for all.
    `upper`: latency of a known placement, if any. A stop or a limit leaves a weaker bound.
    """
    waits = problem.options.congestion != "none"
    if waits:
        options = replace(problem.options, congestion="none")
        problem, run = replace(problem, options=options), run.unvalued()
    work = _Work(problem.relaxed, upper, run)
    work.search()
    bound = min(work.bound(), work.value)
    return SearchProof(bound, work.split, more=bound < work.value * (1 - CLOSED))


class _Work:
    """Searches that share a limit, the best placement, and the bound."""

    def __init__(self, problem: LatencyProblem, upper: float, run: SearchContext) -> None:
        self.problem, self.context, self.value = problem, run, upper
        self.split: Placement | None = None
        self.found = upper < np.inf
        most = upper if self.found else serial_latency(problem)
        self.grid: Grid = grid_of(problem, most)
        net = with_windows(self.grid.net)
        self.nets = (net, turned(net))
        self.limit = int(np.floor(most * (1 - CLOSED / 2) / self.grid.unit))
        if not self.found:
            self.limit = int(np.ceil(most / self.grid.unit))
        self.least = 0
        """No schedule is shorter."""
        self.size = max(net.time.size, 1)
        self.limited = run.time_left() is not None
        self.total = self.left = 1 << 62 if self.limited else int(WORK * run.effort / self.size) + 1
        """Nodes in all, and those that are left."""

    def bound(self) -> float:
        """No placement has a smaller latency."""
        if self.least > self.limit and not self.found:
            return np.inf
        return self.least * self.grid.unit * self.grid.safe

    def done(self) -> bool:
        """True if nothing is left to be done."""
        gap = self.context.gap_reached(self.value, self.bound())
        return self.least > self.limit or gap or self.left <= 0 or self.context.stop()

    def search(self) -> None:
        """Let searches take turns until one proves the optimum, or the work is done."""
        wholes = [self.whole(self.limit, side, ROWS) for side in (False, True)]
        parts: list[_Search] = []
        nodes = FIRST
        while not self.done():
            for side in (False, True):
                self.narrow(side, nodes)
            for one in wholes + parts:
                if not (one.ended() or self.done()):
                    self.turn(one, nodes if one.whole else nodes // 2)
            if nodes == FIRST:
                parts = [
                    _Search(part, new_search(part, self.limit, FEW_ROWS))
                    for net in self.nets
                    for part in _parts(net)
                ]
            nodes = min(2 * nodes, max(int(MOST / self.size), FIRST))
            if not self.limited:
                self.context.report_progress(share=1 - self.left / self.total)

    def whole(self, limit: int, backward: bool, rows: int) -> _Search:
        """A search of all tasks."""
        net = self.nets[backward]
        return _Search(net, new_search(net, limit, rows), whole=True, backward=backward)

    def narrow(self, backward: bool, nodes: int) -> None:
        """Search below latencies in the middle of the gap, as long as that ends soon."""
        end = self.left - nodes
        while self.least < self.limit and self.left > end and not self.done():
            one = self.whole((self.least + self.limit) // 2, backward, 2 * nodes)
            self.turn(one, nodes)
            if not one.ended():
                return

    def turn(self, one: _Search, nodes: int) -> None:
        """Let a search go on for some nodes within the limit, and keep what it finds."""
        at = one.state.at
        before = int(at[NODES])
        at[LIMIT] = min(at[LIMIT], self.limit)
        at[FOUND] = -1
        advance(one.net, one.state, min(nodes, self.left))
        self.left -= int(at[NODES]) - before
        if at[FOUND] >= 0 and one.whole:
            self.keep(one)
        if one.ended():
            self.least = max(self.least, int(at[LIMIT]) + 1)
            self.context.report_progress(bound=min(self.bound(), self.value), by=BOUND)

    def keep(self, one: _Search) -> None:
        """Keep a placement that a search found, if it is the best."""
        self.found = True
        self.limit = min(self.limit, int(one.state.at[FOUND]) - 1)
        split = _placement(self.problem, self.grid, one)
        value = valid_latency(self.problem, split)
        if value < self.value:
            self.split, self.value = split, value
            self.context.report_incumbent(split, value, "exact")
            self.context.report_progress(value=value)


def _placement(problem: LatencyProblem, grid: Grid, one: _Search) -> Placement:
    """The placement of the best schedule of a search of all tasks."""
    net, n = one.net, problem.tasks.n
    home, start = one.state.best_home, one.state.best_start
    works = net.time[np.arange(n), home] > 0
    order = np.lexsort((np.arange(n), works, start))
    task = grid.task[::-1] if one.backward else grid.task
    device = np.zeros(n, dtype=np.int64)
    device[task] = home
    line = task[order[::-1] if one.backward else order]
    return Placement(device, lazy_events(problem.tasks, device, line))


def _parts(net: TaskNet) -> Iterator[TaskNet]:
    """Connected components with the longest paths, and of the first the tasks on such paths."""
    path = (net.head + net.time + net.tail).min(axis=1)
    label = connected(len(net.time), *edges_of(net))
    groups = [np.flatnonzero(label == one) for one in range(label.max(initial=-1) + 1)]
    groups.sort(key=lambda group: -int(path[group].max()))
    for group in groups[:GROUPS]:
        if 2 < len(group) < len(path):
            yield part_of(net, group)
    longest = groups[0][np.argsort(-path[groups[0]], kind="stable")]
    for share in CORES:
        size = max(4, round(share * len(longest)))
        if size < len(longest):
            yield part_of(net, np.sort(longest[:size]))
