"""A first answer: found at once, by plain Python and numpy, before any kernel is compiled.

It is what there is where a search is stopped before it has found anything. Nothing is optimised:
a topological order is cut into parts of about equal compute time that fit their devices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnnp.core.baselines.blocks import interval_blocks
from dnnp.core.cost.items import LinearizedItems
from dnnp.core.cost.latency import POOL, TRIES, LatencyProblem, Placement, Split, lazy_events
from dnnp.core.cost.load import stage_memory
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.homes import blocks_of_homes
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.graph import Ints, place_of
from dnnp.core.model.plan import Block, without_memory
from dnnp.core.split.slicing.orders import ORDERS

FIRST_FIT = "first-fit"
"""Name of the method, in records."""

SLACK = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, np.inf)
"""Compute times of a part, in mean times of a device, until the parts are few enough."""


def first_split(problem: SplitProblem) -> list[Block] | None:
    """An ordered split that fits, if this finds one; without replicas."""
    if not problem.graph.n:
        return []
    items = problem.items
    # Without memory no kernel says how far a part may reach; `_fitting` does.
    bare = problem.with_options(without_memory(problem.options))
    for make in ORDERS.values():
        line = bare.line(items, make(items))
        found = _cut(problem, line)
        if found is not None:
            return found
    return None


def _cut(problem: SplitProblem, line: LinearizedItems) -> list[Block] | None:
    """The first cut of a line that fits, or all that fits into one part, if that is better."""
    least = line.work.min(axis=0)
    count = sum(d.count for d in line.devices)
    mean = float(least[np.isfinite(least)].sum()) / max(count, 1)
    best: tuple[float, list[Block]] | None = None
    for slack in SLACK:
        if best is not None and slack < np.inf:
            continue
        parts = _parts(problem, line, slack * mean if mean > 0 else np.inf)
        if parts is None:
            continue
        bounds, classes = parts
        blocks = interval_blocks(problem, line, bounds, classes)
        try:
            value = problem.value(blocks)
        except InfeasibleError:
            continue
        if best is None or value < best[0]:
            best = value, blocks
    return None if best is None else best[1]


def _parts(problem: SplitProblem, line: LinearizedItems, most: float) -> tuple[Ints, Ints] | None:
    """Bounds i64[b + 1] and classes i64[b] of parts of at most `most` time, but for one item.

    The next part is on the device that takes it furthest; None: there are too few devices.
    """
    left = [d.count for d in line.devices]
    work = np.where(np.isfinite(line.work), line.work, 0.0)
    running = np.concatenate([np.zeros((len(left), 1)), np.cumsum(work, axis=1)], axis=1)
    bounds, classes = [0], []
    while bounds[-1] < line.n:
        first = bounds[-1]
        end, chosen = first, -1
        for c in range(len(left)):
            if not left[c]:
                continue
            far = int(np.searchsorted(running[c], running[c, first] + most * ROOM, "right")) - 1
            far = min(max(far, first + 1), int(line.reach[c, first]) + 1)
            far = _fitting(problem, line, c, first, far)
            if far > end:
                end, chosen = far, c
        if chosen < 0:
            return None
        left[chosen] -= 1
        bounds.append(end)
        classes.append(chosen)
    return np.array(bounds, dtype=np.int64), np.array(classes, dtype=np.int64)


def _fitting(problem: SplitProblem, line: LinearizedItems, c: int, first: int, end: int) -> int:
    """The last end up to `end` at which a part from `first` on fits a device of class `c`."""
    device, graph = line.devices[c], problem.graph
    if problem.options.memory_mode != "hard" or device.is_cpu or np.isinf(device.memory_bytes):
        return end

    def fits(end: int) -> bool:
        nodes = line.nodes[line.node_ptr[first] : line.node_ptr[end]]
        step = place_of(nodes, graph.n)
        memory = stage_memory(graph, nodes, step, problem.options)[0]
        return memory <= device.memory_bytes * ROOM

    low, high = first, end
    if end > first and fits(end):
        return end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def first_latency(problem: LatencyProblem) -> Split | None:
    """A split for one sample: all on one device, else devices filled one after the other."""
    best: tuple[float, Split] | None = None
    bare = problem
    for _ in range(TRIES):
        made = None
        for home in _homes(bare):
            try:
                if problem.options.execution == "blocks":
                    split: Split = blocks_of_homes(problem, home)
                else:
                    events = lazy_events(problem.tasks, home, problem.tasks.order)
                    split = made = Placement(home, events)
                value = problem.value(split)
            except (InfeasibleError, FormatError):
                continue
            if best is None or value < best[0]:
                best = value, split
        if best is not None or problem.live is None or made is None:
            break
        bare = problem.tightened(made, bare)
    return None if best is None else best[1]


def _homes(problem: LatencyProblem) -> Iterator[Ints]:
    """A device for each task, i64[n] each; what is on a CPU is in the pool, for `blocks`."""
    tasks, machine = problem.tasks, problem.machine
    blocks = problem.options.execution == "blocks"
    place = [POOL if blocks and cpu else d for d, cpu in enumerate(machine.is_cpu.tolist())]
    alike: set[tuple[float, ...]] = set()
    for d, one in enumerate(place):
        speed = (float(tasks.time[d].sum()), float(machine.capacity[d]))
        if speed not in alike and np.isfinite(speed[0]):
            alike.add(speed)
            yield np.full(tasks.n, one)
    home = np.full(tasks.n, -2, dtype=np.int64)
    members: dict[int, list[int]] = {}
    for v, color in enumerate(tasks.together.tolist()):
        members.setdefault(color, []).append(v)
    waiting = list(dict.fromkeys(tasks.together[tasks.order].tolist()))
    for d in np.argsort(machine.is_cpu, kind="stable").tolist():
        free = float(machine.capacity[d]) * ROOM
        later = []
        for color in waiting:
            mine = members[color]
            need = float(tasks.memory[mine].sum())
            if need <= free and np.isfinite(tasks.time[d, mine]).all():
                home[mine] = place[d]
                free -= need
            else:
                later.append(color)
        waiting = later
    if not waiting:
        yield home
