"""Annealing at one temperature: kernels.

Two kinds of moves are tried: single items, and clusters of items
(`dnnp.core.split.annealing.clusters`). Stages of a pipeline on devices of different classes may
also swap these. What is minimised stands in `dnnp.core.split.annealing.energy`.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.split.annealing.clusters import clusters
from dnnp.core.split.annealing.energy import (
    CLUSTER,
    SQUARINGS,
    appraise,
    note,
    record,
    refer,
    weigh,
)
from dnnp.core.split.annealing.peak import measure
from dnnp.core.split.annealing.random import below
from dnnp.core.split.annealing.state import NET, carry, fill, load_in, settle


@callee
def singles(problem, state, search, temperature, moves):  # type: ignore[no-untyped-def]
    """Try to move single items.

    Returns the pins visited, the moves that are left, and whether it ended because the state may
    be the best so far.
    """
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
