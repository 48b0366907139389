"""Orders of the nodes of a block for the least peak of live activations, with a lower bound.

Between two steps the live bytes are a function of the set of nodes that have run; they are
submodular in it. Running a node costs the live bytes before it plus what it makes; the peak of
an order is its most expensive step (MTPP, section 2: peak memory scheduling).

A block falls into segments between nodes that stand at one place in all orders. Each is ordered
node by node, by several rules, and the best of these orders are varied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import (
    ACTIVATION,
    INPUT,
    Floats,
    Graph,
    Ints,
    csr,
    csr_rows,
    distinct,
    place_of,
)
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext

ROUNDS = 100
"""Orders that are varied for each node at most, from either end."""

IN_CACHE = 20_000
"""Nodes and tensors up to which making one order takes the time of as many visits."""

LEAST, LEAST_NEWEST, GIVEN, NEWEST = range(4)
"""Rules for the next node: the one that grows live bytes least, earlier or newer ones first among
equals; or else, unless some node grows nothing, the earliest or the newest ready one."""

MAX_CLOSURE = 5_000
"""Nodes up to which all paths are looked at."""

WORK = 25_000_000
"""Visits of nodes and tensors that one block may cost at effort 1."""

KEPT_BLOCKS = 4
"""Blocks up to which each has the work of one to itself."""


class Steps(NamedTuple):
    """`n` nodes, numbered in some topological order, and `t` tensors; CSR rows."""

    read_ptr: Ints
    reads: Ints
    """Tensors that each node reads."""
    make_ptr: Ints
    makes: Ints
    """Tensors that each node makes."""
    use_ptr: Ints
    uses: Ints
    """Nodes that read each tensor, ascending."""
    maker: Ints
    """i64[t], node that makes the tensor; -1: it is live from the start."""
    stays: np.ndarray
    """bool[t]: once live, the tensor stays so."""
    size: Floats
    """f64[t], bytes."""
    made: Floats
    """f64[n], bytes that each node makes."""
    needs: Ints
    """i64[n], tensors that each node reads and another of the nodes makes."""


def steps_of(graph: Graph, nodes: Ints) -> tuple[Steps, float]:
    """Steps of a block, and the bytes live before the first.

    `nodes` are positions in execution order; step i is nodes[i].
    """
    n = len(nodes)
    step = place_of(nodes, graph.n)
    reader, read = _rows(graph.in_ptr, graph.in_idx, nodes)
    live = (graph.tensor_kind[read] == INPUT) | (graph.tensor_kind[read] == ACTIVATION)
    reader, read = reader[live], read[live]
    maker, made = _rows(graph.out_ptr, graph.out_idx, nodes)
    tensors = distinct(np.concatenate([read, made]))
    local = place_of(tensors, graph.m)
    source = np.where(graph.producer[tensors] >= 0, step[graph.producer[tensors]], -1)
    inside = np.bincount(local[read], minlength=len(tensors))
    leaves = graph.is_output[tensors] | (np.diff(graph.use_ptr)[tensors] > inside)
    counted = graph.in_memory
    size = np.where(counted.tensor_kind <= ACTIVATION, counted.tensor_bytes, 0.0)[tensors]
    steps = make_steps(
        n, reader, local[read], maker, local[made], (source >= 0) & leaves, size, source
    )
    return steps, float(size[source < 0].sum())


def make_steps(
    n: int,
    reader: Ints,
    read: Ints,
    maker: Ints,
    made: Ints,
    stays: np.ndarray,
    size: Floats,
    source: Ints,
) -> Steps:
    """Steps from pairs (reader, read) and (maker, made) of nodes and tensors."""
    read_ptr, reads = csr(reader, read, n)
    make_ptr, makes = csr(maker, made, n)
    order = np.argsort(reader, kind="stable")
    use_ptr, uses = csr(read[order], reader[order], len(size))
    total = np.bincount(maker, weights=size[made], minlength=n).astype(np.float64)
    needs = np.bincount(reader[source[read] >= 0], minlength=n).astype(np.int64)
    return Steps(
        *plain(read_ptr, reads, make_ptr, makes, use_ptr, uses, source, stays, size, total, needs)
    )


def part_of(steps: Steps, nodes: Ints, before: Ints) -> Steps:
    """Steps of some of the nodes, in this order, run after the nodes `before`.

    A tensor that nodes of neither kind read later stays; `nodes` and `before` together are
    closed under producers.
    """
    n = len(steps.made)
    place = np.full(n, n, dtype=np.int64)
    place[before] = -1
    place[nodes] = np.arange(len(nodes))
    reader, read = _rows(steps.read_ptr, steps.reads, nodes)
    maker, made = _rows(steps.make_ptr, steps.makes, nodes)
    tensors = distinct(np.concatenate([read, made]))
    local = place_of(tensors, len(steps.size))
    owner, users = _rows(steps.use_ptr, steps.uses, tensors)
    later = np.bincount(owner, weights=place[users] == n, minlength=len(tensors)) > 0
    source = np.where(steps.maker[tensors] >= 0, place[steps.maker[tensors]], -1)
    return make_steps(
        len(nodes),
        reader,
        local[read],
        maker,
        local[made],
        steps.stays[tensors] | later,
        steps.size[tensors],
        source,
    )


def _rows(ptr: Ints, idx: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Pairs (position in `rows`, item) of the CSR rows `rows`."""
    chosen, items = csr_rows(ptr, idx, rows)
    return np.repeat(np.arange(len(rows), dtype=np.int64), np.diff(chosen)), items


