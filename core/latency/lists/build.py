"""Kernels that build list schedules: by insertion, by the earliest start, in a given order.

`insertion` is HEFT (Topcuoglu et al. 2002) with transfers that wait for each other, if they do:
tasks come by falling rank, each goes to the device where it ends first, into a gap if there is one,
and so do the transfers it waits for. With `ahead` the least time from there to the end counts too
(PEFT; Arabnejad and Barbosa 2014).

`earliest` takes, of the tasks that are ready and the devices with room, the pair with the earliest
start (ETF: Hwang, Chow, Anger and Lee 1989), or the task with the highest priority where it ends
first. `follow` keeps to devices and an order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK
from dnnp.core.kernels.kernel import callee, inlined, kernel
from dnnp.core.latency.lists.net import FlowNet, move_time
from dnnp.core.model.graph import Bools, Floats, Ints

DONE = -1
"""Returned by `earliest` when every task has a place; else a task that has none."""

WINDOW = 1024
"""Ready tasks of the highest priority among which the earliest start is sought."""


class Building(NamedTuple):
    """A schedule that is being built."""

    device: Ints
    """i64[n], -1: not yet placed."""
    end: Floats
    """f64[n], end of each task that is placed."""
    free: Floats
    """Time from which each device, and behind them each lane, is free."""
    arrived: Floats
    """f64[f, D], arrival of each flow on devices other than its maker's; -1: not moved there."""
    reads: Ints
    """Flows that each task reads, as `in_idx`, in the order in which they are to be sent."""
    lane: Ints
    until: Floats
    """Scratch: lanes that `arrival` tries, and when they were free before."""
    events: Ints
    """i64[e, 2], events so far, as in `Placement`."""


@inlined
def _nothing(net: FlowNet) -> Building:
    """A schedule without tasks."""
    n, count, flows = len(net.order), len(net.rate), len(net.maker)
    most, widest, lanes = n, 0, count
    for f in range(flows):
        most += min(count, net.use_ptr[f + 1] - net.use_ptr[f])
    for v in range(n):
        widest = max(widest, net.in_ptr[v + 1] - net.in_ptr[v])
    for a in range(count):
        for b in range(count):
            lanes = max(lanes, 1 + max(net.send[a, b], net.receive[a, b]))
    return Building(
        np.full(n, -1, dtype=np.int64),
        np.zeros(n),
        np.zeros(lanes),
        np.full((flows, count), -1.0),
        net.in_idx.copy(),
        np.zeros(2 * widest, dtype=np.int64),
        np.zeros(2 * widest),
        np.empty((most, 2), dtype=np.int64),
    )


@callee
def _send(net: FlowNet, state: Building, f: int, target: int, at: int) -> int:
    """Move a flow of a finished maker and occupy its lanes; returns the number of events."""
    source = state.device[net.maker[f]]
    begin = state.end[net.maker[f]]
    a, b = net.send[source, target], net.receive[source, target]
    if net.waits[0]:
        begin = max(begin, max(state.free[a], state.free[b]))
    when = begin + move_time(net, f, source, target)
    state.free[a] = when
    state.free[b] = when
    state.arrived[f, target] = when
    state.events[at, 0] = f
    state.events[at, 1] = target
    return at + 1


@callee
def _arrival(net: FlowNet, state: Building, v: int, d: int) -> float:
    """Earliest time of all inputs of a task on a device, if its transfers are sent next.

    No lane stays occupied.
    """
    ready, busy, waits = 0.0, 0, net.waits[0]
    free, lane, until = state.free, state.lane, state.until
    for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = state.reads[k]
        u = net.maker[f]
        source = state.device[u]
        if source == d:
            ready = max(ready, state.end[u])
            continue
        if state.arrived[f, d] >= 0.0:
            ready = max(ready, state.arrived[f, d])
            continue
        begin = state.end[u]
        if waits:
            a, b = net.send[source, d], net.receive[source, d]
            begin = max(begin, max(free[a], free[b]))
        when = begin + move_time(net, f, source, d)
        if waits:
            lane[busy], until[busy] = a, free[a]
            lane[busy + 1], until[busy + 1] = b, free[b]
            free[a] = when
            free[b] = when
            busy += 2
        ready = max(ready, when)
    # The last one first: lanes may be there several times.
    for i in range(busy - 1, -1, -1):
        free[lane[i]] = until[i]
    return ready


