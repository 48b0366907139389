"""Times of a list schedule, all at once or from the first change on: kernels (`operators`).

A list schedule is an order of the tasks, and a device for each. Tasks start as early as those
before them on their device allow. A flow is sent to a device when the first task that reads it
there has its turn; the transfer may take the gap that its lanes keep in mind, one each, so that
it does not wait for transfers that start later. The times are those of `core.cost.latency` for
the same events in the order of their starts; without congestion, of `lazy_events`.

A change of the schedule leaves the times before its first position alone. `replay` starts from
a checkpoint before it, and ends where it sees that everything later stays as it was, or that
the schedule gets too long whatever follows. What it overwrites is kept until `settle` or `undo`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.latency.lists.net import TaskNet
from dnnp.core.model.graph import Floats, Ints, place_of

STRIDE = 16
"""Positions between two checkpoints."""

KEPT = 0.5
"""A new gap replaces the one kept in mind if it is at least this part of it."""

NEVER = 1 << 60
"""Position of a transfer that does not take place."""

MANY = 64
"""Readers of a flow beyond which nobody asks which of them is the last."""


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
    and end of the gap that each lane keeps in mind; the end of the last task so far."""
    peak: Floats
    """f64[k], end of the last task of each stride."""
    new_rows: Floats
    new_peak: Floats
    """The same of the replay."""
    row: Floats
    """f64[R], scratch."""
    span: Ints
    """i64[6]: number of the replay; the border that it started at; the stride that it ended
    before; logged tasks; logged transfers; positions visited by all replays."""
    log_task: Ints
    log_end: Floats
    log_flow: Ints
    log_to: Ints
    log_came: Ints
    log_arrive: Floats
    """Values that the replay overwrote."""


def new_state(net: TaskNet, order: Ints, device: Ints) -> ListState:
    """Lay out a list schedule and compute its times; `rows[0]` is the empty machine."""
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
    """Position of the last task that reads a flow, or beyond."""
    first, last = use_ptr[f], use_ptr[f + 1]
    if last - first > MANY:
        return len(place)
    reach = 0
    for j in range(first, last):
        reach = max(reach, place[use_idx[j]])
    return reach


@lean
def replay(net, state, first, last, limit):  # type: ignore[no-untyped-def]
    """Latency after a change of the schedule; inf once it is known to be above `limit`.

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
    time, tail, maker, in_ptr, in_idx = (
        net.time,
        net.tail,
        net.maker,
        net.in_ptr,
        net.in_idx,
    )
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
def settle(state):  # type: ignore[no-untyped-def]
    """Keep what the replay computed."""
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
def forget(net, state, v):  # type: ignore[no-untyped-def]
    """After a replay that is kept: drop transfers that task v, on another device, made needless."""
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
    """Take back what the replay overwrote; the schedule is the caller's business."""
    for i in range(state.span[3] - 1, -1, -1):
        state.end[state.log_task[i]] = state.log_end[i]
    for i in range(state.span[4] - 1, -1, -1):
        f, d = state.log_flow[i], state.log_to[i]
        state.came[f, d] = state.log_came[i]
        state.arrive[f, d] = state.log_arrive[i]
