"""Orders made node by node, from either end, in near-linear time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.model.graph import Ints
from dnnp.core.peak.steps import Steps, walk

LEAST, LEAST_NEWEST, GIVEN, NEWEST = range(4)
"""What comes next: the node that grows live bytes least, earlier or newer ones first among
equals; or else, unless some node grows nothing, the earliest or the newest ready one."""


def greedy_orders(steps: Steps) -> Iterator[Ints]:
    """Orders by every rule, from the first node on and from the last one back."""
    none = np.zeros(len(steps.made))
    for rule in (LEAST, LEAST_NEWEST, GIVEN, NEWEST):
        yield forward(steps, rule, none)
        yield backward(steps, rule, none)


def evolved_order(steps: Steps, start: float, floor: float, rounds: int, *, back: bool) -> Ints:
    """The best order of those made from one end with errors in what nodes grow live bytes.

    The errors of some nodes change at a time, and stay so if the peak is no higher. Ends at a
    peak of `floor`.
    """
    chance = np.random.default_rng(0).random((rounds, 4, 5))
    order: Ints = _evolve(steps, start, floor, chance, back)
    return order


@kernel
def _evolve(steps, start, floor, chance, back):  # type: ignore[no-untyped-def]
    n = len(steps.made)
    noise, trial = np.zeros(n), np.zeros(n)
    best = np.inf
    kept = np.zeros(n, np.int64)
    worst = 0
    for number in range(len(chance)):
        if number > 0:
            for i in range(1 + int(4 * chance[number, 0, 0])):
                x = chance[number, i]
                v = int(n * x[1])
                if x[2] < 0.5:
                    # Near the most expensive step: up to a fifth of all steps away.
                    away = int((2 * x[2] + x[1] - 1) * (n / 5 + 2))
                    v = kept[min(max(worst + away, 0), n - 1)]
                trial[v] = (int(5 * x[3]) - 2) * steps.made[int(n * x[4])]
        order = backward(steps, 0, trial) if back else forward(steps, 0, trial)
        during = walk(steps, start, order)[1]
        peak = during.max()
        if peak <= best:
            best, kept, worst = peak, order, during.argmax()
            noise[:] = trial
            if best <= floor:
                break
        else:
            trial[:] = noise
    return kept


@kernel
def _key(rule, change, noise, v, age):  # type: ignore[no-untyped-def]
    first = change + noise if rule <= 1 or change <= 0.0 else np.inf
    return first, float(v if rule in (0, 2) else -age)


@kernel
def forward(steps, rule, noise):  # type: ignore[no-untyped-def]
    n = len(steps.made)
    order = np.empty(n, np.int64)
    left = steps.use_ptr[1:] - steps.use_ptr[:-1]
    needs = steps.needs.copy()
    change = steps.made.copy()
    age = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    # The one node that still reads a tensor: all readers less those that have run.
    last = np.zeros(len(steps.size), np.int64)
    for t in range(len(steps.size)):
        for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
            last[t] += steps.uses[j]
        if left[t] == 1 and not steps.stays[t]:
            change[last[t]] -= steps.size[t]
        if left[t] == 0 and not steps.stays[t]:
            change[steps.maker[t]] -= steps.size[t]
    heap = [(0.0, 0.0, -1)]
    heappop(heap)
    for v in range(n):
        if needs[v] == 0:
            first, second = _key(rule, change[v], noise[v], v, 0)
            heappush(heap, (first, second, v))
    for p in range(n):
        while True:
            first, _, v = heappop(heap)
            if not done[v] and first == _key(rule, change[v], noise[v], v, age[v])[0]:
                break
        order[p] = v
        done[v] = True
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            t = steps.reads[i]
            left[t] -= 1
            last[t] -= v
            if left[t] == 1 and not steps.stays[t]:
                w = last[t]
                change[w] -= steps.size[t]
                if needs[w] == 0:
                    first, second = _key(rule, change[w], noise[w], w, age[w])
                    heappush(heap, (first, second, w))
        for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
            t = steps.makes[i]
            for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
                w = steps.uses[j]
                needs[w] -= 1
                if needs[w] == 0:
                    age[w] = p + 1
                    first, second = _key(rule, change[w], noise[w], w, age[w])
                    heappush(heap, (first, second, w))
    return order


@kernel
def backward(steps, rule, noise):  # type: ignore[no-untyped-def]
    n = len(steps.made)
    order = np.empty(n, np.int64)
    waits = np.zeros(n, np.int64)
    change = np.zeros(n)
    age = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    touched = np.zeros(len(steps.size), np.bool_)
    for v in range(n):
        for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
            t = steps.makes[i]
            uses = steps.use_ptr[t + 1] - steps.use_ptr[t]
            waits[v] += uses
            if uses > 0 or steps.stays[t]:
                change[v] -= steps.size[t]
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            if not steps.stays[steps.reads[i]]:
                change[v] += steps.size[steps.reads[i]]
    heap = [(0.0, 0.0, -1)]
    heappop(heap)
    for v in range(n):
        if waits[v] == 0:
            first, second = _key(rule, change[v], noise[v], -v, 0)
            heappush(heap, (first, second, v))
    for p in range(n):
        while True:
            first, _, v = heappop(heap)
            if not done[v] and first == _key(rule, change[v], noise[v], -v, age[v])[0]:
                break
        order[n - 1 - p] = v
        done[v] = True
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            t = steps.reads[i]
            if not touched[t] and not steps.stays[t]:
                for j in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
                    w = steps.uses[j]
                    change[w] -= steps.size[t]
                    if waits[w] == 0 and not done[w]:
                        first, second = _key(rule, change[w], noise[w], -w, age[w])
                        heappush(heap, (first, second, w))
            touched[t] = True
            u = steps.maker[t]
            if u >= 0:
                waits[u] -= 1
                if waits[u] == 0:
                    age[u] = p + 1
                    first, second = _key(rule, change[u], noise[u], -u, age[u])
                    heappush(heap, (first, second, u))
    return order
