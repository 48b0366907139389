"""List scheduling with transfers that wait for each other as the cost model says.

Results are sequences of events to which the cost model gives the same times. Where a method runs
out of memory, colours (tasks that share a device) are packed beforehand, or its result is repaired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, LatencySolution, Placement
from dnnp.core.cost.load_formula import MARGIN, SAFE_ROOM
from dnnp.core.latency.lists.build import DONE, Rules, earliest, follow, insertion
from dnnp.core.latency.lists.net import FlowNet, falling, net_of, upward_rank
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, place_of, totals
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.model.text import shown_bytes
from dnnp.core.solver.program import TOLERANCES, Program
from dnnp.core.solver.slices import ask

FULL = "the devices are full before every task has a place"

PACKING_S = 20.0
"""Time limit of the packing program, seconds."""

MOST_CHOICES = 20_000
"""Colours times devices above which no program is tried."""

SHARES = (0.5, 0.9, 1.0)
"""Shares of the memory that are packed beforehand, one after the other, until the rest fits."""

PACKED, REPAIRED = "-packed", "-repaired"
"""Suffixes of the names of methods whose result was made to fit the memory."""


@dataclass(frozen=True, eq=False)
class MemoryLimits:
    """Memory of `c` colours and `D` devices."""

    memory: Floats
    """f64[c], bytes of each colour."""
    limit: Floats
    """f64[D], capacity of each device, bytes."""
    able: Bools
    """bool[D, c]: the device supports all tasks of the colour, and holds them alone."""
    work: Floats
    """f64[D, c], time of all tasks of the colour; inf where unsupported."""

    def applied_to(self, net: FlowNet) -> FlowNet:
        """The same net with these limits."""
        return net._replace(allowed=np.ascontiguousarray(self.able.T), capacity=self.limit)


def memory_limits(problem: LatencyProblem) -> MemoryLimits:
    """Memory of the colours and devices of a problem.

    Raises
    ------
    InfeasibleError
        A colour fits on no device, or all memory together is too small.
    LimitError
        That is so but for rounding.
    """
    tasks, machine = problem.tasks, problem.machine
    count = int(tasks.together.max(initial=-1)) + 1
    memory = totals(tasks.together, tasks.memory, count)
    work = np.array([totals(tasks.together, t, count) for t in tasks.time])
    limit = machine.capacity * SAFE_ROOM
    runs = np.isfinite(work)
    able = runs & (memory <= limit[:, None])
    lost = np.flatnonzero(~able.any(axis=0))
    if len(lost):
        color = int(lost[0])
        task = int(np.flatnonzero(tasks.together == color)[0])
        if not runs[:, color].any():
            raise InfeasibleError(
                f"infeasible: no device runs task {task} and all that has to be with it"
            )
        most = float(machine.capacity[runs[:, color]].max())
        if memory[color] <= most * (1 + MARGIN):
            raise LimitError(FULL)
        raise InfeasibleError(
            f"infeasible: task {task} and all that has to be with it need "
            f"{shown_bytes(float(memory[color]), 6)}, devices that run it have at most "
            f"{shown_bytes(most, 6)}"
        )
    needed, there = float(memory.sum()), float(machine.capacity.sum())
    if needed > there * (1 + MARGIN):
        raise InfeasibleError(
            f"infeasible: all tasks need {shown_bytes(needed, 6)}, all devices together have "
            f"{shown_bytes(there, 6)}, {shown_bytes(needed - there)} short"
        )
    return MemoryLimits(memory, limit, able, work)


def by_first(color: Ints) -> Ints:
    """Colours in the order in which they first appear in `color` (i64[n])."""
    found, first = np.unique(color, return_index=True)
    return found[np.argsort(first)]


def first_fit(room: MemoryLimits) -> Ints | None:
    """Pack by first fit decreasing, and the like; i64[c], a device of each colour, or None.

    Colours that few devices can hold come first. Of the devices with room the attempts take, one
    after the other: the first, the fullest, the emptiest.
    """
    count = len(room.memory)
    choices = room.able.sum(axis=0)
    decreasing = np.lexsort((np.arange(count), -room.memory))
    scarce = np.lexsort((np.arange(count), -room.memory, choices))
    for order in (scarce, decreasing):
        for way in range(3):
            free = room.limit.copy()
            home = np.full(count, -1, dtype=np.int64)
            for c in order.tolist():
                usable = room.able[:, c] & (room.memory[c] <= free)
                if not usable.any():
                    break
                left = np.where(usable, free, np.inf if way < 2 else -np.inf)
                taken = int((np.argmax(usable), np.argmin(left), np.argmax(left))[way])
                home[c] = taken
                free[taken] -= room.memory[c]
            else:
                return home
    return None


def packed(room: MemoryLimits, run: SearchContext = PLAIN) -> Ints:
    """Pack all colours: by first fit, or by a program where that fails; i64[c].

    Raises
    ------
    InfeasibleError
        It is proven that they do not fit.
    LimitError
        None was found.
    """
    home = first_fit(room)
    if home is not None:
        return home
    devices, count = room.able.shape
    if devices * count > MOST_CHOICES:
        raise LimitError(FULL)
    program = Program()
    column = np.full((devices, count), -1, dtype=np.int64)
    for d, c in np.argwhere(room.able).tolist():
        column[d, c] = program.column(integer=True)
    for c in range(count):
        mine = column[room.able[:, c], c].tolist()
        program.row(mine, [1.0] * len(mine), "=", 1.0)
    for d in np.flatnonzero(np.isfinite(room.limit)).tolist():
        mine = np.flatnonzero(room.able[d])
        scale = max(room.limit[d], 1e-300)
        program.row(column[d, mine].tolist(), (room.memory[mine] / scale).tolist(), "<", 1.0)
    for tolerance in TOLERANCES:
        outcome = ask(program, seconds=PACKING_S, patience=PACKING_S, run=run, tolerance=tolerance)
        if outcome.status != "infeasible":
            break
    if outcome.status == "infeasible":
        raise InfeasibleError("infeasible: the tasks do not fit the memory of the devices")
    if outcome.values is not None:
        values = np.append(outcome.values, -1.0)
        home = np.argmax(values[column], axis=0).astype(np.int64)
        if fits(room, home):
            return home
    raise LimitError(FULL)


def fits(room: MemoryLimits, home: Ints) -> bool:
    """True if homes of all colours (i64[c]) respect memory and support."""
    if not room.able[home, np.arange(len(home))].all():
        return False
    used = totals(home, room.memory, len(room.limit))
    return bool((used <= room.limit).all())


def attempts(room: MemoryLimits, run: SearchContext = PLAIN) -> Iterator[Ints]:
    """Homes to fix before a method starts; i64[c] each, -1: free.

    First none, then the largest colours of a packing, at last all. For the errors see `packed`.
    """
    count = len(room.memory)
    yield np.full(count, -1, dtype=np.int64)
    home = packed(room, run)
    order = np.lexsort((np.arange(count), -room.memory))
    running = np.cumsum(room.memory[order])
    for share in SHARES:
        fixed = home.copy()
        fixed[order[np.searchsorted(running, share * running[-1]) + 1 :]] = -1
        yield fixed if share < 1 else home


def repaired(room: MemoryLimits, home: Ints, run: SearchContext = PLAIN) -> Ints:
    """Homes near those given that respect memory and support; i64[c].

    Devices keep their given colours, large ones first, while there is room; the others go to the
    device with room that runs them fastest. Homes of -1 are free.
    """
    if (home >= 0).all() and fits(room, home):
        return home
    for fixed in attempts(room, run):
        free = room.limit.copy()
        wanted = np.where(fixed >= 0, fixed, home)
        found = np.full(len(home), -1, dtype=np.int64)
        # Colours that a packing has fixed come first, then the given ones, then the rest.
        kind = np.where(fixed >= 0, 0, np.where(home >= 0, 1, 2))
        for c in np.lexsort((np.arange(len(home)), -room.memory, kind)).tolist():
            usable = room.able[:, c] & (room.memory[c] <= free)
            if not usable.any():
                break
            d = int(wanted[c])
            if d < 0 or not usable[d]:
                d = int(np.argmin(np.where(usable, room.work[:, c], np.inf)))
            found[c] = d
            free[d] -= room.memory[c]
        else:
            return found
    raise LimitError(FULL)


def schedule_homes(net: FlowNet, device: Ints) -> Placement:
    """Sequence tasks and transfers, given the device of each task; the best of six ways.

    The ways: tasks by upward rank, by the earliest start, or by rank with insertion in gaps;
    transfers eager or lazy. `device` is i64[n].
    """
    device = np.ascontiguousarray(device, dtype=np.int64)
    rank = upward_rank(net)
    home = np.zeros(len(net.bytes), dtype=np.int64)
    home[net.together] = device
    _, value, _, events = earliest(net, _rules(net, rank), home)
    listed = falling(net, rank)
    soon = events[events[:, 0] == TASK, 1].copy()
    ways = [(listed, False), (listed, True), (soon, True)]
    gaps = inserted(net.without_waiting(), listed, device)
    if gaps is not None:
        ways += [(gaps[0], False), (gaps[0], True)]
    for order, eager in ways:
        other, found = follow(net, device, order, eager)
        if other < value:
            value, events = other, found
    return Placement(device, events)


def _rules(
    net: FlowNet,
    priority: Floats,
    preferred: Bools | None = None,
    favourite: Ints | None = None,
    *,
    by_end: bool = False,
) -> Rules:
    """Rules of tasks by falling priority, ties by number; None: no preference."""
    n, count = net.time.shape
    place = place_of(np.argsort(-priority, kind="stable"))
    if preferred is None:
        preferred = np.ones((count, n), dtype=np.bool_)
    if favourite is None:
        favourite = np.full(n, -1, dtype=np.int64)
    return Rules(place, preferred, favourite, by_end)


def inserted(
    net: FlowNet, order: Ints, device: Ints, ahead: float = 0.0
) -> tuple[Ints, Placement] | None:
    """Schedule by `insertion`: tasks by start, and the placement; None if they do not fit.

    `order` is a topological one; devices (i64[n]) that are not -1 are kept.
    """
    n, count = net.time.shape
    start, sent_at = np.zeros(n), np.zeros((len(net.maker), count))
    device = device.astype(np.int64)
    if not insertion(net, order, ahead, start, device, sent_at):
        return None
    rank = place_of(order)
    flow, target = np.nonzero(np.isfinite(sent_at))
    sent, source = sent_at[flow, target], device[net.maker[flow]]
    length = (
        net.latency[source, target]
        + net.size[flow] * net.rate[source, target]
        + net.fixed[flow] * net.charged[source, target]
    )
    span = start, start + net.time[np.arange(n), device]
    placement = by_start(net, rank, device, span, flow, target, (sent, sent + length))
    return np.lexsort((rank, start)), placement


def by_start(
    net: FlowNet,
    rank: Ints,
    device: Ints,
    span: tuple[Floats, Floats],
    flow: Ints,
    target: Ints,
    moved: tuple[Floats, Floats],
) -> Placement:
    """Events by start: tasks, i64[n] by rank, and transfers of flows to targets, i64[m] each.

    Both with starts and ends. Of equal starts the event that ends first comes first, then the one
    for which others may wait.
    """
    n = len(rank)
    keys = np.concatenate([2 * rank, 2 * rank[net.maker[flow]] + 1])
    events = np.concatenate(
        [np.stack([np.full(n, TASK), np.arange(n)], axis=1), np.stack([flow, target], axis=1)]
    )
    begin, end = (np.concatenate([own, sent]) for own, sent in zip(span, moved, strict=True))
    order = np.lexsort((keys, end, begin))
    return Placement(device, events[order].astype(np.int64))


def schedule_order(net: FlowNet, device: Ints, order: Ints) -> Placement:
    """Sequence tasks in a topological order (i64[n]), with transfers eager or lazy, as is best."""
    device = np.ascontiguousarray(device, dtype=np.int64)
    order = np.ascontiguousarray(order, dtype=np.int64)
    lazy, eager = follow(net, device, order, False), follow(net, device, order, True)
    return Placement(device, (lazy if lazy[0] <= eager[0] else eager)[1])


def list_schedule(
    net: FlowNet,
    room: MemoryLimits,
    priority: Floats,
    *,
    preferred: Bools | None = None,
    favourite: Ints | None = None,
    by_end: bool = False,
    run: SearchContext = PLAIN,
) -> tuple[Placement, bool]:
    """Choose devices and build a schedule at the same time; see `earliest`.

    Where the devices are full before every task has a place, some homes are fixed beforehand by
    `attempts`, which has the errors, too. Returns the placement, and True if that was so.
    """
    net, rules = room.applied_to(net), _rules(net, priority, preferred, favourite, by_end=by_end)
    for home in attempts(room, run):
        lost, _, device, events = earliest(net, rules, home)
        if lost == DONE:
            return Placement(device, events), bool((home >= 0).any())
    raise LimitError(FULL)


def answer(
    found: tuple[Placement, bool],
    method: str,
    run: SearchContext,
    *,
    instead: str = "",
    why: str = "",
) -> LatencySolution:
    """Solution of a method under the name of the method that ran, with a warning if it is another.

    `found`: result of `list_schedule`; `instead`, `why`: name and reason of a replacement of the
    method's program, both empty if there is none.
    """
    placement, packed = found
    name = instead if why else method
    if packed:
        name += PACKED
        full = "the devices ran full, so that places of large tasks were packed beforehand"
        why = f"{why}; {full}" if why else full
    if name == method:
        return LatencySolution(placement)
    run.warn(f"{method}: {why}; what ran instead is {name}")
    return LatencySolution(placement, method=name)


def repaired_answer(
    problem: LatencyProblem,
    room: MemoryLimits,
    home: Ints,
    method: str,
    run: SearchContext,
    *,
    passed: Bools | None = None,
) -> LatencySolution:
    """Solution of a method that finds the device of each colour (i64[c]), and no times.

    Homes that do not fit or are missing are `repaired` under a name of its own, with a warning;
    that has the errors, too. Colours that the method left out (`passed`, bool[c]) do not count.
    """
    found = repaired(room, home, run)
    placement = schedule_homes(net_of(problem), found[problem.tasks.together])
    other = found != home
    moved = int((other if passed is None else other & ~passed).sum())
    if not moved:
        return LatencySolution(placement)
    name = method + REPAIRED
    count = f"{moved} of {len(home)} places"
    run.warn(f"{method}: no room for {count}, which were repaired; what ran instead is {name}")
    return LatencySolution(placement, method=name)
