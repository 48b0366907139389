"""A bound from a linear program about which items share a stage.

Columns: T, the largest load; X[u, v], whether items u and v share a stage; P[e], by how many stages
net e is paid; Y[e, v], whether the stage of v pays for it. For any split these rows hold:

`total`     k T is at least all work and all that is paid
`stage`     T is at least the work and the cuts of the stage of v
`cut`       Y[e, v] >= X[a, v] - X[b, v] for pins a and b of e: a is inside and b is outside
`inside`    Y[e, v] >= X[a, v] for a net that is always paid
`paid`      P[e] >= 2 - 2 X[a, b]; and for three or more of its pins, any two of which are taken
            as Q, P[e] >= |Q| - sum of X over pairs in Q. Stages that hold q of the pins have
            q (q - 1) / 2 such pairs, which is at least q - 1; if one holds all, at least |Q|.
            Where the net is always paid, from one pin on.
`between`   X[u, w] >= X[u, v] for w on a path between u and v
`triangle`  X[u, w] >= X[u, v] + X[v, w] - 1

Loads combine in parts: (t, a, b) says that t T is at least a times work and b times transfers.

Most rows are only added once a solution violates them. If the optimum is below a target, no stage
holds two items that cost a stage the target or more (`dnnp.core.bounds.pairs`): with their X at 0
the least T may rise, and the smaller of it and the target is a bound. The target starts at the
value of the split that is known and comes down to where both meet.

The bound does not rest on the solver: any multipliers y >= 0 of the rows prove one. With the
reduced costs r = c - y A no point of the box l <= x <= u has an objective below y b + the sum of
min(l r, u r). Multipliers are rounded to whole numbers, and this sum is computed in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

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
)
from dnnp.core.bounds.pairs import Between, between_of, cuts_of, pair_costs
from dnnp.core.cost.items import same_nets
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Floats, Ints, csr_lists, totals
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Outcome, Program, Row
from dnnp.core.solver.slices import Relaxation

PARTS = {
    "sum": ((1, 1, 1),),
    "overlap": ((1, 1, 0), (1, 0, 1)),
    "duplex": ((1, 1, 0), (2, 0, 1)),  # the larger of both directions is at least their mean
}

EPSILON = 1e-4
"""Violation from which a row is added."""

FEWEST_PINS = 2
"""Fewest pins of a net that can be cut."""

Named = tuple[str, tuple[int, ...]]
"""A row: its kind, and the numbers of what it is about."""


class Terms(NamedTuple):
    """Sum of weight * column >= least, in whole numbers."""

    columns: list[int]
    weights: list[int]
    least: int
    loads: bool
    """True: it is a row of loads, in quanta."""


class Together:
    """The program of one problem.

    Parameters
    ----------
    work
        f64[n], whole numbers.
    nets, cost
        Tensors, f64[p]; those with the same pins are added up.
    k
        Devices.
    parts
        How loads combine.
    """

    def __init__(
        self,
        work: Floats,
        nets: Hypergraph,
        cost: Floats,
        k: int,
        parts: Sequence[tuple[int, int, int]],
    ) -> None:
        self.n, self.k, self.parts = len(work), k, parts
        self.work = [int(w) for w in work.tolist()]
        self.nets, costs, self.first = merged(nets, cost)
        self.pins = csr_lists(self.nets.net_ptr, self.nets.pins)
        self.cost = [int(c) for c in costs.tolist()]
        upper = np.triu_indices(self.n, 1)
        self.pair = np.full((self.n, self.n), -1, dtype=np.int64)
        self.pair[upper] = 1 + np.arange(len(upper[0]))
        self.pair = np.maximum(self.pair, self.pair.T)
        self.paid = 1 + len(upper[0]) + np.arange(len(self.cost))
        start = 1 + len(upper[0]) + len(self.cost)
        self.cut = start + np.arange(len(self.cost) * self.n).reshape(len(self.cost), self.n)
        self.columns = start + self.cut.size

    def program(self, reference: float) -> tuple[Program, list[Named]]:
        """The program to start from, and its rows by name."""
        program = Program()
        program.column(float("inf"), cost=1.0)
        for _ in range(self.paid[0] - 1 if len(self.paid) else self.columns - 1):
            program.column()
        for pins in self.pins:
            program.column(float(len(pins)))
        for _ in range(self.cut.size):
            program.column()
        names: list[Named] = []
        for part in range(len(self.parts)):
            names.append(("total", (part,)))
            names += [("stage", (part, v)) for v in range(self.n)]
        for e, pins in enumerate(self.pins):
            if self.nets.always[e]:
                names += [("inside", (e, v, v)) for v in pins]
                names.append(("paid", (e, pins[0])))
                continue
            names += [("cut", (e, v, v, b)) for v in pins for b in pins if b != v]
            names += [("paid", (e, a, b)) for i, a in enumerate(pins) for b in pins[i + 1 :]]
        program.rows = [self.row(name, reference) for name in names]
        return program, names

    def row(self, name: Named, reference: float) -> Row:
        """A row for the solver, with T in units of `reference` quanta."""
        terms = self.terms(name)
        scale = 1.0 / reference if terms.loads else 1.0
        weights = [w * (scale if c else 1.0) for c, w in zip(*terms[:2], strict=True)]
        return terms.columns, weights, ">", terms.least * scale

    def terms(self, name: Named) -> Terms:
        """A row in whole numbers."""
        kind, numbers = name
        if kind == "total":
            loads, compute, moved = self.parts[numbers[0]]
            paid = self.paid.tolist() if moved else []
            weights = [-moved * c for c in self.cost] if moved else []
            return Terms([0, *paid], [loads * self.k, *weights], compute * sum(self.work), True)
        if kind == "stage":
            part, v = numbers
            loads, compute, moved = self.parts[part]
            columns, weights, least = [0], [loads], compute * self.work[v]
            if compute:
                others = [u for u in range(self.n) if u != v and self.work[u]]
                columns += [int(self.pair[u, v]) for u in others]
                weights += [-compute * self.work[u] for u in others]
            if moved:
                columns += self.cut[:, v].tolist()
                weights += [-moved * c for c in self.cost]
            return Terms(columns, weights, least, True)
        return self._unit_terms(kind, numbers)

    def _unit_terms(self, kind: str, numbers: tuple[int, ...]) -> Terms:
        """A row without loads."""
        columns, weights, least = [], [], 0
        pairs: list[tuple[int, int, int]] = []
        if kind in ("cut", "inside"):
            e, v, a, *outside = numbers
            columns, weights = [int(self.cut[e, v])], [1]
            pairs = [(a, v, -1), *((b, v, 1) for b in outside)]
        elif kind == "paid":
            e, *some = numbers
            twice = 2 if len(some) == FEWEST_PINS and not self.nets.always[e] else 1
            columns, weights = [int(self.paid[e])], [1]
            least = len(some)
            pairs = [(a, b, twice) for i, a in enumerate(some) for b in some[i + 1 :]]
        elif kind == "between":
            u, w, v = numbers
            pairs = [(u, w, 1), (u, v, -1)]
        else:
            u, v, w = numbers
            least, pairs = -1, [(u, w, 1), (u, v, -1), (v, w, -1)]
        for u, v, weight in pairs:
            if u == v:
                least -= weight
            else:
                columns.append(int(self.pair[u, v]))
                weights.append(weight)
        return Terms(columns, weights, least, False)

    def shares(self, values: Sequence[float]) -> tuple[Floats, Floats, Floats]:
        """X f64[n, n], P f64[p] and Y f64[p, n] of a solution."""
        solution = np.array(values)
        together = solution[np.maximum(self.pair, 0)]
        np.fill_diagonal(together, 1.0)
        return together, solution[self.paid], solution[self.cut]

    def violated(self, values: Sequence[float], between: Between) -> list[Named]:
        """Rows that a solution violates, at most `MOST_ROWS`, the worst first."""
        together, paid, cut = self.shares(values)
        found: list[tuple[float, Named]] = []
        nets = self.nets
        ins, outs, by = violated_cuts(nets, *plain(together, cut))
        for e, v in np.argwhere(by > EPSILON).tolist():
            a, b = int(ins[e, v]), int(outs[e, v])
            name = ("inside", (e, v, a)) if b < 0 else ("cut", (e, v, a, b))
            found.append((float(by[e, v]), name))
        weight = np.array(self.cost) / max(self.cost, default=1)
        found = [(by * weight[name[1][0]], name) for by, name in found]
        for e, pins in enumerate(self.pins):
            if len(pins) > FEWEST_PINS or nets.always[e]:
                some, total = _scattered(pins, together, always=bool(nets.always[e]))
                if total > paid[e] + EPSILON:
                    found.append((float(weight[e] * (total - paid[e])), ("paid", (e, *some))))
        arrays = plain(between.label, between.after, between.before, together)
        kinds = (("between", violated_between(*arrays)), ("triangle", violated_triangles(together)))
        for kind, (middle, by) in kinds:
            found += [
                (float(by[u, v]), (kind, (u, int(middle[u, v]), v)))
                for u, v in np.argwhere(by > EPSILON).tolist()
            ]
        found.sort(key=lambda item: (-item[0], item[1]))
        return [name for _, name in found[:MOST_ROWS]]


def merged(nets: Hypergraph, cost: Floats) -> tuple[Hypergraph, Floats, Ints]:
    """Nets with the same pins as one, without those that cost nothing; their costs, one of each."""
    dear = np.flatnonzero(cost > 0)
    some = nets.with_nets(dear)
    number, kept = same_nets(some, some.always)
    first = dear[kept]
    return some.with_nets(kept), totals(number, cost[dear], len(first)), first


def _scattered(pins: list[int], together: Floats, *, always: bool) -> tuple[list[int], float]:
    """Pins of a net that seem to be in different stages, and by how many it is paid at least."""
    rest = list(pins)
    if always:
        some, total = [rest.pop(0)], 1.0
    else:
        part = together[np.ix_(pins, pins)]
        a, b = np.unravel_index(int(part.argmin()), part.shape)
        some = [pins[a], pins[b]]
        total = 2.0 - float(part[a, b])
        rest = [v for v in pins if v not in some]
    while rest:
        gains = 1.0 - together[np.ix_(rest, some)].sum(axis=1)
        best = int(gains.argmax())
        if gains[best] <= 0 and (always or len(some) > FEWEST_PINS):
            break
        total += float(gains[best])
        some.append(rest.pop(best))
    return sorted(some), total


@kernel
def violated_cuts(nets, together, cut):  # type: ignore[no-untyped-def]
    """(a, b, by how much), each [p, n], for the worst row of each net and item; b = -1: none."""
    ptr, pins, always = nets.net_ptr, nets.pins, nets.always
    p, n = cut.shape
    ins = np.zeros((p, n), np.int64)
    outs = np.full((p, n), -1, np.int64)
    by = np.zeros((p, n))
    for e in range(p):
        for v in range(n):
            most, least = -1.0, 2.0
            for q in range(ptr[e], ptr[e + 1]):
                share = together[pins[q], v]
                if share > most:
                    most = share
                    ins[e, v] = pins[q]
                if share < least:
                    least = share
                    outs[e, v] = pins[q]
            if always[e]:
                least = 0.0
                outs[e, v] = -1
            by[e, v] = most - least - cut[e, v]
    return ins, outs, by


@kernel
def violated_between(label, after, before, together):  # type: ignore[no-untyped-def]
    """(w, by how much), each [n, n], for the worst w between u and v."""
    n = len(together)
    middle = np.zeros((n, n), np.int64)
    by = np.zeros((n, n))
    for u in range(n):
        for v in range(n):
            share = together[u, v]
            if u == v or share <= 0.0:
                continue
            for x in range(len(label)):
                if (after[u, x] or after[v, x]) and (before[u, x] or before[v, x]):
                    w = label[x]
                    if share - together[u, w] > by[u, v]:
                        by[u, v] = share - together[u, w]
                        middle[u, v] = w
    return middle, by


@kernel
def violated_triangles(together):  # type: ignore[no-untyped-def]
    """(v, by how much), each [n, n], u < w, for the worst v of each pair u, w."""
    n = len(together)
    middle = np.zeros((n, n), np.int64)
    by = np.zeros((n, n))
    for v in range(n):
        for u in range(n):
            if u == v or together[u, v] <= 0.0:
                continue
            for w in range(u + 1, n):
                if w != v:
                    over = together[u, v] + together[v, w] - together[u, w] - 1.0
                    if over > by[u, w]:
                        by[u, w] = over
                        middle[u, w] = v
    return middle, by


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
"""Slack from which a row is loose."""

STEP = 0.5
"""Place of the next target between bound and target."""

SCALE = 1 << 40
"""Multipliers of rows of loads are counted in parts of 1 / SCALE."""


def same_block_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound with a certificate.

    For accelerators of one class without replicas.

    Raises UnavailableError: the solver is not installed.
    """
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS, comms=tuple(PARTS))
    if isinstance(whole, LowerBound):
        return whole
    program = Together(
        whole.work[0], whole.nets, whole.cost[0], whole.stages, PARTS[problem.options.comm]
    )
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
        """True if it may be forgotten."""
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
                whole.nets,
                whole.cost[0],
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

    def claim(self) -> LowerBound:
        """Claim what the multipliers of the last solve prove."""
        failure = self.relaxation.failure
        status = FAILED if failure else SOLVED if self.relaxation.solved else LIMIT
        names, duals = self.last
        rows = multipliers(self.program, names, duals, self.reference)
        bound, pairs = proven(self.program, rows, self.closed)
        units = min(bound, self.target)
        if units <= 0:
            return LowerBound(0.0, status, failure)
        cuts = cuts_of(self.whole, self.between, self.costs, self.target, pairs)
        proof = self._proof(rows, cuts)
        return self.whole.claim("same-block", units, proof, status, reason=failure)

    def _converge(self) -> float:
        """Add rows until there is none that is violated, or no progress; the bound in quanta."""
        low, waiting = self._bound(), 0
        while waiting < PATIENCE and low < self.target:
            solution = self.relaxation.outcome.values or ()
            known = {added.name for added in self.rows}
            names = self.program.violated(solution, self.between)
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
            run.log(f"{len(self.rows)} rows: bound {run.shown(low * self.whole.quantum)}")
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
    """True if a row is about loads."""
    return name[0] in ("total", "stage")


def slacks(rows: Sequence[Row], values: Sequence[float]) -> Floats:
    """Slack of each row in a solution; f64[rows]."""
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
