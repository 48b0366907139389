"""Schedules: repetends of the shapes, trade-offs, whole schedules, and Tessel's search."""

from __future__ import annotations

import math
import os

import numpy as np
from bench_exact import duration, warm

from dnnp.core.model.graph import Floats
from dnnp.core.model.schedule import Placement, Repetend
from dnnp.core.schedule.auto import solve, trade_off
from dnnp.core.schedule.complete import complete
from dnnp.core.schedule.problem import (
    ScheduleProblem,
    Wanted,
    peak_memory,
    problem_of,
    span_of,
    violations,
    with_limit,
)
from dnnp.core.schedule.recipes import classic
from dnnp.core.schedule.repetend import find_repetend
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.tessel import tessel
from dnnp.core.schedule.transfers import split_backward
from support.bench import table, timed

PARTS = os.environ.get(
    "DNNP_BENCH_PARTS", "repetends trade-offs unrolled schedules memory tessel"
).split()  # fmt: skip

TRAINING = {
    ("V", 4): (4, 4, 16, 0.015), ("X", 4): (8, 4, 20, 0.12), ("M", 4): (6, 5, 36, 0.2),
    ("NN", 4): (8, 6, 46, 0.2), ("K", 4): (6, 3, 16, 0.045), ("V", 8): (4, 8, 32, 1.0),
    ("X", 8): (8, 6, 40, 5.0), ("M", 8): (6, 11, 72, 1.0), ("NN", 8): (8, 12, 94, 1.0),
    ("K", 8): (6, 6, 34, 5.0),
}  # fmt: skip
"""Shape and devices -> period, memory, span and seconds to reach."""

INFERENCE = {"V": 1, "X": 2, "M": 2, "NN": 3, "K": 2}
"""Shape -> period."""
INFERENCE_S = {4: 0.05, 8: 1.0}
"""Devices -> seconds."""

TRADE_OFFS = {
    "V": {1: 16, 2: 8, 4: 4}, "X": {2: 13, 3: 9, 4: 8}, "M": {1: 18, 2: 10, 4: 7, 5: 6},
    "NN": {1: 20, 2: 12, 4: 9, 6: 8}, "K": {2: 8, 3: 6},
}  # fmt: skip
"""Shape on 4 devices -> memory -> period; less memory than those is not among the targets."""
TRADE_OFF_S = 10.0

UNROLLED = (("V", 3, 3, 16 / 3, 5.0),)
"""Shape on 4 devices, memory, micro-batches in a period, time for each of them, seconds."""

MAKESPANS = {
    "V": (36, 44, 60, 76), "X": (54, 71, 103, 134), "M": (48, 60, 84, 108),
    "NN": (60, 76, 108, 140), "K": (40, 52, 76, 100),
}  # fmt: skip
"""Shape on 4 devices, least memory -> makespans of `COUNTS` micro-batches."""
COUNTS = (6, 8, 12, 16)
MANY, MANY_S = 1000, 1.0

SPLIT_RECIPES = [
    (name, form, devices)
    for name, form in (
        ("zb-h1", "V"), ("zb-h2", "V"), ("zb-v", "VV"), ("v-half", "VV"), ("v-min", "VV"),
        ("dualpipe", "X"), ("dualpipev", "VV"),
    )
    for devices in (4, 8)
]  # fmt: skip
"""Recipe, shape and devices; all blocks take 1, and there are three times as many micro-batches."""

TESSEL_S = {"V": (1.6, 1.1), "X": (12.5, 14), "M": (64, 2.3), "NN": (400, 9), "K": (4.7, 0.7)}
"""Shape on 4 devices -> seconds of the search of Tessel's authors, and of their reduced one."""


def least_memory(name: str, devices: int) -> Placement:
    """A shape with the memory that the shortest period needs."""
    _, memory, _, _ = TRAINING[name, devices]
    return shape(name, devices, memory_bytes=memory)


def missed(value: float, goal: float) -> str:
    """A mark for what is worse than it should be."""
    return "" if value <= goal * (1 + 1e-9) else " (missed)"


def searched(placement: Placement, unroll: int = 1) -> tuple[Repetend, float]:
    """The repetend and the seconds to find it; SystemExit if it is not valid."""
    problem = problem_of(placement, unroll)
    found = find_repetend(problem)
    if violations(problem, found.start_s.ravel(), found.period_s):
        raise SystemExit(f"{placement.name}: the repetend is not valid")
    return found, warm(lambda: find_repetend(problem))


