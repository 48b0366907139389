"""The hierarchy of bounds by mixed-integer programs (MTPP section 4).

All of them but the exact program look at one stage. Let L be the simple bound. Some stage has

    work / replicas >= L                                                       (MTPP Lemma 4.2)

whatever the classes of its devices: the weights w of `dnnp.core.cost.problem` add up to 1 over all
devices, and the sum over stages of w * replicas * (work / replicas) is at least the weighted work,
which is the mean; where L is a unit or a colour, the stage that runs it is one. The load of that
stage is at least the least load of a stage of work L per replica: the least over the classes and
numbers of replicas that it may have. On a CPU nothing is transferred. What a stage pays besides
(weights that replicas synchronise, live activations) only adds to its load; a capacity that holds
for added-up memory constrains it, and where memory does not add up it is ignored.

no-dag
    any set of items; holds for free splits.
no-io
    a convex set without its transfers.
bottleneck
    a convex set (section 4.2, Corollary 4.3); see `dnnp.core.split.ip.formulas`.
guess
    the stage with the work L is the j-th, for each j; those before it are at most j - 1, those
    after it k - j, and the largest load is at least the mean load of each side (section 4.3). A
    tensor that crosses the border of a side is paid by at least one stage of it, once: counting
    it once, and none that stays in the side, counts no more than the stages pay. In the paper the
    j-th stage is the one of the largest load, so that its load is at least L; here its work is.
    Both are relaxations; this one is never below `bottleneck`.
exact
    Figure 3 (`dnnp.core.split.ip.formulas`), for ordered splits over one class of devices without
    replicas and clusters, where memory does not bind; the blocks that an item may be in are fixed
    by what a better split leaves room for (`windows`). All else, that is several classes, CPUs,
    capacities, replicas, `gpipe`, and convex and free splits, by `dnnp.core.split.ip.solve`.

Of several programs (`CandidateSearch`) the one with the least bound so far is solved next, for a
while: only that raises the least bound of all. When it is solved to the end its optimum is the
least one. Solutions of one program limit the others from above. A solver's bound is kept when it
does not finish, lowered by a margin for the tolerances that the solver works with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, isfinite
from time import monotonic

import numpy as np

from dnnp.core.bounds.lower_bound import (
    FAILED,
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    one_class,
    refused,
)
from dnnp.core.bounds.pairs import between_of, closure, pair_costs
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.items import LinearizedItems, quotient_order
from dnnp.core.cost.load_formula import MARGIN, ROUNDING, WORTHWHILE, common_divisor, snapped
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.graph import Bools, Floats, Ints, row_of
from dnnp.core.model.plan import CLOSED, Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import SLACK, TOLERANCES, Outcome
from dnnp.core.solver.slices import ATTEMPTS, GRACE_S, SAFETY, missing
from dnnp.core.split.cuts import flow_from, network_of
from dnnp.core.split.ip.formulas import (
    Formulas,
    Kind,
    Parts,
    Pipeline,
    parts_of,
    start_of,
    superblocks,
)
from dnnp.core.split.ip.solve import best_split, solve_ip, task_of
from dnnp.core.split.ip.task import Task, storage_of

FIRST_SLICE_S = 5.0
"""First slice of a program, where there is one; an interrupt costs the last slice."""

SHORT_SLICE_S = 1.0
"""The same where there are several."""

GROWTH = 5.0
"""Length of a slice of a program over that of the one before."""

EARLY = 0.5
"""Share of a slice before which a solver has no reason to give up."""

LOOSE = 1e-6
"""Tolerance for rows in which a solver's own solution may still be a start."""


@dataclass
class Candidate:
    """One of the programs; loads are in units of the reference."""

    make: Callable[[float], Formulas]
    """The program of what is at most a load."""
    starts: Sequence[Ints] = ()
    """Blocks of the cells of known solutions."""
    low: float = 0.0
    """No solution is better."""
    best: list[float] | None = None
    """Values of the columns in the best solution found by the solver."""
    slice_s: float = 0.0
    closed: bool = False
    """True: there is nothing left to learn."""
    failures: int = 0


