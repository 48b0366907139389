"""Annealing at one temperature: kernels.

The energy of a split is the sum over devices and passes of weight * (load / reference)^16, so
that the largest loads count most, plus a price for memory above a hard capacity. Two kinds of
moves are tried: single items, and clusters that grow from an item along nets at least as
expensive as one drawn at random. A cluster takes with it what a single item cannot leave behind,
at every scale that the nets have (compare Swendsen and Wang 1987). A second cluster may move in
the same step, into the gap or on to a third device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.local.peak import measure
from dnnp.core.local.random import below, exponential_table, generator
from dnnp.core.local.state import (
    NET,
    ROUNDING,
    Problem,
    carry,
    combine,
    excess,
    fill,
    fits,
    load,
    objective,
    settle,
)  # fmt: skip
from dnnp.core.model.graph import Floats, Ints

CLUSTER, SECOND, FREE = range(3)
"""Entries of `Search.mix`."""


class Search(NamedTuple):
    """What annealing remembers beside the state, changed in place."""

    rng: np.ndarray
    dice: Floats
    mix: Ints
    """i64[3], per cent: cluster moves, those with a second cluster, and those that collect items
    from several devices."""
    scale: Floats
    """f64[P], one over the reference of each pass."""
    weight: Floats
    """f64[P], of each pass in the energy."""
    strict: Floats
    """f64[2], what a device above its capacity adds to the energy, and one over the bytes for
    which it adds that again."""
    best: Ints
    """i64[n], the best placement so far that fits."""
    value: Floats
    """f64[1], its objective; inf while there is none."""
    energy: Floats
    """f64[D], of each device."""
    loads: Floats
    """f64[D, P]."""
    row: Floats
    """f64[D + 2, 3 P], times of devices: those a single move makes, those a step started from."""
    bytes: Floats
    """f64[D + 2], used memory of the same devices."""
    old: Floats
    """f64[D], energy of the devices that a step touched."""
    touched: Ints
    """i64[D], those devices."""
    mark: Ints
    """i64[D], the last step that touched a device."""
    member: Ints
    """i64[2 n], items that a step moves."""
    origin: Ints
    """i64[2 n], where they came from."""
    stamp: Ints
    """i64[n], the last cluster that held an item."""
    clock: Ints
    """i64[3]: steps, clusters, and the device last seen to be no better than `value`."""


def new_search(problem: Problem, seed: int, mix: tuple[int, int, int]) -> Search:
    """Memory for annealing `problem`."""
    n, devices, passes = problem.work.shape[2], len(problem.kind), problem.work.shape[1]
    total = float(problem.memory.sum())
    return Search(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array(mix, dtype=np.int64),
        scale=np.zeros(passes),
        weight=np.ones(passes),
        strict=np.array([1.0, n / total if total > 0 else 1.0]),
        best=np.zeros(n, dtype=np.int64),
        value=np.array([np.inf]),
        energy=np.zeros(devices),
        loads=np.zeros((devices, passes)),
        row=np.zeros((devices + 2, 3 * passes)),
        bytes=np.zeros(devices + 2),
        old=np.zeros(devices),
        touched=np.zeros(devices, dtype=np.int64),
        mark=np.zeros(devices, dtype=np.int64),
        member=np.zeros(2 * n, dtype=np.int64),
        origin=np.zeros(2 * n, dtype=np.int64),
        stamp=np.zeros(n, dtype=np.int64),
        clock=np.zeros(3, dtype=np.int64),
    )


@kernel
def power(x):  # type: ignore[no-untyped-def]
    """x^16, linear where that would get out of hand."""
    y = min(x, 8.0)
    y *= y
    y *= y
    y *= y
    y *= y
    return y * y * max(1.0, x * 0.125)


@kernel
def weigh(problem, state, search):  # type: ignore[no-untyped-def]
    """Loads and energies of all devices, anew."""
    for d in range(len(problem.kind)):
        over = excess(problem, state, d)
        total = 0.0
        for p in range(problem.work.shape[1]):
            search.loads[d, p] = load(problem, state, d, p)
            total += search.weight[p] * power(search.loads[d, p] * search.scale[p])
        if problem.hard and over > ROUNDING * problem.capacity[problem.kind[d]]:
            total += search.strict[0] * (1.0 + over * search.strict[1])
        search.energy[d] = total


@kernel
def refer(problem, state, search):  # type: ignore[no-untyped-def]
    """Make the largest loads of the state the reference of the energy."""
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
def record(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state if it is the best so far; whether it was."""
    fill(problem, state)
    measure(live, state)
    value = objective(problem, state)
    if value < search.value[0] and fits(problem, state):
        search.value[0] = value
        search.best[:] = state.place
        return True
    return False