@kernel
def walk(steps, start, order):  # type: ignore[no-untyped-def]
    """Bytes live before each step, and while it runs; f64[n] each."""
    n = len(order)
    before, during = np.empty(n), np.empty(n)
    left = steps.use_ptr[1:] - steps.use_ptr[:-1]
    live = start
    for p in range(n):
        v = order[p]
        before[p] = live
        live += steps.made[v]
        during[p] = live
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            t = steps.reads[i]
            left[t] -= 1
            if left[t] == 0 and not steps.stays[t]:
                live -= steps.size[t]
        for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
            t = steps.makes[i]
            if left[t] == 0 and not steps.stays[t]:
                live -= steps.size[t]
    return before, during


def walk_given(steps: Steps, start: float) -> tuple[Floats, Floats]:
    """`walk` for the order in which the nodes are numbered; nothing is compiled."""
    n = len(steps.made)
    uses = np.diff(steps.use_ptr)
    last = steps.maker.copy()
    last[uses > 0] = steps.uses[steps.use_ptr[1:][uses > 0] - 1]
    ends = ~steps.stays
    freed = np.bincount(last[ends], weights=steps.size[ends], minlength=n)
    before = start + np.concatenate([np.zeros(1), np.cumsum(steps.made - freed)])[:n]
    return before, before + steps.made


