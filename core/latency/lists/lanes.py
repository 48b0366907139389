"""What the kernels of list scheduling share: transfers on their lanes, and tasks that run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TASK
from dnnp.core.kernels.kernel import callee, inlined
from dnnp.core.latency.lists.net import CHANNEL, NONE, Net
from dnnp.core.model.graph import Floats, Ints


class LaneState(NamedTuple):
    """A schedule that is being built."""

    device: Ints
    """i64[n], -1: not yet placed."""
    end: Floats
    """f64[n], end of each task that is placed."""
    free: Floats
    """f64[D], when each device is free."""
    arrived: Floats
    """f64[f, D], when a flow came to a device that did not make it; -1: it has not moved there."""
    sending: Floats
    receiving: Floats
    """f64[D, D] each, when lanes are free, as in `simulate`."""
    reads: Ints
    """Flows that each task reads, as `Net.in_idx`, in the order in which they are to be sent."""
    lanes: Floats
    """f64[D], scratch space."""
    events: Ints
    """i64[e, 2], what has happened, as in `Placement`."""


@inlined
def new_state(net: Net) -> LaneState:
    """Nothing is placed."""
    n, count, flows = len(net.order), len(net.rate), len(net.maker)
    most = n
    for f in range(flows):
        most += min(count, net.use_ptr[f + 1] - net.use_ptr[f])
    return LaneState(
        np.full(n, -1, dtype=np.int64),
        np.zeros(n),
        np.zeros(count),
        np.full((flows, count), -1.0),
        np.zeros((count, count)),
        np.zeros((count, count)),
        net.in_idx.copy(),
        np.zeros(count),
        np.empty((most, 2), dtype=np.int64),
    )


@inlined
def length(net: Net, f: int, source: int, target: int) -> float:
    """Time of a transfer, as `simulate` computes it."""
    return (
        net.latency[source, target]
        + net.size[f] * net.rate[source, target]
        + net.fixed[f] * net.charged[source, target]
    )


@callee
def send(net: Net, state: LaneState, f: int, target: int, at: int) -> int:
    """Move a flow, whose maker has run, and keep its lanes busy; the number of events so far."""
    source = state.device[net.maker[f]]
    begin = state.end[net.maker[f]]
    other = target if net.rule == CHANNEL else source
    mine = source if net.rule == CHANNEL else target
    if net.rule != NONE:
        begin = max(begin, max(state.sending[source, other], state.receiving[mine, target]))
    when = begin + length(net, f, source, target)
    state.sending[source, other] = when
    state.receiving[mine, target] = when
    state.arrived[f, target] = when
    state.events[at, 0] = f
    state.events[at, 1] = target
    return at + 1


@callee
def arrival(net: Net, state: LaneState, v: int, d: int) -> float:
    """When all that a task reads can be on a device, if its transfers are sent next.

    Nothing is kept busy.
    """
    ready, come, copied = 0.0, 0.0, False
    lanes = state.lanes
    for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = state.reads[a]
        u = net.maker[f]
        if u < 0:
            continue
        source = state.device[u]
        if source == d:
            ready = max(ready, state.end[u])
            continue
        if state.arrived[f, d] >= 0.0:
            ready = max(ready, state.arrived[f, d])
            continue
        begin = state.end[u]
        if net.rule != NONE:
            if not copied:
                copied = True
                for s in range(len(lanes)):
                    lanes[s] = state.sending[s, d if net.rule == CHANNEL else s]
                come = 0.0 if net.rule == CHANNEL else state.receiving[d, d]
            begin = max(begin, max(lanes[source], come))
        when = begin + length(net, f, source, d)
        if net.rule != NONE:
            lanes[source] = when
            if net.rule != CHANNEL:
                come = when
        ready = max(ready, when)
    return ready


@callee
def commit(net: Net, state: LaneState, v: int, d: int, at: int) -> int:
    """Run a task on a device, after the transfers that it needs; the number of events so far."""
    ready = state.free[d]
    for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
        f = state.reads[a]
        u = net.maker[f]
        if u < 0:
            continue
        if state.device[u] == d:
            ready = max(ready, state.end[u])
            continue
        if state.arrived[f, d] < 0.0:
            at = send(net, state, f, d, at)
        ready = max(ready, state.arrived[f, d])
    state.device[v] = d
    state.end[v] = ready + net.time[d, v]
    state.free[d] = state.end[v]
    state.events[at, 0] = TASK
    state.events[at, 1] = v
    return at + 1


@callee
def sort_reads(net: Net, state: LaneState, v: int) -> None:
    """Put what a task reads in the order in which it is made."""
    low, high = net.in_ptr[v], net.in_ptr[v + 1]
    # By insertion: they are few, and nearly in order.
    for a in range(low + 1, high):
        f = state.reads[a]
        made = _made(net, state, f)
        b = a
        while b > low and _made(net, state, state.reads[b - 1]) > made:
            state.reads[b] = state.reads[b - 1]
            b -= 1
        state.reads[b] = f


@callee
def _made(net: Net, state: LaneState, f: int) -> float:
    """When a flow was made."""
    u = net.maker[f]
    return state.end[u] if u >= 0 else 0.0
