"""Bounds of a partial schedule: earliest starts, devices that are too late, crowded intervals.

Tasks that are not yet scheduled get, for each device,

    ready    when all they read can be there, at the earliest: of what other devices send, the
             least; of several that wait for transfers, those that run here do so one by one
    start    the same when the device is free; `NEVER` if the end of all would be above the limit

and between an earliest start and a latest end no more work may lie than the devices have time for;
once more without the starts on the device where most tasks could start first.
"""

from __future__ import annotations

from dnnp.core.kernels.kernel import callee, part
from dnnp.core.latency.exact.net import NEVER

FEW = 2
"""Tasks that can start first on one device, for which it is not looked at apart."""


@callee
def bound(net, state, done, clock, limit):  # type: ignore[no-untyped-def]
    """Fill `ready` and `start` of what is not done; nothing starts before `clock`.

    Returns the latest time by which the next task has to start; -1: none is within the limit.
    """
    n, count = net.time.shape
    _fix(net, state, done)
    needed, last, many = 0, NEVER, 0
    for v in range(n):
        if (done >> v) & 1:
            continue
        needed += net.bytes[v]
        _ready(net, state, done, clock, v)
        latest = _windows(net, state, v, limit)
        if latest < 0:
            return -1
        last = min(last, latest)
        state.queue[many] = v
        many += 1
    for d in range(count):
        needed -= state.left[d]
    if needed > 0 or _crowded(net, state, many, clock, -1):
        return -1
    apart = _soonest_device(net, state, many)
    if apart >= 0 and _crowded(net, state, many, clock, apart):
        return -1
    return last


@part
def _fix(net, state, done):  # type: ignore[no-untyped-def]
    """Devices of the colours of which some task is done."""
    for c in range(len(state.fixed)):
        state.fixed[c] = -1
    for v in range(len(net.color)):
        if net.color[v] >= 0 and (done >> v) & 1:
            state.fixed[net.color[v]] = state.home[v]


@part
def _ready(net, state, done, clock, v):  # type: ignore[no-untyped-def]
    """Fill `ready` of a task, whose predecessors have their times."""
    count, waiting = net.time.shape[1], 0
    home = state.fixed[net.color[v]] if net.color[v] >= 0 else -1
    for d in range(count):
        state.ready[v, d] = max(clock, net.head[v, d]) if home < 0 or home == d else NEVER
    for k in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
        u, e = net.pred[k], net.pred_edge[k]
        if (done >> u) & 1:
            for d in range(count):
                came = state.end[u] + net.delay[e, state.home[u], d]
                state.ready[v, d] = max(state.ready[v, d], came)
        else:
            waiting += 1
            for d in range(count):
                came = min(state.finish[u, d], state.soonest[u] + net.near[e, d])
                state.ready[v, d] = max(state.ready[v, d], came)
    if waiting > 1:
        for d in range(count):
            state.ready[v, d] = max(state.ready[v, d], _joined(net, state, done, v, d))


@part
def _joined(net, state, done, v, d):  # type: ignore[no-untyped-def]
    """Earliest time when tensors of several makers are on `d`; makers there run one by one."""
    come, task, here = 0, 1, 2
    many = 0
    now = state.ready[v, d]
    for k in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
        u = net.pred[k]
        came = state.soonest[u] + net.near[net.pred_edge[k], d]
        if (done >> u) & 1 or came <= now:
            continue
        i = many
        while i > 0 and state.scratch[come, i - 1] < came:
            state.scratch[come, i] = state.scratch[come, i - 1]
            state.scratch[task, i] = state.scratch[task, i - 1]
            i -= 1
        state.scratch[come, i] = came
        state.scratch[task, i] = u
        many += 1
    least = NEVER
    for i in range(many + 1):
        away = state.scratch[come, i] if i < many else 0
        least = min(least, max(away, now))
        if i == many or now >= away:
            break
        u = state.scratch[task, i]
        if state.start[u, d] >= NEVER:
            break
        j = i
        while j > 0 and state.start[state.scratch[here, j - 1], d] > state.start[u, d]:
            state.scratch[here, j] = state.scratch[here, j - 1]
            j -= 1
        state.scratch[here, j] = u
        spent = 0
        for j in range(i + 1):
            w = state.scratch[here, j]
            spent = max(spent, state.start[w, d]) + net.time[w, d]
        now = max(now, spent)
    return least


