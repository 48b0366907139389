"""A bound from covers: how many stages of a small load it takes to hold all items.

Let items have prices p >= 0. If no set of items that could be a stage with a load below a target
has a price above t, then k such stages hold prices of at most k t; if all prices together are more,
no split has a largest load below the target. The best prices are the duals of covering the items
with the fewest such sets, in fractions. They are found by generating sets: prices that satisfy the
sets known so far come from a linear program, and `dnnp.core.bounds.pricing` looks for a set that
violates them, or proves that there is none. The bound does not rest on the linear program.

Far stronger than other relaxations where stages hold a few items each; the search for sets takes
exponential time where they hold many.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from dnnp.core.bounds.claim import FAILED, LIMIT, SOLVED, Claim, Known
from dnnp.core.bounds.pairs import pair_costs
from dnnp.core.bounds.path_closure import between_of
from dnnp.core.bounds.pricing import Aim, Field, FoundSets, best_sets, field_of
from dnnp.core.bounds.quantised import Whole, one_class, refused
from dnnp.core.bounds.same_block_lp import merged
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import plain
from dnnp.core.model.graph import Bools, Floats, Graph
from dnnp.core.model.plan import Block
from dnnp.core.model.processes import search_threads
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Program, Row
from dnnp.core.solver.relaxation import Relaxation

MOST_ITEMS = 300
"""What lies between two items takes n^3 bits, and each level of the search n^2."""

UNIT = float(1 << 30)
"""Prices are whole numbers: that of a set that is just allowed."""

FIRST_STEPS = 3_000
"""Steps that the search from one item may take at first; more once nothing is found."""

MORE = 4
"""How many times more steps are allowed then."""

MOST_STEPS = 100_000_000
"""Steps from one item at most."""

SMOOTH = 0.3
"""Weight of the newest prices against a mean of the earlier ones, which swing less."""

KEPT = 6
"""Sets that each search may add: the most valuable ones, which it meets last."""

STEP = 0.4
"""Where the next target lies between what is proven and what is not."""

PRECISION = 3e-4
"""Relative width of that interval at which the search for a target ends."""

POLL_S = 0.02
"""How often to ask whether to stop while a search runs."""


def cover_claim(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound with a certificate; 0 if it is not above the floor.

    For accelerators of one class under `sum` without replicas, and where a split is known.

    Raises
    ------
    UnavailableError
        The solver is not installed.
    """
    if not isfinite(known.value):
        return refused("no split is known")
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS)
    if isinstance(whole, Claim):
        return whole
    with solver_process() as process:
        search = _CoverSearch(problem.graph, whole, known, Relaxation(process, known.solver, run))
        search.begin(known.blocks or ())
        search.run(known.floor)
    return search.claim()