@dataclass
class CandidateSearch:
    """Solve the candidates of a call.

    Parameters
    ----------
    solver
        `cbc` or `highs`.
    reference
        The load that counts as 1, seconds.
    upper
        Solutions above this are of no interest; in units of the reference.
    quantum
        A number of which all loads are multiples, seconds; 0: none is known.
    run
        When to end.
    found
        Told of every solution: the candidate, its program, the values of the columns. Returns
        what it is worth, or inf; that limits the programs from above.
    """

    solver: str
    reference: float
    upper: float
    quantum: float
    run: SearchContext
    found: Callable[[Candidate, Formulas, Sequence[float]], float] | None = None
    failure: str = ""
    """Failure of the solver."""
    last: str = "none"
    """Last status of the program with the least bound."""

    def least(self, candidates: Sequence[Candidate]) -> tuple[float, bool]:
        """Lower bound of the least optimum, seconds, and whether it is the optimum.

        It is at most `upper`.
        """
        while True:
            chosen = min(range(len(candidates)), key=lambda i: (candidates[i].low, i))
            c = candidates[chosen]
            if c.low >= self.upper * (1 - ROUNDING):
                return self.upper * self.reference, True
            if c.closed:
                return c.low * self.reference, c.failures < ATTEMPTS
            self.run.report_progress(bound=c.low * self.reference)
            if self.run.stop():
                return c.low * self.reference, False
            self._advance(c, len(candidates) == 1)

    def _advance(self, c: Candidate, single: bool) -> None:
        formulas = c.make(self.upper)
        if self.run.stop():
            return
        outcome = Outcome("infeasible")
        begun = monotonic()
        if not formulas.hopeless:
            outcome = self._solve(c, formulas, single)
        early = monotonic() - begun < c.slice_s * EARLY
        if outcome.status in ("limit", "feasible") and early and not self.run.stop():
            c.failures += 1
            c.closed = c.failures >= ATTEMPTS
            self.failure = f"the solver {self.solver} ended before its time"
        self.last = outcome.status
        if outcome.status == "missing":
            raise UnavailableError(missing(self.solver, outcome.reason))
        if outcome.status == "failed":
            c.failures += 1
            c.closed = c.failures >= ATTEMPTS
            self.failure = f"the solver {self.solver} failed: {outcome.reason}"
            return
        if outcome.status == "infeasible":
            # There is nothing up to the limit, which is a split that is known.
            low = self._snapped(self.upper - SAFETY)
            c.low, c.closed = max(c.low, min(low, self.upper)), True
            return
        if outcome.bound <= self.upper + SAFETY:
            low = self._snapped(outcome.bound - SAFETY)
            c.low = max(c.low, min(low, self.upper))
        if outcome.values is not None:
            c.best = list(outcome.values)
            top = outcome.values[formulas.top]
            worth = top if self.found is None else self.found(c, formulas, outcome.values)
            self.upper = min(self.upper, max(worth, c.low))
        c.closed |= outcome.status == "optimal"
        if outcome.status == "optimal" and _is_open(outcome, formulas):
            c.failures = ATTEMPTS
            self.failure = f"the solver {self.solver} calls optimal what is above its bound"

    def _solve(self, c: Candidate, formulas: Formulas, single: bool) -> Outcome:
        """One slice. What cannot be is asked twice, with other tolerances.

        That is no solution, or an optimum above the bound: HiGHS says so now and then.
        """
        known = [at for at in map(formulas.start, c.starts) if at is not None]
        starts = known if c.best is None else [*known, c.best]
        starts = [at for at in starts if formulas.admits(at, LOOSE)]
        start = min(starts, key=lambda at: at[formulas.top], default=None)
        outcome, doubtful = Outcome("limit"), None
        for tolerance in TOLERANCES:
            seconds, patience = self._times(c, single)
            with solver_process() as process:
                request = self.solver, formulas.program, start, seconds, tolerance
                outcome = process.ask(
                    "solve", *request, patience=patience, stop=self.run.interrupted
                )
            outcome = _with_bound(outcome, formulas)
            if outcome.status == "infeasible":
                formulas.program.lower[formulas.top] = 0.0
            elif _is_open(outcome, formulas):
                doubtful = outcome
            else:
                break
        if doubtful is not None and doubtful.bound >= outcome.bound:
            return doubtful
        if known and outcome.status == "infeasible":
            return Outcome("failed", reason="it finds no solution, but there is one")
        return outcome

    def _times(self, c: Candidate, single: bool) -> tuple[float | None, float | None]:
        """Seconds that the solver is given next, and after which it is killed."""
        first = FIRST_SLICE_S if single else SHORT_SLICE_S
        c.slice_s = seconds = max(c.slice_s * GROWTH, first)
        left = self.run.time_left()
        if left is None:
            return seconds, None
        if single and seconds > left / 2:
            seconds = left
        c.slice_s = max(min(seconds, left - min(GRACE_S, left / 3)), 0.01)
        return c.slice_s, left + GRACE_S

    def _snapped(self, low: float) -> float:
        return snapped(low * self.reference, self.quantum) / self.reference


