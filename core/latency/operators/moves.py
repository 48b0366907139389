"""Annealing of list schedules: their times, replayed from the first change on, and moves; kernels.

A list schedule is an order of the tasks, and a device for each. Tasks start as early as those
before them on their device allow. A flow is sent to a device when the first task that reads it
there has its turn; the transfer may take the gap that its lanes remember, one each, so that it does
not wait for transfers that start later. The times are those of `core.cost.latency` for the same
events in the order of their starts; without congestion, of `lazy_events`. A change of the schedule
leaves the times before its first position alone. `replay` starts from a checkpoint before it, and
ends where everything later stays as it was, or where the schedule is known to be too long. The
values that it overwrites are logged until `commit` or `undo`.

Moves: a task, or all tasks of its colour, to another device; a task to another position between
those that it waits for and those that wait for it; both; a cluster of connected tasks to another
device; all tasks of one device within a range of positions to another one; two devices that change
places within a range. Some moves start from tasks on a critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.latency.lists.net import FlowNet
from dnnp.core.model.graph import Floats, Ints, place_of
from dnnp.core.split.annealing.state import below, exponential_table, generator

STRIDE = 16
"""Positions between two checkpoints."""

KEPT = 0.5
"""Share of the remembered gap that a new one must have to replace it."""

NEVER = 1 << 60
"""Position of a transfer that does not exist."""

MANY = 64
"""Readers of a flow beyond which the last one is not searched for."""


class ListState(NamedTuple):
    """A list schedule and its times, changed in place."""

    order: Ints
    place: Ints
    """i64[n], tasks by position, and their positions."""
    device: Ints
    """i64[n]."""
    end: Floats
    """f64[n]."""
    arrive: Floats
    """f64[f, D], when a flow is on a device, where it is sent there."""
    came: Ints
    """i64[f, D], position of that transfer, or `NEVER`."""
    stamp: Ints
    """i64[f, D], the replay that last made this transfer."""
    start: Floats
    begun: Floats
    """f64[n] and f64[f, D], starts of tasks and transfers by the last replay that visited them."""
    rows: Floats
    """f64[k, R], before every `STRIDE` positions: when each device and each lane is free; begin
    and end of the gap that each lane remembers; the end of the last task so far."""
    peak: Floats
    """f64[k], end of the last task of each stride."""
    new_rows: Floats
    new_peak: Floats
    """The same of the replay."""
    row: Floats
    """f64[R], scratch."""
    span: Ints
    """i64[6]: number of the replay; position that it started at; stride before which it ended;
    logged tasks; logged transfers; positions visited by all replays."""
    log_task: Ints
    log_end: Floats
    log_flow: Ints
    log_to: Ints
    log_came: Ints
    log_arrive: Floats
    """Values that the replay overwrote."""


def new_state(net: FlowNet, order: Ints, device: Ints) -> ListState:
    """Arrays of a list schedule without times; `rows[0]` is the empty machine."""
    n, count = net.time.shape
    flows, strides = len(net.maker), n // STRIDE + 1
    width = count + 3 * (1 + int(max(net.send.max(), net.receive.max())) - count) + 1
    place = place_of(order)
    uses = len(net.use_idx) + 1
    return ListState(
        order=np.array(order, dtype=np.int64),
        place=place,
        device=np.array(device, dtype=np.int64),
        end=np.full(n, -1.0),
        arrive=np.zeros((flows, count)),
        came=np.full((flows, count), NEVER, dtype=np.int64),
        stamp=np.zeros((flows, count), dtype=np.int64),
        start=np.zeros(n),
        begun=np.zeros((flows, count)),
        rows=np.zeros((strides, width)),
        peak=np.zeros(strides),
        new_rows=np.zeros((strides, width)),
        new_peak=np.zeros(strides),
        row=np.zeros(width),
        span=np.zeros(6, dtype=np.int64),
        log_task=np.zeros(n, dtype=np.int64),
        log_end=np.zeros(n),
        log_flow=np.zeros(uses, dtype=np.int64),
        log_to=np.zeros(uses, dtype=np.int64),
        log_came=np.zeros(uses, dtype=np.int64),
        log_arrive=np.zeros(uses),
    )


@callee
def last_reader(use_ptr, use_idx, place, f):  # type: ignore[no-untyped-def]
    """Position of the last reader of a flow, or an upper bound of it."""
    first, last = use_ptr[f], use_ptr[f + 1]
    if last - first > MANY:
        return len(place)
    reach = 0
    for j in range(first, last):
        reach = max(reach, place[use_idx[j]])
    return reach


@lean
def replay(net, state, first, last, limit):  # type: ignore[no-untyped-def]
    """Latency after a change of the schedule; inf if it is above `limit`.

    Parameters
    ----------
    first
        No event before this position is another than before.
    last
        No event after this position is another than before.
    """
    # Arrays by name: handing whole tuples to helpers in the loop takes longer than the loop.
    span, row, order, device, end = state.span, state.row, state.order, state.device, state.end
    place, arrive, came, stamp = state.place, state.arrive, state.came, state.stamp
    rows, peak = state.rows, state.peak
    new_rows, new_peak, start, begun = state.new_rows, state.new_peak, state.start, state.begun
    log_task, log_end, log_flow = state.log_task, state.log_end, state.log_flow
    log_to, log_came, log_arrive = state.log_to, state.log_came, state.log_arrive
    time, tail, maker = net.time, net.tail, net.maker
    in_ptr, in_idx = net.in_ptr, net.in_idx
    out_ptr, out_idx, use_ptr, use_idx = net.out_ptr, net.out_idx, net.use_ptr, net.use_idx
    rate, latency, charged = net.rate, net.latency, net.charged
    size, fixed, send, receive = net.size, net.fixed, net.send, net.receive
    waits = net.waits[0]
    n = len(order)
    width = len(row)
    clock = span[0] + 1
    lanes = (width - 1 - time.shape[1]) // 3
    tasks, sends = 0, 0
    stride = first // STRIDE
    border = stride * STRIDE
    span[0] = clock
    span[1] = border
    span[2] = len(peak)
    for x in range(width):
        row[x] = rows[stride, x]
    top, reach, q = 0.0, last, border
    value = -1.0
    while q < n:
        if q % STRIDE == 0 and q > border:
            k = q // STRIDE
            new_peak[k - 1] = top
            row[width - 1] = max(row[width - 1], top)
            top = 0.0
            if q > reach:
                same = True
                for x in range(width - 1):
                    if row[x] != rows[k, x]:
                        same = False
                        break
                if same:
                    value = row[width - 1]
                    for j in range(k, len(peak)):
                        value = max(value, peak[j])
                    span[2] = k
                    break
            for x in range(width):
                new_rows[k, x] = row[x]
        v = order[q]
        d = device[v]
        ready = row[d]
        for k in range(in_ptr[v], in_ptr[v + 1]):
            f = in_idx[k]
            u = maker[f]
            source = device[u]
            if source == d:
                ready = max(ready, end[u])
                continue
            if stamp[f, d] != clock and came[f, d] >= border:
                begin = end[u]
                length = (
                    latency[source, d] + size[f] * rate[source, d] + fixed[f] * charged[source, d]
                )
                if waits:
                    a, b = send[source, d], receive[source, d]
                    made = begin
                    gap_a, gap_b = row[a + lanes], row[b + lanes]
                    till_a, till_b = row[a + 2 * lanes], row[b + 2 * lanes]
                    begin = max(made, max(row[a], row[b]))
                    in_a, in_b = False, False
                    x = max(made, max(gap_a, gap_b))
                    if x < begin and x + length <= min(till_a, till_b):
                        begin, in_a, in_b = x, True, True
                    if a != b:
                        x = max(made, max(gap_a, row[b]))
                        if x < begin and x + length <= till_a:
                            begin, in_a, in_b = x, True, False
                        x = max(made, max(row[a], gap_b))
                        if x < begin and x + length <= till_b:
                            begin, in_a, in_b = x, False, True
                    for side in range(2):
                        if side and a == b:
                            break
                        c, inside = (b, in_b) if side else (a, in_a)
                        g, h = c + lanes, c + 2 * lanes
                        if inside:
                            # The larger rest of the gap stays one.
                            if row[h] - begin - length >= begin - row[g]:
                                row[g] = begin + length
                            else:
                                row[h] = begin
                        else:
                            if begin - row[c] >= KEPT * (row[h] - row[g]):
                                row[g] = row[c]
                                row[h] = begin
                            row[c] = begin + length
                begun[f, d] = begin
                moved = begin + length
                log_flow[sends] = f
                log_to[sends] = d
                log_came[sends] = came[f, d]
                log_arrive[sends] = arrive[f, d]
                sends += 1
                if reach < n - 1 and (came[f, d] == NEVER or arrive[f, d] != moved):
                    reach = max(reach, last_reader(use_ptr, use_idx, place, f))
                came[f, d] = q
                arrive[f, d] = moved
                stamp[f, d] = clock
            ready = max(ready, arrive[f, d])
        finish = ready + time[v, d]
        if finish + tail[v, d] > limit:
            value = np.inf
            break
        start[v] = ready
        row[d] = finish
        top = max(top, finish)
        if finish != end[v]:
            log_task[tasks] = v
            log_end[tasks] = end[v]
            tasks += 1
            end[v] = finish
            if reach < n - 1:
                for k in range(out_ptr[v], out_ptr[v + 1]):
                    reach = max(reach, last_reader(use_ptr, use_idx, place, out_idx[k]))
        q += 1
    span[3] = tasks
    span[4] = sends
    span[5] += q - border
    if q == n:
        new_peak[span[2] - 1] = top
        value = max(row[width - 1], top)
    return value if value <= limit else np.inf


@callee
def commit(state):  # type: ignore[no-untyped-def]
    """Commit the values of the replay."""
    stride = state.span[1] // STRIDE
    for k in range(stride, state.span[2]):
        state.peak[k] = state.new_peak[k]
        if k > stride:
            for x in range(len(state.row)):
                state.rows[k, x] = state.new_rows[k, x]
    # The ends so far of later rows may have changed though nothing else did.
    width = len(state.row)
    for k in range(max(state.span[2], 1), len(state.peak)):
        state.rows[k, width - 1] = max(state.rows[k - 1, width - 1], state.peak[k - 1])


@inlined
def drop_transfers(net, state, v):  # type: ignore[no-untyped-def]
    """After a commit: drop transfers that are needless since task v changed its device."""
    clock, border = state.span[0], state.span[1]
    count = net.time.shape[1]
    for k in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = net.in_idx[k]
        for d in range(count):
            if state.stamp[f, d] != clock and border <= state.came[f, d] < state.span[2] * STRIDE:
                state.came[f, d] = NEVER
    for k in range(net.out_ptr[v], net.out_ptr[v + 1]):
        f = net.out_idx[k]
        for d in range(count):
            if state.stamp[f, d] != clock:
                state.came[f, d] = NEVER


@inlined
def undo(state):  # type: ignore[no-untyped-def]
    """Restore the values that the replay overwrote; the caller restores the schedule."""
    for i in range(state.span[3] - 1, -1, -1):
        state.end[state.log_task[i]] = state.log_end[i]
    for i in range(state.span[4] - 1, -1, -1):
        f, d = state.log_flow[i], state.log_to[i]
        state.came[f, d] = state.log_came[i]
        state.arrive[f, d] = state.log_arrive[i]


ASSIGN, SHIFT, BOTH, CLUSTER, RANGE, SWAP = range(6)
"""Moves; entries of `ListMemory.mix`."""

FAR = 64
"""Positions that most shifts stay within."""


class ListAnnealing(NamedTuple):
    """Annealing state without the schedule, changed in place; n tasks, D devices."""

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
    """f64[2], penalty of a device above its capacity, and of each byte above."""
    energy: Floats
    """f64[1]: latency of the schedule plus penalty of its memory."""
    best_order: Ints
    best_device: Ints
    """i64[n] each, the best schedule so far that fits."""
    value: Floats
    """f64[1], its latency; inf: there is none yet."""
    path: Ints
    """i64[n], tasks on a critical path, lately."""
    moved: Ints
    """i64[n], scratch: tasks whose device the move changes."""
    old: Ints
    """i64[n], scratch: their devices before."""
    mark: Ints
    """i64[c], last move that changed the device of a colour."""
    counts: Ints
    """i64[4]: moves; tasks of this move; tasks on `path`; number of the move that renews `path`."""


def new_annealing(net: FlowNet, seed: int, mix: Sequence[int], guided: int) -> ListAnnealing:
    """New annealing state."""
    n, devices = net.time.shape
    return ListAnnealing(
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
    """Penalty of memory above the capacities."""
    total = 0.0
    for d in range(len(search.used)):
        over = search.used[d] - net.capacity[d]
        if over > 0.0:
            total += search.strict[0] + over * search.strict[1]
    return total


@lean
def begin(net, state, search, latency):  # type: ignore[no-untyped-def]
    """Initialise memory and energy from the schedule in `state`, just replayed."""
    commit(state)
    for d in range(len(search.used)):
        search.used[d] = 0.0
    for c in range(len(net.bytes)):
        search.used[state.device[net.member_idx[net.member_ptr[c]]]] += net.bytes[c]
    over = price(net, search)
    search.energy[0] = latency + over
    search.counts[3] = 0
    _record_best(state, search, latency, over)


@callee
def _record_best(state, search, latency, over):  # type: ignore[no-untyped-def]
    """Record the schedule if it fits and is the best."""
    if over == 0.0 and latency < search.value[0]:
        search.value[0] = latency
        for v in range(len(state.order)):
            search.best_order[v] = state.order[v]
            search.best_device[v] = state.device[v]


@inlined
def trace(net, state, search):  # type: ignore[no-untyped-def]
    """Tasks on a critical path, from its end; waiting times of transfers count."""
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
def _move_color(net, state, search, c, target, first, last):  # type: ignore[no-untyped-def]
    """Move all tasks of a colour; returns the (first, last) position that may change."""
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
def _restore_devices(net, state, search):  # type: ignore[no-untyped-def]
    """Undo all calls of `_move_color` in this move."""
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
    """Random position for task v between its predecessors and successors."""
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
    """Random device for task v: a neighbour's, or any; its own if the draw is not allowed."""
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
def _move_cluster(net, state, search, v, target, first, last):  # type: ignore[no-untyped-def]
    """Move task v and tasks connected to it, most of them from its device."""
    rng = search.rng
    own = state.device[v]
    first, last = _move_color(net, state, search, net.together[v], target, first, last)
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
        first, last = _move_color(net, state, search, c, target, first, last)
    return first, last


