"""Repetends by exhaustion, and by CP-SAT: an oracle for the searches of `core.schedule`.

Nothing of the searches, nor their definitions of valid, is used. Times are whole numbers (or made
whole by a scale), and so are starts: with a period that is whole, too, all constraints are
between differences of starts and whole numbers, so fractions gain nothing.

A start is s = o + l T, with a residue o in [0, T) and a lag l. All residues that keep units
exclusive are listed. Given residues, waits bound differences of lags from below. What a unit holds
is c + sum of m (l_B - l_F) over its pairs of a holding block F and a releasing block B, where c
depends on residues alone: so all bounds on the lags between F and B that a limit of memory
admits are tried, and so is a limit of the span; each try is a system of differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from dnnp.core.schedule.problem import ScheduleProblem

MOST_ROWS = 400_000
"""Residues of all blocks that are listed at most."""


ROUNDING = 1e-9


class TooMany(Exception):  # noqa: N818
    """The problem is too large for exhaustion."""


@dataclass(frozen=True)
class Best:
    """The best repetend of a period."""

    memory: float
    """Smallest largest memory of a unit, what is always held included."""
    span: float
    """Smallest span at that memory."""


def held_pairs(problem: ScheduleProblem) -> list[tuple[int, int]]:
    """Blocks F that hold memory, each with the block B after it that releases as much.

    Raises
    ------
    ValueError
        Memory is not held in pairs.
    """
    after = reach(problem)
    holding = np.flatnonzero(problem.memory > 0).tolist()
    releasing = np.flatnonzero(problem.memory < 0).tolist()
    wrong = [
        [
            j not in after[i]
            or units_of(problem, i) != units_of(problem, j)
            or problem.memory[i] != -problem.memory[j]
            for j in releasing
        ]
        for i in holding
    ]
    if len(holding) != len(releasing):
        raise ValueError("memory is not held in pairs of blocks")
    if not holding:
        return []
    # Which blocks of equal memory belong to each other makes no difference.
    rows, columns = linear_sum_assignment(np.array(wrong))
    if any(wrong[r][c] for r, c in zip(rows, columns, strict=True)):
        raise ValueError("memory is not held in pairs of blocks")
    return [(holding[r], releasing[c]) for r, c in zip(rows, columns, strict=True)]


def units_of(problem: ScheduleProblem, i: int) -> list[int]:
    """Units of a block."""
    return problem.unit[problem.ptr[i] : problem.ptr[i + 1]].tolist()


def reach(problem: ScheduleProblem) -> list[set[int]]:
    """Blocks that come after each one."""
    found: list[set[int]] = [set() for _ in range(problem.b)]
    changed = True
    while changed:
        changed = False
        for a, b in zip(problem.tail.tolist(), problem.head.tolist(), strict=True):
            more = {b} | found[b]
            changed |= not more <= found[a]
            found[a] |= more
    return found


def scaled(problem: ScheduleProblem, factor: int) -> ScheduleProblem:
    """The problem with times multiplied by a whole number."""
    return replace(problem, time=problem.time * factor, delay=problem.delay * factor)


def best_at(problem: ScheduleProblem, period: int) -> Best | None:
    """The best repetend of a whole period within the capacities; None if there is none.

    Raises
    ------
    TooMany
        Too many residues.
    """
    rows = _residues(problem, period)
    if not len(rows):
        return None
    pairs = held_pairs(problem)
    tail, head = problem.tail, problem.head
    need = rows[:, tail] + (problem.time + 0.0)[tail] + problem.delay - rows[:, head]
    lags = np.ceil(need / period - 1e-9).astype(np.int64)
    kinds, kind = np.unique(lags, axis=0, return_inverse=True)
    kind = kind.ravel()
    base = _held(problem, rows)
    every = []
    for number, lag in enumerate(kinds):
        mine = np.flatnonzero(kind == number)
        far = _closed(_waits(problem, lag))
        if far is not None:
            least = tuple(int(far[i, j]) for i, j in pairs)
            level = base[mine] + _of_pairs(problem, pairs, least)
            every.append((float(_most(problem, level).min()), number, mine, least))
    best: float = math.inf
    found = []
    for bound, number, mine, least in sorted(every, key=lambda entry: entry[0]):
        if bound > best:
            break
        low = base[mine].min(axis=0)
        for gaps in _gaps(problem, kinds[number], pairs, least, low, best):
            most = _most(problem, base[mine] + _of_pairs(problem, pairs, gaps))
            fits = np.flatnonzero(most <= best).tolist() if most.min() < math.inf else []
            best = min(best, float(most.min()))
            found += [(float(most[i]), rows[mine[i]], kinds[number], gaps) for i in fits]
    if best == math.inf:
        return None
    span = math.inf
    least_span = _critical(problem)
    for memory, row, lag, gaps in found:
        if memory == best and span > least_span:
            span = _span(problem, period, row, lag, pairs, gaps, span)
    return Best(best, span)


def _most(problem: ScheduleProblem, level: np.ndarray) -> np.ndarray:
    """The largest memory of a unit, inf where a capacity is exceeded; level f64[n, units]."""
    over = (level > problem.capacity + ROUNDING).any(axis=1)
    held = (np.maximum(level, 0.0) + problem.fixed).max(axis=1)
    return np.where(over, np.inf, np.round(held, 9))


def _critical(problem: ScheduleProblem) -> float:
    """The longest path."""
    end = problem.time.copy()
    for _ in range(problem.b):
        np.maximum.at(
            end, problem.head, end[problem.tail] + problem.delay + problem.time[problem.head]
        )
    return float(end.max())


def _residues(problem: ScheduleProblem, period: int) -> np.ndarray:
    """All residues where no unit runs two blocks at a time; i64[n, b]. The first block's is 0."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for i in range(problem.b):
        choice = np.arange(1 if i == 0 else period)
        if problem.time[i] > period:
            return np.zeros((0, problem.b), dtype=np.int64)
        grown = np.repeat(rows, len(choice), axis=0)
        here = np.tile(choice, len(rows))
        keep = np.ones(len(here), dtype=bool)
        for j in range(i):
            apart = not set(units_of(problem, i)) & set(units_of(problem, j))
            if apart or not problem.time[i] or not problem.time[j]:
                continue
            ahead = (here - grown[:, j]) % period
            keep &= (ahead >= problem.time[j]) & (ahead + problem.time[i] <= period)
        rows = np.concatenate([grown[keep], here[keep][:, None]], axis=1)
        if len(rows) > MOST_ROWS:
            raise TooMany
    return rows


