"""SliceGraph: cut a line into intervals with the least largest load (MTPP Algorithm 1).

Exact for the line's order. Instead of the paper's O(n^2 k) table the least feasible bottleneck
is searched. An infeasible sweep (`dnnp.core.split.slicing.sweep`) also returns the least load above
its target that it met, below which nothing changes, so the search soon ends with a proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.items import Line
from dnnp.core.cost.load_formula import COMM, ROUNDING, combine
from dnnp.core.cost.memory import Steps, memory_row, most_memory, tree_size
from dnnp.core.model.device import offered
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Floats, Ints, distinct, totals
from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.split.slicing.sweep import SweepProblem, hold_rows, sweep_for, sweep_problem

MAX_STATES = 50_000_000
"""Items times mixes of device classes; 24 bytes each."""


@dataclass(frozen=True)
class Slicing:
    """Intervals of a line: item bounds i64[b + 1], and the class of each interval i64[b]."""

    bounds: Ints
    classes: Ints
    value: float
    """The largest load; nan where nobody asked."""


def slice_line(
    line: Line,
    comm: str,
    overflow: Steps | None = None,
    below: float = np.inf,
    run: Run = PLAIN,
) -> Slicing | None:
    """Cut `line` into at most `count` intervals of each class, at the least largest load.

    Parameters
    ----------
    line
        Items, nets, costs and reach.
    comm
        `sum`, `overlap` or `duplex`.
    overflow
        The steps of the line, when memory above capacity is streamed (MTPP Eq. 2).
    below
        Look only for slicings with a smaller largest load; None if there is none.
    run
        Asked between sweeps whether to end with the best slicing so far.

    Raises
    ------
    InfeasibleError
        No slicing of this order meets the capacities with the devices there are.
    LimitError
        The mixes of several device classes need too much memory.
    """
    counts = [d.count for d in line.devices]
    # The class with the most devices is minimised; the others are budgets of the state.
    main = counts.index(max(counts))
    order = [c for c in range(len(counts)) if c != main] + [main]
    problem = sweep_problem(line, order, comm, _needed(line, overflow))
    states = int(problem.strides[-1])
    if line.n * states > MAX_STATES:
        raise LimitError(
            f"{line.n} items and {states} mixes of device classes are too many for slicing; "
            "coarsen first, or offer fewer classes"
        )
    least = np.empty((line.n + 1, states), dtype=np.int64)
    choice = np.empty((line.n, states, 2), dtype=np.int64)

    sweep = sweep_for(line.devices, streamed=problem.streamed)

    def feasible(target: float) -> tuple[bool, float]:
        above = float(sweep(target, problem, least, choice))
        return bool(least[0, -1] <= counts[main]), above

    low = _floor(line)
    limit = float(np.nextafter(below, 0.0)) if below < np.inf else np.inf
    target, ceiling = 1.5 * low, float(problem.prefix[:, -1].max() + line.cost.sum())
    while True:
        target = min(limit, target if target < ceiling else np.inf)
        done, above = feasible(target)
        if done:
            break
        if target == limit:
            if limit < np.inf:
                return None
            raise InfeasibleError(
                f"infeasible: no slicing of this order fits {offered(line.devices)}"
            )
        low = max(low, above)
        target = max(above, 2 * target)
    problem = hold_rows(problem, target)
    best = _trace(line, problem, comm, choice, order)
    high = best.value
    while high - low > ROUNDING * high and not run.stop():
        middle = low + (high - low) / 2
        done, above = feasible(middle)
        if done:
            best = _trace(line, problem, comm, choice, order)
            high = min(middle, best.value)
        else:
            low = max(above, np.nextafter(middle, np.inf))
    # The sweep adds up in another order, so its idea of `below` may differ by a rounding error.
    return best if best.value < below else None


def _needed(line: Line, overflow: Steps | None) -> Steps | None:
    """The steps, if some device could overflow at all."""
    if overflow is None:
        return None
    capacity = min(d.memory_bytes for d in line.devices)
    return overflow if most_memory(overflow) > capacity else None


def _floor(line: Line) -> float:
    """Largest of: the mean work of a device, and the largest single item."""
    least = line.work.min(axis=0)
    total = sum(d.count for d in line.devices)
    return float(max(least.max(initial=0.0), least.sum() / max(total, 1) * (1 - ROUNDING)))


def _trace(line: Line, problem: SweepProblem, comm: str, choice: Ints, order: list[int]) -> Slicing:
    """Slicing of the last sweep, which was feasible."""
    bounds, classes = [0], []
    state = int(problem.strides[-1]) - 1
    while bounds[-1] < line.n:
        end, c = choice[bounds[-1], state].tolist()
        bounds.append(end)
        classes.append(order[c])
        if c < len(order) - 1:
            state -= int(problem.strides[c])
    starts, rows = np.array(bounds, dtype=np.int64), np.array(classes, dtype=np.int64)
    return Slicing(starts, rows, float(_interval_loads(line, problem, comm, starts, rows).max()))


def _interval_loads(
    line: Line, problem: SweepProblem, comm: str, bounds: Ints, classes: Ints
) -> Floats:
    """Load of every interval, f64[b], from the nets it cuts."""
    blocks = len(classes)
    block = np.repeat(np.arange(blocks), np.diff(bounds))
    compute = totals(block, line.work[classes[block], np.arange(line.n)], blocks)
    net = np.repeat(np.arange(len(line.source)), np.diff(line.pin_ptr))
    pairs = distinct(net * blocks + block[line.pins])
    net, at = pairs // blocks, pairs % blocks
    paid = line.always[net] | (np.bincount(net, minlength=len(line.source)) > 1)[net]
    price = np.where(paid, line.cost[classes[at], net], 0.0)
    made = line.source[net] >= 0
    leaving = made & (block[line.source[net]] == at)
    out_s = totals(at, price * leaving, blocks)
    in_s = totals(at, price * ~leaving, blocks)
    loads = np.empty(blocks)
    for b, c in enumerate(classes):
        device, extra = line.devices[c], 0.0
        if problem.streamed and np.isfinite(device.memory_bytes) and not device.is_cpu:
            row = np.zeros(line.n)
            trees = np.zeros((2, tree_size(problem.steps)))
            memory_row(problem.steps, bounds[b], bounds[b + 1] - 1, trees[0], trees[1], row)
            excess = max(0.0, row[bounds[b + 1] - 1] - device.memory_bytes)
            extra = excess / device.bandwidth_bytes_per_s
        loads[b] = combine(COMM[comm], in_s[b], compute[b], extra, out_s[b])
    return loads
