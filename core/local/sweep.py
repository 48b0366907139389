"""Annealing at one temperature: kernels.

The energy of a split is the sum over devices and passes of weight * (load / reference)^q with a
large q, so that the largest loads pinned most, plus a price of memory above a hard capacity. Two
kinds of moves are tried: single items, and clusters that grow from an item along nets at least
as expensive as one drawn at random. Such a cluster takes along what a single item cannot leave
behind, at every scale that the nets have. A second cluster may move in the same step, for
example into the gap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.combine import ROUNDING
from dnnp.core.cost.kernel import kernel
from dnnp.core.local.peak import measure
from dnnp.core.local.random import below, exponential_table, generator
from dnnp.core.local.state import (
    NET,
    AnnealArrays,
    carry,
    excess,
    fill,
    fits,
    load,
    load_in,
    objective,
    settle,
)
from dnnp.core.model.graph import Floats, Ints

CLUSTER, SECOND, LOOSE, SQUARINGS = range(4)
"""Entries of `Search.mix`."""

MOST_DRAGGED = 200
"""Items that one push may take along."""


class Search(NamedTuple):
    """What annealing remembers beside the state, changed in place."""

    rng: np.ndarray
    """u64[1]."""
    dice: Floats
    """Exponential draws."""
    mix: Ints
    """i64[4]: per cent of moves that are clusters, of those with a second cluster, and of those
    that collect items from several devices; logarithm to base 2 of the exponent q."""
    scale: Floats
    """f64[P], one over the reference of each pass."""
    weight: Floats
    """f64[P], of each pass in the energy."""
    strict: Floats
    """f64[2], what a device above its capacity adds to the energy, and one over the bytes for
    which it adds that once more."""
    best: Ints
    """i64[n], the best placement so far that fits."""
    kind: Ints
    """i64[D], the classes of the devices then."""
    value: Floats
    """f64[1], its objective; inf while there is none."""
    energy: Floats
    """f64[D], of each device."""
    times: Floats
    """f64[D, 3 P], scratch: times of devices, as a move would make them or as they were."""
    bytes: Floats
    """f64[D], scratch: used memory of the same devices."""
    other: Floats
    """f64[D], scratch: energy of the same devices."""
    touched: Ints
    """i64[D], scratch: which devices these are."""
    mark: Ints
    """i64[D], the last step that touched a device."""
    member: Ints
    """i64[2 n], scratch: items that a step moves."""
    origin: Ints
    """i64[2 n], scratch: where they were."""
    stamp: Ints
    """i64[n], the last cluster that held an item."""
    clock: Ints
    """i64[3]: steps; clusters; a device that lately was no better than `value`."""


def new_search(problem: AnnealArrays, seed: int) -> Search:
    """Memory for annealing `problem`."""
    passes, n = problem.work.shape[1:]
    devices = len(problem.kind)
    total = float(problem.memory.sum())
    return Search(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array([20, 10, 10, 4], dtype=np.int64),
        scale=np.zeros(passes),
        weight=np.zeros(passes),
        strict=np.array([1.0, n / total if total > 0 else 1.0]),
        best=np.zeros(n, dtype=np.int64),
        kind=np.zeros(devices, dtype=np.int64),
        value=np.array([np.inf]),
        energy=np.zeros(devices),
        times=np.zeros((max(devices, 2), 3 * passes)),
        bytes=np.zeros(max(devices, 2)),
        other=np.zeros(max(devices, 2)),
        touched=np.zeros(devices, dtype=np.int64),
        mark=np.zeros(devices, dtype=np.int64),
        member=np.zeros(2 * n, dtype=np.int64),
        origin=np.zeros(2 * n, dtype=np.int64),
        stamp=np.zeros(n, dtype=np.int64),
        clock=np.zeros(3, dtype=np.int64),
    )


@kernel
def power(x, squarings):  # type: ignore[no-untyped-def]
    """x^(2^squarings), linear where that would get out of hand."""
    y = min(x, 8.0)
    for _ in range(squarings):
        y *= y
    return y * max(1.0, x * 0.125)


@kernel
def appraise(  # type: ignore[no-untyped-def]
    comm, hard, weight, scale, strict, squarings, table, row, over, stream, capacity
):
    """Energy of a device with the times in `table[row]` and `over` bytes above its capacity."""
    energy = 0.0
    for p in range(len(weight)):
        cost = load_in(comm, table, row, 3 * p, over * stream)
        energy += weight[p] * power(cost * scale[p], squarings)
    if hard and over > ROUNDING * capacity:
        energy += strict[0] * (1.0 + over * strict[1])
    return energy


@kernel
def refer(problem, state, search):  # type: ignore[no-untyped-def]
    """Make the largest loads of the state the reference of the energy, as far as there is load."""
    total = 0.0
    for p in range(problem.work.shape[1]):
        largest = 0.0
        for d in range(len(problem.kind)):
            largest = max(largest, load(problem, state, d, p))
        search.scale[p] = 1 / largest if largest > 0.0 else 0.0
        search.weight[p] = largest
        total += largest
    if total > 0.0:
        for p in range(problem.work.shape[1]):
            search.weight[p] /= total
    weigh(problem, state, search)


@kernel
def weigh(problem, state, search):  # type: ignore[no-untyped-def]
    """Energies of all devices, anew."""
    for d in range(len(problem.kind)):
        k = problem.kind[d]
        search.energy[d] = appraise(
            problem.comm,
            problem.hard,
            search.weight,
            search.scale,
            search.strict,
            search.mix[SQUARINGS],
            state.spent,
            d,
            excess(problem, state, d),
            problem.stream[k],
            problem.capacity[k],
        )


@kernel
def record(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state, and refer to it, if it is the best so far; rid its sums of rounding."""
    fill(problem, state)
    measure(live, state)
    value = objective(problem, state)
    if value < search.value[0] and fits(problem, state):
        search.value[0] = value
        search.best[:] = state.place
        search.kind[:] = problem.kind
        refer(problem, state, search)
    else:
        weigh(problem, state, search)


