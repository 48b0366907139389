"""List scheduling with transfers that wait for each other as the cost model says.

All give sequences of events that the cost model turns into the same times.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, LatencySolution, Placement
from dnnp.core.latency.lists.build import DONE, Rules, earliest, follow, insertion
from dnnp.core.latency.lists.net import TaskNet, falling, net_of, upward_rank
from dnnp.core.latency.lists.room import FULL, Room, attempts, repaired
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.search_context import PLAIN, Run

PACKED, REPAIRED = "-packed", "-repaired"
"""Behind the names of methods that had to be helped to fit the memory."""


def schedule_homes(net: TaskNet, device: Ints) -> Placement:
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
    gaps = insert(net, listed, device)
    if gaps is not None:
        ways += [(gaps[1], False), (gaps[1], True)]
    for order, eager in ways:
        other, found = follow(net, device, order, eager)
        if other < value:
            value, events = other, found
    return Placement(device, events)


def _rules(
    net: TaskNet,
    priority: Floats,
    preferred: Bools | None = None,
    favourite: Ints | None = None,
    *,
    by_end: bool = False,
) -> Rules:
    """Rules of tasks by falling priority, ties by number; `None`: nothing is."""
    n, count = net.time.shape
    place = np.empty(n, dtype=np.int64)
    place[np.argsort(-priority, kind="stable")] = np.arange(n)
    if preferred is None:
        preferred = np.ones((count, n), dtype=np.bool_)
    if favourite is None:
        favourite = np.full(n, -1, dtype=np.int64)
    return Rules(place, preferred, favourite, by_end)


def insert(net: TaskNet, order: Ints, device: Ints) -> tuple[Ints, Ints] | None:
    """HEFT as published, as if transfers did not wait: devices, and tasks by start; i64[n] each.

    `order` is a topological one; devices (i64[n]) that are not -1 are kept. None: some task has no
    place.
    """
    n, count = net.time.shape
    start, sent_at = np.zeros(n), np.zeros((len(net.maker), count))
    free, device = net._replace(waits=np.zeros(1, dtype=np.bool_)), device.astype(np.int64)
    if not insertion(free, order, 0.0, start, device, sent_at):
        return None
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    return device, np.lexsort((place, start)).astype(np.int64)


def schedule_order(net: TaskNet, device: Ints, order: Ints) -> Placement:
    """Sequence tasks in a topological order (i64[n]), with transfers eager or lazy, as is best."""
    device = np.ascontiguousarray(device, dtype=np.int64)
    order = np.ascontiguousarray(order, dtype=np.int64)
    lazy, eager = follow(net, device, order, False), follow(net, device, order, True)
    return Placement(device, (lazy if lazy[0] <= eager[0] else eager)[1])


def list_schedule(
    net: TaskNet,
    room: Room,
    priority: Floats,
    *,
    preferred: Bools | None = None,
    favourite: Ints | None = None,
    by_end: bool = False,
    run: Run = PLAIN,
) -> tuple[Placement, bool]:
    """Choose devices and build a schedule at the same time; see `earliest`.

    Where the devices are full before every task has a place, some homes are fixed beforehand,
    see `attempts`, which has the errors, too. Returns the placement, and whether that was so.
    """
    net, rules = room.limits(net), _rules(net, priority, preferred, favourite, by_end=by_end)
    for home in attempts(room, run):
        lost, _, device, events = earliest(net, rules, home)
        if lost == DONE:
            return Placement(device, events), bool((home >= 0).any())
    raise LimitError(FULL)


def answer(
    found: tuple[Placement, bool], method: str, run: Run, *, instead: str = "", why: str = ""
) -> LatencySolution:
    """The answer of a method under the name of what ran, which the run is warned of.

    `found` is what `list_schedule` returns; `instead` is the name of what replaced the program of
    the method, and `why` the reason for that, both empty where none was replaced.
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
    room: Room,
    home: Ints,
    method: str,
    run: Run,
    *,
    passed: Bools | None = None,
) -> LatencySolution:
    """The answer of a method that says where colours go (i64[c]), and not when.

    Where these homes do not fit, or are not all there, they are `repaired` under a name of its
    own, which the run is warned of; that has the errors, too. Colours that the method itself puts
    anywhere (`passed`, bool[c]) do not count.
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
