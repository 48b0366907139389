"""A bound from a linear program about which items share a stage.

The rows of `bounds.same_block_lp` hold for every split, so its least T is a bound; most rows
are only added once a solution violates them. If the optimum is below a target, no stage holds two
items that cost a stage the target or more (`dnnp.core.bounds.pairs`): with their X at 0 the least T
may rise, and the smaller of it and the target is a bound. The target starts at the value of the
split that is known and comes down to where both meet.

The bound does not rest on the solver: any multipliers y >= 0 of the rows prove one. With the
reduced costs r = c - y A no point of the box l <= x <= u has an objective below y b + the sum of
min(l r, u r). Multipliers are rounded to whole numbers, and this sum is computed in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from dnnp.core.bounds.claim import FAILED, LIMIT, SOLVED, Claim, Known
from dnnp.core.bounds.pairs import cuts_of, pair_costs
from dnnp.core.bounds.path_closure import Between, between_of
from dnnp.core.bounds.quantised import Whole, one_class, refused
from dnnp.core.bounds.same_block_lp import PARTS, Named, Together
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import Floats, totals
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Outcome, Row
from dnnp.core.solver.relaxation import Relaxation

MOST_ITEMS = 250
MOST_COLUMNS = 100_000
"""Sizes of programs that a solver gets somewhere with."""

MOST_ROWS = 4_000
"""Rows that are added at a time."""

PATIENCE = 4
"""Solves without progress after which a program is as good as solved."""

PROGRESS = 2e-5
"""Relative growth of the bound that counts as progress."""

IDLE = 3
"""Solves for which a row may be loose before it is taken out."""

LOOSE = 1e-2
"""By how much a row must hold to be loose."""

STEP = 0.5
"""Where the next target lies between bound and target."""

SCALE = 1 << 40
"""Multipliers of rows of loads are counted in parts of 1 / SCALE."""


def same_block_claim(problem: SplitProblem, known: Known, run: Run = PLAIN) -> Claim:
    """The bound with a certificate.

    For accelerators of one class without replicas.

    Raises
    ------
    UnavailableError
        The solver is not installed.
    """
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS, comms=tuple(PARTS))
    if isinstance(whole, Claim):
        return whole
    program = Together(whole.work[0], whole.nets(0), whole.stages, PARTS[problem.options.comm])
    if program.columns > MOST_COLUMNS:
        return refused(f"a program of more than {MOST_COLUMNS} columns")
    between = between_of(problem.graph, whole.items, known.validity)
    with solver_process() as process:
        relaxation = Relaxation(process, known.solver, run)
        search = _PairSearch(program, whole, between, known.value, relaxation)
        search.run()
    return search.claim()


@dataclass
class _Added:
    """A row of the program."""

    name: Named
    row: Row
    idle: int = 0
    """Solves since it was tight."""

    @property
    def useless(self) -> bool:
        """Whether it may be forgotten."""
        return self.idle >= IDLE and not is_of_loads(self.name)


class _PairSearch:
    """Solve, add rows, lower the target."""

    def __init__(
        self,
        program: Together,
        whole: Whole,
        between: Between,
        value: float,
        relaxation: Relaxation,
    ) -> None:
        self.program, self.whole, self.between = program, whole, between
        self.relaxation = relaxation
        everything = sum(program.work) + sum(
            c * len(p) for c, p in zip(program.cost, program.pins, strict=True)
        )
        known = int(value / whole.quantum) if isfinite(value) else everything
        self.target = min(known, everything)
        """Quanta."""
        self.reference = float(max(self.target, 1))
        self.costs: Floats = np.zeros((program.n, program.n))
        if program.parts == PARTS["sum"]:
            self.costs = pair_costs(
                whole.work[0],
                whole.nets(0),
                between,
                enough=float(self.target),
                run=relaxation.run,
            )
        self.closed = np.zeros((program.n, program.n), dtype=np.bool_)
        self.rows: list[_Added] = []
        self.last: tuple[list[Named], tuple[float, ...]] = ([], ())
        """Rows and their duals after the last solve."""

    def run(self) -> None:
        """Until target and bound meet, or nothing more is to be had."""
        first, names = self.program.program(self.reference)
        self.rows = [_Added(name, row) for name, row in zip(names, first.rows, strict=True)]
        for column in self._close():
            first.upper[column] = 0.0
        self._take(self.relaxation.begin(first))
        while self.relaxation.solved:
            low = self._converge()
            if low >= self.target - 1 or not self.relaxation.solved:
                break
            self.target -= max(int((self.target - low) * STEP), 1)
            closing = self._close()
            if not closing:
                continue
            self._take(self.relaxation.refine([], closing))
            if self.relaxation.solved and self._bound() <= low * (1 + PROGRESS):
                break

    def claim(self) -> Claim:
        """What the multipliers of the last solve prove."""
        failure = self.relaxation.failure
        status = FAILED if failure else SOLVED if self.relaxation.solved else LIMIT
        names, duals = self.last
        rows = multipliers(self.program, names, duals, self.reference)
        bound, pairs = proven(self.program, rows, self.closed)
        units = min(bound, self.target)
        if units <= 0:
            return Claim(0.0, status, failure)
        cuts = cuts_of(self.whole, self.between, self.costs, self.target, pairs)
        claim = self.whole.claim("same-block", units, self._proof(rows, cuts))
        return replace(claim, status=status, reason=failure)

    def _converge(self) -> float:
        """Add rows until there is none that is violated, or no progress; the bound in quanta."""
        low, waiting = self._bound(), 0
        while waiting < PATIENCE and low < self.target:
            solution = self.relaxation.outcome.values or ()
            known = {added.name for added in self.rows}
            names = self.program.violated(solution, self.between, MOST_ROWS)
            rows = [(n, self.program.row(n, self.reference)) for n in names if n not in known]
            if not rows:
                break
            dropped = [i for i, added in enumerate(self.rows) if added.useless]
            self.rows = [added for added in self.rows if not added.useless]
            self.rows += [_Added(name, row) for name, row in rows]
            self._take(self.relaxation.refine([row for _, row in rows], dropped=dropped))
            if not self.relaxation.solved:
                break
            bound = self._bound()
            waiting = 0 if bound > low * (1 + PROGRESS) else waiting + 1
            low = max(low, bound)
            run = self.relaxation.run
            run.tell(f"{len(self.rows)} rows: bound {run.shown(low * self.whole.quantum)}")
        return low

    def _bound(self) -> float:
        """Least T, quanta, as far as the solver's tolerances go."""
        return self.relaxation.outcome.bound * self.reference

    def _take(self, outcome: Outcome) -> None:
        """Keep what a solve gave."""
        if outcome.status != "optimal" or outcome.duals is None:
            return
        self.last = [added.name for added in self.rows], outcome.duals
        slack = slacks([added.row for added in self.rows], outcome.values or ())
        for added, loose in zip(self.rows, (slack >= LOOSE).tolist(), strict=True):
            added.idle = added.idle + 1 if loose else 0

    def _close(self) -> list[int]:
        """Columns of the pairs that have become too expensive for one stage."""
        new = (self.costs >= self.target) & ~self.closed
        self.closed |= new
        return self.program.pair[np.triu(new, 1)].tolist()

    def _proof(
        self, rows: Sequence[tuple[Named, int]], cuts: dict[tuple[int, int], dict[str, Any]]
    ) -> dict[str, Any]:
        """The certificate."""
        item, tensor = self.whole.names.tolist(), self.whole.tensors[self.program.first].tolist()
        named = []
        for (kind, numbers), y in rows:
            first, *rest = numbers
            if kind == "total":
                about = [first]
            elif kind == "stage":
                about = [first, *(item[v] for v in rest)]
            elif kind in ("cut", "inside", "paid"):
                about = [tensor[first], *(item[v] for v in rest)]
            else:
                about = [item[v] for v in numbers]
            named.append([kind, about, y])
        return {
            "target": self.target,
            "scale": SCALE,
            "rows": named,
            "cuts": [
                {"items": [item[u], item[v]], **proof} for (u, v), proof in sorted(cuts.items())
            ],
        }