def cuts(steps: Steps) -> np.ndarray:
    """bool[n]: the node stands before or after every other one, in all orders."""
    n = len(steps.made)
    reader = np.repeat(np.arange(n), np.diff(steps.read_ptr))
    maker = steps.maker[steps.reads]
    reader, maker = reader[maker >= 0], maker[maker >= 0]
    first, last = np.full(n, n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    np.minimum.at(first, maker, reader)
    np.maximum.at(last, reader, maker)
    # A node with all readers after v is not ordered against v; and so backwards.
    furthest = np.concatenate([np.full(1, -1), np.maximum.accumulate(first)])[:n]
    nearest = np.concatenate([np.minimum.accumulate(last[::-1])[::-1], np.full(1, n)])[1:]
    place = np.arange(n)
    cut: np.ndarray = (furthest <= place) & (nearest >= place)
    return cut


def largest_step(steps: Steps, start: float) -> float:
    """Bytes that some step takes in every order: what it reads and makes, and what stays."""
    n = len(steps.made)
    entered = steps.maker < 0
    held = start - float(steps.size[entered & ~steps.stays].sum())
    counted = ~(entered & steps.stays)[steps.reads]
    reader = np.repeat(np.arange(n), np.diff(steps.read_ptr))
    read = np.bincount(reader[counted], weights=steps.size[steps.reads[counted]], minlength=n)
    end = held + float(steps.size[~entered & steps.stays].sum())
    return float(max(start, end, (held + read + steps.made).max(initial=0.0)))


class Segment:
    """Nodes between two fixed places, and the best order of them."""

    def __init__(self, steps: Steps, start: float, floor: float, run: SearchContext) -> None:
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
    """True if one peak is below another, beyond rounding."""
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


class PeakOrder(NamedTuple):
    """An order of the nodes of a block."""

    nodes: Ints
    """Node positions in execution order."""
    peak_bytes: float
    """Peak of live activations, bytes; parameters are not in it."""
    bound_bytes: float
    """No order of these nodes has a smaller peak."""


def peak_order(graph: Graph, nodes: Ints, run: SearchContext = PLAIN) -> PeakOrder:
    """Find an order of `nodes` with the least peak, or as small a one as the effort allows.

    Effort 0 finds nothing but a bound.

    `nodes` are positions in some execution order, which comes back if none found is better.
    Deterministic unless stopped.
    """
    nodes = np.asarray(nodes, dtype=np.int64)
    steps, start = steps_of(graph, nodes)
    search = _PeakSearch(steps, start, run)
    if run.effort > 0:
        search.improve()
    return PeakOrder(nodes[search.order], search.peak, search.bound)


def with_least_peak(
    graph: Graph, blocks: Sequence[Block], *, keep: bool = False, run: SearchContext = PLAIN
) -> list[Block]:
    """Put the nodes of every block in an order of small peak, never a larger one than theirs.

    The blocks know the lower bound of their peak then; with `keep`, their orders stay.
    """
    part = run.scaled(min(1.0, KEPT_BLOCKS / max(len(blocks), 1)))
    best = []
    for block in blocks:
        found = peak_order(graph, block.nodes, part)
        nodes = block.nodes if keep else found.nodes
        best.append(block._replace(nodes=nodes, peak_bound_bytes=found.bound_bytes))
    return best


class _PeakSearch:
    """Segments between nodes that stand at one place in all orders, the worst one first."""

    def __init__(self, steps: Steps, start: float, run: SearchContext) -> None:
        n = len(steps.made)
        self.steps, self.start, self.run = steps, start, run
        self.order = np.arange(n, dtype=np.int64)
        self.before, during = walk_given(steps, start)
        cut = cuts(steps)
        self.bound = float(max(largest_step(steps, start), during[cut].max(initial=0.0)))
        self.first = np.flatnonzero(np.append(True, cut[:-1])) if n else np.zeros(0, np.int64)
        self.end = np.append(self.first[1:], n)
        self.peaks = np.maximum.reduceat(during, self.first) if n else np.zeros(0)
        self.given = self.peak
        self.work = run.effort * WORK

    @property
    def peak(self) -> float:
        """Peak of the order."""
        return float(max(self.start, self.peaks.max(initial=0.0)))

    def improve(self) -> None:
        """Put one segment after the other in a better order, while that can help."""
        seen = np.zeros(len(self.peaks), dtype=np.bool_)
        while len(self.peaks) and not self.run.stop():
            s = int(self.peaks.argmax())
            if seen[s] or not below(self.bound, self.peaks[s]):
                break
            seen[s] = True
            self._segment(s)
        self.bound = min(self.bound, self.peak)
        if not below(self.peak, self.given):
            self.order = np.arange(len(self.order), dtype=np.int64)
            self.peaks[:] = self.given
        if not below(self.bound, self.peak):
            self.bound = self.peak

    def _segment(self, s: int) -> None:
        a, b = int(self.first[s]), int(self.end[s])
        part = self.steps
        if b - a < len(self.order):
            everything = np.arange(b, dtype=np.int64)
            part = part_of(self.steps, everything[a:], everything[:a])
        task = Segment(part, float(self.before[a]), self.bound, self.run)
        self.work -= task.improve(self.work)
        self.order[a:b] = a + task.order
        self.peaks[s] = task.peak
        self.bound = max(self.bound, task.bound)
