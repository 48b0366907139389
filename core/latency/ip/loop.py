"""Methods `ip` and `cpsat`: exact models of either execution, started from a little annealing.

Each solution bounds the latency from above: the windows of all times, and with them every big-M,
get tighter in the next program. Big-Ms are the least that the windows of two times allow (Lemma 4.1
of the 2020 paper and Eq. 6 and 8 of Moirai have one constant for all).

Moirai has rows for all pairs of spans that share a lane (Eq. 6 and 8). Spans whose windows are
apart never meet; where there are still more pairs than a program can hold, it is refused.

For CP-SAT (the optional extra `cpsat`) intervals that do not overlap take the place of big-M. Its
solver runs in a process of its own and reports every better solution and bound at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Split
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.latency.auto import quick, quick_split, simple_bound
from dnnp.core.latency.ip.formulation import Formulation, serial_latency
from dnnp.core.model.errors import LimitError, UnavailableError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import SLACK, Outcome, Program
from dnnp.core.solver.scheduling_model import ORIGIN, After, Model, Turn
from dnnp.core.solver.slices import (
    COARSE,
    GRACE_S,
    SAFETY,
    Best,
    SearchResult,
    Slices,
    SliceSearch,
    attempted,
    refuse_unknown,
    result_of,
    solve_slices,
)

S = TypeVar("S", bound=Split)

PAIR_ENTRIES = 10
"""Numbers that two spans in a lane lead to."""

ASKED_TWICE = ("highs",)
"""Solvers with a second run that checks their proofs: about one in 500 of HiGHS 1.15.1's for small
programs is wrong. The second run solves the tighter program around the solution, without
presolve."""

THREADS = 8
"""Parallel searches of CP-SAT; with fewer it omits kinds of them."""


class ModelSearch(SliceSearch[S]):
    """The search for the solution of least latency."""

    def __init__(self, formulation: Formulation[S], start: S | None, bound: float = 0.0) -> None:
        low = max(formulation.windows.least * (1 - ROUNDING), bound)
        super().__init__(Best(formulation.problem.value), formulation.quantum, low)
        self.formulation = formulation
        if start is not None:
            self.best.offer(start)

    @property
    def upper(self) -> float:
        """A latency that the solutions of interest do not exceed."""
        return (
            self.best.value
            if np.isfinite(self.best.value)
            else serial_latency(self.formulation.problem)
        )

    def known(self) -> object | None:
        """The best solution in terms of the model's rules; None if there is none."""
        solution = self.best.solution
        return None if solution is None else self.formulation.known(solution)

    def result(self, solver: str, *, closed: bool) -> SearchResult[S]:
        """Result of the search; for the errors see `result_of`."""
        ended = {"asked": self.asked, "closed": closed}
        return result_of(self.best, self.low, solver, self.failure, **ended, what="placement")


def solve_model(
    formulation: Formulation[S],
    *,
    solver: str = "cbc",
    start: S | None = None,
    bound: float = 0.0,
    run: SearchContext = PLAIN,
) -> SearchResult[S]:
    """Solve a scheduling model by integer programming.

    Parameters
    ----------
    formulation
        The problem.
    solver
        `cbc` or `highs`.
    start
        A solution to start from; one that is invalid is not used.
    bound
        What is proven already: no solution has a smaller latency.
    run
        Asked about twenty times a second whether to end with what there is.

    Raises
    ------
    UsageError
        There is no such solver.
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    UnavailableError
        The solver is not installed.
    """
    refuse_unknown(solver)
    search = _Programs(formulation, start, bound, solver)

    def work(process: SolverProcess) -> bool:
        search.failure, search.again = "", False
        return solve_slices(search, Slices(solver, process, run))

    closed = attempted(work, lambda _: search.failure, run)
    return search.result(solver, closed=closed)


