"""Bounds by column generation: how many stages of a small load it takes to hold all items.

Let items have prices p >= 0. If no set of items that could be a stage with a load below a target
is worth more than a share t(c) on a device of class c, the devices hold prices of at most the sum
of their shares; if all prices together are more, no split has a largest load below the target.

The best prices are the duals of covering all items with such sets, in fractions, no more sets of a
class than devices. Sets, the columns of that program, are generated: prices that satisfy the sets
known so far come from a linear program, and a search (`pricing.py`) finds a set that violates them,
or proves that there is none. The bound does not rest on the linear program.

`cover`
    One class of accelerators, where the share is 1. Sets hold whatever lies between their items.
    Far stronger than other relaxations where stages hold a few items each; the search takes
    exponential time where they hold many.
`cover-cut`
    Any classes; says nothing of order, so the bound holds for every validity. Sets are found by
    minimum cuts. What a CPU holds is a knapsack without nets, of which the program knows the
    relaxation: for any rate r it is worth at most

        r * room + sum of max(p - r * time, 0) over the items that fit by themselves.

    The prices of the program are fractions. Rounded down to multiples of 1 / d they prove as much
    or more for some small d, because what a set is worth is a multiple, too: five like items on two
    devices, each of which has room for 2.4 of them, are worth 5 > 2 + 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
    one_class,
    refused,
    whole_of,
)
from dnnp.core.bounds.pairs import between_of, pair_costs
from dnnp.core.bounds.pricing import (
    Aim,
    Carrier,
    FoundSets,
    PricedSets,
    best_sets,
    carrier_of,
    item_sets,
)
from dnnp.core.bounds.same_block import merged
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import plain, scratch
from dnnp.core.model.graph import Bools, Floats, Graph
from dnnp.core.model.plan import Block
from dnnp.core.model.processes import search_threads
from dnnp.core.model.search_context import PLAIN, SearchContext, narrowed
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Program, Row
from dnnp.core.solver.slices import Relaxation

SMOOTH = 0.3
"""Weight of the newest prices against a mean of the earlier ones, which swing less."""

PRECISION = 3e-4
"""Relative width of the interval of targets at which the search ends."""

MORE = 4
"""Factor of the steps, or nodes, that a search for sets may take once none is found."""


class _ColumnGeneration:
    """Sets that are known, and what was proven with prices."""

    def __init__(self, whole: Whole, known: BoundTask, relaxation: Relaxation) -> None:
        self.whole, self.n, self.relaxation = whole, whole.items.count, relaxation
        self.target = int(known.value / whole.quantum)
        """Quanta: the value of the split that is known."""
        self.sets: dict[tuple[int, bytes], tuple[Bools, float]] = {}
        """Sets by class and items, each with its load in quanta."""
        self.center: Floats | None = None
        """Smoothed prices, and shares of accelerators but the first."""
        self.proof: tuple[int, dict[str, Any]] = (0, {})
        self.why = ""
        """The reason why it ended early, if not by the run."""

    def claim(self, argument: str) -> LowerBound:
        """Claim what was proven."""
        failure = self.relaxation.failure
        limited = self.why or self.relaxation.run.stop()
        status = FAILED if failure else LIMIT if limited else SOLVED
        units, proof = self.proof
        if not units:
            return LowerBound(0.0, status, failure or self.why)
        return self.whole.claim(argument, units, proof, status, reason=failure or self.why)

    def smoothed(self, prices: Floats) -> Floats:
        """Mean of the newest prices and those before."""
        mean = prices if self.center is None else self.center
        self.center = SMOOTH * prices + (1 - SMOOTH) * mean
        return self.center

    def add(self, c: int, some: Bools) -> bool:
        """Add a set of a class; false if it is known."""
        key = c, some.tobytes()
        if key in self.sets:
            return False
        self.sets[key] = some, self.load(c, some)
        return True

    def load(self, c: int, some: Bools) -> float:
        """Load of a set on a class, quanta."""
        raise NotImplementedError

    def report(self, target: int) -> None:
        """Report a target that was proven."""
        run, bound = self.relaxation.run, target * self.whole.quantum
        run.log(f"{len(self.sets)} sets: bound {run.shown(bound)}")
        run.report_progress(bound=bound)

    def listed(self, prices: Floats) -> list[list[int]]:
        """Prices above 0 in a certificate."""
        names = self.whole.names
        return [[int(names[v]), int(prices[v])] for v in np.flatnonzero(prices > 0)]


MOST_ITEMS = 300
"""Items of `cover`: sets between two items take n^3 bits, and each level of the search n^2."""

UNIT = float(1 << 30)
"""Prices are whole numbers: that of a set that is just allowed."""

FIRST_STEPS, MOST_STEPS = 1_000, 100_000_000
"""Steps that the search from one item may take at first, and at most."""

KEPT = 6
"""Sets that each search may add: the most valuable ones, which it meets last."""

STEP, LARGE, LARGE_STEP = 0.4, 80, 0.2
"""Place of the next target between what is proven and what is not; and of more than `LARGE`
items, where the search for sets takes ever longer the higher the target."""

POLL_S = 0.02
"""Seconds between questions whether to stop."""


def cover_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor.

    For accelerators of one class under `sum` without replicas, and where a split is known.
    Raises UnavailableError: the solver is not installed.
    """
    if not isfinite(known.value):
        return refused("no split is known")
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS)
    if isinstance(whole, LowerBound):
        return whole
    with solver_process() as process:
        search = _Cover(problem.graph, whole, known, Relaxation(process, known.solver, run))
        search.begin(known.blocks or ())
        search.run(known.floor)
    return search.claim("cover")