def repetend_rows() -> list[tuple[object, ...]]:
    """Shapes on 4 and 8 devices, in training and inference."""
    rows: list[tuple[object, ...]] = []
    goals = [(name, d, False, goal) for (name, d), goal in TRAINING.items()]
    goals += [
        (name, d, True, (period, 0, math.inf, seconds))
        for d, seconds in INFERENCE_S.items()
        for name, period in INFERENCE.items()
    ]
    for name, devices, inference, goal in goals:
        found, seconds = searched(shape(name, devices, inference=inference))
        numbers = found.period_s, float(found.memory_bytes.max()), found.span_s
        cells = (
            f"{number:g}" + missed(number, wanted)
            for number, wanted in zip(numbers, goal, strict=False)
        )
        rows.append(
            (
                f"{name}, {devices} devices, {'inference' if inference else 'training'}",
                *cells,
                "yes" if found.status == "optimal" else f"no: {_bounds(found)}",
                duration(seconds) + missed(seconds, goal[3]),
                duration(goal[3]),
            )
        )
    return rows


def _bounds(found: Repetend) -> str:
    numbers = found.period_bound_s, found.memory_bound_bytes, found.span_bound_s
    return ", ".join(f"{number:g}" for number in numbers)


def trade_off_rows() -> list[tuple[object, ...]]:
    """The least period for every memory limit."""
    rows: list[tuple[object, ...]] = []
    for name, goal in TRADE_OFFS.items():
        placement = shape(name, 4)
        points = trade_off(placement)
        seconds = timed(lambda placement=placement: trade_off(placement))
        curve = {p.memory_bytes: p.period_s for p in points}
        proven = all(p.period_s <= p.period_bound_s * (1 + 1e-9) for p in points)
        worse = [
            memory
            for memory, period in goal.items()
            if min((p for m, p in curve.items() if m <= memory), default=math.inf) > period + 1e-9
        ]
        rows.append(
            (
                name,
                ", ".join(f"{m:g}: {p:g}" for m, p in curve.items()),
                f"missed at {', '.join(map(str, worse))}" if worse else "reached",
                "yes" if proven else "no",
                duration(seconds) + missed(seconds, TRADE_OFF_S),
                duration(TRADE_OFF_S),
            )
        )
    return rows


def unrolled_rows() -> list[tuple[object, ...]]:
    """Several micro-batches in a period, which beat one."""
    rows: list[tuple[object, ...]] = []
    for name, memory, unroll, goal, limit in UNROLLED:
        placement = with_limit(shape(name, 4), memory)
        one, _ = searched(placement)
        found, seconds = searched(placement, unroll)
        rows.append(
            (
                f"{name}, memory {memory}",
                f"{one.rate_s:g}",
                unroll,
                f"{found.rate_s:.4g}" + missed(found.rate_s, goal),
                f"{goal:.4g}",
                duration(seconds) + missed(seconds, limit),
                duration(limit),
            )
        )
    return rows


def schedule_rows() -> list[tuple[object, ...]]:
    """Whole schedules of shapes with the least memory."""
    rows: list[tuple[object, ...]] = []
    for name, goals in MAKESPANS.items():
        placement = least_memory(name, 4)
        repetend = find_repetend(problem_of(placement, 1))

        def makespan(
            count: int, placement: Placement = placement, repetend: Repetend = repetend
        ) -> float:
            problem = problem_of(placement, count)
            start = complete(placement, repetend, count).start.ravel()
            if violations(problem, start):
                raise SystemExit(f"{placement.name}: the schedule of {count} is not valid")
            return span_of(problem, start)

        short = [
            f"{makespan(count):g}{missed(makespan(count), goal)}"
            for count, goal in zip(COUNTS, goals, strict=True)
        ]
        seconds = warm(lambda p=placement, r=repetend: complete(p, r, MANY))
        rows.append(
            (
                name,
                *short,
                f"{makespan(MANY):g}",
                duration(seconds) + missed(seconds, MANY_S),
                duration(MANY_S),
            )
        )
    return rows


