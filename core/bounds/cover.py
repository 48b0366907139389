"""A bound from covers: how many stages of a small load it takes to hold all items.

Let items have prices p >= 0. If no set of items that could be a stage with a load below a target
has a price above t, then k such stages hold prices of at most k t; if all prices together are more,
no split has a largest load below the target. The best prices are the duals of covering the items
with the fewest such sets, in fractions. They are found by generating sets: prices that satisfy the
sets known so far come from a linear program, and `best_sets` looks for a set that
violates them, or proves that there is none. The bound does not rest on the linear program.

Far stronger than other relaxations where stages hold a few items each; the search for sets takes
exponential time where they hold many.

That search is branch and bound over sets that hold whatever lies between their items. With some
items in, some out and the others open, a set has at least the load

    work + cost of the nets with pins in and others elsewhere
         - cost / open for each open pin that joins, of nets without pins out
         + cost / open for each that joins, of nets with pins out and none in.

(A net is saved only if all its open pins join; it is paid as soon as one of them does.) So the open
items are those of a knapsack. With the ratio a of price and load of the item that no longer fits,
a set is worth at most the price of what is in, plus a times the room, plus the gains above 0; the
gain of an item is its price less a times what it adds. An item without whose gain, or with whose
loss and that of all it pulls in, too little would be left is in, or out.

For the root a of a chain, work 3, 2, 3, prices 5, 4, 5, tensors that cost 4 and 1, loads below 8:

    a --4-- b --1-- c

    a in           load 7, worth 5, at most 5 + 4 + 5: b saves 4 of load, and then c fits
    |-- b in       load 6, worth 9, at most 9 + 5
    |   |-- c in   load 8: too much
    |   `-- c out  at most 9, no more than was found
    `-- b out      at most 5 + 5/3: c no longer fits as a whole
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.bounds.lower_bound import (
    FAILED,
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    one_class,
    refused,
)
from dnnp.core.bounds.pairs import Between, between_of, pair_costs
from dnnp.core.bounds.same_block import merged
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, part, plain
from dnnp.core.model.graph import Bools, Floats, Graph, Ints, csr
from dnnp.core.model.plan import Block
from dnnp.core.model.processes import search_threads
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.child import solver_process
from dnnp.core.solver.program import Program, Row
from dnnp.core.solver.slices import Relaxation
from dnnp.core.split.cuts import Nets

WORD = 63
"""Items to a word of a set."""


class Field(NamedTuple):
    """Items and nets of the search; numbers are whole."""

    work: Floats
    """f64[n]."""
    size: Ints
    """i64[p], pins of each net; one more, which is out, if the net is always paid."""
    outside: Ints
    """i64[p], 1 if the net is always paid."""
    cost: Floats
    """f64[p]."""
    hook_ptr: Ints
    hooks: Ints
    """Nets of each item (CSR)."""
    held: Ints
    """i64[n, n, words], what lies between two items, as bits."""
    pairs: Floats
    """f64[n, n], least load of a set with two items."""


def field_of(work: Floats, nets: Nets, between: Between, pairs: Floats) -> Field:
    """Lay out items and nets for the search. O(n^3) bits."""
    n = len(work)
    net = np.repeat(np.arange(len(nets.cost), dtype=np.int64), np.diff(nets.ptr))
    hook_ptr, hooks = csr(nets.pins, net, n)
    bit = np.int64(1) << (np.arange(n, dtype=np.int64) % WORD)
    held = np.zeros((n, n, n // WORD + 1), dtype=np.int64)
    for u in range(n):
        for v in range(n):
            some = between.holds(u, v)
            np.bitwise_or.at(held[u, v], some // WORD, bit[some])
    outside = nets.always.astype(np.int64)
    return Field(
        work, np.diff(nets.ptr) + outside, outside, nets.cost, hook_ptr, hooks, held, pairs
    )


OPEN, IN, OUT = 0, 1, 2
"""Decisions about an item."""


class Aim(NamedTuple):
    """Sets that are looked for."""

    price: Floats
    """f64[n], whole numbers."""
    target: float
    """Their loads are below it."""
    least: float
    """Their prices are above it."""
    roots: Ints
    """i64[n], all items: a set belongs to the first of them that it holds."""


class FoundSets(NamedTuple):
    """Sets that a search found; it writes them."""

    sets: Bools
    """bool[kept * n, n]: the last ones of each root, which has `kept` rows."""
    met: Ints
    """i64[n], how many there were of each root."""
    ended: Bools
    """bool[n]: there is no better one of this root."""


class Choice(NamedTuple):
    """Decisions at some depth of the search, and what follows; a stack of them has one more
    dimension."""

    state: np.ndarray
    """i8[n]: `OPEN`, `IN` or `OUT`."""
    inner: np.ndarray
    """i32[p], pins of each net that are in."""
    outer: np.ndarray
    """i32[p], those that are out."""
    need: Ints
    """i64[n, words], as bits, what comes in with each item."""


class Knapsack(NamedTuple):
    """The open items, and room to work in."""

    adds: Floats
    """f64[n], least load that each open item adds."""
    near: Bools
    """bool[n], whether it shares a net with an item that is in."""
    ratio: Floats
    """f64[n], the largest ratios of price and load first."""
    weight: Floats
    """f64[n], the loads that belong to them."""
    queue: Ints
    """i64[n], items that come in."""
    bits: Ints
    """i64[words], a set of items."""


@kernel
def best_sets(field, aim, first, step, limit, halt, found):  # type: ignore[no-untyped-def]
    """For roots first, first + step, ...: sets with a load below the target, the root, none of the
    roots before it, and a price above the least, each of more value than the last.

    With `most` as in the docstring of the module, the search below a choice gives

        search(choice, best) = best                                      if most(choice) <= best
                               search(choice with v out, search(choice with v in, best'))

    where v is an open item and best' the price of what is in, if that is a set and worth more.

    Parameters
    ----------
    field, aim, found
        `Field`, `Aim`, `FoundSets`.
    limit
        Steps from each root. `found.ended` says whether they sufficed.
    halt
        bool[1]: once it is set, the search ends.

    Returns
    -------
    int
        Steps.
    """
    n, p, words = len(field.work), len(field.cost), field.held.shape[2]
    stack = Choice(
        np.zeros((n + 2, n), np.int8),
        np.zeros((n + 2, p), np.int32),
        np.zeros((n + 2, p), np.int32),
        np.zeros((n + 2, n, words), np.int64),
    )
    tried = np.zeros(n + 2, np.bool_)
    chosen = np.zeros(n + 2, np.int64)
    sack = Knapsack(
        np.empty(n),
        np.empty(n, np.bool_),
        np.empty(n),
        np.empty(n),
        np.empty(n, np.int64),
        np.empty(words, np.int64),
    )
    return _best_sets(field, aim, first, step, limit, halt, found, stack, tried, chosen, sack)


@part
def _best_sets(field, aim, first, step, limit, halt, found, stack, tried, chosen, sack):  # type: ignore[no-untyped-def]
    """`best_sets`, with room to work in."""
    state, inner, outer, need = stack
    roots = aim.roots
    kept = len(found.sets) // len(roots)
    steps = 0
    for i in range(first, len(roots), step):
        choice = Choice(state[0], inner[0], outer[0], need[0])
        begin(field, roots[:i], choice)
        best = aim.least
        found.met[i] = 0
        last = steps + limit
        depth = 0
        entering = roots[i]
        while depth >= 0:
            choice = Choice(state[depth], inner[depth], outer[depth], need[depth])
            waiting = 0
            if entering >= 0:
                choice.state[entering] = IN
                sack.queue[0] = entering
                waiting = 1
            promising, forced = True, True
            while forced:
                promising = join(field, aim.target, choice, sack.queue, waiting)
                if not promising:
                    break
                drop_needy(field, choice, sack.bits)
                steps += 1
                if steps > last or halt[0]:
                    break
                load, value = weigh(field, aim.price, choice.state, choice.inner)
                if load < aim.target and value > best:
                    best = value
                    for v in range(len(choice.state)):
                        found.sets[i * kept + found.met[i] % kept, v] = choice.state[v] == IN
                    found.met[i] += 1
                rate, most = fill(field, aim.price, choice, sack, aim.target - load, value)
                safe = MARGIN * most
                slack = most + safe - best
                promising = slack > 0.0
                if not promising:
                    break
                waiting, forced = decide(field, aim.price, choice, sack, rate, slack + safe)
            if steps > last or halt[0]:
                break
            branch = branch_of(choice.state, sack.near, aim.price) if promising else -1
            if branch >= 0:
                chosen[depth] = branch
                tried[depth] = False
            else:
                # Back to the last branch that was not tried without its item.
                depth -= 1
                while depth >= 0 and tried[depth]:
                    depth -= 1
                if depth < 0:
                    break
                tried[depth] = True
            copy_choice(stack, depth)
            entering = branch
            if branch < 0:
                shut_out(field, chosen[depth], state[depth + 1], outer[depth + 1])
            depth += 1
        found.ended[i] = depth < 0 and not halt[0]
    return steps


@part
def begin(field, before, choice):  # type: ignore[no-untyped-def]
    """All items are open, but for the roots `before`, which are out."""
    choice.state[:] = OPEN
    choice.inner[:] = 0
    for e in range(len(choice.outer)):
        choice.outer[e] = field.outside[e]
    for v in range(len(choice.state)):
        for w in range(choice.need.shape[1]):
            choice.need[v, w] = field.held[v, v, w]
    for v in before:
        shut_out(field, v, choice.state, choice.outer)


@part
def copy_choice(stack, depth):  # type: ignore[no-untyped-def]
    """Start from the same choice one deeper."""
    state, inner, outer, need = stack
    for v in range(state.shape[1]):
        state[depth + 1, v] = state[depth, v]
        for w in range(need.shape[2]):
            need[depth + 1, v, w] = need[depth, v, w]
    for e in range(inner.shape[1]):
        inner[depth + 1, e] = inner[depth, e]
        outer[depth + 1, e] = outer[depth, e]


@part
def shut_out(field, v, state, outer):  # type: ignore[no-untyped-def]
    """Item `v` is out."""
    state[v] = OUT
    for q in range(field.hook_ptr[v], field.hook_ptr[v + 1]):
        outer[field.hooks[q]] += 1


@part
def join(field, target, choice, queue, waiting):  # type: ignore[no-untyped-def]
    """The first items of `queue` come in, with all that lies between them and the others.

    What no set of a load below the target holds together with them is out. Returns whether that
    is possible.
    """
    state, inner, outer, need = choice
    n, words = need.shape
    done = 0
    while done < waiting:
        a = queue[done]
        done += 1
        for q in range(field.hook_ptr[a], field.hook_ptr[a + 1]):
            inner[field.hooks[q]] += 1
        for v in range(n):
            if state[v] == OUT:
                continue
            if field.pairs[a, v] >= target:
                if state[v] == IN:
                    return False
                shut_out(field, v, state, outer)
                continue
            for w in range(words):
                need[v, w] |= field.held[a, v, w]
        for x in range(n):
            if state[x] != IN and need[a, x // WORD] >> (x % WORD) & 1:
                if state[x] == OUT:
                    return False
                state[x] = IN
                queue[waiting] = x
                waiting += 1
    return True


@part
def drop_needy(field, choice, gone):  # type: ignore[no-untyped-def]
    """Open items that need one that is out are out, too. `gone` is room for a set of items."""
    state, _, outer, need = choice
    n, words = need.shape
    changed = True
    while changed:
        changed = False
        gather(state, OUT, gone)
        for v in range(n):
            if state[v] == OPEN:
                for w in range(words):
                    if need[v, w] & gone[w]:
                        shut_out(field, v, state, outer)
                        changed = True
                        break


@part
def gather(state, what, bits):  # type: ignore[no-untyped-def]
    """Write the items in this state into `bits`."""
    bits[:] = 0
    for v in range(len(state)):
        if state[v] == what:
            bits[v // WORD] |= np.int64(1) << (v % WORD)


@part
def weigh(field, price, state, inner):  # type: ignore[no-untyped-def]
    """(load, price) of what is in."""
    load = 0.0
    value = 0.0
    for v in range(len(state)):
        if state[v] == IN:
            load += field.work[v]
            value += price[v]
    for e in range(len(inner)):
        if 0 < inner[e] < field.size[e]:
            load += field.cost[e]
    return load, value


@part
def fill(field, price, choice, sack, room, value):  # type: ignore[no-untyped-def]
    """(ratio of the item that no longer fits, the most that a set is worth).

    `room` is how much load there may be besides what is in, which is worth `value`. -inf: there
    is no set. Writes what open items add, and whether they are near what is in.
    """
    state, inner, outer, _ = choice
    count = 0
    for v in range(len(state)):
        if state[v] != OPEN:
            continue
        adds = field.work[v]
        near = False
        for q in range(field.hook_ptr[v], field.hook_ptr[v + 1]):
            e = field.hooks[q]
            if inner[e] > 0:
                near = True
                if outer[e] == 0:
                    adds -= field.cost[e] / (field.size[e] - inner[e])
            elif outer[e] > 0:
                adds += field.cost[e] / (field.size[e] - outer[e])
        sack.adds[v] = adds
        sack.near[v] = near
        if adds <= 0.0:
            room -= adds
            value += price[v]
        elif price[v] > 0.0:
            rate = price[v] / adds
            at = count
            while at > 0 and sack.ratio[at - 1] < rate:
                sack.ratio[at] = sack.ratio[at - 1]
                sack.weight[at] = sack.weight[at - 1]
                at -= 1
            sack.ratio[at] = rate
            sack.weight[at] = adds
            count += 1
    if room <= 0.0:
        return 0.0, -np.inf
    for at in range(count):
        if sack.weight[at] > room:
            return sack.ratio[at], value + sack.ratio[at] * room
        value += sack.ratio[at] * sack.weight[at]
        room -= sack.weight[at]
    return 0.0, value


@part
def decide(field, price, choice, sack, rate, spare):  # type: ignore[no-untyped-def]
    """Decide what more than `spare` of price depends on.

    Returns how many items come in, which are written into the queue, and whether any item was
    decided.
    """
    state, _, outer, need = choice
    n, words = need.shape
    waiting = 0
    forced = False
    for v in range(n):
        if state[v] == OPEN and price[v] - rate * sack.adds[v] > spare:
            state[v] = IN
            sack.queue[waiting] = v
            waiting += 1
            forced = True
    gather(state, OPEN, sack.bits)
    for v in range(n):
        if state[v] != OPEN:
            continue
        loss = 0.0
        for w in range(words):
            rest = need[v, w] & sack.bits[w]
            if w == v // WORD:
                loss -= min(price[v] - rate * sack.adds[v], 0.0)
                rest &= ~(np.int64(1) << (v % WORD))
            x = w * WORD
            while rest:
                if rest & 1 and state[x] == OPEN:
                    loss -= min(price[x] - rate * sack.adds[x], 0.0)
                rest >>= 1
                x += 1
        if loss > spare:
            shut_out(field, v, state, outer)
            forced = True
    return waiting, forced


@part
def branch_of(state, near, price):  # type: ignore[no-untyped-def]
    """The open item to branch on: one near what is in, if there is one, of the largest price; -1:
    none is open."""
    branch, promise, close = -1, -1.0, False
    for v in range(len(state)):
        if state[v] == OPEN:
            if near[v] and not close:
                branch, promise, close = v, price[v], True
            elif near[v] == close and price[v] > promise:
                branch, promise = v, price[v]
    return branch


MOST_ITEMS = 300
"""Sets between two items take n^3 bits, and each level of the search n^2."""

UNIT = float(1 << 30)
"""Prices are whole numbers: that of a set that is just allowed."""

FIRST_STEPS = 3_000
"""Steps that the search from one item may take at first; more once nothing is found."""

MORE = 4
"""Factor of the steps that are allowed then."""

MOST_STEPS = 100_000_000
"""Steps from one item at most."""

SMOOTH = 0.3
"""Weight of the newest prices against a mean of the earlier ones, which swing less."""

KEPT = 6
"""Sets that each search may add: the most valuable ones, which it meets last."""

STEP, LARGE, LARGE_STEP = 0.4, 80, 0.2
"""Place of the next target between what is proven and what is not; and of more than `LARGE`
items, where the search for sets takes ever longer the higher the target."""

PRECISION = 3e-4
"""Relative width of that interval at which the search for a target ends."""

POLL_S = 0.02
"""Seconds between questions whether to stop."""


def cover_claim(problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor.

    For accelerators of one class under `sum` without replicas, and where a split is known.

    Raises
    ------
    UnavailableError
        The solver is not installed.
    """
    if not isfinite(known.value):
        return refused("no split is known")
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS)
    if isinstance(whole, LowerBound):
        return whole
    with solver_process() as process:
        search = _CoverSearch(problem.graph, whole, known, Relaxation(process, known.solver, run))
        search.begin(known.blocks or ())
        search.run(known.floor)
    return search.claim()


class _CoverSearch:
    """Sets that are known, and what was proven with prices."""

    def __init__(
        self, graph: Graph, whole: Whole, known: BoundTask, relaxation: Relaxation
    ) -> None:
        self.whole, self.k, self.n = whole, whole.stages, whole.items.count
        self.relaxation = relaxation
        self.target = int(known.value / whole.quantum)
        """Quanta: the value of the split that is known."""
        self.nets = merged(whole.nets(0))[0]
        between = between_of(graph, whole.items, known.validity)
        pairs = pair_costs(
            whole.work[0], self.nets, between, enough=float(self.target), run=relaxation.run
        )
        self.field = Field(*plain(*field_of(whole.work[0], self.nets, between, pairs)))
        self.sets: dict[bytes, tuple[Bools, float]] = {}
        """Sets by their bytes, each with its load in quanta."""
        self.center: Floats | None = None
        """Smoothed prices."""
        self.proof: tuple[int, dict[str, Any]] = (0, {})

    def begin(self, blocks: Sequence[Block]) -> None:
        """Sets to start from: stages that are known, and intervals of an order."""
        label, order = self.whole.items.label, self.whole.items.order
        for block in blocks:
            self._add(np.isin(np.arange(self.n), label[block.nodes]))
        for first in range(self.n):
            some = np.zeros(self.n, dtype=np.bool_)
            best = None
            for v in order[first:].tolist():
                some[v] = True
                load = self._load(some)
                if load < self.target:
                    best = some.copy()
                elif float(self.field.work[some].sum()) >= self.target:
                    break
            if best is not None:
                self._add(best)

    def run(self, floor: float) -> None:
        """Raise the target that is proven until it meets one that is not."""
        proven, open_from = int(floor / self.whole.quantum), self.target
        least = max(PRECISION * self.target, 1)
        step = STEP if self.n <= LARGE else LARGE_STEP
        while open_from - proven > least and not self.relaxation.run.stop():
            target = proven + max(int((open_from - proven) * step), 1)
            answer, reached = self._decide(target)
            if answer is None:
                return
            if answer:
                proven = target
                run, bound = self.relaxation.run, target * self.whole.quantum
                run.log(f"{len(self.sets)} sets: bound {run.shown(bound)}")
                run.report_progress(bound=bound)
            else:
                open_from = min(reached, target)
        # Loads are often equal to the optimum or clearly above it.
        if open_from == self.target and not self.relaxation.run.stop():
            self._decide(self.target)

    def claim(self) -> LowerBound:
        """Claim what was proven."""
        failure = self.relaxation.failure
        status = FAILED if failure else LIMIT if self.relaxation.run.stop() else SOLVED
        units, proof = self.proof
        if not units:
            return LowerBound(0.0, status, failure)
        return self.whole.claim("cover", units, proof, status, reason=failure)

    def _decide(self, target: int) -> tuple[bool | None, int]:
        """Tell whether no split has a largest load below a target; None if that is not known.

        False: k sets cover all items in fractions, the largest of them with the load that comes
        with the answer.
        """
        used = [s for s, load in self.sets.values() if load < target]
        program = Program()
        for _ in range(self.n):
            program.column(self.k + 1.0, cost=-1.0)
        program.rows = [_row(s) for s in used]
        outcome = self.relaxation.begin(program)
        limit = FIRST_STEPS
        while True:
            if outcome.status != "optimal":
                return None, target
            prices = np.array(outcome.values)
            if prices.sum() <= self.k * (1 + MARGIN):
                return False, target
            mean = prices if self.center is None else self.center
            self.center = SMOOTH * prices + (1 - SMOOTH) * mean
            whole = np.floor(np.maximum(self.center, 0.0) * UNIT)
            least = (int(whole.sum()) - 1) // self.k
            new, complete = self._violating(whole, target, least, limit)
            if complete and not new:
                self._prove(target, whole)
                return True, target
            fresh = [s for s in new if self._add(s)]
            if self.relaxation.run.stop():
                return None, target
            if not fresh:
                self.center = prices
                if not new:
                    limit *= MORE
                    if limit > MOST_STEPS:
                        return None, target
                continue
            rows = [_row(s) for s in fresh]
            outcome = self.relaxation.refine(rows)

    def _violating(
        self, prices: Floats, target: int, least: int, limit: int
    ) -> tuple[list[Bools], bool]:
        """Sets of a load below the target and a price above `least`; whether that is all."""
        roots = np.argsort(-prices / np.maximum(self.field.work, 1.0), kind="stable")
        found = FoundSets(
            np.zeros((self.n * KEPT, self.n), dtype=np.bool_),
            np.zeros(self.n, dtype=np.int64),
            np.zeros(self.n, dtype=np.bool_),
        )
        halt = np.zeros(1, dtype=np.bool_)
        price, order = plain(prices, roots)
        aim = Aim(price, float(target), float(least), order)
        threads = search_threads()

        def search(thread: int) -> None:
            best_sets(self.field, aim, thread, threads, limit, halt, found)

        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(search, thread) for thread in range(threads)]
            for job in jobs:
                while not job.done():
                    try:
                        job.result(POLL_S)
                    except TimeoutError:
                        halt[0] = self.relaxation.run.stop()
            for job in jobs:
                job.result()
        return [some for some in found.sets if some.any()], bool(found.ended.all())

    def _prove(self, target: int, prices: Floats) -> None:
        names = self.whole.names.tolist()
        listed = [[names[v], int(p)] for v, p in enumerate(prices.tolist()) if p > 0]
        self.proof = target, {"prices": listed}

    def _add(self, some: Bools) -> bool:
        key = some.tobytes()
        if key in self.sets:
            return False
        self.sets[key] = some, self._load(some)
        return True

    def _load(self, some: Bools) -> float:
        """Load of a set, quanta."""
        nets = self.nets
        inside = np.add.reduceat(some[nets.pins].astype(np.int64), nets.ptr[:-1])
        cut = (inside > 0) & ((inside < np.diff(nets.ptr)) | nets.always)
        return float(self.field.work[some].sum() + nets.cost[cut].sum())


def _row(some: Bools) -> Row:
    """The price of a set is at most 1."""
    items = np.flatnonzero(some).tolist()
    return items, [1.0] * len(items), "<", 1.0
