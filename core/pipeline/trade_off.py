"""The trade-off between period and memory."""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.model.beside import beside
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.placement import Placement
from dnnp.core.model.run import PLAIN, Run
from dnnp.core.model.schedule import Point
from dnnp.core.model.text import counted, shown_bytes
from dnnp.core.pipeline.auto import name_fallback
from dnnp.core.pipeline.problem import TOLERANCE, limited, problem_of
from dnnp.core.pipeline.repetend import find_repetend

MOST_POINTS = 1000
"""Points of a trade-off."""


def trade_off(placement: Placement, unroll: int | None = None, run: Run = PLAIN) -> list[Point]:
    """The least period for every limit of memory that makes a difference, ascending by memory.

    The limits of the placement hold besides. A search that is interrupted, or finds nothing with
    its effort, ends the list. `unroll`: micro-batches in a period; None: 1.
    """
    points: list[Point] = []
    whole = beside(lambda: _add_points(placement, unroll, run, points), run.stop, lambda: False)
    if not whole:
        run.warn(f"the trade-off ends after {len(points)} points; there may be more below")
    return points[::-1]


def _add_points(placement: Placement, unroll: int | None, run: Run, points: list[Point]) -> bool:
    """Append the points of the trade-off, descending by memory, as they are found.

    Returns whether these are all.
    """
    u = math.lcm(unroll or 1, placement.turns)
    problem = problem_of(placement, u)
    scale = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    while len(points) < MOST_POINTS and not run.stop():
        try:
            run.stands("trade-off" if not points else f"trade-off, {counted(len(points), 'point')}")
            found = find_repetend(problem, run=run.alone())
        except InfeasibleError:
            if not points:
                raise
            return True
        except LimitError:
            if not points:
                raise
            break
        if not points:
            name_fallback(found, run)
        memory = float(found.memory_bytes[np.isfinite(found.memory_bytes)].max(initial=0.0))
        point = Point(memory, found.rate_s, found.period_bound_s / u, found.start_s, found.method)
        held = shown_bytes(memory) if run.in_seconds else f"{memory:.6g}"
        run.tell(f"memory {held}: period {run.shown(point.period_s)}")
        if points and point.period_s <= points[-1].period_s * (1 + TOLERANCE):
            points.pop()
        points.append(point)
        if memory <= float(problem.fixed.max(initial=0.0)) + scale:
            return True
        problem = limited(problem, memory - 2 * scale)
    return False