def memory_rows() -> list[tuple[object, ...]]:
    """Recipes with split backward passes, and `auto` within their memory and without a limit."""
    rows: list[tuple[object, ...]] = []
    for recipe, form, devices in SPLIT_RECIPES:
        placement = split_backward(shape(form, devices, backward_s=2.0), 0.5)
        count = 3 * devices
        problem = problem_of(placement, count)

        def cell(start: Floats, problem: ScheduleProblem = problem) -> str:
            span = span_of(problem, start)
            bubble = span - problem.load().max()
            return f"{span:g} / {peak_memory(problem, start).max():g} / {bubble:g}"

        start = classic(placement, recipe, count).start
        limited = with_limit(placement, float(peak_memory(problem, start).max()))
        found = solve(limited, Wanted(count)).start_s.ravel()
        if violations(problem_of(limited, count), found):
            raise SystemExit(f"{recipe}: the schedule of {count} is not valid")
        free = solve(placement, Wanted(count)).start_s.ravel()
        mark = missed(span_of(problem, found), span_of(problem, start))
        seconds = warm(lambda p=limited, n=count: solve(p, Wanted(n)))
        name = f"{recipe}, {form}, D = {devices}"
        rows.append((name, cell(start), cell(found) + mark, cell(free), duration(seconds)))
    return rows


def tessel_rows() -> list[tuple[object, ...]]:
    """Tessel's search and this project's, the same shapes with the least memory."""
    rows: list[tuple[object, ...]] = []
    for name, (theirs, fast) in TESSEL_S.items():
        placement = least_memory(name, 4)
        seconds = warm(lambda placement=placement: tessel(placement))
        found = tessel(placement)
        eager = warm(lambda placement=placement: tessel(placement, lazy=False))
        ours, ours_s = searched(placement)
        rows.append(
            (
                name,
                f"{_numbers(found.repetend)}",
                f"{_numbers(ours)}",
                sum(found.tried),
                duration(seconds),
                duration(eager),
                duration(ours_s),
                f"{'over ' * (name == 'NN')}{theirs:g} s",
                f"{fast:g} s",
            )
        )
    return rows


def _numbers(found: Repetend) -> str:
    return f"{found.period_s:g} / {float(np.max(found.memory_bytes)):g} / {found.span_s:g}"


def show(text: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print a paragraph and a table."""
    print(f"{text}\n")
    print(table(header, rows))
    print(flush=True)


def main() -> None:
    """Measure and print the tables."""
    if "repetends" in PARTS:
        show(
            "Shortest period, then least memory, then shortest span of the shapes (forward 1, "
            "backward 3), all proven or with bounds; warm, in this process, median.",
            ("shape", "period", "memory", "span", "proven", "time", "target"),
            repetend_rows(),
        )
    if "trade-offs" in PARTS:
        show(
            "Least period by memory, 4 devices.",
            ("shape", "memory: period", "target periods", "proven", "time", "target"),
            trade_off_rows(),
        )
    if "unrolled" in PARTS:
        show(
            "Several micro-batches in a period, 4 devices: time for each micro-batch.",
            ("shape", "one", "micro-batches", "each", "target", "time", "target time"),
            unrolled_rows(),
        )
    if "schedules" in PARTS:
        show(
            f"Makespans on 4 devices with the least memory, and the time to schedule {MANY:,} "
            "micro-batches, the repetend given.",
            ("shape", *(f"N = {n}" for n in COUNTS), f"N = {MANY:,}", "time", "target"),
            schedule_rows(),
        )
    if "memory" in PARTS:
        show(
            "Split backward passes where every block takes 1, N = 3 D: makespan / memory / bubble.",
            ("recipe", "recipe", "`auto`, as much memory", "`auto`, no limit", "time"),
            memory_rows(),
        )
    if "tessel" in PARTS:
        show(
            "`--method tessel` on 4 devices with the least memory: period / memory / span, index "
            "sets tried, and seconds: of the repetends, and where every better one is completed "
            "(eager). Last: what its authors' program took with Z3, and a later one that "
            "searches less.",
            (
                "shape",
                "Tessel's search",
                "this project's",
                "index sets",
                "Tessel's search, time",
                "eager",
                "this project's, time",
                "authors",
                "authors, reduced",
            ),
            tessel_rows(),
        )


if __name__ == "__main__":
    main()
