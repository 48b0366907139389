"""A set of nodes that have run: running one more, taking it back, and moves that cost nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Floats, Ints


class PeakState(NamedTuple):
    """Scratch of the searches; `live` and the counts follow `done`."""

    done: np.ndarray
    """bool[n], the node has run."""
    needs: Ints
    """i64[n], tensors that the node reads and that are still to be made."""
    left: Ints
    """i64[t], nodes that read the tensor and have not run."""
    ready: Ints
    """Nodes with no needs, those that have run since the state was set up included."""
    log: Ints
    """Nodes that have run since the state was set up."""
    counts: Ints
    """Length of `ready`, of `log`; tensors and nodes visited in all, which is the work done."""
    live: Floats
    """f64[n + 1], bytes live after each entry of the log."""


@kernel
def new_state(steps):  # type: ignore[no-untyped-def]
    """Room for the state of some steps."""
    n = len(steps.made)
    return (
        np.zeros(n, np.bool_),
        np.zeros(n, np.int64),
        np.zeros(len(steps.size), np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(3, np.int64),
        np.zeros(n + 1),
    )


@kernel
def set_up(steps, state, bits, live):  # type: ignore[no-untyped-def]
    """Make the state that of the nodes in `bits` (u64 words), with an empty log."""
    n = len(steps.made)
    for t in range(len(steps.size)):
        state.left[t] = steps.use_ptr[t + 1] - steps.use_ptr[t]
    copy(steps.needs, state.needs)
    one = np.uint64(1)
    for v in range(n):
        state.done[v] = (bits[v >> 6] >> np.uint64(v & 63)) & one != 0
        if state.done[v]:
            for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
                state.left[steps.reads[i]] -= 1
            for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
                t = steps.makes[i]
                for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
                    state.needs[steps.uses[j]] -= 1
    state.counts[0] = state.counts[1] = 0
    state.counts[2] += n + len(steps.uses)
    for v in range(n):
        if not state.done[v] and state.needs[v] == 0:
            state.ready[state.counts[0]] = v
            state.counts[0] += 1
    state.live[0] = live


@kernel
def growth(steps, state, v):  # type: ignore[no-untyped-def]
    """Bytes by which running a ready node changes what is live."""
    change = steps.made[v]
    state.counts[2] += 2 + steps.read_ptr[v + 1] - steps.read_ptr[v]
    for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
        t = steps.reads[i]
        if state.left[t] == 1 and not steps.stays[t]:
            change -= steps.size[t]
    for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
        t = steps.makes[i]
        if steps.use_ptr[t] == steps.use_ptr[t + 1] and not steps.stays[t]:
            change -= steps.size[t]
    return change


@kernel
def run(steps, state, v):  # type: ignore[no-untyped-def]
    """Run a ready node."""
    now = state.counts[1]
    state.live[now + 1] = state.live[now] + growth(steps, state, v)
    state.log[now] = v
    state.counts[1] = now + 1
    state.done[v] = True
    state.counts[2] += 4
    for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
        state.left[steps.reads[i]] -= 1
    for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
        t = steps.makes[i]
        for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
            w = steps.uses[j]
            state.needs[w] -= 1
            if state.needs[w] == 0:
                state.ready[state.counts[0]] = w
                state.counts[0] += 1


@kernel
def undo(steps, state):  # type: ignore[no-untyped-def]
    """Take the last node of the log back."""
    state.counts[1] -= 1
    v = state.log[state.counts[1]]
    state.counts[2] += 4
    state.done[v] = False
    for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
        state.left[steps.reads[i]] += 1
    for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
        t = steps.makes[i]
        for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
            w = steps.uses[j]
            if state.needs[w] == 0:
                state.counts[0] -= 1
            state.needs[w] += 1


@kernel
def settle(steps, state, peak):  # type: ignore[no-untyped-def]
    """Run whatever may run at once without loss, if `peak` bytes are allowed in any case.

    A chain of nodes, each made ready by the one before, may run at once if no step of it takes
    more than `peak` and it leaves no more bytes live than there were, nor than after any shorter
    part of it. Pulling it to the front of a best order then raises no step of that order: live
    bytes are submodular, so that what the chain adds only falls as more nodes have run.
    """
    changed = True
    while changed:
        changed = False
        i = 0
        while i < state.counts[0]:
            v = state.ready[i]
            i += 1
            if state.done[v]:
                continue
            base = state.counts[1]
            live = state.live[base]
            while v >= 0:
                known = state.counts[0]
                if state.live[state.counts[1]] + steps.made[v] > peak:
                    v = -1
                    break
                run(steps, state, v)
                if state.live[state.counts[1]] <= live:
                    break
                # Go on with the node made ready that leaves the least.
                v = -1
                least = np.inf
                for j in range(known, state.counts[0]):
                    change = growth(steps, state, state.ready[j])
                    if change < least:
                        least = change
                        v = state.ready[j]
            if v >= 0:
                changed = True
            else:
                while state.counts[1] > base:
                    undo(steps, state)


@kernel
def copy(source, target):  # type: ignore[no-untyped-def]
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def mark(state, bits):  # type: ignore[no-untyped-def]
    """Add the nodes of the log."""
    for i in range(state.counts[1]):
        v = state.log[i]
        bits[v >> 6] |= np.uint64(1) << np.uint64(v & 63)


@kernel
def trace(steps, state, bits, live, peak, parent, node, goal, start, floor):  # type: ignore[no-untyped-def]
    """The order that leads to a state: its moves, replayed."""
    n = len(steps.made)
    order = np.empty(n, np.int64)
    end = n
    s = goal
    while s >= 0:
        before = parent[s]
        if before >= 0:
            set_up(steps, state, bits[before], live[before])
            run(steps, state, node[s])
            settle(steps, state, peak[s])
        else:
            set_up(steps, state, np.zeros(bits.shape[1], np.uint64), start)
            settle(steps, state, floor)
        end -= state.counts[1]
        for i in range(state.counts[1]):
            order[end + i] = state.log[i]
        s = before
    return order