@callee
def _commit(net: FlowNet, state: Building, v: int, d: int, at: int) -> int:
    """Run a task on a device after its transfers; returns the number of events."""
    ready = state.free[d]
    for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = state.reads[a]
        u = net.maker[f]
        if state.device[u] == d:
            ready = max(ready, state.end[u])
            continue
        if state.arrived[f, d] < 0.0:
            at = _send(net, state, f, d, at)
        ready = max(ready, state.arrived[f, d])
    state.device[v] = d
    state.end[v] = ready + net.time[v, d]
    state.free[d] = state.end[v]
    state.events[at, 0] = TASK
    state.events[at, 1] = v
    return at + 1


@callee
def _sort_reads(net: FlowNet, state: Building, v: int) -> None:
    """Sort the inputs of a task by the end of their makers."""
    low, high = net.in_ptr[v], net.in_ptr[v + 1]
    # By insertion: they are few, and nearly in order.
    for a in range(low + 1, high):
        f = state.reads[a]
        made = state.end[net.maker[f]]
        b = a
        while b > low and state.end[net.maker[state.reads[b - 1]]] > made:
            state.reads[b] = state.reads[b - 1]
            b -= 1
        state.reads[b] = f


class Rules(NamedTuple):
    """Priorities of tasks, and the devices that they prefer."""

    place: Ints
    """i64[n], 0 for the highest priority; of equal starts that task goes first."""
    preferred: Bools
    """bool[D, n], devices for each task; others are used only when all of these are full."""
    favourite: Ints
    """i64[n], favourite child of each task, or -1."""
    by_end: bool
    """The task with the highest priority goes next, to the device where it ends first."""


class Ready(NamedTuple):
    """Free memory and ready tasks."""

    home: Ints
    """i64[c], device of each colour, or -1."""
    room: Floats
    """f64[D], bytes left."""
    waits: Ints
    """i64[n], inputs of each task that are not made yet."""
    made: Floats
    """f64[n], latest end of the makers so far."""
    tasks: Ints
    """Ready tasks by falling place."""
    parent: Ints
    """i64[n], task of which each task is the favourite child, or -1."""
    kept: Ints
    """i64[D], favourite child for which each device waits, or -1."""


@inlined
def _takes(net: FlowNet, ready: Ready, d: int, c: int) -> bool:
    """True if a device is the home of a colour, or can become it."""
    if ready.home[c] >= 0:
        return bool(ready.home[c] == d)
    return bool(net.allowed[c, d] and net.bytes[c] <= ready.room[d])


@callee
def _insert(ready: Ready, place: Ints, waiting: int, v: int) -> int:
    """Add a task to those that are ready; how many there are."""
    k = waiting
    while k > 0 and place[ready.tasks[k - 1]] < place[v]:
        ready.tasks[k] = ready.tasks[k - 1]
        k -= 1
    ready.tasks[k] = v
    return waiting + 1


@inlined
def _start(net: FlowNet, rules: Rules, home: Ints) -> Ready:
    """State before the first task."""
    n, count = len(net.order), len(net.rate)
    room = net.capacity.copy()
    for c in range(len(home)):
        if home[c] >= 0:
            room[home[c]] -= net.bytes[c]
    waits = np.zeros(n, dtype=np.int64)
    for v in range(n):
        waits[v] = net.in_ptr[v + 1] - net.in_ptr[v]
    parent = np.full(n, -1, dtype=np.int64)
    for u in range(n):
        if rules.favourite[u] >= 0:
            parent[rules.favourite[u]] = u
    return Ready(
        home.copy(),
        room,
        waits,
        np.zeros(n),
        np.zeros(n, dtype=np.int64),
        parent,
        np.full(count, -1, dtype=np.int64),
    )