class _CoverSearch:
    """Sets that are known, and what was proven with prices."""

    def __init__(self, graph: Graph, whole: Whole, known: Known, relaxation: Relaxation) -> None:
        self.whole, self.k, self.n = whole, whole.stages, whole.items.count
        self.relaxation = relaxation
        self.target = int(known.value / whole.quantum)
        """Quanta: the value of the split that is known."""
        self.nets = merged(whole.nets(0))[0]
        between = between_of(graph, whole.items, known.validity)
        pairs = pair_costs(
            whole.work[0],
            self.nets,
            between,
            enough=float(self.target),
            run=relaxation.run,
        )
        self.field = Field(*plain(*field_of(whole.work[0], self.nets, between, pairs)))
        self.sets: dict[bytes, tuple[Bools, float]] = {}
        """Sets by their bytes, each with its load in quanta."""
        self.center: Floats | None = None
        """Smoothed prices."""
        self.proof: tuple[int, dict[str, Any]] = (0, {})
        self.searched = 0
        """Steps of the last search."""

    def begin(self, blocks: Sequence[Block]) -> None:
        """Sets to start from: stages that are known, and intervals of an order."""
        label, order = self.whole.items.label, self.whole.items.order
        for block in blocks:
            self._add(np.isin(np.arange(self.n), label[block.nodes]))
        for first in range(self.n):
            some = np.zeros(self.n, dtype=np.bool_)
            best = None
            for v in order[first:].tolist():
                some[v] = True
                load = self._load(some)
                if load < self.target:
                    best = some.copy()
                elif float(self.field.work[some].sum()) >= self.target:
                    break
            if best is not None:
                self._add(best)

    def run(self, floor: float) -> None:
        """Raise the target that is proven until it meets one that is not."""
        proven, open_from = int(floor / self.whole.quantum), self.target
        least = max(PRECISION * self.target, 1)
        while open_from - proven > least and not self.relaxation.run.stop():
            target = proven + max(int((open_from - proven) * STEP), 1)
            answer, reached = self._decide(target)
            if answer is None:
                return
            if answer:
                proven = target
                run, bound = self.relaxation.run, target * self.whole.quantum
                run.tell(f"{len(self.sets)} sets: bound {run.shown(bound)}")
                run.stands(bound=bound)
            else:
                open_from = min(reached, target)
        # Loads are often equal to the optimum or clearly above it.
        if open_from == self.target and not self.relaxation.run.stop():
            self._decide(self.target)

    def claim(self) -> Claim:
        """What was proven."""
        failure = self.relaxation.failure
        status = FAILED if failure else LIMIT if self.relaxation.run.stop() else SOLVED
        units, proof = self.proof
        if not units:
            return Claim(0.0, status, failure)
        return replace(self.whole.claim("cover", units, proof), status=status, reason=failure)

    def _decide(self, target: int) -> tuple[bool | None, int]:
        """Whether no split has a largest load below a target; None if that is not known.

        False: k sets cover all items in fractions, the largest of them with the load that comes
        with the answer.
        """
        used = [s for s, load in self.sets.values() if load < target]
        program = Program()
        for _ in range(self.n):
            program.column(self.k + 1.0, cost=-1.0)
        program.rows = [_row(s) for s in used]
        outcome = self.relaxation.begin(program)
        limit = FIRST_STEPS
        while True:
            if outcome.status != "optimal":
                return None, target
            prices = np.array(outcome.values)
            if prices.sum() <= self.k * (1 + MARGIN):
                return False, target
            mean = prices if self.center is None else self.center
            self.center = SMOOTH * prices + (1 - SMOOTH) * mean
            whole = np.floor(np.maximum(self.center, 0.0) * UNIT)
            least = (int(whole.sum()) - 1) // self.k
            new, complete = self._violating(whole, target, least, limit)
            if complete and not new:
                self._prove(target, whole)
                return True, target
            fresh = [s for s in new if self._add(s)]
            if self.relaxation.run.stop():
                return None, target
            if not fresh:
                self.center = prices
                if not new:
                    limit *= MORE
                    if limit > MOST_STEPS:
                        return None, target
                continue
            rows = [_row(s) for s in fresh]
            outcome = self.relaxation.refine(rows)

    def _violating(
        self, prices: Floats, target: int, least: int, limit: int
    ) -> tuple[list[Bools], bool]:
        """Sets of a load below the target and a price above `least`; whether that is all."""
        roots = np.argsort(-prices / np.maximum(self.field.work, 1.0), kind="stable")
        found = FoundSets(
            np.zeros((self.n * KEPT, self.n), dtype=np.bool_),
            np.zeros(self.n, dtype=np.int64),
            np.zeros(self.n, dtype=np.bool_),
        )
        halt = np.zeros(1, dtype=np.bool_)
        price, order = plain(prices, roots)
        aim = Aim(price, float(target), float(least), order)
        threads = search_threads()

        def search(thread: int) -> int:
            return int(best_sets(self.field, aim, thread, threads, limit, halt, found))

        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(search, thread) for thread in range(threads)]
            for job in jobs:
                while not job.done():
                    try:
                        job.result(POLL_S)
                    except TimeoutError:
                        halt[0] = self.relaxation.run.stop()
            self.searched = sum(job.result() for job in jobs)
        return [some for some in found.sets if some.any()], bool(found.ended.all())

    def _prove(self, target: int, prices: Floats) -> None:
        names = self.whole.names.tolist()
        listed = [[names[v], int(p)] for v, p in enumerate(prices.tolist()) if p > 0]
        self.proof = target, {"prices": listed, "searched": self.searched}

    def _add(self, some: Bools) -> bool:
        key = some.tobytes()
        if key in self.sets:
            return False
        self.sets[key] = some, self._load(some)
        return True

    def _load(self, some: Bools) -> float:
        """Load of a set, quanta."""
        nets = self.nets
        inside = np.add.reduceat(some[nets.pins].astype(np.int64), nets.ptr[:-1])
        cut = (inside > 0) & ((inside < np.diff(nets.ptr)) | nets.always)
        return float(self.field.work[some].sum() + nets.cost[cut].sum())


def _row(some: Bools) -> Row:
    """The price of a set is at most 1."""
    items = np.flatnonzero(some).tolist()
    return items, [1.0] * len(items), "<", 1.0
