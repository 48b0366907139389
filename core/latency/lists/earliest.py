"""Build a schedule from the tasks that are ready, whose devices are chosen on the way.

Of the tasks that are ready and the devices with room, the pair with the earliest start comes next
(ETF: Hwang, Chow, Anger and Lee 1989), or the task with the highest priority where it ends first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, kernel
from dnnp.core.latency.lists.insertion import DONE
from dnnp.core.latency.lists.lanes import LaneState, arrival, commit, new_state, sort_reads
from dnnp.core.latency.lists.net import Net
from dnnp.core.model.graph import Bools, Floats, Ints


class Rules(NamedTuple):
    """Who may go where, and who goes first."""

    place: Ints
    """i64[n], 0 for the highest priority; of equal starts that task goes first."""
    able: Bools
    """bool[D, c], devices that can hold each colour."""
    preferred: Bools
    """bool[D, n], devices for each task; it goes elsewhere only when all of these are full."""
    memory: Floats
    """f64[c], bytes of each colour."""
    limit: Floats
    """f64[D], bytes that each device holds."""
    favourite: Ints
    """i64[n], favourite child of each task, or -1."""
    by_end: bool
    """The task with the highest priority goes next, to the device where it ends first."""
    window: int
    """Ready tasks of the highest priority that are looked at."""


class Ready(NamedTuple):
    """What is free, and what is ready."""

    home: Ints
    """i64[c], device of each colour, or -1."""
    room: Floats
    """f64[D], bytes left."""
    waits: Ints
    """i64[n], reads of each task whose makers have not run."""
    made: Floats
    """f64[n], latest end of the makers so far."""
    tasks: Ints
    """Ready tasks by falling place."""
    parent: Ints
    """i64[n], whose favourite child a task is, or -1."""
    kept: Ints
    """i64[D], favourite child that a device waits for, or -1."""


@inlined
def _takes(rules: Rules, ready: Ready, d: int, c: int) -> bool:
    """Whether a device is the home of a colour, or can become it."""
    if ready.home[c] >= 0:
        return bool(ready.home[c] == d)
    return bool(rules.able[d, c] and rules.memory[c] <= ready.room[d])


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
def _start(net: Net, rules: Rules, home: Ints) -> Ready:
    """Before anything has run."""
    n, count = len(net.order), len(net.rate)
    room = rules.limit.copy()
    for c in range(len(home)):
        if home[c] >= 0:
            room[home[c]] -= rules.memory[c]
    waits = np.zeros(n, dtype=np.int64)
    for f in range(len(net.maker)):
        if net.maker[f] >= 0:
            for a in range(net.use_ptr[f], net.use_ptr[f + 1]):
                waits[net.use_idx[a]] += 1
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
def _reserve(net: Net, rules: Rules, state: LaneState, ready: Ready, last: Ints) -> None:
    """Find what devices wait for: the favourite child of the last task, if it is ready.

    It must start nowhere earlier.
    """
    for d in range(len(last)):
        f = rules.favourite[last[d]] if last[d] >= 0 else -1
        ready.kept[d] = -1
        if f < 0 or state.device[f] >= 0 or ready.waits[f]:
            continue
        c = net.color[f]
        if not _takes(rules, ready, d, c):
            continue
        here = max(state.free[d], arrival(net, state, f, d))
        ready.kept[d] = f
        for e in range(len(last)):
            if e == d or not _takes(rules, ready, e, c):
                continue
            if max(state.free[e], arrival(net, state, f, e)) < here:
                ready.kept[d] = -1
                break


@inlined
def _urgent(net: Net, state: LaneState, v: int, when: float) -> bool:
    """Whether all that a task reads could be on any device by then."""
    for e in range(len(state.free)):  # noqa: SIM110
        if arrival(net, state, v, e) > when:
            return False
    return True


@inlined
def _next(
    net: Net, rules: Rules, state: LaneState, ready: Ready, waiting: int, patient: bool
) -> tuple[int, int, int]:
    """The next task and its device, or -1; and a task that has no place, or -1.

    `patient`: devices wait for favourite children.
    """
    best, task, target = np.inf, -1, -1
    soonest, count = np.inf, len(state.free)
    for d in range(count):
        soonest = min(soonest, state.free[d])
    # Arrays of a tuple that is passed on are counted each time: only for pairs that may be best.
    free, able, memory, room = state.free, rules.able, rules.memory, ready.room
    # The highest priority is last.
    for k in range(waiting - 1, max(-1, waiting - 1 - rules.window), -1):
        v = ready.tasks[k]
        made = ready.made[v]
        if not rules.by_end and max(made, soonest) >= best:
            continue
        c = net.color[v]
        home = ready.home[c]
        picky = False
        if home < 0:
            for d in range(count):
                fits = able[d, c] and memory[c] <= room[d]
                picky = picky or (fits and rules.preferred[d, v])
        # The device of the favourite parent comes first, so that it wins ties.
        near = state.device[ready.parent[v]] if ready.parent[v] >= 0 else -1
        placed = home >= 0
        for step in range(-1, count):
            d = near if step < 0 else step
            if d < 0 or (step >= 0 and d == near) or (home >= 0 and d != home):
                continue
            if home < 0:
                if not able[d, c] or memory[c] > room[d] or (picky and not rules.preferred[d, v]):
                    continue
                placed = True
            if not rules.by_end and max(made, free[d]) >= best:
                continue
            when = max(free[d], arrival(net, state, v, d))
            score = when + net.time[d, v] if rules.by_end else when
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
def earliest(net: Net, rules: Rules, home: Ints) -> tuple[int, float, Ints, Ints]:
    """Build a schedule; colours with a home (i64[c], else -1) keep it.

    Returns `DONE` or a task without a place, the latency, the device of each task, and the events.
    A device whose last task has a favourite child that is ready, and that would start nowhere
    earlier, waits for it, but runs urgent tasks meanwhile: those whose inputs could be anywhere.
    """
    state, ready = new_state(net), _start(net, rules, home)
    last = np.full(len(net.rate), -1, dtype=np.int64)
    lost, value, at = _build(net, rules, state, ready, last)
    return lost, value, state.device, state.events[:at].copy()


@callee
def _build(
    net: Net, rules: Rules, state: LaneState, ready: Ready, last: Ints
) -> tuple[int, float, int]:
    """`earliest`, with room to work in; what failed, the latency, and how many events."""
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
        c = net.color[task]
        if ready.home[c] < 0:
            ready.home[c] = target
            ready.room[target] -= rules.memory[c]
        at = commit(net, state, task, target, at)
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
                    sort_reads(net, state, v)
                    waiting = _insert(ready, rules.place, waiting, v)
    return DONE, value, at