@inlined
def _reserve(net: FlowNet, rules: Rules, state: Building, ready: Ready, last: Ints) -> None:
    """Set for which task each device waits: the favourite child of its last task, if ready.

    Only if it could start nowhere earlier.
    """
    for d in range(len(last)):
        f = rules.favourite[last[d]] if last[d] >= 0 else -1
        ready.kept[d] = -1
        if f < 0 or state.device[f] >= 0 or ready.waits[f]:
            continue
        c = net.together[f]
        if not _takes(net, ready, d, c):
            continue
        here = max(state.free[d], _arrival(net, state, f, d))
        ready.kept[d] = f
        for e in range(len(last)):
            if e == d or not _takes(net, ready, e, c):
                continue
            if max(state.free[e], _arrival(net, state, f, e)) < here:
                ready.kept[d] = -1
                break


@inlined
def _urgent(net: FlowNet, state: Building, v: int, when: float) -> bool:
    """True if all inputs of a task could be on any device by then."""
    for e in range(len(net.rate)):  # noqa: SIM110
        if _arrival(net, state, v, e) > when:
            return False
    return True


@inlined
def _next(
    net: FlowNet, rules: Rules, state: Building, ready: Ready, waiting: int, patient: bool
) -> tuple[int, int, int]:
    """The next task and its device, or -1; and a task that has no place, or -1.

    `patient`: devices wait for favourite children.
    """
    best, task, target = np.inf, -1, -1
    soonest, count = np.inf, len(net.rate)
    for d in range(count):
        soonest = min(soonest, state.free[d])
    # Arrays of a tuple that is passed on are counted each time: only for pairs that may be best.
    free, allowed, memory, room = state.free, net.allowed, net.bytes, ready.room
    # The highest priority is last.
    for k in range(waiting - 1, max(-1, waiting - 1 - WINDOW), -1):
        v = ready.tasks[k]
        made = ready.made[v]
        if not rules.by_end and max(made, soonest) >= best:
            continue
        c = net.together[v]
        home = ready.home[c]
        picky = False
        if home < 0:
            for d in range(count):
                fits = allowed[c, d] and memory[c] <= room[d]
                picky = picky or (fits and rules.preferred[d, v])
        # The device of the favourite parent comes first, so that it wins ties.
        near = state.device[ready.parent[v]] if ready.parent[v] >= 0 else -1
        placed = home >= 0
        for step in range(-1, count):
            d = near if step < 0 else step
            if d < 0 or (step >= 0 and d == near) or (home >= 0 and d != home):
                continue
            if home < 0:
                if (
                    not allowed[c, d]
                    or memory[c] > room[d]
                    or (picky and not rules.preferred[d, v])
                ):
                    continue
                placed = True
            if not rules.by_end and max(made, free[d]) >= best:
                continue
            when = max(free[d], _arrival(net, state, v, d))
            score = when + net.time[v, d] if rules.by_end else when
            if score >= best:
                continue
            held = patient and ready.kept[d] >= 0 and ready.kept[d] != v
            if held and not _urgent(net, state, v, when):
                continue
            best, task, target = score, v, d
        if not placed:
            return -1, -1, v
        if rules.by_end or best <= soonest:
            break
    return task, target, -1


@kernel
def earliest(net: FlowNet, rules: Rules, home: Ints) -> tuple[int, float, Ints, Ints]:
    """Build a schedule; colours with a home (i64[c], else -1) keep it.

    Returns `DONE` or a task without a place, the latency, the device of each task, and the events.
    A device whose last task has a favourite child that is ready, and that would start nowhere
    earlier, waits for it, but runs urgent tasks meanwhile: those whose inputs could be anywhere.
    """
    state, ready = _nothing(net), _start(net, rules, home)
    last = np.full(len(net.rate), -1, dtype=np.int64)
    lost, value, at = _build(net, rules, state, ready, last)
    return lost, value, state.device, state.events[:at].copy()