def _held(problem: ScheduleProblem, rows: np.ndarray) -> np.ndarray:
    """Memory of each unit if all lags are 0, less the memory of pairs; f64[n, units].

    At the residue of block j, block i has started once more than its lag says if its residue is
    not above.
    """
    found = np.full((len(rows), problem.units), -np.inf)
    for d in range(problem.units):
        mine = [i for i in range(problem.b) if d in units_of(problem, i) and problem.memory[i]]
        for j in mine:
            level = sum(problem.memory[i] * (rows[:, i] <= rows[:, j]) for i in mine)
            found[:, d] = np.maximum(found[:, d], level)
        if not mine:
            found[:, d] = 0.0
    return found


def _of_pairs(
    problem: ScheduleProblem, pairs: list[tuple[int, int]], gaps: tuple[int, ...]
) -> np.ndarray:
    """Memory of each unit due to the lags between the blocks of pairs; f64[units]."""
    found = np.zeros(problem.units)
    for (i, _), gap in zip(pairs, gaps, strict=True):
        found[units_of(problem, i)] += problem.memory[i] * gap
    return found


def _gaps(
    problem: ScheduleProblem,
    lag: np.ndarray,
    pairs: list[tuple[int, int]],
    least: tuple[int, ...],
    low: np.ndarray,
    best: float,
) -> list[tuple[int, ...]]:
    """Bounds on the lags of pairs that some lags meet, none of them looser than another.

    Only those where no unit holds more than the best memory known, or its capacity; `low` is what
    it holds at least besides.
    """
    waits = _waits(problem, lag)
    found: list[tuple[int, ...]] = []
    front, seen = [least], {least}
    for gaps in front:
        if any(all(x <= y for x, y in zip(g, gaps, strict=True)) for g in found):
            continue
        if _most(problem, (low + _of_pairs(problem, pairs, gaps))[None, :])[0] > best:
            continue
        if len(front) > MOST_ROWS:
            raise TooMany
        bounds = waits.copy()
        for (i, j), most in zip(pairs, gaps, strict=True):
            bounds[j, i] = max(bounds[j, i], -most)
        if _closed(bounds) is not None:
            found.append(gaps)
            continue
        # Where memory is no limit, some lags are met once each pair may be this far apart.
        wide = max(int(np.maximum(lag, 0).sum()), *least, 0) if least else 0
        for p in range(len(gaps)):
            more = (*gaps[:p], gaps[p] + 1, *gaps[p + 1 :])
            if more not in seen and more[p] <= wide:
                seen.add(more)
                front.append(more)
    return found


def _waits(problem: ScheduleProblem, lag: np.ndarray) -> np.ndarray:
    """Least differences of lags: entry [i, j] of that of j less that of i."""
    far = np.full((problem.b, problem.b), -np.inf)
    np.fill_diagonal(far, 0.0)
    np.maximum.at(far, (problem.tail, problem.head), lag)
    return far


