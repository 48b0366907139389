"""What annealing minimises, and what it remembers beside the split: kernels.

The energy of a split is the sum over devices and passes of weight * (load / reference)^q with a
large q, so that the largest loads pinned most, plus a price of memory above a hard capacity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.annealing.peak import measure
from dnnp.core.split.annealing.random import exponential_table, generator
from dnnp.core.split.annealing.state import (
    AnnealArrays,
    excess,
    fill,
    fits,
    load,
    load_in,
    objective,
)

CLUSTER, SECOND, LOOSE, SQUARINGS = range(4)
"""Entries of `AnnealMemory.mix`."""


class AnnealMemory(NamedTuple):
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


def new_search(problem: AnnealArrays, seed: int) -> AnnealMemory:
    """Memory for annealing `problem`."""
    passes, n = problem.work.shape[1:]
    devices = len(problem.kind)
    total = float(problem.memory.sum())
    return AnnealMemory(
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


@callee
def power(x, squarings):  # type: ignore[no-untyped-def]
    """x^(2^squarings), linear where that would get out of hand."""
    y = min(x, 8.0)
    for _ in range(squarings):
        y *= y
    return y * max(1.0, x * 0.125)


@callee
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


@lean
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


@callee
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


@callee
def record(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state, and refer to it, if it is the best so far; rid its sums of rounding."""
    fill(problem, state)
    measure(live, state)
    value = objective(problem, state)
    if value < search.value[0] and fits(problem, state):
        search.value[0] = value
        for i in range(len(state.place)):
            search.best[i] = state.place[i]
        for d in range(len(problem.kind)):
            search.kind[d] = problem.kind[d]
        refer(problem, state, search)
    else:
        weigh(problem, state, search)


@callee
def note(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state if it is the best so far; else remember a device that is in the way."""
    goal = search.value[0] * (1 - ROUNDING)
    for d in range(len(problem.kind)):
        if load(problem, state, d, 0) >= goal:
            search.clock[2] = d
            return
    if objective(problem, state) < goal and fits(problem, state):
        record(problem, state, live, search)
