"""Depth-first search over schedules that grow by the time at which tasks start; kernels.

A schedule grows by one task on one device, at the earliest start there, in the order of starts
(those that take no time first, then by number): every schedule without needless waiting comes up
once. A branch ends where `bound` finds nothing within the limit, which is just below the best end.

Remembered states. Let A be a state that was left before B is met, with the same tasks done. If
every device is free, and everything is there, no later at A than at B, A goes with B's rest. Of all
schedules within the limit take those of the least sum of starts, of them the one that the
search would meet first; it is pruned nowhere: where A has no larger sum than B and no later clock,
B's rest after A is a schedule of a smaller sum, or comes first. That covers as well identical
devices that are equal for all that is left: with the first of them the sum is equal, and the
schedule comes first.

Rest of independent tasks. If all that is left is ready, and some order has ready times rise and
tails fall on each device, each device can run its tasks in that order. They are placed in that
order alone, whatever their starts; what fails there has no schedule at all: its sum is -1.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from dnnp.core.kernels.kernel import callee, lean, part, scratch
from dnnp.core.latency.exact.bound import bound
from dnnp.core.latency.exact.net import NEVER, TaskNet, turned
from dnnp.core.model.graph import Ints

DEPTH, DONE, ENTERS, NODES, LIMIT, FOUND, TURN = range(7)
"""Places of `at`: depth, or -1 at the end; tasks done, as bits; 1 if a node is new; nodes so far;
the limit; end of the best schedule, or -1; way of the memory that is overwritten next."""

NEXT, COUNT, CLOCK, WORKS, TASK, SUM, FREE, MADE = range(8)
"""Places of a level of `stack`: next child; children; start of the last task, 1 if it takes time,
its number; sum of starts; when its device was free before the child that is made; that."""

MOST_TASKS = 62
"""Tasks that bits of a whole number can stand for."""

MOST_DEVICES = 64

WAYS = 16
"""States that are remembered in one place."""

EDGE = 20
"""Done tasks with waiting successors; states with more of them are not remembered."""


class SearchState(NamedTuple):
    """A search under way: all arrays are i64."""

    at: Annotated[Ints, "i64[7]"]
    end: Annotated[Ints, "i64[n]"]
    home: Annotated[Ints, "i64[n]"]
    """Of done tasks."""
    free: Annotated[Ints, "i64[D]"]
    left: Ints
    """i64[D]. When devices are free, and memory left."""
    fixed: Annotated[Ints, "i64[c]"]
    """Device of each colour, or -1."""
    ready: Annotated[Ints, "i64[n, D]"]
    start: Annotated[Ints, "i64[n, D]"]
    finish: Annotated[Ints, "i64[n, D]"]
    """See `bound`."""
    soonest: Annotated[Ints, "i64[n]"]
    first: Annotated[Ints, "i64[n]"]
    ending: Annotated[Ints, "i64[n]"]
    work: Annotated[Ints, "i64[n]"]
    """Earliest end, earliest start, latest end, least time."""
    queue: Annotated[Ints, "i64[n]"]
    frees: Annotated[Ints, "i64[D]"]
    scratch: Annotated[Ints, "i64[3, n1]"]
    stack: Annotated[Ints, "i64[n1, 8]"]
    kids: Annotated[Ints, "i64[n1, nD, 2]"]
    """Children of each level: task times D plus device, and start."""
    table: Annotated[Ints, "i64[rows, columns]"]
    """Remembered states: tasks done, clock, sum, when devices are free, memory left, end and
    device of done tasks that others wait for."""
    perm: Annotated[Ints, "i64[D]"]
    place: Annotated[Ints, "i64[D]"]
    """Devices in the order of the table, and their places there."""
    edge: Annotated[Ints, "i64[n1]"]
    """Number of done tasks that others wait for, and these."""
    best_start: Annotated[Ints, "i64[n]"]
    best_home: Annotated[Ints, "i64[n]"]
    """The best schedule."""


def new_search(net: TaskNet, limit: int, rows: int) -> SearchState:
    """A search for schedules of at most `limit`, which remembers up to `rows` states."""
    n, count = net.time.shape
    sizes = {"n": n, "n1": n + 1, "D": count, "nD": n * count, "c": net.color.max(initial=-1) + 1}
    sizes |= {"rows": max(rows // WAYS, 1) * WAYS, "columns": 3 + 2 * count + EDGE}
    state = scratch(SearchState, sizes, left=net.capacity.copy())
    state.at[[ENTERS, LIMIT, FOUND]] = 1, limit, -1
    state.stack[0, TASK] = -1
    return state


def with_windows(net: TaskNet) -> TaskNet:
    """The net with the least starts and tails of all paths."""
    back = turned(net)
    for one in (net, back):
        state = new_search(one, NEVER - 1, 1)
        advance(one, state, 1)
        one.head[:] = state.ready
    return net._replace(tail=back.head[::-1].copy())


@lean
def advance(net, state, most):  # type: ignore[no-untyped-def]
    """Go on for `most` nodes, or to the end; see `DEPTH` for what is left behind."""
    at, full = state.at, (1 << len(net.time)) - 1
    spent = 0
    while at[DEPTH] >= 0 and spent < most:
        if at[ENTERS] == 1:
            spent += 1
            at[ENTERS] = 0
            state.stack[at[DEPTH], NEXT] = 0
            state.stack[at[DEPTH], COUNT] = 0
            state.stack[at[DEPTH], MADE] = -1
            if at[DONE] == full:
                _keep(net, state)
            else:
                _open(net, state)
        _step(net, state)
    at[NODES] += spent


@callee
def _keep(net, state):  # type: ignore[no-untyped-def]
    """Keep a whole schedule, and look for shorter ones from now on."""
    n, end = len(net.time), 0
    for v in range(n):
        end = max(end, state.end[v] + net.tail[v, state.home[v]])
    if end > state.at[LIMIT]:
        return
    state.at[LIMIT] = end - 1
    state.at[FOUND] = end
    for v in range(n):
        state.best_home[v] = state.home[v]
        state.best_start[v] = state.end[v] - net.time[v, state.home[v]]


@part
def _step(net, state):  # type: ignore[no-untyped-def]
    """Take back the last child of a node; go to the next one within the limit, or to its parent."""
    at, stack, count = state.at, state.stack, net.time.shape[1]
    depth = at[DEPTH]
    if stack[depth, MADE] >= 0:
        v, d = stack[depth, MADE] // count, stack[depth, MADE] % count
        at[DONE] -= 1 << v
        state.free[d] = stack[depth, FREE]
        state.left[d] += net.bytes[v]
        stack[depth, MADE] = -1
    while stack[depth, NEXT] < stack[depth, COUNT]:
        i = stack[depth, NEXT]
        stack[depth, NEXT] += 1
        v, d = state.kids[depth, i, 0] // count, state.kids[depth, i, 0] % count
        start = state.kids[depth, i, 1]
        if start + net.time[v, d] + net.tail[v, d] <= at[LIMIT]:
            stack[depth, MADE] = state.kids[depth, i, 0]
            stack[depth, FREE] = state.free[d]
            _push(net, state, v, d, start)
            return
    at[DEPTH] = depth - 1


@part
def _push(net, state, v, d, start):  # type: ignore[no-untyped-def]
    """Schedule a task: a new node."""
    stack, depth = state.stack, state.at[DEPTH] + 1
    state.end[v] = start + net.time[v, d]
    state.home[v] = d
    state.free[d] = state.end[v]
    state.left[d] -= net.bytes[v]
    state.at[DONE] += 1 << v
    state.at[DEPTH] = depth
    state.at[ENTERS] = 1
    if stack[depth - 1, SUM] < 0:
        stack[depth, CLOCK] = stack[depth - 1, CLOCK]
        stack[depth, SUM] = -1
        return
    stack[depth, CLOCK] = start
    stack[depth, WORKS] = 1 if net.time[v, d] > 0 else 0
    stack[depth, TASK] = v
    stack[depth, SUM] = stack[depth - 1, SUM] + start


@part
def _open(net, state):  # type: ignore[no-untyped-def]
    """List the children of a node, none where it fails."""
    depth, done = state.at[DEPTH], state.at[DONE]
    clock = state.stack[depth, CLOCK]
    last = bound(net, state, done, clock, state.at[LIMIT])
    if last < clock:
        return
    if 1 < depth < len(net.time) - 1 and _remembered(net, state, depth, done):
        return
    next_one = _independent(net, state, done)
    if next_one >= 0:
        state.stack[depth, SUM] = -1
    for v in range(len(net.time)):
        if (done >> v) & 1 or (next_one >= 0 and v != next_one):
            continue
        if next_one >= 0 or _waits_for_none(net, done, v):
            _list(net, state, v, last, next_one >= 0)


@callee
def _waits_for_none(net, done, v):  # type: ignore[no-untyped-def]
    """True if all predecessors are done."""
    free = True
    for k in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
        free = free and (done >> net.pred[k]) & 1 == 1
    return free


@part
def _list(net, state, v, last, independent):  # type: ignore[no-untyped-def]
    """List a task on each device as a child, by start."""
    depth, count = state.at[DEPTH], net.time.shape[1]
    stack, kids = state.stack, state.kids
    for d in range(count):
        start = state.start[v, d]
        if start >= NEVER or _repeats(net, state, d):
            continue
        if not independent and (start > last or not _in_turn(net, state, v, d, start)):
            continue
        i = stack[depth, COUNT]
        while i > 0 and kids[depth, i - 1, 1] > start:
            kids[depth, i, 0] = kids[depth, i - 1, 0]
            kids[depth, i, 1] = kids[depth, i - 1, 1]
            i -= 1
        kids[depth, i, 0] = v * count + d
        kids[depth, i, 1] = start
        stack[depth, COUNT] += 1


@part
def _in_turn(net, state, v, d, start):  # type: ignore[no-untyped-def]
    """True if a task cannot start sooner on its device, and comes after the one before it."""
    depth = state.at[DEPTH]
    clock, works, task = (
        state.stack[depth, CLOCK],
        state.stack[depth, WORKS],
        state.stack[depth, TASK],
    )
    soonest = max(state.free[d], net.head[v, d])
    for k in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
        u = net.pred[k]
        soonest = max(soonest, state.end[u] + net.delay[net.pred_edge[k], state.home[u], d])
    if soonest < start:
        return False
    mine = 1 if net.time[v, d] > 0 else 0
    return start > clock or mine > works or (mine == works and v > task)


@part
def _repeats(net, state, d):  # type: ignore[no-untyped-def]
    """True if a device before is interchangeable, and equal for all that is left."""
    clock, done = state.stack[state.at[DEPTH], CLOCK], state.at[DONE]
    for b in range(d):
        if net.alike[b] != net.alike[d] or state.left[b] != state.left[d]:
            continue
        if max(state.free[b], clock) != max(state.free[d], clock):
            continue
        equal = True
        for v in range(len(net.time)):
            if not (done >> v) & 1 and state.ready[v, b] != state.ready[v, d]:
                equal = False
                break
        if equal:
            return True
    return False


@part
def _independent(net, state, done):  # type: ignore[no-untyped-def]
    """The first task of a rest of independent tasks in an order that suits all devices; or -1."""
    count, many, key, task = net.time.shape[1], 0, 0, 1
    for v in range(len(net.time)):
        if (done >> v) & 1:
            continue
        if not _waits_for_none(net, done, v):
            return -1
        rank = 0
        for d in range(count):
            rank += max(state.ready[v, d], state.free[d]) - net.tail[v, d]
        i = many
        while i > 0 and _after(net, state, i - 1, v, rank):
            state.scratch[key, i] = state.scratch[key, i - 1]
            state.scratch[task, i] = state.scratch[task, i - 1]
            i -= 1
        state.scratch[key, i] = rank
        state.scratch[task, i] = v
        many += 1
    for i in range(1, many):
        u, v = state.scratch[task, i - 1], state.scratch[task, i]
        for d in range(count):
            before = max(state.ready[u, d], state.free[d])
            if max(state.ready[v, d], state.free[d]) < before or net.tail[v, d] > net.tail[u, d]:
                return -1
    return state.scratch[task, 0]


@part
def _after(net, state, i, v, rank):  # type: ignore[no-untyped-def]
    """True if the i-th task comes after `v`: larger rank, or the same and less work."""
    other = state.scratch[0, i]
    return other > rank or (other == rank and state.work[state.scratch[1, i]] < state.work[v])


@part
def _remembered(net, state, depth, done):  # type: ignore[no-untyped-def]
    """True if a state that was left dominates this one; else remember it."""
    if not _lay_out(net, state, depth, done):
        return False
    table = state.table
    first, empty = done % (len(table) // WAYS) * WAYS, -1
    for row in range(first, first + WAYS):
        if table[row, 0] == 0:
            empty = row if empty < 0 else empty
        elif table[row, 0] == done and _dominates(net, state, row, depth, done):
            return True
    if empty < 0:
        state.at[TURN] = (state.at[TURN] + 1) % WAYS
        empty = first + state.at[TURN]
    _remember(net, state, empty, depth, done)
    return False


@part
def _lay_out(net, state, depth, done):  # type: ignore[no-untyped-def]
    """Sort interchangeable devices by when they are free; list done tasks that others wait for.

    Returns False if these are too many.
    """
    count, clock, many = net.time.shape[1], state.stack[depth, CLOCK], 0
    for d in range(count):
        free, i = max(state.free[d], clock), d
        while i > 0 and net.alike[state.perm[i - 1]] == net.alike[d]:
            if max(state.free[state.perm[i - 1]], clock) <= free:
                break
            state.perm[i] = state.perm[i - 1]
            i -= 1
        state.perm[i] = d
    for i in range(count):
        state.place[state.perm[i]] = i
    for u in range(len(net.time)):
        waited = False
        if (done >> u) & 1:
            for k in range(net.succ_ptr[u], net.succ_ptr[u + 1]):
                waited = waited or not (done >> net.succ[k]) & 1
            waited = waited or (net.color[u] >= 0 and _open_color(net, done, net.color[u]))
        if waited:
            many += 1
            state.edge[many] = u
    state.edge[0] = many
    return many <= EDGE


@callee
def _open_color(net, done, color):  # type: ignore[no-untyped-def]
    """True if some task of a colour is not done."""
    found = False
    for v in range(len(net.color)):
        found = found or (net.color[v] == color and not (done >> v) & 1)
    return found


@part
def _remember(net, state, row, depth, done):  # type: ignore[no-untyped-def]
    """Write a state into a row of the table."""
    count, table, clock = net.time.shape[1], state.table, state.stack[depth, CLOCK]
    table[row, 0] = done
    table[row, 1] = clock
    table[row, 2] = state.stack[depth, SUM]
    for i in range(count):
        table[row, 3 + i] = max(state.free[state.perm[i]], clock)
        table[row, 3 + count + i] = state.left[state.perm[i]]
    for i in range(state.edge[0]):
        u = state.edge[i + 1]
        table[row, 3 + 2 * count + i] = state.end[u] * MOST_DEVICES + state.place[state.home[u]]


@part
def _dominates(net, state, row, depth, done):  # type: ignore[no-untyped-def]
    """True if the state in a row of the table is as good for all that is left."""
    count, table, clock = net.time.shape[1], state.table, state.stack[depth, CLOCK]
    if table[row, 1] > clock or table[row, 2] > state.stack[depth, SUM]:
        return False
    for i in range(count):
        d = state.perm[i]
        if table[row, 3 + i] > max(state.free[d], clock) or (
            table[row, 3 + count + i] < state.left[d]
        ):
            return False
    for i in range(state.edge[0]):
        u, code = state.edge[i + 1], table[row, 3 + 2 * count + i]
        end, home = code // MOST_DEVICES, state.perm[code % MOST_DEVICES]
        if net.color[u] >= 0 and home != state.home[u]:
            return False
        for k in range(net.succ_ptr[u], net.succ_ptr[u + 1]):
            v = net.succ[k]
            if (done >> v) & 1:
                continue
            for d in range(count):
                late = end + net.delay[k, home, d] > state.ready[v, d]
                if late and state.start[v, d] < NEVER:
                    return False
    return True
