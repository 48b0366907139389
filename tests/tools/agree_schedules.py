"""Compare the search for repetends with exhaustion and CP-SAT on random placements.

    python tests/tools/agree_schedules.py --count 300 --seed 0 [--pairs 8] [--no-cpsat]

Placements of 2 to 6 devices and 4 to 16 blocks, with times that are whole numbers or, every third,
not; every other one is short of memory; some repeat two micro-batches at a time, some have blocks
for transfers; every fifth is a chain whose shortest period may be a fraction. For each:

- Many repetitions of the repetend are simulated: it keeps waits, units and limits, and holds what
  it says. No bound is above its value, and what is called optimal is equal to it.
- The checker accepts the complete schedule of a few micro-batches, and those of two recipes.
- Up to 8 blocks residues and lags are exhausted: period, memory and span agree, for periods p / q
  with small q.
- Others go to CP-SAT, if it is there: at the period found memory and span agree, and no repetend
  is a little shorter.
- What has no repetend at all is called infeasible.

Prints a line for every disagreement and one in the end; exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from dnnp.core.check.schedule import check_schedule
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.schedule import PlacedBlock, Placement, Repetend, Schedule, Unit, Wait
from dnnp.core.model.search_context import SearchContext
from dnnp.core.schedule.complete import complete
from dnnp.core.schedule.problem import ScheduleProblem, peak_memory, problem_of
from dnnp.core.schedule.recipes import classic
from dnnp.core.schedule.repetend import find_repetend
from dnnp.core.schedule.transfers import global_order, with_transfers
from dnnp.formats.schedule import schedule_records
from support.placements import random_placement
from support.repetend_brute import (
    Best,
    TooMany,
    best_at,
    cpsat_best,
    least_period,
    possible_at_all,
    run_for_long,
    scaled,
)

EXHAUSTED = 8
"""Most blocks for exhaustion."""

DEEPEST = 3
"""Largest denominator of periods of whole times that exhaustion tries."""

PARTS = 1000
"""Times that are not whole are multiples of one thousandth."""

MICRO_BATCHES = 7
"""Micro-batches of schedules that are complete."""

COMPLETE_EFFORT = 0.02

STEPS = 8
"""Factor by which CP-SAT looks for a shorter period than the one found."""

ROUNDING = 1e-9
CLOSE = 1e-7

Search = Callable[[ScheduleProblem], Repetend]


def random_case(seed: int, most: int = 8) -> tuple[Placement, int]:
    """A placement, in some cases with limits of memory, and micro-batches in a period."""
    rng = random.Random(f"schedules {seed}")
    if seed % 5 == 4:
        return with_limit(random_chain(rng), rng.randint(2, 3)), 1
    unroll = 2 if rng.random() < 0.25 else 1
    pairs = rng.randint(min(2, most // unroll), max(most // unroll, 1))
    placement = random_placement(seed, pairs=pairs, whole=seed % 3 != 2, memory=rng.random() < 0.9)
    if seed % 2:
        held = [max(block.memory_bytes, 0.0) for block in placement.blocks]
        room = max(sum(held) * unroll - max(held), 3.0)
        placement = with_limit(placement, max(held) + int(rng.random() ** 2 * (room + 1)))
    if rng.random() < 0.2:
        mode = rng.choice(["blocking", "non-blocking"])
        placement = with_transfers(placement, mode, time_s=1.0, delay_s=rng.choice([0.0, 1.0]))
    return placement, unroll


def with_limit(placement: Placement, most: float) -> Placement:
    """The placement where each device may hold so much."""
    units = tuple(replace(unit, memory_bytes=float(most)) for unit in placement.units)
    return replace(placement, units=units)


def random_chain(rng: random.Random) -> Placement:
    """One or two blocks that hold memory, some others, and those that release it.

    Under a limit the shortest period of such a chain is a fraction now and then.
    """
    devices = rng.randint(2, 4)
    pairs = [rng.randrange(devices) for _ in range(rng.randint(1, 2))]
    parts = [(d, 1.0) for d in pairs]
    parts += [(rng.randrange(devices), 0.0) for _ in range(rng.randint(1, 3))]
    parts += [(d, -1.0) for d in reversed(pairs)]
    blocks = (
        PlacedBlock(
            f"X{i}",
            "forward",
            ((d,),),
            float(rng.randint(1, 4)),
            held,
            (Wait(i - 1),) if i else (),
        )
        for i, (d, held) in enumerate(parts)
    )
    return Placement("chain", tuple(Unit(f"d/{d}") for d in range(devices)), tuple(blocks))


def disagreements(
    case: tuple[Placement, int], search: Search, cpsat: bool, limit_s: float, counts: Counter[str]
) -> list[str]:
    """Faults of the answer to one problem."""
    problem = problem_of(*case)
    wrong = recipes(case[0])
    try:
        found = search(problem)
    except InfeasibleError as error:
        counts["infeasible"] += 1
        if possible_at_all(problem):
            wrong.append(f"infeasible ({error}), but it is not")
        return wrong
    except LimitError:
        counts["nothing found"] += 1
        return wrong
    counts[found.status] += 1
    if not found.period_s:
        counts["no times"] += 1
        if problem.time.any() or problem.delay.any():
            wrong.append("period 0, though blocks take time")
        return wrong + completed(case[0], found, counts)
    wrong += faulty(problem, found)
    if wrong:
        return wrong
    wrong = completed(case[0], found, counts)
    whole = not (problem.time % 1).any()
    if problem.b <= EXHAUSTED and whole:
        try:
            wrong += against_exhaustion(problem, found, counts)
        except TooMany:
            counts["too many residues"] += 1
        else:
            counts["exhausted"] += 1
            return wrong
    if cpsat:
        wrong += against_cpsat(problem, found, limit_s, counts)
    return wrong


def recipes(placement: Placement) -> list[str]:
    """Faults of recipes that fit any placement; limits do not matter to them."""
    wrong = []
    free = with_limit(placement, math.inf)
    for name in ("gpipe", "sequential"):
        made = classic(free, name, MICRO_BATCHES)
        schedule = Schedule(free, made.start.reshape(MICRO_BATCHES, -1), name, 0.0)
        wrong += [f"{name}: {reason}" for reason in refused(schedule)]
    return wrong


def completed(placement: Placement, found: Repetend, counts: Counter[str]) -> list[str]:
    """Faults of the schedule of a few micro-batches made from a repetend."""
    try:
        made = complete(placement, found, MICRO_BATCHES, run=SearchContext(effort=COMPLETE_EFFORT))
    except LimitError:
        counts["not completed"] += 1
        return []
    except InfeasibleError as error:
        return [f"not completed: {error}"]
    counts[f"completed: {made.status}"] += 1
    return refused(Schedule(placement, made.start, "auto", made.bound, made.status, found))


def refused(schedule: Schedule) -> list[str]:
    """The checker's verdict on a schedule."""
    problem, start = problem_of(schedule.placement, len(schedule.start_s)), schedule.start_s.ravel()
    order = global_order(problem, start).tolist()
    peak = peak_memory(problem, start).tolist()
    return [str(v) for v in check_schedule(*schedule_records(schedule, peak, order)).violations]