@part
def _windows(net, state, v, limit):  # type: ignore[no-untyped-def]
    """Fill starts of a task within the limit; returns the latest, -1 if there is none."""
    soonest, latest, ending, work = NEVER, -1, -1, NEVER
    for d in range(net.time.shape[1]):
        start = max(state.ready[v, d], state.free[d])
        last = limit - net.time[v, d] - net.tail[v, d]
        if start > last or net.bytes[v] > state.left[d]:
            state.start[v, d] = NEVER
            state.finish[v, d] = NEVER
            continue
        state.start[v, d] = start
        state.finish[v, d] = start + net.time[v, d]
        soonest = min(soonest, state.finish[v, d])
        latest, ending = max(latest, last), max(ending, limit - net.tail[v, d])
        work = min(work, net.time[v, d])
    state.soonest[v] = soonest
    state.ending[v] = ending
    state.work[v] = work
    return latest


@part
def _soonest_device(net, state, many):  # type: ignore[no-untyped-def]
    """The device where most tasks of `queue` could start before any other; -1: few could."""
    count, best = net.time.shape[1], -1
    for d in range(count):
        state.frees[d] = 0
    for i in range(many):
        v, soonest, first = state.queue[i], -1, NEVER
        for d in range(count):
            if state.start[v, d] < first:
                soonest, first = d, state.start[v, d]
            elif state.start[v, d] == first:
                soonest = -1
        if soonest >= 0:
            state.frees[soonest] += 1
    for d in range(count):
        if state.frees[d] > (FEW if best < 0 else state.frees[best]):
            best = d
    return best


@callee
def _crowded(net, state, many, clock, apart):  # type: ignore[no-untyped-def]
    """True if tasks that lie in some interval have more work than devices have time there.

    `queue` holds `many` tasks. Starts on device `apart` do not count, but its time does, from the
    earliest start there on.
    """
    _sort(net, state, many, clock, apart)
    count = net.time.shape[1]
    for i in range(many):
        to, known = state.ending[state.queue[i]], False
        for j in range(i):
            known = known or state.ending[state.queue[j]] == to
        if known:
            continue
        work, later, d, there = 0, 0, count - 1, NEVER
        for j in range(many):
            v = state.queue[j]
            if state.ending[v] > to:
                continue
            work += state.work[v]
            since = min(state.first[v], to)
            while d >= 0 and state.frees[d] > since:
                later += max(to - state.frees[d], 0)
                d -= 1
            room = later + (d + 1) * (to - since)
            if apart >= 0:
                there = min(there, state.start[v, apart])
                free = max(state.free[apart], clock)
                room += max(to - max(free, there), 0) - max(to - max(free, since), 0)
            if work > room:
                return True
    return False


@part
def _sort(net, state, many, clock, apart):  # type: ignore[no-untyped-def]
    """Sort `queue` by falling earliest start, and `frees`, when devices are free."""
    for d in range(net.time.shape[1]):
        free, i = max(state.free[d], clock), d
        while i > 0 and state.frees[i - 1] > free:
            state.frees[i] = state.frees[i - 1]
            i -= 1
        state.frees[i] = free
    for k in range(many):
        v, i, first = state.queue[k], k, NEVER
        for d in range(net.time.shape[1]):
            if d != apart:
                first = min(first, state.start[v, d])
        state.first[v] = first
        while i > 0 and state.first[state.queue[i - 1]] < first:
            state.queue[i] = state.queue[i - 1]
            i -= 1
        state.queue[i] = v