@inlined
def _move_range(net, state, search, a, b, swap, first, last):  # type: ignore[no-untyped-def]
    """Move the tasks of device a in a range of positions to device b, and back if `swap`."""
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
            first, last = _move_color(net, state, search, c, target, first, last)
    return first, last


@lean
def sweep(net, state, search, temperatures, works):  # type: ignore[no-untyped-def]
    """Anneal at each temperature until replays have visited its number of positions."""
    for k in range(len(works)):
        _sweep_once(net, state, search, temperatures[k], works[k])


@callee
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
                first, last = _move_cluster(net, state, search, v, target, first, last)
            elif kind in (RANGE, SWAP):
                first, last = _move_range(
                    net, state, search, state.device[v], target, kind == SWAP, first, last
                )
            else:
                first, last = _move_color(net, state, search, c, target, first, last)
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
            commit(state)
            for k in range(search.counts[1]):
                drop_transfers(net, state, search.moved[k])
            search.energy[0] = latency + over
            _record_best(state, search, latency, over)
        else:
            undo(state)
            _restore_devices(net, state, search)
            if j != i:
                shift(state, j, i)


@inlined
def _span(state):  # type: ignore[no-untyped-def]
    """Latency of the schedule."""
    latency = 0.0
    for k in range(len(state.peak)):
        latency = max(latency, state.peak[k])
    return latency


def start_state(net: FlowNet, search: ListAnnealing, order: Ints, device: Ints) -> ListState:
    """State of a schedule; the search is initialised with it."""
    state = new_state(net, order, device)
    latency = replay(net, state, 0, len(order), np.inf)
    begin(net, state, search, latency)
    return state
