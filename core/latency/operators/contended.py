"""The exact search for small placements: devices first, then the sequence of events, depth first.

Tasks get devices in topological order. Once all have one, tasks and transfers are events, and a
sequence of them is built by their starts: the next event starts no earlier than the one before it,
and exactly when its inputs and its lanes allow. Where no live tensor counts only active schedules
are built: none where an event that is ready could end before the next one starts (Giffler and
Thompson 1960). Where they count any schedule without needless waiting is built, as what starts
later may need its memory later; the memory of all devices is known up to the last start.

A state is left where its lower bound reaches the target: heads and tails of events, events of one
lane one after the other, the work of all devices. A device is not used before an identical one,
and of events with equal starts that do not wait for each other only one order is tried.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK, LatencyProblem, Placement, SearchProof
from dnnp.core.kernels.kernel import callee, lean, plain, scratch
from dnnp.core.latency.depth_first import ENDED, FOUND, OPEN, search_depth_first
from dnnp.core.latency.ip.formulation import identical_devices
from dnnp.core.latency.lists.net import FlowNet, move_time, net_of
from dnnp.core.latency.operators.windows import SAFE
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.search_context import PLAIN, SearchContext

BOUND = "sequences"
"""Name of the bound in plans."""

SMALL = 64
"""Tasks times devices up to which a problem is searched."""

MOST_STEPS = 4_000_000
"""Choices made at effort 1."""

LITTLE = 1e-12
"""Rounding of sums of bytes, relatively: the cost model has the last word."""


class Held(NamedTuple):
    """Live tensors (`t` of them, none where they do not bind), and limits of memory."""

    first: Bools
    """bool[n]: the first task of its colour in the topological order, which brings its memory."""
    floor: Floats
    scratch: Floats
    maker: Ints
    size: Floats
    lasts: Bools
    use_ptr: Ints
    use_task: Ints
    use_flow: Ints
    flow_size: Floats
    """As in `Live`; f64[n] of zeros where none counts."""
    same: Ints
    """i64[D], the identical device before each one, or -1."""
    rest: Floats
    """f64[n + 1], least work of the tasks from a position on."""
    binds: Bools
    """bool[1]: live tensors count."""


class SearchState(NamedTuple):
    """State of the search; levels 0..n-1 assign a task, each further one appends one of `e` events.

    Events are in topological order, those of level i from `upto[i]` on; `l` is n + e + 1.
    """

    now: Annotated[Ints, "i64[2]"]
    choice: Annotated[Ints, "i64[l]"]
    low: Annotated[Floats, "f64[l]"]
    """As `core.latency.depth_first` says; choices are devices, then events."""
    upto: Annotated[Ints, "i64[n1]"]
    device: Annotated[Ints, "i64[n]"]
    task: Annotated[Ints, "i64[n]"]
    move: Annotated[Ints, "i64[f, D]"]
    """Event of each task, and of each transfer if it is one at present."""
    flow: Annotated[Ints, "i64[e]"]
    what: Annotated[Ints, "i64[e]"]
    """As in `Placement.events`."""
    length: Annotated[Floats, "f64[e]"]
    lane: Annotated[Ints, "i64[e, 2]"]
    """Lanes of each event; -1: none."""
    pred_ptr: Annotated[Ints, "i64[l]"]
    pred: Annotated[Ints, "i64[p]"]
    """Events that each event waits for (CSR)."""
    tail: Annotated[Floats, "f64[e]"]
    """Least time from the start of each event to the end of all."""
    done: Annotated[Bools, "bool[e]"]
    begin: Annotated[Floats, "f64[e]"]
    """True for an event in the sequence, and its start there."""
    free: Annotated[Floats, "f64[lanes]"]
    kept: Annotated[Floats, "f64[l, 2]"]
    """Time from which each lane is free; the same of lanes of the event of a level before it."""
    start: Annotated[Floats, "f64[l, e]"]
    """Earliest starts by the state before each level."""
    used: Annotated[Floats, "f64[D]"]
    """Scratch: bytes on each device."""


@lean
def search_sequences(net, held, state, target, most):  # type: ignore[no-untyped-def]
    """Go on with the search for a schedule below a target, for `most` steps from the first one."""
    n = len(net.order)
    level = state.now[0]
    while level >= 0 and state.now[1] < most:
        state.now[1] += 1
        deeper = False
        if level < n:
            deeper = _assign(net, held, state, level, target)
        elif level < n + state.upto[n]:
            deeper = _append(net, held, state, level, target)
        level += 1 if deeper else -1
        if deeper:
            state.choice[level] = -1
            if level >= n and level == n + state.upto[n]:
                state.now[0] = level
                return FOUND
    state.now[0] = level
    return ENDED if level < 0 else OPEN


@callee
def _assign(net, held, state, level, target):  # type: ignore[no-untyped-def]
    """Assign the task of a level to its next device; False: there is none."""
    count, v = net.time.shape[1], net.order[level]
    for d in range(state.choice[level] + 1, count):
        if not _admits(net, held, state, level, v, d):
            continue
        state.choice[level] = d
        state.device[v] = d
        _add_events(net, state, level, v, d)
        many = state.upto[level + 1]
        _set_tails(net, state, many)
        work = held.rest[level + 1]
        for i in range(level + 1):
            u = net.order[i]
            work += net.time[u, state.device[u]]
        value = max(work / count, _lower_bound(state, level + 1, many, 0.0)) * SAFE
        if value < target:
            state.low[level + 1] = max(state.low[level], value)
            return True
    return False


@callee
def _admits(net, held, state, level, v, d):  # type: ignore[no-untyped-def]
    """True if a device may get a task after those of earlier levels."""
    c = net.together[v]
    if not net.allowed[c, d]:
        return False
    twin = held.same[d] < 0
    bytes_, floor = net.bytes[c] if held.first[v] else 0.0, held.floor[v]
    for i in range(level):
        u = net.order[i]
        a = state.device[u]
        twin = twin or a == held.same[d]
        if net.together[u] == c and a != d:
            return False
        if a == d:
            floor = max(floor, held.floor[u])
            if held.first[u]:
                bytes_ += net.bytes[net.together[u]]
    return twin and bytes_ + floor <= net.capacity[d] * (1 + LITTLE)


@callee
def _event_of(state, many, f, d):  # type: ignore[no-untyped-def]
    """Event of a transfer among the first ones, or -1."""
    m = state.move[f, d]
    return m if m < many and state.flow[m] == f and state.what[m] == d else -1


@callee
def _add_events(net, state, level, v, d):  # type: ignore[no-untyped-def]
    """Append a task to the events, after the transfers that no earlier task needs."""
    e = state.upto[level]
    for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = net.in_idx[k]
        u = net.maker[f]
        a = state.device[u]
        if a == d or _event_of(state, e, f, d) >= 0:
            continue
        state.move[f, d] = e
        state.flow[e] = f
        state.what[e] = d
        state.length[e] = move_time(net, f, a, d)
        state.lane[e, 0] = net.send[a, d] if net.waits[0] else -1
        state.lane[e, 1] = net.receive[a, d] if net.waits[0] else -1
        state.pred[state.pred_ptr[e]] = state.task[u]
        state.pred_ptr[e + 1] = state.pred_ptr[e] + 1
        e += 1
    state.task[v] = e
    state.flow[e] = TASK
    state.what[e] = v
    state.length[e] = net.time[v, d]
    state.lane[e, 0] = d
    state.lane[e, 1] = -1
    at = state.pred_ptr[e]
    for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = net.in_idx[k]
        u = net.maker[f]
        state.pred[at] = state.task[u] if state.device[u] == d else _event_of(state, e, f, d)
        at += 1
    state.pred_ptr[e + 1] = at
    state.upto[level + 1] = e + 1


@callee
def _set_tails(net, state, many):  # type: ignore[no-untyped-def]
    """Compute the tails of the first events."""
    for e in range(many):
        state.tail[e] = state.length[e]
        if state.flow[e] == TASK:
            v = state.what[e]
            state.tail[e] += net.tail[v, state.device[v]]
    for e in range(many - 1, -1, -1):
        for k in range(state.pred_ptr[e], state.pred_ptr[e + 1]):
            p = state.pred[k]
            state.tail[p] = max(state.tail[p], state.length[p] + state.tail[e])


@callee
def _lower_bound(state, level, many, now):  # type: ignore[no-untyped-def]
    """Set earliest starts, no new one before `now`; returns a lower bound of the latency."""
    value = 0.0
    for e in range(many):
        if state.done[e]:
            state.start[level, e] = state.begin[e]
            value = max(value, state.begin[e] + state.length[e])
            continue
        soon = now
        for side in range(2):
            if state.lane[e, side] >= 0:
                soon = max(soon, state.free[state.lane[e, side]])
        for k in range(state.pred_ptr[e], state.pred_ptr[e + 1]):
            p = state.pred[k]
            soon = max(soon, state.start[level, p] + state.length[p])
        state.start[level, e] = soon
        value = max(value, soon + state.tail[e])
    for i in range(many):
        for side in range(2):
            x = state.lane[i, side]
            if state.done[i] or x < 0 or (side == 1 and x == state.lane[i, 0]):
                continue
            total, rest = state.start[level, i], np.inf
            for e in range(many):
                if state.done[e] or (state.lane[e, 0] != x and state.lane[e, 1] != x):
                    continue
                if state.start[level, e] >= state.start[level, i]:
                    total += state.length[e]
                    rest = min(rest, state.tail[e] - state.length[e])
            value = max(value, total + rest)
    return value


@callee
def _soonest(state, e):  # type: ignore[no-untyped-def]
    """Start of an event that comes next; -1: something that it waits for is not there."""
    soon = 0.0
    for side in range(2):
        if state.lane[e, side] >= 0:
            soon = max(soon, state.free[state.lane[e, side]])
    for k in range(state.pred_ptr[e], state.pred_ptr[e + 1]):
        p = state.pred[k]
        if not state.done[p]:
            return -1.0
        soon = max(soon, state.begin[p] + state.length[p])
    return soon


@callee
def _share_lane(state, e, o):  # type: ignore[no-untyped-def]
    """True if two events need one lane."""
    shared = False
    for side in range(2):
        x = state.lane[e, side]
        shared = shared or (x >= 0 and (x == state.lane[o, 0] or x == state.lane[o, 1]))
    return shared


@callee
def _append(net, held, state, level, target):  # type: ignore[no-untyped-def]
    """Append the next event to the sequence; False: there is none."""
    n = len(net.order)
    many, last = state.upto[n], state.choice[level - 1] if level > n else -1
    first = state.choice[level] + 1
    if first > 0:
        _take_back(state, level, first - 1)
    now = state.begin[last] if last >= 0 else 0.0
    latest = _latest_start(held, state, many, now)
    # Later than now, the memory right after it is known.
    if held.binds[0] and not _holds(net, held, state, many, now):
        latest = min(latest, now)
    for e in range(first, many):
        soon = -1.0 if state.done[e] else _soonest(state, e)
        if soon < now or soon > latest:
            continue
        if not held.binds[0] and soon == latest and state.length[e] > 0:
            continue
        if soon == now and last >= 0 and _out_of_order(state, last, e):
            continue
        state.choice[level] = e
        state.done[e] = True
        state.begin[e] = soon
        for side in range(2):
            x = state.lane[e, side]
            if x >= 0:
                state.kept[level, side] = state.free[x]
        for side in range(2):
            if state.lane[e, side] >= 0:
                state.free[state.lane[e, side]] = soon + state.length[e]
        value = _lower_bound(state, level + 1, many, soon) * SAFE
        fits = True
        if held.binds[0] and level + 1 == n + many and value > soon:
            fits = _holds(net, held, state, many, soon)
        if fits and value < target:
            state.low[level + 1] = max(state.low[level], value)
            return True
        _take_back(state, level, e)
    return False


@callee
def _take_back(state, level, e):  # type: ignore[no-untyped-def]
    """Remove the last event from the sequence."""
    state.done[e] = False
    for side in range(2):
        if state.lane[e, side] >= 0:
            state.free[state.lane[e, side]] = state.kept[level, side]


@callee
def _latest_start(held, state, many, now):  # type: ignore[no-untyped-def]
    """Start that the next event of an active schedule is before; -1: no event can come next.

    An event of no length may start then.
    """
    latest = np.inf
    for e in range(many):
        soon = -1.0 if state.done[e] else _soonest(state, e)
        if soon < 0.0:
            continue
        if not held.binds[0]:
            latest = min(latest, soon + state.length[e])
        elif soon < now:
            # It starts later only if another event takes its lane first.
            waits = False
            for o in range(many):
                waits = waits or (o != e and not state.done[o] and _share_lane(state, e, o))
            if not waits:
                return -1.0
    return latest


@callee
def _out_of_order(state, last, e):  # type: ignore[no-untyped-def]
    """True if an event with the start of the last one could as well come before it.

    Of two such events those of no length come first, then those with the smaller number.
    """
    moved, length = state.length[last] > 0, state.length[e] > 0
    apart = not _share_lane(state, last, e)
    for k in range(state.pred_ptr[e], state.pred_ptr[e + 1]):
        apart = apart and state.pred[k] != last
    return apart and (length < moved or (length == moved and e < last))


@callee
def _alive(state, e, now):  # type: ignore[no-untyped-def]
    """True if an event ends after a time, which no event to come starts before or at."""
    return not state.done[e] or state.begin[e] + state.length[e] > now


@callee
def _holds(net, held, state, many, now):  # type: ignore[no-untyped-def]
    """True if all devices hold what they have right after a time that events start at."""
    count = len(state.used)
    for d in range(count):
        state.used[d] = 0.0
    for v in range(len(net.order)):
        d, e = state.device[v], state.task[v]
        if held.first[v]:
            state.used[d] += net.bytes[net.together[v]]
        if state.done[e] and _alive(state, e, now):
            state.used[d] += held.scratch[v]
    for t in range(len(held.size)):
        u = held.maker[t]
        if u >= 0 and not state.done[state.task[u]]:
            continue
        alive = u >= 0 and (held.lasts[t] or _alive(state, state.task[u], now))
        for k in range(held.use_ptr[t], held.use_ptr[t + 1]):
            v, f = held.use_task[k], held.use_flow[k]
            d = state.device[v]
            if u >= 0:
                away = d != state.device[u] and f >= 0
                alive = alive or _alive(state, state.move[f, d] if away else state.task[v], now)
            elif _alive(state, state.task[v], now):
                fed = False
                for j in range(held.use_ptr[t], k):
                    o = held.use_task[j]
                    fed = fed or (state.device[o] == d and _alive(state, state.task[o], now))
                if not fed:
                    state.used[d] += held.size[t]
        if alive:
            state.used[state.device[u]] += held.size[t]
    for e in range(many):
        f = state.flow[e]
        if f < 0 or not state.done[e]:
            continue
        alive = False
        for k in range(net.use_ptr[f], net.use_ptr[f + 1]):
            v = net.use_idx[k]
            alive = alive or (
                state.device[v] == state.what[e] and _alive(state, state.task[v], now)
            )
        if alive:
            state.used[state.what[e]] += held.flow_size[f]
    fits = True
    for d in range(count):
        fits = fits and state.used[d] <= net.capacity[d] * (1 + LITTLE)
    return fits


def sequence_latency(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> SearchProof:
    """Prove that no placement of a small problem takes less than a known one, or find the best.

    `upper`: latency of a known placement, if any. A stop or a limit leaves a weaker bound.
    """
    n, count = problem.tasks.n, problem.machine.count
    if not 0 < n * count <= SMALL:
        return SearchProof()
    net = net_of(problem, tails=True)
    held, state = _held_of(problem, net), _first_state(net)

    def placement() -> Placement:
        line = state.choice[n : n + int(state.upto[n])]
        return Placement(state.device.copy(), np.column_stack([state.flow[line], state.what[line]]))

    last = np.where(np.arange(len(state.choice)) < n, count - 1, len(state.flow))
    go_on = partial(search_sequences, net, held, state)
    return search_depth_first(
        problem, state, last, go_on, placement, name=BOUND, upper=upper, most=MOST_STEPS, run=run
    )


def _held_of(problem: LatencyProblem, net: FlowNet) -> Held:
    """Live tensors and limits of a problem for the kernel."""
    tasks, live = problem.tasks, problem.live
    n, binds = tasks.n, live is not None and live.binds
    first = np.zeros(n, dtype=np.bool_)
    first[tasks.order[np.unique(tasks.together[tasks.order], return_index=True)[1]]] = True
    least = np.where(net.allowed[net.together], net.time, np.inf).min(axis=1)[tasks.order]
    rest = np.append(np.cumsum(least[::-1])[::-1], 0.0)
    none, ids = np.zeros(0), np.zeros(0, dtype=np.int64)
    floor = scratch = np.zeros(n)
    tensors = (ids, none, ids > 0, ids, ids, ids, none)
    if live is not None and binds:
        floor, scratch = live.floor, live.scratch
        use = live.use_ptr, live.use_task, live.use_flow
        tensors = live.maker, live.size, live.lasts, *use, live.flow_size
    same = identical_devices(problem)
    return Held(*plain(first, floor, scratch, *tensors, same, rest, np.array([binds])))


def _first_state(net: FlowNet) -> SearchState:
    """State in which no task has a device."""
    n, count = net.time.shape
    most = n + int(np.minimum(np.diff(net.use_ptr), count - 1).sum())
    lanes = 1 + int(max(net.send.max(), net.receive.max(), count))
    sizes = {"n": n, "n1": n + 1, "D": count, "f": len(net.maker), "e": most, "l": n + most + 1}
    state = scratch(SearchState, sizes | {"p": most + len(net.use_idx), "lanes": lanes})
    state.choice[0] = -1
    return state