def is_of_loads(name: Named) -> bool:
    """Whether a row is about loads."""
    return name[0] in ("total", "stage")


def slacks(rows: Sequence[Row], values: Sequence[float]) -> Floats:
    """By how much a solution is above the least that each row asks for; f64[rows]."""
    solution = np.array(values)
    columns = np.array([c for row in rows for c in row[0]], dtype=np.int64)
    weights = np.array([w for row in rows for w in row[1]])
    number = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    return totals(number, weights * solution[columns], len(rows)) - [row[3] for row in rows]


def multipliers(
    program: Together, names: Sequence[Named], duals: Sequence[float], reference: float
) -> list[tuple[Named, int]]:
    """Multipliers of rows in whole numbers, in parts of 1 / SCALE of T."""
    rows = []
    for name, dual in zip(names, duals, strict=True):
        scale = SCALE if is_of_loads(name) else SCALE * reference
        y = int(dual * scale) if dual > 0 else 0
        if y:
            rows.append((name, y))
    loads = sum(y * program.terms(name).weights[0] for name, y in rows if is_of_loads(name))
    if loads > SCALE:
        rows = [(name, y * SCALE // loads) for name, y in rows]
    return [(name, y) for name, y in rows if y]


def proven(
    program: Together, rows: Sequence[tuple[Named, int]], closed: np.ndarray
) -> tuple[int, set[tuple[int, int]]]:
    """The bound that multipliers prove, quanta; and the closed pairs that this needs."""
    total = 0
    reduced: dict[int, int] = {}
    for name, y in rows:
        columns, weights, least, _ = program.terms(name)
        total += y * least
        for column, weight in zip(columns, weights, strict=True):
            reduced[column] = reduced.get(column, 0) - y * weight
    most = {int(c): len(p) for c, p in zip(program.paid, program.pins, strict=True)}
    for u, v in np.argwhere(np.triu(closed, 1)).tolist():
        most[int(program.pair[u, v])] = 0
    used = set()
    for column, rest in reduced.items():
        if column and rest < 0:
            total += rest * most.get(column, 1)
            if most.get(column) == 0:
                used.add(column)
    pairs = {
        (u, v) for u, v in np.argwhere(np.triu(closed, 1)).tolist() if program.pair[u, v] in used
    }
    return total // SCALE, pairs
