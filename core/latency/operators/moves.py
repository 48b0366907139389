"""Annealing of list schedules at one temperature: kernels (`operators`).

Moves: a task, or all tasks of its colour, to another device; a task to another position between
what it waits for and what waits for it; both; a cluster of connected tasks to another device;
all tasks of one device within a range of positions to another one; two devices that change
places within a range. Some moves start from tasks on a critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.latency.lists.net import TaskNet
from dnnp.core.latency.operators.replay import (
    ListState,
    forget,
    last_reader,
    new_state,
    replay,
    settle,
    undo,
)
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.random import below, exponential_table, generator

ASSIGN, SHIFT, BOTH, CLUSTER, RANGE, SWAP = range(6)
"""Moves; entries of `ListMemory.mix`."""

FAR = 64
"""Positions that most shifts stay within."""


class ListMemory(NamedTuple):
    """Memory of annealing beside the schedule, changed in place; n tasks, D devices."""

    rng: np.ndarray
    """u64[1]."""
    dice: Floats
    """Exponential draws."""
    mix: Ints
    """i64[6], weights of the moves."""
    guided: Ints
    """i64[1], per cent of moves that start from a critical path."""
    used: Floats
    """f64[D], bytes."""
    strict: Floats
    """f64[2], energy of a device above its capacity, and what each byte above adds."""
    energy: Floats
    """f64[1]: latency and price of memory of the schedule."""
    best_order: Ints
    best_device: Ints
    """i64[n] each, the best schedule so far that fits."""
    value: Floats
    """f64[1], its latency; inf while there is none."""
    path: Ints
    """i64[n], tasks on a critical path, lately."""
    moved: Ints
    """i64[n], scratch: tasks that a move takes to another device."""
    old: Ints
    """i64[n], scratch: where they were."""
    mark: Ints
    """i64[c], last move that took a colour along."""
    counts: Ints
    """i64[4]: moves; tasks of this move; tasks on `path`; moves before `path` is renewed."""


def new_search(net: TaskNet, seed: int, mix: Sequence[int], guided: int) -> ListMemory:
    """Memory for annealing."""
    n, devices = net.time.shape
    return ListMemory(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array(mix, dtype=np.int64),
        guided=np.array([guided], dtype=np.int64),
        used=np.zeros(devices),
        strict=np.zeros(2),
        energy=np.zeros(1),
        best_order=np.zeros(n, dtype=np.int64),
        best_device=np.zeros(n, dtype=np.int64),
        value=np.array([np.inf]),
        path=np.zeros(n, dtype=np.int64),
        moved=np.zeros(n, dtype=np.int64),
        old=np.zeros(n, dtype=np.int64),
        mark=np.zeros(len(net.bytes), dtype=np.int64),
        counts=np.zeros(4, dtype=np.int64),
    )


@callee
def price(net, search):  # type: ignore[no-untyped-def]
    """Energy of memory above the capacities."""
    total = 0.0
    for d in range(len(search.used)):
        over = search.used[d] - net.capacity[d]
        if over > 0.0:
            total += search.strict[0] + over * search.strict[1]
    return total


@lean
def begin(net, state, search, latency):  # type: ignore[no-untyped-def]
    """Compute memory and energy of the schedule in `state`, whose times were just computed."""
    settle(state)
    for d in range(len(search.used)):
        search.used[d] = 0.0
    for c in range(len(net.bytes)):
        search.used[state.device[net.member_idx[net.member_ptr[c]]]] += net.bytes[c]
    over = price(net, search)
    search.energy[0] = latency + over
    search.counts[3] = 0
    _keep(state, search, latency, over)


@callee
def _keep(state, search, latency, over):  # type: ignore[no-untyped-def]
    """Remember the schedule if it fits and is the best."""
    if over == 0.0 and latency < search.value[0]:
        search.value[0] = latency
        for v in range(len(state.order)):
            search.best_order[v] = state.order[v]
            search.best_device[v] = state.device[v]


@inlined
def trace(net, state, search):  # type: ignore[no-untyped-def]
    """Collect the tasks on a critical path, from its end; transfers that wait count as long."""
    v = 0
    for u in range(len(state.order)):
        if state.end[u] > state.end[v]:
            v = u
    found = 0
    while v >= 0:
        search.path[found] = v
        found += 1
        d = state.device[v]
        cause, latest = -1, 0.0
        for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
            f = net.in_idx[k]
            u = net.maker[f]
            at = state.end[u] if state.device[u] == d else state.arrive[f, d]
            if at > latest:
                cause, latest = u, at
        q = state.place[v] - 1
        start = state.end[v] - net.time[v, d]
        slack = 1e-9 * state.end[v]
        if latest < start - slack or cause < 0:
            while q >= 0 and state.device[state.order[q]] != d:
                q -= 1
            if q >= 0 and state.end[state.order[q]] > latest:
                cause = state.order[q]
        v = cause
    search.counts[2] = found
    search.counts[3] = search.counts[0] + max(len(state.order) // 4, 50)


@callee
def _take(net, state, search, c, target, first, last):  # type: ignore[no-untyped-def]
    """Move all tasks of a colour; what may change: (first, last) position."""
    members = net.member_ptr[c], net.member_ptr[c + 1]
    source = state.device[net.member_idx[members[0]]]
    search.mark[c] = search.counts[0]
    search.used[source] -= net.bytes[c]
    search.used[target] += net.bytes[c]
    for i in range(members[0], members[1]):
        v = net.member_idx[i]
        at = search.counts[1]
        search.moved[at] = v
        search.old[at] = source
        search.counts[1] += 1
        state.device[v] = target
        first = min(first, state.place[v])
        for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
            f = net.in_idx[k]
            last = max(last, last_reader(net.use_ptr, net.use_idx, state.place, f))
        for k in range(net.out_ptr[v], net.out_ptr[v + 1]):
            f = net.out_idx[k]
            last = max(last, last_reader(net.use_ptr, net.use_idx, state.place, f))
        last = max(last, state.place[v])
    return first, last


@inlined
def _give_back(net, state, search):  # type: ignore[no-untyped-def]
    """Undo `_take`."""
    for i in range(search.counts[1]):
        v = search.moved[i]
        c = net.together[v]
        if v == net.member_idx[net.member_ptr[c]]:
            search.used[state.device[v]] -= net.bytes[c]
            search.used[search.old[i]] += net.bytes[c]
        state.device[v] = search.old[i]


@callee
def shift(state, i, j):  # type: ignore[no-untyped-def]
    """Move the task at position i to position j."""
    v = state.order[i]
    step = 1 if j > i else -1
    for q in range(i, j, step):
        w = state.order[q + step]
        state.order[q] = w
        state.place[w] = q
    state.order[j] = v
    state.place[v] = j


@inlined
def _position(net, state, search, v):  # type: ignore[no-untyped-def]
    """Random position for task v among those that its neighbours leave it."""
    n = len(state.order)
    lo, hi = 0, n - 1
    for k in range(net.pred_ptr[v], net.pred_ptr[v + 1]):
        lo = max(lo, state.place[net.pred_idx[k]] + 1)
    for k in range(net.succ_ptr[v], net.succ_ptr[v + 1]):
        hi = min(hi, state.place[net.succ_idx[k]] - 1)
    at = state.place[v]
    if below(search.rng, 8):
        lo, hi = max(lo, at - FAR), min(hi, at + FAR)
    if hi <= lo:
        return at
    j = lo + below(search.rng, hi - lo)
    return j if j < at else j + 1


@inlined
def _target(net, state, search, v):  # type: ignore[no-untyped-def]
    """A device for task v: that of a neighbour, or any; its own if the draw does not fit."""
    count = net.time.shape[1]
    own = state.device[v]
    before = net.pred_ptr[v + 1] - net.pred_ptr[v]
    near = before + net.succ_ptr[v + 1] - net.succ_ptr[v]
    d = own
    if near and below(search.rng, 2):
        k = below(search.rng, near)
        if k < before:
            d = state.device[net.pred_idx[net.pred_ptr[v] + k]]
        else:
            d = state.device[net.succ_idx[net.succ_ptr[v] + k - before]]
    if d == own:
        d = below(search.rng, count)
    return d if net.allowed[net.together[v], d] else own


@inlined
def _grow(net, state, search, v, target, first, last):  # type: ignore[no-untyped-def]
    """Move task v and tasks connected to it, most of them from its device."""
    rng = search.rng
    own = state.device[v]
    first, last = _take(net, state, search, net.together[v], target, first, last)
    wanted = 2
    while wanted < 64 and below(rng, 4):
        wanted += 1
    for _ in range(3 * wanted):
        if search.counts[1] >= wanted:
            break
        u = search.moved[below(rng, search.counts[1])]
        before = net.pred_ptr[u + 1] - net.pred_ptr[u]
        near = before + net.succ_ptr[u + 1] - net.succ_ptr[u]
        if near == 0:
            break
        k = below(rng, near)
        if k < before:
            w = net.pred_idx[net.pred_ptr[u] + k]
        else:
            w = net.succ_idx[net.succ_ptr[u] + k - before]
        c = net.together[w]
        if state.device[w] == target or search.mark[c] == search.counts[0]:
            continue
        if not net.allowed[c, target] or (state.device[w] != own and below(rng, 4)):
            continue
        first, last = _take(net, state, search, c, target, first, last)
    return first, last


@inlined
def _sweep_range(net, state, search, a, b, swap, first, last):  # type: ignore[no-untyped-def]
    """Move what device a runs in a range of positions to device b, and back if `swap`."""
    rng = search.rng
    n = len(state.order)
    length = 4
    while length < n and below(rng, 3):
        length *= 2
    length = 1 + below(rng, min(length, n))
    i = below(rng, n)
    if search.counts[2] and below(rng, 100) < search.guided[0]:
        i = state.place[search.path[below(rng, search.counts[2])]]
    i = max(0, i - below(rng, length))
    for q in range(i, min(i + length, n)):
        v = state.order[q]
        c = net.together[v]
        d = state.device[v]
        if search.mark[c] == search.counts[0] or not (d == a or (swap and d == b)):
            continue
        target = b if d == a else a
        if net.allowed[c, target]:
            first, last = _take(net, state, search, c, target, first, last)
    return first, last


@lean
def sweep(net, state, search, temperatures, works):  # type: ignore[no-untyped-def]
    """Anneal at each temperature until replays have visited its number of positions."""
    for k in range(len(works)):
        _sweep_once(net, state, search, temperatures[k], works[k])


@inlined
def _sweep_once(net, state, search, temperature, work):  # type: ignore[no-untyped-def]
    """Anneal at one temperature until replays have visited `work` positions."""
    rng, mix = search.rng, search.mix
    n, count = net.time.shape
    whole = 0
    for x in mix:
        whole += x
    search.energy[0] = price(net, search) + _span(state)
    finish = state.span[5] + work
    while state.span[5] < finish:
        search.counts[0] += 1
        search.counts[1] = 0
        state.span[5] += 2
        if search.counts[0] >= search.counts[3]:
            trace(net, state, search)
        x = below(rng, whole)
        kind = 0
        while x >= mix[kind]:
            x -= mix[kind]
            kind += 1
        v = below(rng, n)
        if below(rng, 100) < search.guided[0]:
            v = search.path[below(rng, search.counts[2])]
        i = j = state.place[v]
        if kind in (SHIFT, BOTH):
            j = _position(net, state, search, v)
        target = state.device[v]
        if kind != SHIFT and count > 1:
            target = _target(net, state, search, v)
        first, last = n, 0
        if j != i:
            first, last = min(i, j), max(i, j)
            shift(state, i, j)
        if target != state.device[v]:
            c = net.together[v]
            if kind == CLUSTER:
                first, last = _grow(net, state, search, v, target, first, last)
            elif kind in (RANGE, SWAP):
                first, last = _sweep_range(
                    net, state, search, state.device[v], target, kind == SWAP, first, last
                )
            else:
                first, last = _take(net, state, search, c, target, first, last)
        if first > last:
            continue
        over = price(net, search)
        limit = search.energy[0] + temperature * search.dice[below(rng, len(search.dice))] - over
        latency = np.inf
        if limit > 0.0:
            latency = replay(net, state, first, last, limit)
        else:
            state.span[3] = 0
            state.span[4] = 0
        if latency < np.inf:
            settle(state)
            for k in range(search.counts[1]):
                forget(net, state, search.moved[k])
            search.energy[0] = latency + over
            _keep(state, search, latency, over)
        else:
            undo(state)
            _give_back(net, state, search)
            if j != i:
                shift(state, j, i)


@inlined
def _span(state):  # type: ignore[no-untyped-def]
    """Latency of the schedule."""
    latency = 0.0
    for k in range(len(state.peak)):
        latency = max(latency, state.peak[k])
    return latency


def start_state(net: TaskNet, search: ListMemory, order: Ints, device: Ints) -> ListState:
    """Lay a schedule out and make it where the search stands."""
    state = new_state(net, order, device)
    latency = replay(net, state, 0, len(order), np.inf)
    begin(net, state, search, latency)
    return state