def _closed(far: np.ndarray) -> np.ndarray | None:
    """Longest paths of least differences; None if they contradict each other."""
    far = far.copy()
    for k in range(len(far)):
        np.maximum(far, far[:, k : k + 1] + far[k : k + 1, :], out=far)
    return None if (np.diag(far) > 0).any() else far


def _span(
    problem: ScheduleProblem,
    period: int,
    row: np.ndarray,
    lag: np.ndarray,
    pairs: list[tuple[int, int]],
    gaps: tuple[int, ...],
    known: float,
) -> float:
    """The smallest span with these residues and bounds on lags, if it is below a known one."""
    bounds = _waits(problem, lag)
    for (i, j), most in zip(pairs, gaps, strict=True):
        bounds[j, i] = max(bounds[j, i], -most)

    def possible(span: float) -> bool:
        # Block j ends at most a span after block i starts.
        most = np.floor((span - (problem.time + row)[:, None] + row[None, :]) / period + ROUNDING)
        return _closed(np.maximum(bounds, -most)) is not None

    low, high = _critical(problem) - 1, known - 1
    if known == math.inf:
        high = low + 1
        while not possible(high):
            low, high = high, 2 * high + 1
    elif not possible(high):
        return known
    while high - low > 1:
        middle = (low + high) // 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return high


def possible_at_all(problem: ScheduleProblem) -> bool:
    """True if micro-batches one after another, blocks in some order, keep within capacities.

    If they do not, no repetend does: what a unit holds of one micro-batch, it holds at least.
    Blocks that start at the same time count together; what has started since the limits were
    kept last does so at one time.
    """
    before: list[dict[int, float]] = [{} for _ in range(problem.b)]
    for a, b, delay in zip(
        problem.tail.tolist(), problem.head.tolist(), problem.delay, strict=True
    ):
        before[b][a] = max(float(delay), before[b].get(a, 0.0))
    units = [set(units_of(problem, i)) for i in range(problem.b)]
    none = frozenset[int]()
    front, seen = [(none, none)], {(none, none)}
    for done, now in front:
        for i in set(range(problem.b)) - done - now:
            at_once = all(
                a in done or (a in now and not problem.time[a] and not delay)
                for a, delay in before[i].items()
            )
            running = any(problem.time[j] and units[i] & units[j] for j in now)
            if not at_once or (running and problem.time[i]):
                continue
            more = done | now | {i}
            held = np.zeros(problem.units)
            for j in more:
                held[units_of(problem, j)] += problem.memory[j]
            fits = (held <= problem.capacity + ROUNDING).all()
            state = (more, none) if fits else (done, now | {i})
            if state not in seen:
                seen.add(state)
                front.append(state)
    return (frozenset(range(problem.b)), none) in seen


def least_period(problem: ScheduleProblem, deepest: int = 1) -> tuple[Fraction, Best] | None:
    """The shortest period p / q, q at most `deepest`, and the best repetend of it.

    None if there is none of any period. A longer period never makes a repetend impossible.

    Raises
    ------
    TooMany
        The problem is too large.
    """
    if not possible_at_all(problem):
        return None
    whole = max(math.ceil(float(problem.load().max(initial=0.0)) - ROUNDING), 1)
    best = best_at(problem, whole)
    while best is None:
        whole += 1
        best = best_at(problem, whole)
    least = float(problem.load().max(initial=0.0)) - ROUNDING
    between = {
        Fraction(p, q)
        for q in range(2, deepest + 1)
        for p in range((whole - 1) * q + 1, whole * q)
        if p >= least * q and p > 0
    }
    for period in sorted(between):
        found = best_at(scaled(problem, period.denominator), period.numerator)
        if found is not None:
            return period, Best(found.memory, found.span / period.denominator)
    return Fraction(whole), best


def run_for_long(
    problem: ScheduleProblem, start: np.ndarray, period: float
) -> tuple[list[str], np.ndarray]:
    """Violations of a repetend, and the peak memory of each unit, from many repetitions.

    Micro-batches -n to n run; memory counts once the first of them are done. Blocks that start
    within rounding of each other start together.
    """
    slack = 1e-7 * max(float(problem.time.sum()), period)
    wrong = []
    for a, b, delay in zip(problem.tail, problem.head, problem.delay, strict=True):
        if start[b] < start[a] + problem.time[a] + delay - slack:
            wrong.append(f"{b} starts before {a} is done")
    first, last = float(start.min()), float((start + problem.time).max())
    n = int((last - first) / period) + 2
    turns = np.arange(-n, n + 1)
    peaks = problem.fixed.copy()
    for d in range(problem.units):
        mine = [i for i in range(problem.b) if d in units_of(problem, i)]
        runs = sorted(
            (start[i] + m * period, start[i] + problem.time[i] + m * period)
            for i in mine
            for m in turns.tolist()
            if problem.time[i] > slack
        )
        for (_, end), (begin, _) in pairwise(runs):
            if begin < end - slack:
                wrong.append(f"unit {d} runs two blocks at {begin}")
                break
        events = sorted((start[i] + m * period, problem.memory[i]) for i in mine for m in turns)
        held = 0.0
        for number, (at, memory) in enumerate(events):
            held += memory
            together = number + 1 < len(events) and events[number + 1][0] <= at + slack
            # The micro-batches from -n on have not all started before, nor later ones after.
            if first <= at < last + period and not together:
                peaks[d] = max(peaks[d], problem.fixed[d] + held)
        if peaks[d] > problem.fixed[d] + problem.capacity[d] + 1e-7:
            wrong.append(f"unit {d} holds {peaks[d]}")
    return wrong, peaks


