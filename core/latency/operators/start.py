"""List schedules to start from (`operators`).

`insertion` is HEFT (Topcuoglu et al. 2002) with transfers that wait for each other: tasks come by
falling rank, each goes to the device where it ends first, into a gap if there is one, and so do
the transfers it waits for. With `ahead` a device also counts what can follow there at best
(PEFT; Arabnejad and Barbosa 2014). `filled` cuts one order of the tasks into a run for each
device, as much as fits; `packed` only cares for memory.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, kernel
from dnnp.core.latency.lists.room import by_first
from dnnp.core.latency.operators.kernel import ListBoard, move_time
from dnnp.core.model.graph import Floats, Ints


def best_rank(board: ListBoard) -> Floats:
    """Least time on any device, with the best that can follow; f64[n].

    Like an upward rank it falls along every edge.
    """
    allowed = board.allowed[board.together]
    rank: Floats = np.where(allowed, board.time + board.tail, np.inf).min(axis=1)
    return rank


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
def insertion(board, wanted, ahead, start, device, sent_at):  # type: ignore[no-untyped-def]
    """Schedule tasks in an order with insertion; whether all fit.

    Parameters
    ----------
    wanted
        i64[n], every task after all it waits for.
    ahead
        What counts of `board.tail`, 0 to 1.
    start
        f64[n], filled.
    device
        i64[n], filled where it is -1; else that is the device.
    sent_at
        f64[f, D], filled with the start of each transfer, inf where there is none.
    """
    n, count = board.time.shape
    flows = len(board.maker)
    for f in range(flows):
        for d in range(count):
            sent_at[f, d] = np.inf
    most = n + 2 * len(board.use_idx) + 2
    begin, finish = np.zeros(most), np.zeros(most)
    before, behind = np.full(most, -1), np.full(most, -1)
    lane_of = np.zeros(most, np.int64)
    lasts = np.full(count + max(2 * count, count * count), -1)
    arrive = np.full((flows, count), np.inf)
    home = np.full(len(board.bytes), -1)
    used = np.zeros(count)
    for v in range(n):
        c = board.together[v]
        if device[v] >= 0 and home[c] < 0:
            home[c] = device[v]
            used[device[v]] += board.bytes[c]
    end = np.zeros(n)
    nodes = 0
    sorted_in = np.zeros(flows + 1, np.int64)
    sent = np.zeros(flows + 1, np.int64)
    for q in range(n):
        v = wanted[q]
        c = board.together[v]
        many = 0
        for k in range(board.in_ptr[v], board.in_ptr[v + 1]):
            f = board.in_idx[k]
            at = many
            while at > 0 and end[board.maker[sorted_in[at - 1]]] > end[board.maker[f]]:
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
                elif not board.allowed[c, d] or used[d] + board.bytes[c] > board.capacity[d]:
                    continue
                ready, made, first = 0.0, 0, nodes
                for i in range(many):
                    f = sorted_in[i]
                    u = board.maker[f]
                    if device[u] == d:
                        ready = max(ready, end[u])
                        continue
                    if arrive[f, d] == np.inf:
                        length = move_time(board, f, device[u], d)
                        t = end[u]
                        if board.waits[0] and length > 0.0:
                            a, b = board.send[device[u], d], board.receive[device[u], d]
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
                at, after = _fit(begin, finish, before, lasts, d, ready, board.time[v, d])
                done = at + board.time[v, d]
                if final:
                    start[v], device[v], end[v] = at, d, done
                    begin[nodes], finish[nodes] = at, done
                    lane_of[nodes] = d
                    _link(before, behind, lasts, d, after, nodes)
                    nodes += 1
                    if home[c] < 0:
                        home[c] = d
                        used[d] += board.bytes[c]
                    break
                if done + ahead * board.tail[v, d] < least:
                    best, least = d, done + ahead * board.tail[v, d]
                while nodes > first:
                    nodes -= 1
                    _unlink(before, behind, lasts, lane_of[nodes], nodes)
                for i in range(made):
                    arrive[sent[i], d] = np.inf
                    sent_at[sent[i], d] = np.inf
            if best < 0:
                return False
    return True


def filled(board: ListBoard, order: Ints, devices: Ints) -> Ints | None:
    """Colours in the order of their first tasks, on one device after the other as far as each
    holds them; i64[n], or None if they do not fit that way."""
    count = board.time.shape[1]
    used, home = np.zeros(count), np.full(len(board.bytes), -1, dtype=np.int64)
    at = 0
    for c in by_first(board.together[order]).tolist():
        tried = at
        while tried < len(devices):
            d = devices[tried]
            if board.allowed[c, d] and used[d] + board.bytes[c] <= board.capacity[d]:
                break
            tried += 1
        if tried == len(devices):
            return None
        d = devices[tried]
        if board.allowed[c, devices[at]]:
            at = tried
        home[c] = d
        used[d] += board.bytes[c]
    return home[board.together]


def packed(board: ListBoard, most: int) -> tuple[Ints | None, bool]:
    """Colours packed into the memory of the devices; i64[n] or None, and whether None is proven.

    The largest colours come first, each on the device with most room; every other way is tried
    until `most` colours have been placed.
    """
    colors = np.lexsort((-board.bytes, board.allowed.sum(axis=1) > 1))
    size = board.bytes[colors]
    left = np.append(np.cumsum(size[::-1])[::-1], 0.0)
    room = board.capacity.copy()
    home = np.full(len(colors), -1, dtype=np.int64)
    choices: list[list[int]] = []
    tried = 0
    while len(choices) <= len(colors):
        at = len(choices)
        if at == len(colors):
            return home[board.together], False
        c = colors[at]
        fits = board.allowed[c] & (room >= size[at])
        if room.sum() < left[at]:
            fits[:] = False
        # Last is first: `pop` takes the device with most room.
        choices.append([d for d in np.argsort(room, kind="stable").tolist() if fits[d]])
        while choices and not choices[-1]:
            choices.pop()
            if choices:
                _vacate(home, room, size, colors, len(choices) - 1)
        if not choices:
            return None, True
        d = choices[-1].pop()
        home[colors[len(choices) - 1]] = d
        room[d] -= size[len(choices) - 1]
        tried += 1
        if tried > most:
            return None, False
    return None, False


def _vacate(home: Ints, room: Floats, size: Floats, colors: Ints, at: int) -> None:
    """Take back where the colour at a place of the order went."""
    c = colors[at]
    room[home[c]] += size[at]
    home[c] = -1
