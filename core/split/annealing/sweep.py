"""Annealing at one temperature: kernels.

Two kinds of moves are tried: single items, and clusters of items. Stages of a pipeline on devices
of different classes may also swap these.

A cluster grows from an item along nets at least as expensive as one drawn at random. It takes along
what a single item cannot leave behind, at every scale that the nets have. In a pipeline it is an
item and what must come along. A second cluster may move in the same step, for example into the gap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, lean
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.random import below
from dnnp.core.split.annealing.state import (
    CLUSTER,
    LOOSE,
    NET,
    SECOND,
    SQUARINGS,
    appraise,
    carry,
    convex,
    fill,
    load_in,
    measure,
    note,
    record,
    refer,
    settle,
    weigh,
)

MOST_DRAGGED = 200
"""Items that one push may take along."""

CHECKS = 4
"""Nodes whose paths are looked at in the time that one pin takes."""


class Nets(NamedTuple):
    """The nets of `AnnealArrays`, for the kernel that walks along them: the whole tuple would be
    more references to count on every call."""

    hook_ptr: Ints
    hooks: Ints
    pin_ptr: Ints
    pins: Ints
    bond: Floats


@inlined
def grow(nets, place, pinned, rng, member, stamp, mark, start, loose):  # type: ignore[no-untyped-def]
    """Grow a cluster from a random item into `member[start:]`.

    It stays on the item's device, unless it is loose. Returns the end of the cluster, a random
    device that it has nets to, or -1, and the pins visited.
    """
    n, count = len(place), len(nets.bond)
    item = below(rng, n)
    home = place[item]
    stamp[item] = mark
    member[start] = item
    top = start + 1
    limit = top + below(rng, 1 + below(rng, max(2, n // 2)))
    least = nets.bond[below(rng, count)] if count > 0 else 0.0
    neighbour, seen, visits = -1, 0, 0
    at = start
    while at < top:
        item = member[at]
        at += 1
        for q in range(nets.hook_ptr[item], nets.hook_ptr[item + 1]):
            e = nets.hooks[q, NET]
            size = nets.pin_ptr[e + 1] - nets.pin_ptr[e]
            bound = nets.bond[e] >= least and top < limit
            visits += 1
            if not bound and pinned[e, home] == size:
                continue
            visits += size
            for z in range(nets.pin_ptr[e], nets.pin_ptr[e + 1]):
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
def drag(  # type: ignore[no-untyped-def]
    earlier_ptr, earlier, later_ptr, later, place, member, stamp, mark, start, item, target
):
    """Collect into `member[start:]` an item and all that must come along to stage `target`.

    Return the end, or `start` where that would be too many.
    """
    home = place[item]
    limit = start + max(4, min(len(place) // 4, MOST_DRAGGED))
    stamp[item] = mark
    member[start] = item
    top = start + 1
    at = start
    ptr, others = (later_ptr, later) if target > home else (earlier_ptr, earlier)
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
def stays(problem, place, touched, reached, left):  # type: ignore[no-untyped-def]
    """True if the first `reached` of the devices `touched` are convex where they are to be."""
    for t in range(reached):
        if len(problem.step) > 0 and not convex(problem, place, touched[t], left):
            return False
    return True


@callee
def clusters(problem, state, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move clusters of items, one or two at a time; returns the same as `singles`."""
    rng, dice, energy, times = search.rng, search.dice, search.energy, search.times
    was, old = search.bytes, search.other
    mix, member, origin, stamp = search.mix, search.member, search.origin, search.stamp
    clock, mark, touched = search.clock, search.mark, search.touched
    weight, scale, strict, value = search.weight, search.scale, search.strict, search.value
    place, pinned, spent, used = state.place, state.pins_on, state.spent, state.used
    ratio = state.ratio
    kind, work, price = problem.kind, problem.work, problem.price
    hook_ptr, hooks = problem.hook_ptr, problem.hooks
    nets = Nets(hook_ptr, hooks, problem.pin_ptr, problem.pins, problem.bond)
    allowed, memory, capacity = problem.allowed, problem.memory, problem.capacity
    stream = problem.stream
    visits = 0
    for m in range(moves):
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
                top = drag(
                    problem.earlier_ptr,
                    problem.earlier,
                    problem.later_ptr,
                    problem.later,
                    place,
                    member,
                    stamp,
                    clock[1],
                    end,
                    item,
                    target,
                )
                for at in range(end, top):
                    if not allowed[kind[target], member[at]]:
                        top = end  # it would stay behind, out of order
                        break
            else:
                top, neighbour, more = grow(
                    nets,
                    place,
                    pinned,
                    rng,
                    member,
                    stamp,
                    clock[1],
                    end,
                    below(rng, 100) < mix[LOOSE],
                )
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
                    settle(
                        hook_ptr,
                        hooks,
                        work,
                        price,
                        place,
                        pinned,
                        item,
                        d,
                        kind[d],
                        1 - side,
                        spent,
                        d,
                    )
                    used[d] += memory[item] if side else -memory[item]
                carry(hook_ptr, hooks, place, pinned, item, target)
                visits += 2 * (hook_ptr[item + 1] - hook_ptr[item]) + 2
        change = 0.0
        for t in range(reached):
            d = touched[t]
            k = kind[d]
            old[t] = energy[d]
            energy[d] = appraise(
                problem.comm,
                problem.hard,
                weight,
                scale,
                strict,
                mix[SQUARINGS],
                spent,
                d,
                max(0.0, used[d] * ratio[d] - capacity[k]),
                stream[k],
                capacity[k],
            )
            change += energy[d] - old[t]
        if change <= temperature * dice[below(rng, len(dice))] and stays(
            problem, place, touched, reached, search.left
        ):
            visits += len(problem.step) // CHECKS
            if end > 0 and load_in(problem.comm, spent, clock[2], 0, 0.0) < value[0]:
                return visits, moves - m - 1, True
            continue
        for at in range(end - 1, -1, -1):
            carry(hook_ptr, hooks, place, pinned, member[at], origin[at])
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
    made, fresh = search.bytes, search.other
    weight, scale, strict, value = search.weight, search.scale, search.strict, search.value
    place, pinned, spent, used = state.place, state.pins_on, state.spent, state.used
    ratio = state.ratio
    kind, work, price = problem.kind, problem.work, problem.price
    hook_ptr, hooks, pin_ptr = problem.hook_ptr, problem.hooks, problem.pin_ptr
    pins = problem.pins
    allowed, memory, capacity = problem.allowed, problem.memory, problem.capacity
    stream = problem.stream
    earlier_ptr, earlier = problem.earlier_ptr, problem.earlier
    later_ptr, later = problem.later_ptr, problem.later
    comm, hard, squarings, clock = problem.comm, problem.hard, search.mix[SQUARINGS], search.clock
    ordered = problem.ordered
    visits = 0
    for m in range(moves):
        item = below(rng, len(place))
        before = place[item]
        first = hook_ptr[item]
        degree = hook_ptr[item + 1] - first
        visits += 3 + degree
        low, high = 0, len(kind) - 1
        for q in range(earlier_ptr[item], earlier_ptr[item + 1]):
            low = max(low, place[earlier[q]])
        for q in range(later_ptr[item], later_ptr[item + 1]):
            high = min(high, place[later[q]])
        if low == high:
            continue
        if ordered:
            after = low + below(rng, high - low)
            if after >= before:
                after += 1
        elif degree > 0 and below(rng, 2) == 0:
            e = hooks[first + below(rng, degree), NET]
            pin = pin_ptr[e]
            after = place[pins[pin + below(rng, pin_ptr[e + 1] - pin)]]
        else:
            after = below(rng, len(kind))
        if after == before or not allowed[kind[after], item]:
            continue
        change = 0.0
        for side in range(2):
            d = after if side else before
            k = kind[d]
            for c in range(spent.shape[1]):
                times[side, c] = spent[d, c]
            settle(hook_ptr, hooks, work, price, place, pinned, item, d, k, 1 - side, times, side)
            made[side] = used[d] + (memory[item] if side else -memory[item])
            over = max(0.0, made[side] * ratio[d] - capacity[k])
            fresh[side] = appraise(
                comm,
                hard,
                weight,
                scale,
                strict,
                squarings,
                times,
                side,
                over,
                stream[k],
                capacity[k],
            )
            change += fresh[side] - energy[d]
        if change > temperature * dice[below(rng, len(dice))]:
            continue
        carry(hook_ptr, hooks, place, pinned, item, after)
        if len(problem.step) > 0:
            visits += len(problem.step) // CHECKS
            if not (
                convex(problem, place, after, search.left)
                and convex(problem, place, before, search.left)
            ):
                carry(hook_ptr, hooks, place, pinned, item, before)
                continue
        for side in range(2):
            d = after if side else before
            for c in range(spent.shape[1]):
                spent[d, c] = times[side, c]
            used[d] = made[side]
            energy[d] = fresh[side]
        if load_in(comm, spent, clock[2], 0, 0.0) < value[0]:
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
        refer(problem, state, search)
    visits = 0
    while visits < work:
        share = search.mix[CLUSTER]
        for kind in range(2):
            left = share if kind else 100 - share
            while left > 0:
                if kind:
                    more, left, better = clusters(problem, state, search, temperature, left)
                else:
                    more, left, better = singles(problem, state, search, temperature, left)
                visits += more
                if better:
                    note(problem, state, live, search)
    return visits