class _Cover(_ColumnGeneration):
    """Sets on one class that hold all that lies between their items."""

    def __init__(
        self, graph: Graph, whole: Whole, known: BoundTask, relaxation: Relaxation
    ) -> None:
        super().__init__(whole, known, relaxation)
        self.k = whole.stages
        self.nets, self.cost, _ = merged(whole.nets, whole.cost[0])
        between = between_of(graph, whole.items, known.validity)
        pairs = pair_costs(
            whole.work[0],
            self.nets,
            self.cost,
            between,
            enough=float(self.target),
            run=relaxation.run,
        )
        self.items = item_sets(whole.work[0], self.nets, self.cost, between, pairs)
        self.limit = FIRST_STEPS
        """Steps that a search from one item takes now."""

    def begin(self, blocks: Sequence[Block]) -> None:
        """Sets to start from: stages that are known, and intervals of an order."""
        label, order = self.whole.items.label, self.whole.items.order
        for block in blocks:
            self.add(0, np.isin(np.arange(self.n), label[block.nodes]))
        for first in range(self.n):
            some = np.zeros(self.n, dtype=np.bool_)
            best = None
            for v in order[first:].tolist():
                some[v] = True
                if self.load(0, some) < self.target:
                    best = some.copy()
                elif float(self.items.work[some].sum()) >= self.target:
                    break
            if best is not None:
                self.add(0, best)

    def run(self, floor: float) -> None:
        """Raise the target that is proven until it meets one that is not."""
        proven, open_from = int(floor / self.whole.quantum), self.target
        least = max(PRECISION * self.target, 1)
        step = STEP if self.n <= LARGE else LARGE_STEP
        first = open_from - proven
        while open_from - proven > least and not self.relaxation.run.stop():
            share = narrowed(first, open_from - proven, least)
            self.relaxation.run.report_progress(share=share)
            target = proven + max(int((open_from - proven) * step), 1)
            answer = self._decide(target)
            if answer is None:
                return
            if answer:
                proven = target
                self.report(target)
            else:
                open_from = target
        # Loads are often equal to the optimum or clearly above it.
        if open_from == self.target and not self.relaxation.run.stop():
            self._decide(self.target)

    def load(self, c: int, some: Bools) -> float:
        """Load of a set, quanta."""
        return float(self.items.work[some].sum() + self.cost[self.nets.paid(some)].sum())

    def _decide(self, target: int) -> bool | None:
        """True if no split has a largest load below a target; None if that is not known.

        False: k sets cover all items in fractions.
        """
        program = Program()
        for _ in range(self.n):
            program.column(self.k + 1.0, cost=-1.0)
        program.rows = [_row(s) for s, load in self.sets.values() if load < target]
        outcome = self.relaxation.begin(program)
        self.limit = limit = max(self.limit // MORE, FIRST_STEPS)
        while True:
            if outcome.status != "optimal":
                return None
            prices = np.array(outcome.values)
            if prices.sum() <= self.k * (1 + MARGIN):
                return False
            whole = np.floor(np.maximum(self.smoothed(prices), 0.0) * UNIT)
            least = (int(whole.sum()) - 1) // self.k
            new, complete = self._violating(whole, target, least, limit)
            if complete and not new:
                self.proof = target, {"prices": self.listed(whole)}
                return True
            fresh = [s for s in new if self.add(0, s)]
            if self.relaxation.run.stop():
                return None
            if fresh:
                outcome = self.relaxation.refine([_row(s) for s in fresh])
                continue
            self.center = prices
            if not new:
                self.limit = limit = limit * MORE
                if limit > MOST_STEPS:
                    return None

    def _violating(
        self, prices: Floats, target: int, least: int, limit: int
    ) -> tuple[list[Bools], bool]:
        """Sets of a load below the target and a price above `least`; whether that is all."""
        roots = np.argsort(-prices / np.maximum(self.items.work, 1.0), kind="stable")
        found = scratch(FoundSets, {"n": self.n, "rows": self.n * KEPT})
        halt = np.zeros(1, dtype=np.bool_)
        price, order = plain(prices, roots)
        aim = Aim(price, float(target), float(least), order)
        threads = search_threads()

        def search(thread: int) -> None:
            best_sets(self.items, aim, thread, threads, limit, halt, found)

        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(search, thread) for thread in range(threads)]
            for job in jobs:
                while not job.done():
                    try:
                        job.result(POLL_S)
                    except TimeoutError:
                        halt[0] = self.relaxation.run.stop()
            for job in jobs:
                job.result()
        return [some for some in found.sets if some.any()], bool(found.ended.all())


