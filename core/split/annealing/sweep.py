"""Annealing at one temperature: kernels.

Two kinds of moves are tried: single items, and clusters of items. Stages of a pipeline on devices
of different classes may also swap these.

A cluster grows from an item along nets at least as expensive as one drawn at random. It takes along
what a single item cannot leave behind, at every scale that the nets have. In a pipeline it is an
item and what must come along. A second cluster may move in the same step, for example into the gap.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.split.annealing.state import (
    CLUSTER,
    LOOSE,
    NET,
    SECOND,
    below,
    broken,
    carry,
    convex,
    evaluate,
    fill,
    load_in,
    measure,
    note,
    record,
    set_reference,
    update_times,
    weigh,
)

MOST_DRAGGED = 200
"""Most items that a move takes along."""

MOST_GROWN, OVERRUN = 1_000_000, 50
"""Pins that a cluster is grown over at most; and how far, as a factor of the work at a temperature,
clusters may go beyond it: where one net joins all items, each of them looks at all."""

CHECKS = 4
"""Nodes of a path check in the time of one pin."""


@inlined
def grow(problem, state, search, start, loose):  # type: ignore[no-untyped-def]
    """Grow a cluster from a random item into `search.member[start:]`.

    It stays on the item's device, unless it is loose. Returns the end of the cluster, a random
    device that it has nets to, or -1, and the pins visited.
    """
    place, pinned, rng = state.place, state.pins_on, search.rng
    member, stamp, mark = search.member, search.stamp, search.clock[1]
    nets, hooks, bond = problem.nets, problem.hooks, problem.bond
    n, count = len(place), len(bond)
    item = below(rng, n)
    home = place[item]
    stamp[item] = mark
    member[start] = item
    top = start + 1
    limit = top + below(rng, 1 + below(rng, max(2, n // 2)))
    least = bond[below(rng, count)] if count > 0 else 0.0
    neighbour, seen, visits = -1, 0, 0
    at = start
    while at < top and visits < MOST_GROWN:
        item = member[at]
        at += 1
        for q in range(nets.item_ptr[item], nets.item_ptr[item + 1]):
            e = hooks[q, NET]
            size = nets.net_ptr[e + 1] - nets.net_ptr[e]
            bound = bond[e] >= least and top < limit
            visits += 1
            if not bound and pinned[e, home] == size:
                continue
            visits += size
            for z in range(nets.net_ptr[e], nets.net_ptr[e + 1]):
                other = nets.pins[z]
                if stamp[other] == mark:
                    continue
                if place[other] != home:
                    seen += 1
                    if below(rng, seen) == 0:
                        neighbour = place[other]
                    if not loose:
                        continue
                if bound and top < limit:
                    stamp[other] = mark
                    member[top] = other
                    top += 1
    return top, neighbour, visits


@inlined
def drag(problem, place, search, start, item, target):  # type: ignore[no-untyped-def]
    """Collect into `search.member[start:]` an item and all that must come along to stage `target`.

    Return the end, or `start` where that would be too many.
    """
    member, stamp, mark = search.member, search.stamp, search.clock[1]
    home = place[item]
    limit = start + max(4, min(len(place) // 4, MOST_DRAGGED))
    stamp[item] = mark
    member[start] = item
    top = start + 1
    at = start
    ptr, others = problem.earlier_ptr, problem.earlier
    if target > home:
        ptr, others = problem.later_ptr, problem.later
    while at < top:
        for q in range(ptr[member[at]], ptr[member[at] + 1]):
            other = others[q]
            behind = place[other] < target if target > home else place[other] > target
            if behind and stamp[other] != mark:
                if top == limit:
                    return start
                stamp[other] = mark
                member[top] = other
                top += 1
        at += 1
    return top


@callee
def stays(problem, state, touched, reached, left):  # type: ignore[no-untyped-def]
    """True if the first `reached` of the devices `touched` are convex where they are to be, and
    rules are broken no more than before a move."""
    for t in range(reached):
        if len(problem.step) > 0 and not convex(problem, state.place, touched[t], left):
            return False
    if len(problem.labels) > 0:
        more = broken(state.marked, problem.exactly)
        if more > state.broken[0]:
            return False
        state.broken[0] = more
    return True


@callee
def clusters(problem, state, search, temperature, moves, most):  # type: ignore[no-untyped-def]
    """Try to move clusters of items, one or two at a time; returns the same as `singles`.

    Ends with no moves left once more than `most` pins were visited.
    """
    rng, dice, energy, times = search.rng, search.dice, search.energy, search.times
    was, old, mix = search.bytes, search.other, search.mix
    member, origin, clock = search.member, search.origin, search.clock
    mark, touched = search.mark, search.touched
    place, spent, used, ratio = state.place, state.spent, state.used, state.ratio
    kind, allowed, memory = problem.kind, problem.allowed, problem.memory
    item_ptr = problem.nets.item_ptr
    visits = 0
    for m in range(moves):
        if visits > most:
            break
        clock[0] += 1
        reached, end, left, joined = 0, 0, -1, -1
        for part in range(1 + (below(rng, 100) < mix[SECOND])):
            clock[1] += 1
            if problem.ordered:
                item = below(rng, len(place))
                if joined >= 0 and below(rng, 4):
                    for _ in range(4 * len(kind)):  # out of the stage that the first one joined
                        if place[item] == joined:
                            break
                        item = below(rng, len(place))
                home = place[item]
                if joined >= 0 and home != left and below(rng, 2) == 0:
                    target = left
                elif below(rng, 4):
                    target = min(max(home + 1 - 2 * below(rng, 2), 0), len(kind) - 1)
                else:
                    target = below(rng, len(kind))
                visits += 5
                if target == home:
                    continue
                top = drag(problem, place, search, end, item, target)
                for at in range(end, top):
                    if not allowed[kind[target], member[at]]:
                        top = end  # it would stay behind, out of order
                        break
            else:
                loose = below(rng, 100) < mix[LOOSE]
                top, neighbour, more = grow(problem, state, search, end, loose)
                visits += more + 5
                home = place[member[end]]
                if part == 1 and home != left and below(rng, 2) == 0:
                    target = left
                elif neighbour >= 0 and below(rng, 2) == 0:
                    target = neighbour
                else:
                    target = below(rng, len(kind))
            left, joined = home, target
            for at in range(end, top):
                item = member[at]
                before = place[item]
                if before == target or not allowed[kind[target], item]:
                    continue
                member[end], origin[end] = item, before
                end += 1
                for side in range(2):
                    d = target if side else before
                    if mark[d] != clock[0]:
                        mark[d] = clock[0]
                        touched[reached], was[reached] = d, used[d]
                        for c in range(spent.shape[1]):
                            times[reached, c] = spent[d, c]
                        reached += 1
                    update_times(problem, state, item, d, 1 - side, spent, d)
                    used[d] += memory[item] if side else -memory[item]
                carry(problem, state, item, target)
                visits += 2 * (item_ptr[item + 1] - item_ptr[item]) + 2
        change = 0.0
        for t in range(reached):
            d = touched[t]
            old[t] = energy[d]
            energy[d] = evaluate(problem, search, d, spent, d, used[d] * ratio[d])
            change += energy[d] - old[t]
        if change <= temperature * dice[below(rng, len(dice))] and stays(
            problem, state, touched, reached, search.left
        ):
            visits += len(problem.step) // CHECKS
            if end > 0 and load_in(problem.comm, spent, clock[2], 0, 0.0) < search.value[0]:
                return visits, moves - m - 1, True
            continue
        for at in range(end - 1, -1, -1):
            carry(problem, state, member[at], origin[at])
        for t in range(reached):
            d = touched[t]
            energy[d], used[d] = old[t], was[t]
            for c in range(spent.shape[1]):
                spent[d, c] = times[t, c]
    return visits, 0, False


@callee
def singles(problem, state, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move single items.

    Returns the pins visited, the moves that are left, and whether it ended because the state may
    be the best so far.
    """
    rng, dice, energy, times = search.rng, search.dice, search.energy, search.times
    made, fresh, touched = search.bytes, search.other, search.touched
    place, spent, used, ratio = state.place, state.spent, state.used, state.ratio
    kind, allowed, memory = problem.kind, problem.allowed, problem.memory
    item_ptr, net_ptr, pins = problem.nets.item_ptr, problem.nets.net_ptr, problem.nets.pins
    earlier_ptr, earlier = problem.earlier_ptr, problem.earlier
    later_ptr, later = problem.later_ptr, problem.later
    visits = 0
    for m in range(moves):
        item = below(rng, len(place))
        before = place[item]
        first = item_ptr[item]
        degree = item_ptr[item + 1] - first
        visits += 3 + degree
        low, high = 0, len(kind) - 1
        for q in range(earlier_ptr[item], earlier_ptr[item + 1]):
            low = max(low, place[earlier[q]])
        for q in range(later_ptr[item], later_ptr[item + 1]):
            high = min(high, place[later[q]])
        if low == high:
            continue
        if problem.ordered:
            after = low + below(rng, high - low)
            if after >= before:
                after += 1
        elif degree > 0 and below(rng, 2) == 0:
            e = problem.hooks[first + below(rng, degree), NET]
            pin = net_ptr[e]
            after = place[pins[pin + below(rng, net_ptr[e + 1] - pin)]]
        else:
            after = below(rng, len(kind))
        if after == before or not allowed[kind[after], item]:
            continue
        change = 0.0
        for side in range(2):
            d = after if side else before
            for c in range(spent.shape[1]):
                times[side, c] = spent[d, c]
            update_times(problem, state, item, d, 1 - side, times, side)
            made[side] = used[d] + (memory[item] if side else -memory[item])
            fresh[side] = evaluate(problem, search, d, times, side, made[side] * ratio[d])
            change += fresh[side] - energy[d]
        if change > temperature * dice[below(rng, len(dice))]:
            continue
        carry(problem, state, item, after)
        touched[0], touched[1] = after, before
        visits += len(problem.step) // CHECKS
        if not stays(problem, state, touched, 2, search.left):
            carry(problem, state, item, before)
            continue
        for side in range(2):
            d = after if side else before
            for c in range(spent.shape[1]):
                spent[d, c] = times[side, c]
            used[d] = made[side]
            energy[d] = fresh[side]
        if load_in(problem.comm, spent, search.clock[2], 0, 0.0) < search.value[0]:
            return visits, moves - m - 1, True
    return visits, 0, False