class _Programs(ModelSearch[S]):
    """The search by integer programs."""

    def __init__(
        self, formulation: Formulation[S], start: S | None, bound: float, solver: str
    ) -> None:
        super().__init__(formulation, start, bound)
        self.solver = solver
        self.again = False
        """True while a proof is checked."""

    @property
    def presolve(self) -> tuple[bool, ...]:
        return not self.again, False

    def write(self) -> LatencyProgram | None:
        model = self.formulation.model(self.upper)
        model.raise_least(self.low)
        entries = model.entries + PAIR_ENTRIES * count_meetings(model)
        return None if self.refuses(entries) else LatencyProgram(model)

    def start(self, written: LatencyProgram) -> list[float] | None:
        known = self.known()
        return None if known is None else written.start(*written.model.start(known))

    def take(self, written: LatencyProgram, outcome: Outcome) -> bool | None:
        proven = outcome.status == "optimal"
        trusted = not proven or self.again or self.solver not in ASKED_TWICE
        if trusted:
            self.take_bound(outcome.bound, written.scale)
        if outcome.values is None:
            return None
        solution = self.formulation.solution(written.model, *written.split(outcome.values))
        if solution is None:
            return None
        value = self.best.offer(solution)
        better = value < written.model.upper * (1 - SAFETY)
        if proven and trusted and not (better and self._ask_again(written)):
            least = min(value, self.best.value)
            return least <= (outcome.bound + 2 * SAFETY) * written.scale
        self.again = proven or (self.again and not better)
        return None

    def _ask_again(self, written: LatencyProgram) -> bool:
        """True if a better solution needs a second proof: for the solver, or a finer scale."""
        coarse = 0 < COARSE * self.best.value < written.scale
        return coarse or self.solver in ASKED_TWICE