@kernel
def note(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state if it is the best so far; else remember a device that is in the way."""
    goal = search.value[0] * (1 - ROUNDING)
    for d in range(len(problem.kind)):
        if load(problem, state, d, 0) >= goal:
            search.clock[2] = d
            return
    if objective(problem, state) < goal and fits(problem, state):
        record(problem, state, live, search)


@kernel
def singles(problem, state, live, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move single items; return the pins visited."""
    rng, dice, energy, times, made, fresh = (
        search.rng,
        search.dice,
        search.energy,
        search.times,
        search.bytes,
        search.other,
    )
    weight, scale, strict, value = search.weight, search.scale, search.strict, search.value
    place, pinned, spent, used, ratio = (
        state.place,
        state.pins_on,
        state.spent,
        state.used,
        state.ratio,
    )
    kind, work, price, hook_ptr, hooks, pin_ptr, pins = (
        problem.kind,
        problem.work,
        problem.price,
        problem.hook_ptr,
        problem.hooks,
        problem.pin_ptr,
        problem.pins,
    )
    allowed, memory, capacity, stream = (
        problem.allowed,
        problem.memory,
        problem.capacity,
        problem.stream,
    )
    earlier_ptr, earlier, later_ptr, later = (
        problem.earlier_ptr,
        problem.earlier,
        problem.later_ptr,
        problem.later,
    )
    comm, hard, squarings, clock = problem.comm, problem.hard, search.mix[SQUARINGS], search.clock
    ordered = problem.ordered
    visits = 0
    for _ in range(moves):
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
        for side in range(2):
            d = after if side else before
            for c in range(spent.shape[1]):
                spent[d, c] = times[side, c]
            used[d] = made[side]
            energy[d] = fresh[side]
        if load_in(comm, spent, clock[2], 0, 0.0) < value[0]:
            note(problem, state, live, search)
    return visits


@kernel
def grow(  # type: ignore[no-untyped-def]
    hook_ptr, hooks, pin_ptr, pins, bond, place, pinned, rng, member, stamp, mark, start, loose
):
    """Grow a cluster from a random item into `member[start:]`.

    It stays on the item's device, unless it is loose. Returns the end of the cluster, a random
    device that it has nets to, or -1, and the pins visited.
    """
    n, nets = len(place), len(bond)
    item = below(rng, n)
    home = place[item]
    stamp[item] = mark
    member[start] = item
    top = start + 1
    limit = top + below(rng, 1 + below(rng, max(2, n // 2)))
    least = bond[below(rng, nets)] if nets > 0 else 0.0
    neighbour, seen, visits = -1, 0, 0
    at = start
    while at < top:
        item = member[at]
        at += 1
        for q in range(hook_ptr[item], hook_ptr[item + 1]):
            e = hooks[q, NET]
            size = pin_ptr[e + 1] - pin_ptr[e]
            bound = bond[e] >= least and top < limit
            visits += 1
            if not bound and pinned[e, home] == size:
                continue
            visits += size
            for z in range(pin_ptr[e], pin_ptr[e + 1]):
                other = pins[z]
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


@kernel
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


@kernel
def clusters(problem, state, live, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move clusters of items, one or two at a time; return the pins visited."""
    rng, dice, energy, times, was, old = (
        search.rng,
        search.dice,
        search.energy,
        search.times,
        search.bytes,
        search.other,
    )
    mix, member, origin, stamp, clock, mark, touched = (
        search.mix,
        search.member,
        search.origin,
        search.stamp,
        search.clock,
        search.mark,
        search.touched,
    )
    weight, scale, strict, value = search.weight, search.scale, search.strict, search.value
    place, pinned, spent, used, ratio = (
        state.place,
        state.pins_on,
        state.spent,
        state.used,
        state.ratio,
    )
    kind, work, price, hook_ptr, hooks, pin_ptr, pins, bond = (
        problem.kind,
        problem.work,
        problem.price,
        problem.hook_ptr,
        problem.hooks,
        problem.pin_ptr,
        problem.pins,
        problem.bond,
    )
    allowed, memory, capacity, stream = (
        problem.allowed,
        problem.memory,
        problem.capacity,
        problem.stream,
    )
    visits = 0
    for _ in range(moves):
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
                    hook_ptr,
                    hooks,
                    pin_ptr,
                    pins,
                    bond,
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
        if change <= temperature * dice[below(rng, len(dice))]:
            if end > 0 and load_in(problem.comm, spent, clock[2], 0, 0.0) < value[0]:
                note(problem, state, live, search)
            continue
        for at in range(end - 1, -1, -1):
            carry(hook_ptr, hooks, place, pinned, member[at], origin[at])
        for t in range(reached):
            d = touched[t]
            energy[d], used[d] = old[t], was[t]
            for c in range(spent.shape[1]):
                spent[d, c] = times[t, c]
    return visits


@kernel
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
        before = search.energy.sum()
        kind[a], kind[b] = kind[b], kind[a]
        fill(problem, state)
        measure(live, state)
        weigh(problem, state, search)
        if search.energy.sum() - before <= temperature * search.dice[below(rng, len(search.dice))]:
            note(problem, state, live, search)
        else:
            kind[a], kind[b] = kind[b], kind[a]
            record(problem, state, live, search)


@kernel
def sweep(problem, state, live, search, temperature, work):  # type: ignore[no-untyped-def]
    """Anneal at one temperature until `work` pins were visited; return how many were."""
    record(problem, state, live, search)
    if search.value[0] == np.inf:
        refer(problem, state, search)
    visits = 0
    while visits < work:
        share = search.mix[CLUSTER]
        visits += singles(problem, state, live, search, temperature, 100 - share)
        visits += clusters(problem, state, live, search, temperature, share)
    return visits
