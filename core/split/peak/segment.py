"""One segment of a block: nodes whose order is open. Orders made node by node, and a bound."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.kernels.kernel import kernel
from dnnp.core.model.graph import Ints
from dnnp.core.model.search_context import Run
from dnnp.core.split.peak.steps import Steps, largest_step, walk, walk_given

ROUNDS = 100
"""Orders that are varied for each node at most, from either end."""

IN_CACHE = 20_000
"""Nodes and tensors up to which making one order takes the time of as many visits."""

LEAST, LEAST_NEWEST, GIVEN, NEWEST = range(4)
"""What comes next: the node that grows live bytes least, earlier or newer ones first among
equals; or else, unless some node grows nothing, the earliest or the newest ready one."""

MAX_CLOSURE = 5_000
"""Nodes up to which all paths are looked at."""


class Segment:
    """Nodes whose order is open."""

    def __init__(self, steps: Steps, start: float, floor: float, run: Run) -> None:
        self.steps, self.start, self.run = steps, start, run
        self.bound = max(floor, peak_bound(steps, start))
        self.order = np.arange(len(steps.made), dtype=np.int64)
        self.peak = float(walk_given(steps, start)[1].max(initial=start))

    def improve(self, work: float) -> float:
        """Make orders by each rule, then vary those made from each end; return the work done."""
        for order in greedy_orders(self.steps) if self._open else ():
            self._take(order)
            if not self._open:
                break
        size = len(self.steps.made) + len(self.steps.reads) + len(self.steps.makes)
        cost, done = size * (1 + size / IN_CACHE), 0.0
        rounds = min(int(work / cost) // 2, ROUNDS * len(self.steps.made))
        for back in (True, False):
            if self._open and rounds > 1:
                self._take(evolved_order(self.steps, self.start, self.bound, rounds, back=back))
                done += rounds * cost
        return done

    @property
    def _open(self) -> bool:
        return below(self.bound, self.peak) and not self.run.stop()

    def _take(self, order: Ints) -> None:
        """Keep an order if it is better."""
        peak = float(walk(self.steps, self.start, order)[1].max(initial=self.start))
        if below(peak, self.peak):
            self.order, self.peak = order, peak


def below(less: float, more: float) -> bool:
    """Whether one peak is truly below another."""
    return bool(less < more * (1 - MARGIN))


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


def peak_bound(steps: Steps, start: float) -> float:
    """Bytes that some step takes in every order.

    While a node runs, these tensors are live whatever the order: those it makes; those made by
    it or an ancestor, and read by it or a descendant, or staying; and those live from the start,
    and read by it or a descendant, or staying. Of large graphs only `largest_step` is known.
    """
    least = largest_step(steps, start)
    if not 0 < len(steps.made) <= MAX_CLOSURE:
        return least
    entered = (steps.maker < 0) & ~steps.stays
    held = start - float(steps.size[entered].sum())
    return max(least, float(_must(steps, held).max()))


@kernel
def _must(steps, held):  # type: ignore[no-untyped-def]
    """f64[n], bytes that are live in any case while a node runs; `held` are always."""
    n = len(steps.made)
    words = (n + 63) >> 6
    one = np.uint64(1)
    need = np.full(n, held)
    above = np.zeros((n, words), np.uint64)
    below = np.zeros((n, words), np.uint64)
    for v in range(n):
        above[v, v >> 6] |= one << np.uint64(v & 63)
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            u = steps.maker[steps.reads[i]]
            if u >= 0:
                for w in range((u >> 6) + 1):
                    above[v, w] |= above[u, w]
    for v in range(n - 1, -1, -1):
        below[v, v >> 6] |= one << np.uint64(v & 63)
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            u = steps.maker[steps.reads[i]]
            if u >= 0:
                for w in range(v >> 6, words):
                    below[u, w] |= below[v, w]
    row = np.zeros(words, np.uint64)
    for t in range(len(steps.size)):
        maker = steps.maker[t]
        if maker < 0 and steps.stays[t]:
            continue
        for w in range(words):
            row[w] = 0
        for i in range(steps.use_ptr[t], steps.use_ptr[t + 1]):
            v = steps.uses[i]
            for w in range((v >> 6) + 1):
                row[w] |= above[v, w]
        if maker >= 0:
            for w in range(words):
                row[w] = below[maker, w] if steps.stays[t] else row[w] & below[maker, w]
            row[maker >> 6] |= one << np.uint64(maker & 63)
        for w in range(words):
            b = 64 * w
            rest = row[w]
            while rest != 0:
                if rest & one:
                    need[b] += steps.size[t]
                rest >>= one
                b += 1
    return need