class LatencyProgram:
    """The program of a model; columns are its times, its flags, and two for each pair of spans
    that may meet in a lane: `delta`, the first one goes first, and whether they do meet.
    """

    tops = (0,)
    """The latency is minimised."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.scale = model.upper if model.upper > 0 else 1.0
        self.program = Program()
        self.low = [max(low / self.scale - SLACK, 0.0) for low in model.low]
        self.high = [high / self.scale + SLACK for high in model.high]
        for t, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            self.program.column(high, lower=low, cost=float(t == 0))
        self.first_flag = len(model.low)
        for whole in model.whole:
            self.program.column(integer=whole)
        for after in model.afters:
            self._after(after)
        for row in model.rows:
            columns = [self.first_flag + flag for flag in row.flags]
            self.program.row(columns, row.weights, row.sense, row.bound)
        self.deltas: list[tuple[Pair, int, int, list[Sequence[Sequence[int]]]]] = []
        for pair, lanes in self._meetings().items():
            self._apart(pair, lanes)

    @property
    def hopeless(self) -> bool:
        """True if a constraint without flags cannot hold."""
        return self.model.hopeless

    def split(self, values: Sequence[float]) -> tuple[list[float], list[float]]:
        """Times in seconds, and flags, of a solution."""
        times = [value * self.scale for value in values[: self.first_flag]]
        return times, list(values[self.first_flag : self.first_flag + len(self.model.whole)])

    def start(self, times: Sequence[float], flags: Sequence[float]) -> list[float]:
        """All columns for known times and flags."""
        values = [*(t / self.scale for t in times), *flags]
        values += [0.0] * (len(self.program.objective) - len(values))
        for (a, b), delta, meet, lanes in self.deltas:
            end, start = self.model.spans[a][1], self.model.spans[b][0]
            if delta >= 0:
                values[delta] = float(times[end] <= times[start] + ROUNDING * self.scale)
            values[meet] = float(
                any(all(any(flags[f] for f in own) for own in both) for both in lanes)
            )
        return values

    def _after(self, after: After) -> None:
        """later - earlier - terms - M * (given - 1) >= 0."""
        most = sum(max(s, 0.0) for _, s in after.terms) / self.scale
        if after.earlier != ORIGIN:
            most += self.high[after.earlier]
        big = max(most - self.low[after.later], 0.0) if after.given else 0.0
        if after.given and not big:
            return
        columns = [after.later, *(self.first_flag + f for f, _ in after.terms)]
        weights = [1.0, *(-s / self.scale for _, s in after.terms)]
        if after.earlier != ORIGIN:
            columns.append(after.earlier)
            weights.append(-1.0)
        columns += [self.first_flag + f for f in after.given]
        weights += [-big] * len(after.given)
        self.program.row(columns, weights, ">", -big * len(after.given))

    def _meetings(self) -> dict[Pair, list[Sequence[Sequence[int]]]]:
        """Pairs of spans, and for each lane where they may meet the flags of both."""
        found: dict[Pair, list[Sequence[Sequence[int]]]] = {}
        for lane in self.model.lanes:
            flags: dict[int, list[int]] = {}
            for turn in lane:
                flags.setdefault(turn.span, []).append(turn.flag)
            for a, b in meetings(self.model, lane):
                found.setdefault((a, b), []).append((flags[a], flags[b]))
        return found

    def _apart(self, pair: Pair, lanes: list[Sequence[Sequence[int]]]) -> None:
        """Of two spans that meet in a lane one goes first."""
        (begin, end), (start, finish) = (self.model.spans[i] for i in pair)
        before = self.high[end] - self.low[start]
        behind = self.high[finish] - self.low[begin]
        if before <= 2 * SLACK or behind <= 2 * SLACK:
            return
        program = self.program
        meet = program.column()
        for both in lanes:
            flags = [self.first_flag + f for own in both for f in own]
            program.row([meet, *flags], [1.0] + [-1.0] * len(flags), ">", -1.0)
        late = self.low[end] > self.high[start]
        early = self.low[finish] > self.high[begin]
        delta = -1
        if not late and not early:
            delta = program.column(integer=True)
            program.row([start, end, delta], [1.0, -1.0, -before], ">", -before)
            program.row([begin, finish, delta, meet], [1.0, -1.0, behind, -behind], ">", -behind)
        else:
            if not late:
                program.row([start, end, meet], [1.0, -1.0, -before], ">", -before)
            if not early:
                program.row([begin, finish, meet], [1.0, -1.0, -behind], ">", -behind)
            if late and early:
                program.row([meet], [1.0], "<", 0.0)
        self.deltas.append((pair, delta, meet, lanes))


Pair = tuple[int, int]
"""Two spans, the smaller number first."""


def count_meetings(model: Model) -> int:
    """Pairs of spans in lanes with windows that overlap, roughly; O(turns log turns)."""
    count = 0
    for lane in model.lanes:
        spans = sorted({turn.span for turn in lane})
        low = np.array([model.low[model.spans[s][0]] for s in spans])
        high = np.array([model.high[model.spans[s][1]] for s in spans])
        apart = int(np.searchsorted(np.sort(high), low, side="right").sum())
        count += max(len(spans) * (len(spans) - 1) // 2 - apart, 0)
    return count


def meetings(model: Model, lane: Sequence[Turn]) -> Iterator[Pair]:
    """Pairs of spans in a lane with windows that overlap, and that no path orders; sorted."""
    windows = {
        turn.span: (model.low[model.spans[turn.span][0]], model.high[model.spans[turn.span][1]])
        for turn in lane
    }
    by_start = sorted((low, span) for span, (low, _) in windows.items())
    found = []
    for i, (_, first) in enumerate(by_start):
        end = windows[first][1]
        for j in range(i + 1, len(by_start)):
            low, second = by_start[j]
            if low > end:
                break
            a, b = min(first, second), max(first, second)
            if not model.ordered(a, b) and not model.ordered(b, a):
                found.append((a, b))
    yield from sorted(found)


def formulation_of(problem: LatencyProblem) -> Formulation[Any]:
    """The formulation of the execution asked for."""
    if problem.options.execution == "blocks":
        from dnnp.core.latency.ip.block_model import BlockProgram

        return BlockProgram(problem)
    from dnnp.core.latency.ip.placement_model import PlacementProgram

    return PlacementProgram(problem)


def ip(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Solve the integer program, with CBC or HiGHS.

    Raises
    ------
    InfeasibleError
        It is proven that nothing fits.
    LimitError
        The time was over before there was any split.
    UnavailableError
        The solver is not installed.
    """
    return _solution(problem, run, "integer program", partial(solve_model, solver=asked.solver))