@callee
def _build(
    net: FlowNet, rules: Rules, state: Building, ready: Ready, last: Ints
) -> tuple[int, float, int]:
    """`earliest` with scratch arrays; task without a place, latency, number of events."""
    waiting, at, value = 0, 0, 0.0
    patient = False
    for v in range(len(net.order)):
        if ready.waits[v] == 0:
            waiting = _insert(ready, rules.place, waiting, v)
        patient = patient or rules.favourite[v] >= 0
    while waiting:
        if patient:
            _reserve(net, rules, state, ready, last)
        task, target, lost = -1, -1, -1
        for haste in range(2 if patient else 1):
            if task < 0 and lost < 0:
                task, target, lost = _next(
                    net, rules, state, ready, waiting, patient and haste == 0
                )
        if task < 0:
            return lost, value, at
        c = net.together[task]
        if ready.home[c] < 0:
            ready.home[c] = target
            ready.room[target] -= net.bytes[c]
        at = _commit(net, state, task, target, at)
        last[target] = task
        value = max(value, state.end[task])
        waiting -= 1
        k = waiting
        while ready.tasks[k] != task:
            k -= 1
        for i in range(k, waiting):
            ready.tasks[i] = ready.tasks[i + 1]
        for a in range(net.out_ptr[task], net.out_ptr[task + 1]):
            f = net.out_idx[a]
            for b in range(net.use_ptr[f], net.use_ptr[f + 1]):
                v = net.use_idx[b]
                ready.waits[v] -= 1
                ready.made[v] = max(ready.made[v], state.end[task])
                if ready.waits[v] == 0:
                    _sort_reads(net, state, v)
                    waiting = _insert(ready, rules.place, waiting, v)
    return DONE, value, at


