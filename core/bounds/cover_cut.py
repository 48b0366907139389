"""A bound from covers for splits without order: what all devices hold, by prices of items.

Let items have prices p >= 0. If no set of items with a load below a target on a device of class c
is worth more than a share t(c), the devices hold no more than the sum of their shares; if all
prices together are more, no split has a largest load below the target. Nothing is said of order, so
the bound holds for every validity.

As in `cover`, the best prices are the duals of covering all items by such sets, in fractions, no
more sets of each class than devices. Sets are added to a linear program when they are worth more
than the share of their class; `PricedSets` finds them by minimum cuts, or proves that there is
none. What a CPU holds is a knapsack without nets, of which the program knows the relaxation: for
any rate r it is worth at most

    r * room + sum of max(p - r * time, 0) over the items that fit by themselves.

The prices of the program are fractions. Rounded down to multiples of 1 / d they prove as much or
more for some small d, because what a set is worth is a multiple, too: five like items on two
devices, each of which has room for 2.4 of them, are worth 5 > 2 + 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from dnnp.core.bounds.lower_bound import (
    FAILED,
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    refused,
    whole_of,
)
from dnnp.core.bounds.priced_sets import Carrier, PricedSets, carrier_of
from dnnp.core.bounds.same_block import merged
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Bools, Floats
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Program, Row
from dnnp.core.solver.slices import Relaxation

MOST_ITEMS = 2_000

DIVISORS = (*range(1, 65), 96, 128, 192, 256, 1024, 1 << 20, 1 << 30)
"""Prices are multiples of one over these numbers."""

NEARLY = 1e-6
"""What a price lacks of a whole number, by the tolerances of solvers, and is one all the same."""

SMOOTH = 0.3
"""Weight of the newest prices against a mean of the earlier ones, which swing less."""

FIRST_NODES, MORE = 200, 4
"""Nodes of the first search for sets, and the factor by which there may be more once none is
found."""

MOST_WORK = 60_000_000
"""Nodes times items and pins, at effort 1."""

LEFT, FEWEST = 0.25, 400
"""Share of the nodes that is left after a target, and nodes with which one is still tried."""

KEPT = 8
"""Sets that one search may find."""

PRECISION = 3e-4
"""Relative width of the interval of targets at which the search ends."""


def cover_cut_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor.

    For accelerators under `sum` without replicas, with or without CPUs, where a split is known.

    Raises
    ------
    UnavailableError
        The solver is not installed.
    """
    if not isfinite(known.value):
        return refused("no split is known")
    if problem.options.objective not in ("throughput", "gpipe"):
        return refused(f"not for the objective {problem.options.objective}")
    if problem.options.max_replicas != 1:
        return refused("only without replicas")
    if problem.options.comm != "sum":
        return refused("only where transfers add to compute")
    if not any(d.count and not d.is_cpu for d in problem.devices) or not problem.graph.n:
        return refused("only for accelerators")
    whole = whole_of(problem, known.validity)
    if whole.items.count > MOST_ITEMS:
        return refused(f"more than {MOST_ITEMS} items")
    if not np.isfinite(whole.work.min(axis=0)).all():
        return refused("a unit runs on no device that is offered")
    with solver_process() as process:
        search = _CoverSearch(whole, known, Relaxation(process, known.solver, run))
        search.begin(known.blocks or ())
        search.run(known.floor)
    return search.claim()