def cpsat(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """Solve the same models as intervals, by CP-SAT; for the errors see `ip`."""
    return _solution(problem, run, "constraint program", solve_intervals)


def _solution(
    problem: LatencyProblem, run: SearchContext, what: str, solve: Callable[..., SearchResult[Any]]
) -> LatencySolution:
    """Anneal and bound with reduced effort, then solve a model; the better of two bounds counts."""
    run = run.without_shares()
    run.report_progress("annealing")
    start, value = quick_split(problem, run), np.inf
    if start is not None:
        value = problem.value(start)
        run.report_incumbent(start, value, "anneal")
    run.report_progress("bounding", value=value)
    bound = simple_bound(problem.relaxed, run=quick(run))
    run.report_progress(bound=bound[0], by=bound[1])
    run.report_progress(what)
    found = solve(formulation_of(problem), start=start, bound=bound[0], run=run)
    if found.failure:
        run.warn(f"the solver ended early: {found.failure}")
    if found.solution is None:
        raise LimitError("a limit came before the solver found any split")
    if found.bound > bound[0] * (1 + CLOSED):
        bound = found.bound, found.solver
    ran = found.asked
    if found.failure and start is not None:
        ran = found.value < value
    return LatencySolution(found.solution, *bound, "" if ran else "anneal")


def solve_intervals(
    formulation: Formulation[S],
    *,
    start: S | None = None,
    bound: float = 0.0,
    run: SearchContext = PLAIN,
) -> SearchResult[S]:
    """Solve a scheduling model by CP-SAT; parameters as of `solve_model`.

    Raises
    ------
    InfeasibleError
        It is proven that there is no solution.
    LimitError
        The solver failed before any solution was known.
    UnavailableError
        ortools is not installed.
    """
    search = ModelSearch(formulation, start, bound)

    def work(process: SolverProcess) -> bool:
        search.failure = ""
        return _solved(search, process, run)

    closed = attempted(work, lambda _: search.failure, run, "cpsat")
    return search.result("cpsat", closed=closed)


def _solved(search: ModelSearch[S], process: SolverProcess, run: SearchContext) -> bool:
    """Solve until the gap is closed (True), or the search ends."""
    from dnnp.core.solver.scheduling_model import TickProgram

    while search.best.value > search.low:
        model = search.formulation.model(search.upper)
        model.raise_least(search.low)
        if search.refuses(model.entries, "a constraint program"):
            return False
        if model.hopeless:
            search.exhausted()
            return True
        program = TickProgram(model, search.formulation.quantum)
        known = search.known()
        hint = None if known is None else program.start(*model.start(known))
        if run.stop():
            return False
        left = run.time_left()

        def take(outcome: Outcome, model=model, program=program) -> bool:  # type: ignore[no-untyped-def]
            """Take over bound and solution of the solver; False: its solution is unusable."""
            if np.isfinite(outcome.bound):
                search.raise_bound(program.seconds(outcome.bound))
                run.report_progress(bound=search.low, by="cpsat")
            if outcome.values is None:
                return True
            values = [round(value) for value in outcome.values]
            solution = search.formulation.solution(model, *program.split(values))
            if solution is None:
                return False
            run.report_incumbent(solution, search.best.offer(solution), "cpsat")
            run.report_progress(value=search.best.value)
            return True

        search.asked = True
        outcome = process.ask(
            "cpsat",
            program.program,
            hint,
            left,
            THREADS,
            run.seed,
            news=take,
            patience=None if left is None else left + GRACE_S,
            stop=run.stop,
        )
        if outcome.status == "missing":
            raise UnavailableError("CP-SAT is not installed: pip install 'dnnp[cpsat]'")
        if outcome.status == "infeasible":
            if hint is not None:
                search.failure = "the solver CP-SAT finds no solution, but there is one"
                return False
            search.exhausted()
            return True
        usable = outcome.status != "failed" and take(outcome)
        if outcome.status == "failed":
            search.failure = f"the solver CP-SAT failed: {outcome.reason}"
        if outcome.status == "optimal" and not usable:
            continue  # the model has learned why
        value = search.best.value
        near = value < np.inf and value <= search.low + 2 * SAFETY * value
        if outcome.status == "optimal" and not near and model.upper > COARSE * value:
            continue  # with finer ticks
        return outcome.status == "optimal" and near
    return True