@kernel
def promising(search):  # type: ignore[no-untyped-def]
    """Whether loads are better than the best, asking first the device that last was not."""
    value = search.value[0] * (1 - 1e-12)
    devices, passes = search.loads.shape
    total = 0.0
    for p in range(passes):
        total += search.loads[search.clock[2], p] if passes == 1 else 0.0
    if total >= value:
        return False
    total = 0.0
    for p in range(passes):
        top = 0
        for d in range(devices):
            if search.loads[d, p] > search.loads[top, p]:
                top = d
        total += search.loads[top, p]
        search.clock[2] = top
    return total < value


@kernel
def singles(problem, state, live, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move single items; the cost of a try is that of the item's nets."""
    rng, dice, row = search.rng, search.dice, search.row
    energy, loads, scale, weight, strict = (
        search.energy, search.loads, search.scale, search.weight, search.strict,
    )  # fmt: skip
    place, count, spent, used, ratio = (
        state.place, state.count, state.spent, state.used, state.ratio,
    )  # fmt: skip
    kind, work, price, hook_ptr, hooks, pin_ptr, pins = (
        problem.kind, problem.work, problem.price, problem.hook_ptr, problem.hooks,
        problem.pin_ptr, problem.pins,
    )  # fmt: skip
    allowed, memory, capacity, stream = (
        problem.allowed, problem.memory, problem.capacity, problem.stream,
    )  # fmt: skip
    comm, hard, passes = problem.comm, problem.hard, work.shape[1]
    fresh = search.old
    made = search.bytes
    visits = 0
    for _ in range(moves):
        item = below(rng, len(place))
        before = place[item]
        first = hook_ptr[item]
        degree = hook_ptr[item + 1] - first
        visits += 3 + degree
        if degree > 0 and below(rng, 2) == 0:
            e = hooks[first + below(rng, degree), NET]
            pin = pin_ptr[e]
            after = place[pins[pin + below(rng, pin_ptr[e + 1] - pin)]]
        else:
            after = below(rng, len(kind))
        if after == before or not allowed[kind[after], item]:
            continue
        change = -energy[before] - energy[after]
        for side in range(2):
            d = after if side else before
            k = kind[d]
            for c in range(3 * passes):
                row[side, c] = spent[d, c]
            settle(
                hook_ptr, hooks, work, price, place, count, item, d, k, 1 - side, row, side
            )
            made[side] = used[d] + (memory[item] if side else -memory[item])
            over = max(0.0, made[side] * ratio[d] - capacity[k])
            total = 0.0
            for p in range(passes):
                total += weight[p] * power(
                    combine(comm, row, side, 3 * p, over * stream[k]) * scale[p]
                )
            if hard and over > ROUNDING * capacity[k]:
                total += strict[0] * (1.0 + over * strict[1])
            fresh[side] = total
            change += total
        if change > temperature * dice[below(rng, len(dice))]:
            continue
        carry(hook_ptr, hooks, place, count, item, after)
        for side in range(2):
            d = after if side else before
            k = kind[d]
            used[d] = made[side]
            energy[d] = fresh[side]
            over = max(0.0, made[side] * ratio[d] - capacity[k])
            for c in range(3 * passes):
                spent[d, c] = row[side, c]
            for p in range(passes):
                loads[d, p] = combine(comm, row, side, 3 * p, over * stream[k])
        if promising(search) and fits(problem, state) and record(problem, state, live, search):
            refer(problem, state, search)
    return visits


@kernel
def clusters(problem, state, live, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move clusters."""
    rng, dice, row, kept, member, origin, stamp, clock, mark, touched, old = (
        search.rng, search.dice, search.row, search.bytes, search.member, search.origin,
        search.stamp, search.clock, search.mark, search.touched, search.old,
    )  # fmt: skip
    energy, loads, scale, weight, strict = (
        search.energy, search.loads, search.scale, search.weight, search.strict,
    )  # fmt: skip
    place, count, spent, used, ratio = (
        state.place, state.count, state.spent, state.used, state.ratio,
    )  # fmt: skip
    kind, work, price, hook_ptr, hooks, pin_ptr, pins, bond = (
        problem.kind, problem.work, problem.price, problem.hook_ptr, problem.hooks,
        problem.pin_ptr, problem.pins, problem.weight,
    )  # fmt: skip
    allowed, memory, capacity, stream = (
        problem.allowed, problem.memory, problem.capacity, problem.stream,
    )  # fmt: skip
    comm, hard, passes = problem.comm, problem.hard, work.shape[1]
    n, nets = len(place), len(bond)
    half = max(2, n // 2)
    visits = 0
    for _ in range(moves):
        clock[0] += 1
        reached = 0
        end = 0
        left = -1
        both = below(rng, 100) < search.mix[SECOND]
        for part in range(2):
            # Grow a cluster into member[start:top].
            start = end
            item = below(rng, n)
            home = place[item]
            clock[1] += 1
            stamp[item] = clock[1]
            member[start] = item
            top = start + 1
            neighbour = -1
            seen = 0
            least = bond[below(rng, nets)] if nets > 0 else 0.0
            free = below(rng, 100) < search.mix[FREE]
            limit = top + below(rng, 1 + below(rng, half))
            at = start
            while at < top:
                item = member[at]
                at += 1
                for q in range(hook_ptr[item], hook_ptr[item + 1]):
                    e = hooks[q, NET]
                    size = pin_ptr[e + 1] - pin_ptr[e]
                    visits += 1
                    bound = bond[e] >= least and top < limit
                    if not bound and count[e, home] == size:
                        continue
                    visits += size
                    for z in range(pin_ptr[e], pin_ptr[e + 1]):
                        other = pins[z]
                        if stamp[other] == clock[1]:
                            continue
                        if place[other] != home:
                            seen += 1
                            if below(rng, seen) == 0:
                                neighbour = place[other]
                            if not free:
                                continue
                        if bound and top < limit:
                            stamp[other] = clock[1]
                            member[top] = other
                            top += 1
            # Choose where it goes.
            if part == 1 and home != left and below(rng, 2) == 0:
                target = left
            elif neighbour >= 0 and below(rng, 2) == 0:
                target = neighbour
            else:
                target = below(rng, len(kind))
            left = home
            # Move it, and keep what the devices were.
            for at in range(start, top):
                item = member[at]
                before = place[item]
                if before == target or not allowed[kind[target], item]:
                    continue
                member[end] = item
                origin[end] = before
                end += 1
                for side in range(2):
                    d = target if side else before
                    if mark[d] != clock[0]:
                        mark[d] = clock[0]
                        touched[reached] = d
                        kept[2 + reached] = used[d]
                        for c in range(3 * passes):
                            row[2 + reached, c] = spent[d, c]
                        reached += 1
                    settle(
                        hook_ptr, hooks, work, price, place, count, item, d, kind[d], 1 - side,
                        spent, d,
                    )  # fmt: skip
                    used[d] += memory[item] if side else -memory[item]
                carry(hook_ptr, hooks, place, count, item, target)
                visits += 2 * (hook_ptr[item + 1] - hook_ptr[item]) + 2
            visits += 5
            if end == 0 or not both:
                break
        if end == 0:
            continue
        change = 0.0
        for t in range(reached):
            d = touched[t]
            k = kind[d]
            over = max(0.0, used[d] * ratio[d] - capacity[k])
            total = 0.0
            for p in range(passes):
                total += weight[p] * power(
                    combine(comm, spent, d, 3 * p, over * stream[k]) * scale[p]
                )
            if hard and over > ROUNDING * capacity[k]:
                total += strict[0] * (1.0 + over * strict[1])
            old[t] = energy[d]
            energy[d] = total
            change += total - old[t]
        if change > temperature * dice[below(rng, len(dice))]:
            for at in range(end - 1, -1, -1):
                carry(hook_ptr, hooks, place, count, member[at], origin[at])
            for t in range(reached):
                d = touched[t]
                energy[d] = old[t]
                used[d] = kept[2 + t]
                for c in range(3 * passes):
                    spent[d, c] = row[2 + t, c]
            continue
        for t in range(reached):
            d = touched[t]
            k = kind[d]
            over = max(0.0, used[d] * ratio[d] - capacity[k])
            for p in range(passes):
                loads[d, p] = combine(comm, spent, d, 3 * p, over * stream[k])
        if promising(search) and fits(problem, state) and record(problem, state, live, search):
            refer(problem, state, search)
    return visits


@kernel
def sweep(problem, state, live, search, temperature, work):  # type: ignore[no-untyped-def]
    """Anneal at one temperature until `work` pins were visited."""
    fill(problem, state)
    measure(live, state)
    weigh(problem, state, search)
    share = search.mix[CLUSTER]
    visits = 0
    while visits < work:
        visits += singles(problem, state, live, search, temperature, 100 - share)
        visits += clusters(problem, state, live, search, temperature, share)
    return visits