@callee
def total(values):  # type: ignore[no-untyped-def]
    """Sum, from the first to the last."""
    result = 0.0
    for x in range(len(values)):
        result += values[x]
    return result


@lean
def exchange(problem, state, live, search, temperature, tries):  # type: ignore[no-untyped-def]
    """Let two stages of different classes swap their devices, `tries` times."""
    rng, kind, place = search.rng, problem.kind, state.place
    for _ in range(tries):
        a, b = below(rng, len(kind)), below(rng, len(kind))
        able = kind[a] != kind[b]
        for item in range(len(place)):
            if place[item] == a:
                able = able and problem.allowed[kind[b], item]
            elif place[item] == b:
                able = able and problem.allowed[kind[a], item]
        if not able:
            continue
        before = total(search.energy)
        kind[a], kind[b] = kind[b], kind[a]
        fill(problem, state)
        measure(live, state)
        weigh(problem, state, search)
        if total(search.energy) - before <= temperature * search.dice[below(rng, len(search.dice))]:
            note(problem, state, live, search)
        else:
            kind[a], kind[b] = kind[b], kind[a]
            record(problem, state, live, search)


@lean
def sweep(problem, state, live, search, temperature, work):  # type: ignore[no-untyped-def]
    """Anneal at one temperature until `work` pins were visited; return how many were."""
    record(problem, state, live, search)
    if search.value[0] == np.inf:
        set_reference(problem, state, search)
    visits = 0
    while visits < work:
        share = search.mix[CLUSTER]
        for kind in range(2):
            left = share if kind else 100 - share
            while left > 0:
                if kind:
                    most = max(OVERRUN * work, MOST_GROWN)
                    more, left, better = clusters(problem, state, search, temperature, left, most)
                else:
                    more, left, better = singles(problem, state, search, temperature, left)
                visits += more
                if better:
                    note(problem, state, live, search)
    return visits