def _row(some: Bools) -> Row:
    """The price of a set is at most 1."""
    items = np.flatnonzero(some).tolist()
    return items, [1.0] * len(items), "<", 1.0


MOST_CUT_ITEMS = 2_000
"""Items of `cover-cut`."""

DIVISORS = (*range(1, 65), 96, 128, 192, 256, 1024, 1 << 20, 1 << 30)
"""Prices are multiples of one over these numbers."""

NEARLY = 1e-6
"""Tolerance for whole prices, by the tolerances of solvers."""

FIRST_NODES = 200
"""Nodes of the first search for sets."""

MOST_WORK = 60_000_000
"""Nodes times items and pins, at effort 1."""

LEFT, FEWEST = 0.25, 400
"""Share of the nodes that is left after a target, and nodes with which one is still tried."""

KEPT_CUTS = 8
"""Sets that one search may find."""


def cover_cut_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor.

    For accelerators under `sum` without replicas, with or without CPUs, where a split is known.
    Raises UnavailableError: the solver is not installed.
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
    if whole.items.count > MOST_CUT_ITEMS:
        return refused(f"more than {MOST_CUT_ITEMS} items")
    if not np.isfinite(whole.work.min(axis=0)).all():
        return refused("a unit runs on no device that is offered")
    with solver_process() as process:
        search = _CoverCut(whole, known, Relaxation(process, known.solver, run))
        search.begin(known.blocks or ())
        search.run(known.floor)
    return search.claim("cover-cut")


class _CoverCut(_ColumnGeneration):
    """Sets on any class, by minimum cuts."""

    def __init__(self, whole: Whole, known: BoundTask, relaxation: Relaxation) -> None:
        super().__init__(whole, known, relaxation)
        self.counts = [min(d.count, self.n) for d in whole.devices]
        self.cpus = [c for c, d in enumerate(whole.devices) if d.is_cpu]
        self.classes = [c for c in range(len(whole.devices)) if c not in self.cpus]
        """Classes of accelerators; the shares of others are in terms of that of the first."""
        self.carriers: dict[int, Carrier] = {
            c: carrier_of(whole.work[c], *merged(whole.nets, whole.cost[c])[:2])
            for c in self.classes
        }
        run = relaxation.run
        self.nodes_left = int(MOST_WORK * run.effort / (self.n + len(whole.nets.pins)))
        self.nodes, self.seen = max(self.nodes_left, 1), 0
        self.until = 0
        """Nodes that are to be left after the target that is tried."""

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
                self.add(c, some)
                largest = max(largest, self.load(c, some))
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
                proven = target
                self.report(target)
            elif self.relaxation.failure or run.stop():
                return
            else:
                open_from = min(target, open_from - 1)
            if open_from - proven <= PRECISION * self.target or self.nodes_left < FEWEST:
                return
            target = (proven + open_from) // 2

    def load(self, c: int, some: Bools) -> float:
        """Load of a set on a class, quanta."""
        return self.carriers[c].load(some)

    def _decide(self, target: int) -> bool | None:
        """True if no split has a largest load below a target; None if that is not known.

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
            center = self.smoothed(now)
            price, shares = self._rounded(center, target)
            found, trees = self._violating(price, shares, target, limit)
            if trees is not None and not found:
                self._prove(target, price, shares, trees)
                return True
            fresh = [(c, some) for c, some in found if self.add(c, some)]
            if run.stop():
                return None
            if self.nodes_left <= self.until:
                self.why = "too many sets"
                return None
            if fresh:
                outcome = self.relaxation.refine([self._row(c, some) for c, some in fresh])
                continue
            if found and (center == now).all():
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
        """(Largest price that a CPU holds in fractions, item with the price and time of the rate).

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
            room = float(target - 1)
            search = PricedSets(self.carriers[c], price, room, shares[c], self._stop)
            ended = search.search(limit, KEPT_CUTS)
            self.nodes_left -= len(search.nodes)
            found += [(c, some) for some in search.found]
            if not ended or trees is None:
                trees = None
            else:
                trees[c] = search
        return found, trees

    def _stop(self) -> bool:
        """True if to stop; asked at each node of a search, which then gets two more."""
        self.seen += 2
        self.relaxation.run.report_progress(share=min(self.seen / self.nodes, 1.0))
        return self.relaxation.run.stop()

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
        self.proof = target, {"prices": self.listed(price), "classes": classes}

    def _row(self, c: int, some: Bools) -> Row:
        """The price of a set is at most the share of its class."""
        items = np.flatnonzero(some).tolist()
        share = self.n + self.classes.index(c)
        return [*items, share], [1.0] * len(items) + [-1.0], "<", 0.0