def cpsat_best(
    problem: ScheduleProblem,
    period: int,
    *,
    known: tuple[np.ndarray, Best] | None = None,
    limit_s: float = 20.0,
    only_feasible: bool = False,
) -> tuple[str, Best | None]:
    """The best repetend of a whole period, by CP-SAT: `optimal`, `infeasible` or `unknown`.

    Of two blocks on a unit, the later starts in k periods and r after the other. Gaps between
    starts that are longer than a period and a block can be closed without more memory, so starts
    are bounded. With `only_feasible` the answer is that of no objective.

    Raises
    ------
    ImportError
        OR-Tools is not installed.
    """
    from ortools.sat.python import cp_model

    pairs = held_pairs(problem)
    model: Any = cp_model.CpModel()
    time, delay = (np.round(x).astype(int).tolist() for x in (problem.time, problem.delay))
    longest = max(time, default=0) + max(delay, default=0) + period
    horizon = longest * problem.b
    turns = horizon // period + 1
    if max(time, default=0) > period:
        return "infeasible", None
    # Time counts from the start of the first block.
    start = [
        model.new_int_var(-horizon if i else 0, horizon if i else 0, "") for i in range(problem.b)
    ]
    for a, b, gap in zip(problem.tail.tolist(), problem.head.tolist(), delay, strict=True):
        model.add(start[b] >= start[a] + time[a] + gap)
    count: dict[tuple[int, int], Any] = {}
    for i in range(problem.b):
        count[i, i] = 1
        for j in range(i + 1, problem.b):
            shared = set(units_of(problem, i)) & set(units_of(problem, j))
            both = bool(time[i] and time[j])
            if not shared or not (both or (problem.memory[i] and problem.memory[j])):
                continue
            k = model.new_int_var(-turns, turns, "")
            rest = (time[i], period - time[j]) if both else (0, period - 1)
            if rest[0] > rest[1]:
                return "infeasible", None
            r = model.new_int_var(*rest, "")
            model.add(start[j] - start[i] == period * k + r)
            count[i, j] = k + 1
            count[j, i] = -k
            if not both:
                same = model.new_bool_var("")
                model.add(r == 0).only_enforce_if(same)
                model.add(r >= 1).only_enforce_if(same.negated())
                count[j, i] = -k + same
    most = model.new_int_var(0, int(np.abs(problem.memory).sum() + problem.fixed.max()) * turns, "")
    for d in range(problem.units):
        mine = [i for i in range(problem.b) if problem.memory[i] and d in units_of(problem, i)]
        fixed = int(problem.fixed[d])
        model.add(most >= fixed)
        for j in mine:
            level = sum(int(problem.memory[i]) * count[i, j] for i in mine)
            model.add(level + fixed <= most)
            if problem.capacity[d] < math.inf:
                model.add(level <= math.floor(problem.capacity[d] + ROUNDING))
    span = model.new_int_var(0, 2 * (horizon + longest), "")
    first = model.new_int_var(-horizon, 0, "")
    for i in range(problem.b):
        model.add(first <= start[i])
        model.add(span >= start[i] + time[i] - first)
    if known is not None:
        for variable, value in zip(start, (known[0] - known[0][0]).tolist(), strict=True):
            model.add_hint(variable, int(value))
        model.add(most <= int(known[1].memory))
        for i, j in pairs:
            # A unit holds at most what all its pairs do, each at least for a while so often.
            model.add(start[j] - start[i] <= period * int(known[1].memory // problem.memory[i]))
    values = []
    for goal in [None] if only_feasible else [most, span]:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = 1
        if goal is not None:
            model.minimize(goal)
        status = solver.solve(model)
        if status == cp_model.INFEASIBLE:
            return "infeasible", None
        if status != cp_model.OPTIMAL:
            return "unknown", None
        if goal is None:
            return "optimal", None
        values.append(solver.value(goal))
        model.add(goal <= values[-1])
        if known is not None and values[0] == int(known[1].memory):
            model.add(span <= int(known[1].span))
    return "optimal", Best(float(values[0]), float(values[1]))