class _CoverSearch:
    """Sets that are known, and what was proven with prices."""

    def __init__(self, whole: Whole, known: BoundTask, relaxation: Relaxation) -> None:
        self.whole, self.n, self.relaxation = whole, whole.items.count, relaxation
        self.counts = [min(d.count, self.n) for d in whole.devices]
        self.cpus = [c for c, d in enumerate(whole.devices) if d.is_cpu]
        self.classes = [c for c in range(len(whole.devices)) if c not in self.cpus]
        """Those of accelerators; the shares of others are in terms of that of the first."""
        self.carriers: dict[int, Carrier] = {
            c: carrier_of(whole.work[c], merged(whole.nets(c))[0]) for c in self.classes
        }
        self.target = int(known.value / whole.quantum)
        """Quanta: the value of the split that is known."""
        self.sets: dict[tuple[int, bytes], tuple[Bools, float]] = {}
        """Sets by class and items, each with its load in quanta."""
        self.center: Floats | None = None
        """Smoothed prices, and shares of accelerators but the first."""
        self.proof: tuple[int, dict[str, Any]] = (0, {})
        run = relaxation.run
        self.nodes_left = int(MOST_WORK * run.effort / (self.n + len(whole.pins)))
        self.until = 0
        """Nodes that are to be left after the target that is tried."""
        self.why = ""

    def begin(self, blocks: Sequence[Block]) -> None:
        """Take over the sets of a split, which tell what its value is in quanta."""
        names, label = [d.name for d in self.whole.devices], self.whole.items.label
        largest = 0.0
        for block in blocks:
            c, some = names.index(block.device.name), np.zeros(self.n, dtype=np.bool_)
            some[label[block.nodes]] = True
            if c in self.cpus:
                largest = max(largest, float(self.whole.work[c][some].sum()))
            else:
                self._add(c, some)
                largest = max(largest, self.carriers[c].load(some))
        if blocks:
            self.target = min(self.target, int(largest))

    def run(self, floor: float) -> None:
        """Prove the value of the split, or what is near enough; if it takes too long, less."""
        proven, open_from = int(floor / self.whole.quantum), self.target
        run = self.relaxation.run
        spared = run.max_gap if run.max_gap > PRECISION else 0.0  # a smaller one costs no more
        target = goal = int(self.target * (1 - spared))
        while proven < min(goal, open_from):
            self.until = int(self.nodes_left * LEFT)
            if self._decide(target):
                proven, bound = target, target * self.whole.quantum
                run.log(f"{len(self.sets)} sets: bound {run.shown(bound)}")
                run.report_progress(bound=bound)
            elif self.relaxation.failure or run.stop():
                return
            else:
                open_from = min(target, open_from - 1)
            if open_from - proven <= PRECISION * self.target or self.nodes_left < FEWEST:
                return
            target = (proven + open_from) // 2

    def claim(self) -> LowerBound:
        """Claim what was proven."""
        failure = self.relaxation.failure
        limited = self.why or self.relaxation.run.stop()
        status = FAILED if failure else LIMIT if limited else SOLVED
        units, proof = self.proof
        if not units:
            return LowerBound(0.0, status, failure or self.why)
        return self.whole.claim("cover-cut", units, proof, status, reason=failure or self.why)

    def _decide(self, target: int) -> bool | None:
        """Tell whether no split has a largest load below a target; None if that is not known.

        False: sets cover all items in fractions.
        """
        run, first = self.relaxation.run, self.n + len(self.classes)
        outcome = self.relaxation.begin(self._program(target))
        limit = FIRST_NODES
        while True:
            if outcome.status != "optimal":
                return None
            values = np.array(outcome.values)
            held = values[self.n : first] @ np.array([self.counts[c] for c in self.classes])
            held += sum(
                self.counts[c] * self._on_cpu(c, values[: self.n], target)[0] for c in self.cpus
            )
            if values[: self.n].sum() <= held + MARGIN * self.counts[self.classes[0]]:
                return False
            now = values[:first]
            mean = now if self.center is None else self.center
            self.center = SMOOTH * now + (1 - SMOOTH) * mean
            price, shares = self._rounded(self.center, target)
            found, trees = self._violating(price, shares, target, limit)
            if trees is not None and not found:
                self._prove(target, price, shares, trees)
                return True
            fresh = [(c, some) for c, some in found if self._add(c, some)]
            if run.stop():
                return None
            if self.nodes_left <= self.until:
                self.why = "too many sets"
                return None
            if fresh:
                outcome = self.relaxation.refine([self._row(c, some) for c, some in fresh])
                continue
            if found and (self.center == now).all():
                return None  # tolerances of the solver
            self.center = now
            limit *= 1 if found else MORE

    def _program(self, target: int) -> Program:
        """Prices, shares of accelerators, and for each CPU class a rate and what items are worth
        beyond it."""
        program = Program()
        most = float(sum(self.counts) + 1)
        for _ in range(self.n):
            program.column(most, cost=-1.0)
        for c in self.classes:
            is_first = c == self.classes[0]
            program.column(
                1.0 if is_first else self.n * most,
                lower=1.0 if is_first else 0.0,
                cost=float(self.counts[c]),
            )
        for c in self.cpus:
            count, work = float(self.counts[c]), self.whole.work[c]
            rate = program.column(self.n * most, cost=count)
            for v in np.flatnonzero(work < target).tolist():
                beyond = program.column(most, cost=count)
                program.row([v, rate, beyond], [1.0, -float(work[v]) / target, -1.0], "<", 0.0)
        program.rows += [
            self._row(c, s) for (c, _), (s, load) in self.sets.items() if load < target
        ]
        return program

    def _on_cpu(self, c: int, price: Floats, target: int) -> tuple[float, int]:
        """(The most that a CPU holds in fractions, the item whose price and time are the rate).

        -1: everything that fits by itself fits together.
        """
        work = self.whole.work[c]
        items = np.flatnonzero((work < target) & (price > 0))
        items = items[np.argsort(-price[items] / np.maximum(work[items], 0.5), kind="stable")]
        room, worth = float(target - 1), 0.0
        for v in items.tolist():
            if work[v] > room:
                return worth + float(price[v]) * room / float(work[v]), v
            room, worth = room - float(work[v]), worth + float(price[v])
        return worth, -1

    def _rounded(self, center: Floats, target: int) -> tuple[Floats, list[int]]:
        """Whole prices, and shares of all classes: of the divisors the one that proves most."""
        best: tuple[Floats, list[int]] = np.zeros(self.n), [0] * len(self.counts)
        best_ratio = -np.inf
        for divisor in DIVISORS:
            scaled = np.maximum(center, 0.0) * divisor
            price = np.floor(scaled[: self.n] + NEARLY)
            shares = [0] * len(self.counts)
            for place, c in enumerate(self.classes):
                shares[c] = int(scaled[self.n + place] * (1 + MARGIN) + NEARLY)
            for c in self.cpus:
                shares[c] = int(self._on_cpu(c, price, target)[0] * (1 + MARGIN) + MARGIN)
            first = self.classes[0]
            rest = int(price.sum()) - 1
            rest -= sum(self.counts[c] * shares[c] for c in range(len(shares)) if c != first)
            shares[first] = rest // self.counts[first]
            ratio = (shares[first] + 1) / divisor
            if ratio > best_ratio + MARGIN:
                best, best_ratio = (price, shares), ratio
        return best

    def _violating(
        self, price: Floats, shares: Sequence[int], target: int, limit: int
    ) -> tuple[list[tuple[int, Bools]], dict[int, PricedSets] | None]:
        """Sets of a load below the target that are worth more than the share of their class; and
        the trees that show that those are all, or None."""
        found: list[tuple[int, Bools]] = []
        trees: dict[int, PricedSets] | None = {}
        for c in self.classes:
            stop = self.relaxation.run.stop
            search = PricedSets(self.carriers[c], price, float(target - 1), shares[c], stop)
            ended = search.search(limit, KEPT)
            self.nodes_left -= len(search.nodes)
            found += [(c, some) for some in search.found]
            if not ended or trees is None:
                trees = None
            else:
                trees[c] = search
        return found, trees

    def _prove(
        self, target: int, price: Floats, shares: Sequence[int], trees: dict[int, PricedSets]
    ) -> None:
        names = self.whole.names
        classes = {}
        for c, device in enumerate(self.whole.devices):
            if c in trees:
                tree = trees[c].rows(names)
            else:
                v = self._on_cpu(c, price, target)[1]
                tree = [[0, 1] if v < 0 else [int(price[v]), int(self.whole.work[c][v])]]
            classes[device.name] = {"share": shares[c], "tree": tree}
        listed = [[int(names[v]), int(price[v])] for v in np.flatnonzero(price > 0)]
        self.proof = target, {"prices": listed, "classes": classes}

    def _add(self, c: int, some: Bools) -> bool:
        key = c, some.tobytes()
        if key in self.sets:
            return False
        self.sets[key] = some, self.carriers[c].load(some)
        return True

    def _row(self, c: int, some: Bools) -> Row:
        """The price of a set is at most the share of its class."""
        items = np.flatnonzero(some).tolist()
        share = self.n + self.classes.index(c)
        return [*items, share], [1.0] * len(items) + [-1.0], "<", 0.0