def _with_bound(outcome: Outcome, formulas: Formulas) -> Outcome:
    """Without integers the optimum is the bound; HiGHS states none."""
    if outcome.status != "optimal" or outcome.values is None or any(formulas.program.integer):
        return outcome
    return replace(outcome, bound=outcome.values[formulas.top])


def _is_open(outcome: Outcome, formulas: Formulas) -> bool:
    """True if a solution that is called optimal is above the bound."""
    if outcome.status != "optimal" or outcome.values is None:
        return False
    return outcome.bound < outcome.values[formulas.top] - SAFETY


MOST_PAIRED = 250
"""Items up to which all pairs are looked at."""

MOST_NUMBERS = 300_000
"""Size of a program that is written down in about two seconds."""

FIRST_SHARE = 0.3
"""Share of the time for all guesses for the program without a guess."""


class Call:
    """Problem of the bounds of the hierarchy, and what follows from it."""

    def __init__(self, problem: SplitProblem, known: BoundTask, run: SearchContext) -> None:
        self.problem = problem.with_devices(*(d for d in problem.devices if d.count > 0))
        """Its devices are those that are offered."""
        self.known, self.run = known, run
        self.simple = simple_bound(self.problem)
        """L, seconds."""

    @cached_property
    def apart(self) -> list[tuple[int, int]]:
        """Pairs of units that no stage holds both of in a split better than the one known."""
        return pairs_apart(self.problem, self.known, self.run)

    def tasks(self, validity: str) -> list[Task]:
        """The items that a split of a validity keeps whole: one task for each choice of them."""
        problem = self.problem
        if problem.options.memory_model != "sum":
            problem = problem.with_options(replace(problem.options, memory_model="sum"))
            devices = (replace(d, memory_bytes=np.inf) for d in problem.devices)
            problem = problem.with_devices(*devices)
        ordered = validity == "ordered"
        choices = problem.item_choices if ordered else (problem.free_items,)
        return [task_of(problem, validity, items) for items in choices]

    def pairs(self, task: Task) -> list[tuple[int, int]]:
        """`apart` as items of a task."""
        units = self.problem.units
        item = task.line.item_of_node[units.first]
        found = {(min(u, v), max(u, v)) for u, v in ((item[a], item[b]) for a, b in self.apart)}
        return sorted((int(u), int(v)) for u, v in found)

    def placed(self, task: Task) -> Ints | None:
        """Block of every item in the split known, i64[items]; None: it cuts an item."""
        block = self.block_of_node()
        if block is None:
            return None
        of_item = np.zeros(task.line.n, dtype=np.int64)
        item = task.line.item_of_node
        of_item[item] = block
        return of_item if (of_item[item] == block).all() else None

    def block_of_node(self) -> Ints | None:
        """Block of every node in the split known, i64[n]."""
        if self.known.blocks is None:
            return None
        block = row_of((one.nodes for one in self.known.blocks), self.problem.graph.n)
        return block if (block >= 0).all() else None

    def pipeline(self) -> Ints | None:
        """Place of every block of the split known in the pipeline, i64[blocks]."""
        block = self.block_of_node()
        if block is None or self.known.blocks is None:
            return None
        order = quotient_order(self.problem.graph, block, len(self.known.blocks))
        if order is None:
            return None
        return np.argsort(order)

    def search(self, tasks: Sequence[Task]) -> CandidateSearch:
        """The search for the least of some programs."""
        value = self.known.value
        reference = value if np.isfinite(value) else max(_crude(task) for task in tasks)
        quanta = [replace(task, options=self.problem.options).quantum for task in tasks]
        if any(d.cluster_size for d in self.problem.devices):
            quanta = [0.0]
        quantum = common_divisor(np.array(quanta)) if all(quanta) else 0.0
        return CandidateSearch(self.known.solver, reference, 1.0, quantum, self.run)

    def lower(self) -> float:
        """Best bound so far, seconds."""
        return max(self.simple, self.known.floor)

    def trivial(self) -> LowerBound | None:
        """The answer where there is nothing to solve."""
        problem = self.problem
        if problem.options.objective != "throughput":
            return refused(f"not for the objective {problem.options.objective}")
        nothing = not problem.graph.n or not problem.devices
        if nothing or self.known.value <= self.simple * (1 + CLOSED):
            return LowerBound(min(self.simple, self.known.value))
        return None