def faulty(problem: ScheduleProblem, found: Repetend) -> list[str]:
    """Faults of a repetend by itself."""
    start = found.start_s.ravel()
    wrong, peaks = run_for_long(problem, start, found.period_s)
    if np.abs(peaks - found.memory_bytes).max(initial=0.0) > CLOSE:
        wrong.append(f"says it holds {found.memory_bytes}, not {peaks}")
    span = float((start + problem.time).max() - start.min())
    if not math.isclose(span, found.span_s, rel_tol=ROUNDING, abs_tol=ROUNDING):
        wrong.append(f"says it spans {found.span_s}, not {span}")
    for name, value, bound in numbers(found):
        if bound > value + ROUNDING * max(1.0, value):
            wrong.append(f"{name} {value} is below its bound {bound}")
        if found.status == "optimal" and bound < value - CLOSE * max(1.0, value):
            wrong.append(f"{name} {value} is optimal, but its bound {bound} is below")
    return wrong


def numbers(found: Repetend) -> list[tuple[str, float, float]]:
    """Name, value and bound of what is minimised."""
    memory = float(found.memory_bytes.max(initial=0.0))
    return [
        ("period", found.period_s, found.period_bound_s),
        ("memory", memory, found.memory_bound_bytes),
        ("span", found.span_s, found.span_bound_s),
    ]


def compared(found: Repetend, memory: float, span: float) -> list[str]:
    """Faults of memory and span, at the least period."""
    wrong = []
    _, (_, held, held_bound), (_, lasts, span_bound) = numbers(found)
    if held < memory - CLOSE or held_bound > memory + CLOSE:
        wrong.append(f"memory {held}, bound {held_bound}; it is {memory}")
    elif abs(held - memory) <= CLOSE and (lasts < span - CLOSE or span_bound > span + CLOSE):
        wrong.append(f"span {lasts}, bound {span_bound}; it is {span}")
    if found.status == "optimal" and (abs(held - memory) > CLOSE or abs(lasts - span) > CLOSE):
        wrong.append(f"memory {held}, span {lasts} are not optimal: {memory}, {span}")
    return wrong


