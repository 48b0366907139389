"""Lower bounds of latency where every task is placed by itself (`operators`).

All of them ignore that transfers wait for each other, and colours but for the devices that
support all of one:

    critical path    longest way through the graph, every task on the device that suits it best,
                     transfers between different devices included
    area             no device has time for more than the latency, nor memory for more than it
                     has: a linear program over fractional placements
    memory path      a way through the graph where devices have a price for memory
                     (Lagrange multipliers of the capacities)
    windows          critical path where tasks are as far apart as all between them need, and
                     tasks crowd into what is left between earliest starts and latest ends
    segments         the same along the longest way alone, between tasks that all others meet in

`upper` sharpens windows: no placement below it uses certain devices for certain tasks.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.operators.bound import (
    SAFE,
    WINDOW,
    area_bound,
    exclude,
    heads,
    memory_path,
    windows_bound,
)
from dnnp.core.latency.operators.segments import segments_bound
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import PLAIN, SearchContext


def operators_bound(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> tuple[float, str]:
    """Best lower bound of the latency of a placement, and its name.

    Windows over all tasks are left out where windows span each of many segments.

    Parameters
    ----------
    upper
        Latency of a placement that is known. The bound is at most that.

    Raises
    ------
    InfeasibleError
        A colour that no device supports or holds.
    """
    if problem.tasks.n == 0:
        return 0.0, "critical path"
    net = net_of(problem, tails=True)
    usable = net.allowed[net.together]
    if not usable.any(axis=1).all():
        v = int(np.flatnonzero(~usable.any(axis=1))[0])
        raise InfeasibleError(f"infeasible: no device supports and holds task {v} and its colour")
    n, count = net.time.shape
    none, never = np.zeros((n, 1, count, count)), np.zeros((n, 1), dtype=np.bool_)
    head, tail = np.zeros((n, count)), net.tail.copy()
    heads(net, none, never, usable, head)
    found = [(float(exclude(usable.copy(), head, tail, np.inf)), "critical path")]
    area, prices, weights = area_bound(problem, net, usable)
    found.append((area, "area"))
    if not run.stop() and (prices > 0).any():
        found.append((memory_path(net, usable, prices), "memory path"))
    spanned = False
    if n > WINDOW and not run.stop():
        value, spanned = segments_bound(problem, usable, head, tail, run)
        found.append((value, "segments"))
    if not (spanned or run.stop()):
        least = max(found)[0]
        value = windows_bound(net, usable, head, tail, weights, least, upper, run)
        found.append((value, "windows"))
    # What comes later is named only if it proves more than rounding does.
    value, name = found[0]
    for other in found[1:]:
        if other[0] > value * (1 + 1e-9):
            value, name = other
    return min(value * SAFE, upper), name