def no_dag_bound(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """Bottleneck without precedence: for splits of any validity."""
    validity = "ordered" if known.validity == "ordered" else "free"
    return _middle(Call(problem, known, run), "no-dag", validity, precedence=False)


def no_io_bound(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """Bottleneck without transfers: for convex splits."""
    return _middle(Call(problem, known, run), "no-io", known.validity, transfers=False)


def bottleneck_bound(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The three-superblock program (section 4.2): for convex splits."""
    return _middle(Call(problem, known, run), "bottleneck", known.validity)


def guess_bound(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """Guess the bottleneck block (section 4.3): for ordered splits over one class of devices."""
    call = Call(problem, known, run)
    if known.validity != "ordered":
        return refused("holds for ordered splits only")
    if len(call.problem.devices) > 1:
        return refused("holds for one class of devices only")
    if call.problem.options.max_replicas > 1:
        return refused("does not hold where stages are replicated")
    return _middle(call, "guess", "ordered", guess=True)


def _middle(
    call: Call,
    name: str,
    validity: str,
    *,
    precedence: bool = True,
    transfers: bool = True,
    guess: bool = False,
) -> LowerBound:
    """The least load of a stage of work L, over all kinds of stages."""
    if precedence and validity == "free":
        return refused("holds for ordered and convex splits only")
    if (trivial := call.trivial()) is not None:
        return trivial
    tasks = call.tasks(validity)
    if any(numbers_of(task) > MOST_NUMBERS for task in tasks):
        return too_large(call)
    search = call.search(tasks)
    order = call.pipeline() if validity == "ordered" and precedence else None

    def least(*, sides: bool, lower: float) -> tuple[float, bool]:
        candidates = []
        for task in tasks:
            stages = Stages(call, search, task, precedence=precedence, transfers=transfers)
            for kind in _kinds(task, guess=sides):
                starts = stages.starts(kind, order)
                candidates.append(Candidate(stages.maker(kind, lower), starts, lower))
        return search.least(candidates)

    lower = call.lower() / search.reference
    if guess:
        # No guess has a smaller optimum than the program that leaves open which stage it is.
        search.run = call.run.part(FIRST_SHARE)
        low, _ = least(sides=False, lower=lower)
        search.run, search.upper, search.failure = call.run, 1.0, ""
        lower = max(lower, low / search.reference)
    low, done = least(sides=guess, lower=lower)
    return claim_of(call, name, search, low, done=done)


@dataclass(frozen=True)
class Stages:
    """The programs of one task."""

    call: Call
    search: CandidateSearch
    task: Task
    precedence: bool
    transfers: bool

    @cached_property
    def parts(self) -> Parts:
        """Cells, and the edges among them."""
        return parts_of(self.task, precedence=self.precedence)

    def maker(self, kind: Kind, lower: float) -> Callable[[float], Formulas]:
        """Make the function that makes the program of a kind of stage."""
        call, reference = self.call, self.search.reference
        pairs = call.pairs(self.task)

        def make(upper: float) -> Formulas:
            return superblocks(
                self.task,
                self.parts,
                kind,
                call.simple,
                reference,
                min(lower, upper),
                upper,
                transfers=self.transfers,
                apart=pairs,
            )

        return make

    def starts(self, kind: Kind, order: Ints | None) -> list[Ints]:
        """The blocks of the split known that are of this kind."""
        placed = self.call.placed(self.task)
        found: list[Ints] = []
        if placed is None or self.call.known.blocks is None:
            return found
        for b, block in enumerate(self.call.known.blocks):
            device = self.task.devices[kind.device].name
            if (block.device.name, block.replicas) != (device, kind.replicas):
                continue
            if kind.before is None or (
                order is not None and _fits(kind, int(order[b]), len(order))
            ):
                found.append(start_of(self.parts, placed, b, order))
        return found


def numbers_of(task: Task) -> int:
    """Numbers in the program of one block, roughly."""
    return 4 * len(task.line.nets.pins) + 3 * task.line.n + 4 * len(task.line.tail)


def too_large(call: Call) -> LowerBound:
    """The answer where a program would take long to write down."""
    reason = "the integer program is too large; coarsen first"
    return LowerBound(min(call.simple, call.known.value), LIMIT, reason)


def _kinds(task: Task, *, guess: bool) -> list[Kind]:
    """Kinds of the stage of work L; the weakest guesses first."""
    if guess:
        stages = min(task.devices[0].count, task.line.n)
        places = sorted(range(stages), key=lambda j: (abs(2 * j - stages + 1), j))
        return [Kind(0, 1, j, stages - 1 - j) for j in places]
    return [Kind(d, r) for d, r in task.kinds]


def _fits(kind: Kind, place: int, blocks: int) -> bool:
    """True if the block at a place of the pipeline can be the one that is guessed."""
    before, after = kind.before or 0, kind.after or 0
    return place <= before and blocks - 1 - place <= after


def claim_of(
    call: Call,
    name: str,
    search: CandidateSearch,
    low: float,
    *,
    done: bool,
    value: float | None = None,
    blocks: list[Block] | None = None,
) -> LowerBound:
    """Claim what a search proved; `value` is that of the best split known by now."""
    value = call.known.value if value is None else min(value, call.known.value)
    status, reason = SOLVED if done else LIMIT, search.failure if not done else ""
    if low <= call.lower() * (1 + CLOSED):
        # What was known before it has not proven itself.
        if search.failure and not done:
            status = FAILED
        elif call.known.floor > call.simple:
            reason = f"nothing above {call.run.shown(call.known.floor, 6)} is proven"
        return LowerBound(min(call.simple, value), status, reason, blocks=blocks)
    certificate = _by_solver(name, search.solver, search.last, low)
    return LowerBound(min(low, value), status, reason, certificate, blocks)


def _by_solver(name: str, solver: str, status: str, bound: float) -> dict[str, object]:
    """Certificate of what a solver says, which cannot be checked."""
    said = {"argument": name, "solver": solver, "status": status, "bound": bound}
    return {**said, "tolerance": SAFETY, "checkable": False}


def _crude(task: Task) -> float:
    """A load that no stage exceeds, seconds."""
    line = task.line
    work = np.where(np.isfinite(line.work), line.work, 0.0).max(axis=0).sum()
    extra = line.cost.max(axis=0, initial=0.0).sum()
    if task.options.memory_mode == "overflow":
        extra += task.storage.most / min(d.bandwidth_bytes_per_s for d in task.devices)
    return float(work + extra) or 1.0


def pairs_apart(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> list[tuple[int, int]]:
    """Pairs of units, one of each item, that cost a stage the known value or more; ascending.

    No better split puts them into one stage: it holds all between them (`bounds.path_closure`), and
    costs at least the minimum cut around these (`core.bounds.pairs`). Programs fix such pairs.
    Empty where the argument does not hold: other than one class of accelerators under `sum`,
    without replicas, for throughput; or where there are too many items.
    """
    units = problem.units
    whole = one_class(problem, known.validity, most_items=MOST_PAIRED)
    if isinstance(whole, LowerBound) or not isfinite(known.value):
        return []
    enough = ceil(Fraction(known.value) / Fraction(whole.quantum))
    between = between_of(problem.graph, whole.items, known.validity)
    costs = pair_costs(
        whole.work[0], whole.nets, whole.cost[0], between, enough=float(enough), run=run
    )
    unit = np.full(whole.items.count, units.g, dtype=np.int64)
    of_unit = whole.items.label[units.first]
    np.minimum.at(unit, of_unit, np.arange(units.g))
    u, v = np.nonzero(np.triu(costs >= enough, 1))
    return [(int(unit[a]), int(unit[b])) for a, b in zip(u, v, strict=True)]


MOST_ITEMS = 500
MOST_PINS = 20_000
"""Up to here minimum cuts are computed; beyond them work alone counts."""


def exact_bound(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The least objective of all splits, as far as it can be solved; splits that are better."""
    call = Call(problem, known, run)
    if known.validity == "ordered" and call.problem.options.objective == "throughput":
        trivial = call.trivial()
        if trivial is not None:
            return trivial
        tasks = call.tasks("ordered")
        if all(_plain(call, task) for task in tasks):
            stages = [min(task.devices[0].count, task.line.n) for task in tasks]
            sizes = [k * numbers_of(task) for k, task in zip(stages, tasks, strict=True)]
            return too_large(call) if max(sizes) > MOST_NUMBERS else _Exact(call, tasks).claim()
    return _general(call)


def _plain(call: Call, task: Task) -> bool:
    """True if Figure 3 says everything about a task."""
    graph, options = call.problem.graph, call.problem.options
    if len(task.devices) > 1 or options.max_replicas > 1 or task.devices[0].cluster_size:
        return False
    device = call.problem.devices[0]
    limited = not device.is_cpu and np.isfinite(device.memory_bytes)
    if limited and not storage_of(graph, task.line, options).fits(device.memory_bytes):
        return False
    return bool(np.isfinite(task.line.work).all())


class _Exact:
    """Figure 3 for every choice of items."""

    def __init__(self, call: Call, tasks: Sequence[Task]) -> None:
        self.call = call
        self.best = best_split(call.problem, "ordered")
        self.search: CandidateSearch = call.search(tasks)
        self.search.found = self.found
        self.programs: dict[int, tuple[Task, Pipeline]] = {}
        lower = call.lower() / self.search.reference
        order = call.pipeline()
        self.candidates = []
        for task in tasks:
            placed = call.placed(task)
            starts = [] if placed is None or order is None else [order[placed] + 1]
            self.candidates.append(Candidate(self._maker(task), starts, lower))

    def _maker(self, task: Task):  # type: ignore[no-untyped-def]
        call, search = self.call, self.search
        stages = min(task.devices[0].count, task.line.n)
        cuts = call.problem.options.comm == "sum" and not task.devices[0].is_cpu
        pairs = call.pairs(task)

        def make(upper: float) -> Formulas:
            lower = min(call.lower() / search.reference, upper)
            first, last = windows(task.line, upper * search.reference, stages, cuts=cuts)
            program = Pipeline(task, stages, first, last, search.reference, lower, upper, pairs)
            self.programs[id(program.formulas)] = task, program
            return program.formulas

        return make

    def found(self, candidate: Candidate, formulas: Formulas, values: Sequence[float]) -> float:
        """Price a solution by the cost model."""
        task, program = self.programs[id(formulas)]
        value = self.best.offer(self._blocks(task, program.blocks(values)))
        return value / self.search.reference

    def _blocks(self, task: Task, at: Ints) -> list[Block]:
        graph = self.call.problem.graph
        of_node = at[task.line.item_of_node]
        ordered = graph.order[np.argsort(of_node[graph.order], kind="stable")]
        borders = np.flatnonzero(np.diff(of_node[ordered])) + 1
        return [Block(part, self.call.problem.devices[0]) for part in np.split(ordered, borders)]

    def claim(self) -> LowerBound:
        """Solve, and say what was proven."""
        low, done = self.search.least(self.candidates)
        value, blocks = self.best.value, self.best.solution
        known = self.call.known.value
        if not value < known * (1 - WORTHWHILE):
            value, blocks = known, None
        return claim_of(self.call, "exact", self.search, low, done=done, value=value, blocks=blocks)


def _general(call: Call) -> LowerBound:
    """The program of 2020, for everything that Figure 3 does not say."""
    known = call.known
    try:
        result = solve_ip(
            call.problem, known.validity, solver=known.solver, incumbent=known.blocks, run=call.run
        )
    except UsageError as error:
        return refused(str(error))
    except (InfeasibleError, LimitError) as error:
        return LowerBound(call.simple, _ended(str(error)), str(error))
    value, blocks = known.value, None
    if result.value < value * (1 - WORTHWHILE):
        value, blocks = result.value, result.solution
    status = SOLVED if result.status == "optimal" else _ended(result.failure)
    if result.bound <= call.simple:
        return LowerBound(min(call.simple, value), status, result.failure, blocks=blocks)
    certificate = _by_solver("exact", result.solver, result.status, result.bound)
    if status == FAILED:
        status = LIMIT
    return LowerBound(min(result.bound, value), status, result.failure, certificate, blocks)


def _ended(failure: str) -> str:
    """The status of a claim after a program that was not solved to its end."""
    # One that is too large is not even given to the solver.
    return FAILED if failure and "too large" not in failure else LIMIT


def windows(line: LinearizedItems, load: float, stages: int, *, cuts: bool) -> tuple[Ints, Ints]:
    """First and last block, from 1 to `stages`, of every item; i64[items] each.

    For ordered splits over devices of one class, the line's first, into blocks of at most `load`
    seconds. A first block after the last one: there is no such split. `cuts`: whether transfers
    and compute add up.

    If item v is in block b or before, so is everything before v: the first b blocks together hold
    a set S of items with v and its ancestors. Their loads add up to at least work(S), and under
    `sum` to at least f(S) (`bounds.flows`): a tensor with pins on both sides of the border of S
    is paid by at least one of them. So b is at least the least f(S) over the load allowed. From the
    other end it is the same with descendants.
    """
    by = np.argsort(line.head, kind="stable")  # tails are before heads
    after = closure(line.n, np.arange(line.n), line.tail[by], line.head[by])
    before = np.ascontiguousarray(after.T)
    needs = [least_loads(line, sets, cuts=cuts) for sets in (before, before.T)]
    blocks = [
        np.maximum(np.ceil(need * (1 - MARGIN) / (load * (1 + SLACK))), 1).astype(np.int64)
        for need in needs
    ]
    return blocks[0], stages + 1 - blocks[1]


def least_loads(line: LinearizedItems, sets: Bools, *, cuts: bool) -> Floats:
    """Least f(S) over the sets S that hold each of some sets (bool[sets, items])."""
    work = line.work[0]
    alone: Floats = sets @ work
    if not cuts or line.n > MOST_ITEMS or len(line.nets.pins) > MOST_PINS:
        return alone
    network = network_of(work, line.nets, line.cost[0])
    flows = [flow_from(network, network.capacity.copy(), np.flatnonzero(row)) for row in sets]
    return np.maximum(alone, np.array(flows))