def against_exhaustion(
    problem: ScheduleProblem, found: Repetend, counts: Counter[str]
) -> list[str]:
    """Faults found by exhaustion."""
    least = least_period(problem, DEEPEST)
    if least is None:
        return ["there is no repetend at all"]
    period, best = float(least[0]), least[1]
    wrong = []
    if found.period_bound_s > period + CLOSE:
        wrong.append(f"period bound {found.period_bound_s} above {least[0]}")
    if found.period_s > period + CLOSE:
        if found.status == "optimal":
            wrong.append(f"period {found.period_s} is not optimal: {least[0]}")
        return wrong
    if found.period_s < period - CLOSE:
        exact = Fraction(found.period_s).limit_denominator(50)
        counts[f"period with denominator {exact.denominator}"] += 1
        if exact.denominator <= DEEPEST:
            return [*wrong, f"period {exact} below the least one, {least[0]}"]
        at = best_at(scaled(problem, exact.denominator), exact.numerator)
        if at is None:
            return [*wrong, f"there is no repetend of period {exact}"]
        return wrong + compared(found, at.memory, at.span / exact.denominator)
    counts[f"period with denominator {least[0].denominator}"] += 1
    return wrong + compared(found, best.memory, best.span)


def against_cpsat(
    problem: ScheduleProblem, found: Repetend, limit_s: float, counts: Counter[str]
) -> list[str]:
    """Faults found by CP-SAT."""
    parts = PARTS if (problem.time % 1).any() else 1
    exact = Fraction(found.period_s * parts).limit_denominator(1000)
    factor = exact.denominator * parts
    if abs(float(exact) - found.period_s * parts) > CLOSE * parts:
        counts["period that is no fraction"] += 1
        return []
    memory, span = (value for _, value, _ in numbers(found)[1:])
    start = (found.start_s.ravel() - found.start_s.min()) * factor
    known = None
    if np.abs(start - np.round(start)).max() < CLOSE * factor:
        known = np.round(start), Best(round(memory), round(span * factor))
    status, best = cpsat_best(
        scaled(problem, factor), exact.numerator, known=known, limit_s=limit_s
    )
    counts[f"CP-SAT {status}"] += 1
    wrong = []
    if status == "infeasible":
        return [f"CP-SAT: there is no repetend of period {found.period_s}"]
    if best is not None:
        wrong = compared(found, best.memory, best.span / factor)
    load = float(problem.load().max(initial=0.0))
    if found.period_bound_s >= found.period_s - CLOSE and found.period_s > load + CLOSE:
        status, _ = cpsat_best(
            scaled(problem, factor * STEPS),
            exact.numerator * STEPS - 1,
            limit_s=limit_s,
            only_feasible=True,
        )
        counts[f"CP-SAT a little shorter: {status}"] += 1
        if status == "optimal":
            wrong.append(f"CP-SAT: there is a repetend shorter than {found.period_s}")
    return wrong


def main() -> int:
    """Run the comparison and print a summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="number of placements")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first placement")
    parser.add_argument("--pairs", type=int, default=8, help="most blocks, forward and backward")
    parser.add_argument("--effort", type=float, default=1.0, help="of the search")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of CP-SAT for each goal")
    parser.add_argument("--no-cpsat", action="store_true", help="exhaustion only")
    args = parser.parse_args()
    cpsat = not args.no_cpsat and find_spec("ortools") is not None
    counts: Counter[str] = Counter()
    wrong, slowest = 0, (0.0, -1)
    begin = time.monotonic()
    for seed in range(args.seed, args.seed + args.count):
        seconds = [0.0]

        def search(problem: ScheduleProblem, seconds: list[float] = seconds) -> Repetend:
            started = time.monotonic()
            try:
                return find_repetend(problem, run=SearchContext(effort=args.effort))
            finally:
                seconds[0] = time.monotonic() - started

        reasons = disagreements(random_case(seed, args.pairs), search, cpsat, args.limit, counts)
        slowest = max(slowest, (seconds[0], seed))
        wrong += bool(reasons)
        for reason in reasons:
            print(f"seed {seed}: {reason}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"{name:36} {number}")
    print(f"slowest search: {slowest[0]:.2f} s, seed {slowest[1]}")
    print(f"{args.count} placements, {wrong} disagree, {time.monotonic() - begin:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