@kernel
def follow(net: FlowNet, home: Ints, order: Ints, eager: bool) -> tuple[float, Ints]:
    """Schedule tasks on their devices (i64[n]) in a topological order; value and events.

    Transfers go as soon as their flow is made (`eager`), those first whose readers come first; or
    when the first task that reads them comes up.
    """
    n, count = len(order), len(net.rate)
    state = _nothing(net)
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
            _sort_reads(net, state, v)
        at = _commit(net, state, v, d, at)
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
            at = _send(net, state, queue[k] // count, queue[k] % count, at)
    return value, state.events[:at].copy()


@callee
def _fit(begin, finish, before, lasts, lane, ready, length):  # type: ignore[no-untyped-def]
    """Earliest start in a lane from `ready` on, and the interval that it follows, or -1."""
    at = lasts[lane]
    start = max(ready, finish[at]) if at >= 0 else ready
    best, after = start, at
    while at >= 0 and finish[at] > ready:
        previous = before[at]
        start = max(ready, finish[previous]) if previous >= 0 else ready
        if start + length <= begin[at]:
            best, after = start, previous
        at = previous
    return best, after


@callee
def _link(before, behind, lasts, lane, after, node):  # type: ignore[no-untyped-def]
    """Put an interval into a lane, behind the interval `after` (-1: first of all)."""
    following = -1
    if after >= 0:
        following = behind[after]
    elif lasts[lane] >= 0:
        following = lasts[lane]
        while before[following] >= 0:
            following = before[following]
    before[node] = after
    behind[node] = following
    if after >= 0:
        behind[after] = node
    if following >= 0:
        before[following] = node
    else:
        lasts[lane] = node


@inlined
def _unlink(before, behind, lasts, lane, node):  # type: ignore[no-untyped-def]
    if before[node] >= 0:
        behind[before[node]] = behind[node]
    if behind[node] >= 0:
        before[behind[node]] = before[node]
    else:
        lasts[lane] = before[node]


@kernel
def insertion(net, wanted, ahead, start, device, sent_at):  # type: ignore[no-untyped-def]
    """Schedule tasks in an order with insertion; True if all fit.

    Parameters
    ----------
    wanted
        i64[n], every task after all it waits for.
    ahead
        Share of `net.tail` that counts, 0 to 1.
    start
        f64[n], filled.
    device
        i64[n], filled where it is -1; else that is the device.
    sent_at
        f64[f, D], filled with the start of each transfer, inf where there is none.
    """
    n, count = net.time.shape
    flows = len(net.maker)
    for f in range(flows):
        for d in range(count):
            sent_at[f, d] = np.inf
    most = n + 2 * len(net.use_idx) + 2
    begin, finish = np.zeros(most), np.zeros(most)
    before, behind = np.full(most, -1), np.full(most, -1)
    lane_of = np.zeros(most, np.int64)
    lasts = np.full(count + max(2 * count, count * count), -1)
    arrive = np.full((flows, count), np.inf)
    home = np.full(len(net.bytes), -1)
    used = np.zeros(count)
    for v in range(n):
        c = net.together[v]
        if device[v] >= 0 and home[c] < 0:
            home[c] = device[v]
            used[device[v]] += net.bytes[c]
    end = np.zeros(n)
    nodes = 0
    sorted_in = np.zeros(flows + 1, np.int64)
    sent = np.zeros(flows + 1, np.int64)
    for q in range(n):
        v = wanted[q]
        c = net.together[v]
        many = 0
        for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
            f = net.in_idx[k]
            at = many
            while at > 0 and end[net.maker[sorted_in[at - 1]]] > end[net.maker[f]]:
                sorted_in[at] = sorted_in[at - 1]
                at -= 1
            sorted_in[at] = f
            many += 1
        best, least = -1, np.inf
        for final in range(2):
            for d in range(count):
                if final and d != best:
                    continue
                if home[c] >= 0:
                    if d != home[c]:
                        continue
                elif not net.allowed[c, d] or used[d] + net.bytes[c] > net.capacity[d]:
                    continue
                ready, made, first = 0.0, 0, nodes
                for i in range(many):
                    f = sorted_in[i]
                    u = net.maker[f]
                    if device[u] == d:
                        ready = max(ready, end[u])
                        continue
                    if arrive[f, d] == np.inf:
                        length = move_time(net, f, device[u], d)
                        t = end[u]
                        if net.waits[0] and length > 0.0:
                            a, b = net.send[device[u], d], net.receive[device[u], d]
                            t, after = _fit(begin, finish, before, lasts, a, t, length)
                            if a != b:
                                while True:
                                    other, behind_b = _fit(
                                        begin, finish, before, lasts, b, t, length
                                    )
                                    t, after = _fit(begin, finish, before, lasts, a, other, length)
                                    if t == other:
                                        break
                                begin[nodes], finish[nodes] = t, t + length
                                lane_of[nodes] = b
                                _link(before, behind, lasts, b, behind_b, nodes)
                                nodes += 1
                            begin[nodes], finish[nodes] = t, t + length
                            lane_of[nodes] = a
                            _link(before, behind, lasts, a, after, nodes)
                            nodes += 1
                        arrive[f, d] = t + length
                        sent_at[f, d] = t
                        sent[made] = f
                        made += 1
                    ready = max(ready, arrive[f, d])
                at, after = _fit(begin, finish, before, lasts, d, ready, net.time[v, d])
                done = at + net.time[v, d]
                if final:
                    start[v], device[v], end[v] = at, d, done
                    begin[nodes], finish[nodes] = at, done
                    lane_of[nodes] = d
                    _link(before, behind, lasts, d, after, nodes)
                    nodes += 1
                    if home[c] < 0:
                        home[c] = d
                        used[d] += net.bytes[c]
                    break
                if done + ahead * net.tail[v, d] < least:
                    best, least = d, done + ahead * net.tail[v, d]
                while nodes > first:
                    nodes -= 1
                    _unlink(before, behind, lasts, lane_of[nodes], nodes)
                for i in range(made):
                    arrive[sent[i], d] = np.inf
                    sent_at[sent[i], d] = np.inf
            if best < 0:
                return False
    return True
