"""List scheduling with transfers that wait for each other as the cost model says.

All give sequences of events that the cost model turns into the same times.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, LatencySolution, Placement
from dnnp.core.kernels.kernel import kernel
from dnnp.core.latency.lists.earliest import Rules, earliest
from dnnp.core.latency.lists.insertion import DONE, insertion
from dnnp.core.latency.lists.lanes import commit, new_state, send, sort_reads
from dnnp.core.latency.lists.net import Net, falling, net_of, upward_rank
from dnnp.core.latency.lists.room import FULL, Room, attempts, repaired
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.search_context import PLAIN, Run

PACKED, REPAIRED = "-packed", "-repaired"
"""Behind the names of methods that had to be helped to fit the memory."""

WINDOW = 1024
"""Ready tasks of the highest priority among which the earliest start is sought."""


@kernel
def follow(net: Net, home: Ints, order: Ints, eager: bool) -> tuple[float, Ints]:
    """Schedule tasks on their devices (i64[n]) in a topological order; value and events.

    Transfers go as soon as their flow is made (`eager`), those first whose readers come first; or
    when the first task that reads them comes up.
    """
    n, count = len(order), len(net.rate)
    state = new_state(net)
    # First reader of each flow on each device, in the order.
    first = np.full((len(net.maker), count), n, dtype=np.int64)
    queue = np.full(len(net.maker) * count, 0, dtype=np.int64)
    if eager:
        for q in range(n):
            v = order[q]
            for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
                f = net.in_idx[a]
                first[f, home[v]] = min(first[f, home[v]], q)
    at, value = 0, 0.0
    for v in order:
        d = home[v]
        if not eager:
            sort_reads(net, state, v)
        at = commit(net, state, v, d, at)
        value = max(value, state.end[v])
        if not eager:
            continue
        # What is read first goes first; by insertion: they are few.
        many = 0
        for a in range(net.out_ptr[v], net.out_ptr[v + 1]):
            f = net.out_idx[a]
            for e in range(count):
                if e == d or first[f, e] == n:
                    continue
                k = many
                while k > 0 and first[queue[k - 1] // count, queue[k - 1] % count] > first[f, e]:
                    queue[k] = queue[k - 1]
                    k -= 1
                queue[k] = f * count + e
                many += 1
        for k in range(many):
            at = send(net, state, queue[k] // count, queue[k] % count, at)
    return value, state.events[:at].copy()


def schedule_homes(problem: LatencyProblem, device: Ints) -> Placement:
    """Sequence tasks and transfers, given the device of each task; the best of six ways.

    The ways: tasks by upward rank, by the earliest start, or by rank with insertion in gaps;
    transfers eager or lazy. `device` is i64[n].
    """
    net = net_of(problem)
    device = np.ascontiguousarray(device, dtype=np.int64)
    rank = upward_rank(problem, net)
    home = np.zeros(int(net.color.max(initial=-1)) + 1, dtype=np.int64)
    home[net.color] = device
    needs, holds = np.zeros(len(home)), np.zeros(len(net.rate))
    able = np.ones((len(net.rate), len(home)), dtype=np.bool_)
    anywhere = np.ones((len(net.rate), len(device)), dtype=np.bool_)
    nobody = np.full(len(device), -1, dtype=np.int64)
    rules = Rules(_places(rank), able, anywhere, needs, holds, nobody, False, WINDOW)
    _, value, _, events = earliest(net, rules, home)
    listed = falling(net, rank)
    soon = events[events[:, 0] == TASK, 1].copy()
    start = insertion(net, listed, home, able, needs, holds)[2]
    gaps = by_start(listed, start)
    for order, eager in (
        (listed, False),
        (listed, True),
        (soon, True),
        (gaps, False),
        (gaps, True),
    ):
        other, found = follow(net, device, order, eager)
        if other < value:
            value, events = other, found
    return Placement(device, events)


def _places(priority: Floats) -> Ints:
    """Rank of each task by falling priority, ties by number; i64[n]."""
    place = np.empty(len(priority), dtype=np.int64)
    place[np.argsort(-priority, kind="stable")] = np.arange(len(priority))
    return place


def by_start(order: Ints, start: Floats) -> Ints:
    """Tasks by their start (f64[n]), ties as in a topological order; i64[n]."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return np.lexsort((place, start)).astype(np.int64)


def schedule_order(problem: LatencyProblem, device: Ints, order: Ints) -> Placement:
    """Sequence tasks in a topological order (i64[n]), with transfers eager or lazy, as is best."""
    net = net_of(problem)
    device = np.ascontiguousarray(device, dtype=np.int64)
    order = np.ascontiguousarray(order, dtype=np.int64)
    lazy, eager = follow(net, device, order, False), follow(net, device, order, True)
    return Placement(device, (lazy if lazy[0] <= eager[0] else eager)[1])


def list_schedule(
    problem: LatencyProblem,
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
    net = net_of(problem)
    if preferred is None:
        preferred = np.ones(net.time.shape, dtype=np.bool_)
    if favourite is None:
        favourite = np.full(problem.tasks.n, -1, dtype=np.int64)
    rules = Rules(
        _places(priority),
        room.able,
        preferred,
        room.memory,
        room.limit,
        favourite,
        by_end,
        WINDOW,
    )
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
    placement = schedule_homes(problem, found[problem.tasks.together])
    other = found != home
    moved = int((other if passed is None else other & ~passed).sum())
    if not moved:
        return LatencySolution(placement)
    name = method + REPAIRED
    count = f"{moved} of {len(home)} places"
    run.warn(f"{method}: no room for {count}, which were repaired; what ran instead is {name}")
    return LatencySolution(placement, method=name)
