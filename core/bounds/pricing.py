"""Pricing: find sets of items with a small load that are worth more than a price, or none.

Items have prices p >= 0. Two searches for column generation (`column_generation.py`), both branch
and bound.

*`best_sets`* looks at sets that hold whatever lies between their items. With some items in, some
out and the others open, a set has at least the load

    work + cost of the nets with pins in and others elsewhere
         - s(e, v) for each open pin v that joins, of nets e with pins in and none out
         + t(e, v) for each that joins, of nets with pins out and none in
         + t(e, v) - s(e, v) for each that joins, of nets whose pins are all open

for any shares s, t >= 0 that add up to the cost of their net; for the last kind s and t may add up
to the same smaller number. (A net with pins in is saved only if all its open pins join, one with
pins out is paid as soon as one of them does, one of the last kind if some join and others do not.)
So the open items are those of a knapsack. With the ratio a of price and load of the item that no
longer fits, a set is worth at most the price of what is in, plus a times the room, plus the gains
above 0; the gain of an item is its price less a times what it adds. The least sum of these over all
shares is a minimum cut; `share_again` takes steps of its dual ascent, net by net. An item is fixed
where the other choice, with all that it forces, leaves too little.

For the root a of a chain, work 3, 2, 3, prices 5, 4, 5, tensors that cost 4 and 1, loads below 8:

    a --4-- b --1-- c

    a in           load 7, worth 5, at most 5 + 4 + 5: b saves 4 of load, and then c fits
    |-- b in       load 6, worth 9, at most 9 + 5
    |   |-- c in   load 8: too much
    |   `-- c out  at most 9, no more than was found
    `-- b out      at most 5 + 5/3: c no longer fits as a whole

*`PricedSets`* looks at any sets. The load f(S) of a set S, its work plus its cut
(`dnnp.core.split.cuts`), is submodular. For any rate r >= 0, no set with a load of at most `room`
has a price above

    r * room + the largest p(S) - r * f(S) over all sets S,

and the least r * f(S) - p(S) is a minimum cut: an arc from a source to each item carries its price,
one from each item to the sink r times its work, and a net r times its cost. The best rate makes it
the Lagrangian dual of the knapsack; where it is no proof, the sets on both sides of that rate, one
of which is too heavy, differ in items. Where the tree branches one of them is in, or out.

Prices are whole numbers, so that a bound below t + 1 is one of t. The fewer different numbers they
are, the more that closes at once: of ten items of price 1, of which 4.7 fit, four fit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, inf
from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.bounds.pairs import Between
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.kernels.kernel import kernel, part, plain
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.hypergraph import Hypergraph
from dnnp.core.split.cuts import IN, OPEN, OUT, Residual, lay_out, max_flow, reached

PAID, UNSHARED = 3, 4
"""Nets with pins in and others out; nets whose costs are not shared yet."""

TINY = 1e-6
"""Load, quanta, and part of a cost, below which it counts as none."""

SHARED_AGAIN = 2
"""Times that the costs of nets are shared anew in each step."""

WORD = 63
"""Items to a word of a set."""


class ItemSets(NamedTuple):
    """Items and nets of the search for sets; numbers are whole."""

    nets: Hypergraph
    work: Floats
    """f64[n]."""
    size: Ints
    """i64[p], pins of each net; one more, which is out, if the net is always paid."""
    outside: Ints
    """i64[p], 1 if the net is always paid."""
    cost: Floats
    """f64[p]."""
    held: Ints
    """i64[n, n, words], the items between two items, as bits."""
    pairs: Floats
    """f64[n, n], least load of a set with two items."""


def item_sets(
    work: Floats, nets: Hypergraph, cost: Floats, between: Between, pairs: Floats
) -> ItemSets:
    """Lay out items and nets for the search. O(n^3) bits."""
    n = len(work)
    bit = np.int64(1) << (np.arange(n, dtype=np.int64) % WORD)
    held = np.zeros((n, n, n // WORD + 1), dtype=np.int64)
    for u in range(n):
        for v in range(n):
            some = between.holds(u, v)
            np.bitwise_or.at(held[u, v], some // WORD, bit[some])
    outside = nets.always.astype(np.int64)
    return ItemSets(nets, *plain(work, nets.sizes + outside, outside, cost, held, pairs))


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

    sets: Annotated[Bools, "bool[rows, n]"]
    """The last ones of each root, with as many rows for each."""
    met: Annotated[Ints, "i64[n]"]
    """Number of sets of each root that were met."""
    ended: Annotated[Bools, "bool[n]"]
    """True if there is no better one of this root."""


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
    share: Floats
    """f64[pins], part of a net's cost in it; those of one net have one sign, but for `OPEN`."""
    kind: np.ndarray
    """i8[p], of each net when its cost was shared, see `net_kind`."""
    near: Bools
    """bool[n], whether it shares a net with an item that is in."""
    ratio: Floats
    """f64[n], price over load of what is worth something; else -1."""
    turn: Ints
    """i64[n], items, those with the largest ratios first."""
    queue: Ints
    """i64[n], items that come in."""
    bits: Ints
    """i64[words], a set of items."""


@kernel
def best_sets(items, aim, first, step, limit, halt, found):  # type: ignore[no-untyped-def]
    """Search for sets from roots first, first + step, ...

    They have a load below the target, hold the root, no root before it, and have a price above the
    least, each of more value than the last.

    With `most` as in the docstring of the module, the search below a choice gives

        search(choice, best) = best                                      if most(choice) <= best
                               search(choice with v out, search(choice with v in, best'))

    where v is an open item and best' the price of what is in, if that is a set and worth more.

    Parameters
    ----------
    items, aim, found
        `ItemSets`, `Aim`, `FoundSets`.
    limit
        Steps from each root. `found.ended` says whether they sufficed.
    halt
        bool[1]: once it is set, the search ends.

    Returns
    -------
    int
        Steps.
    """
    n, p, words = len(items.work), len(items.cost), items.held.shape[2]
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
        np.zeros(len(items.nets.pins)),
        np.zeros(p, np.int8),
        np.empty(n, np.bool_),
        np.empty(n),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(words, np.int64),
    )
    return _best_sets(items, aim, first, step, limit, halt, found, stack, tried, chosen, sack)


@part
def _best_sets(items, aim, first, step, limit, halt, found, stack, tried, chosen, sack):  # type: ignore[no-untyped-def]
    """`best_sets`, with room to work in."""
    state, inner, outer, need = stack
    roots = aim.roots
    kept = len(found.sets) // len(roots)
    steps = 0
    for i in range(first, len(roots), step):
        choice = Choice(state[0], inner[0], outer[0], need[0])
        begin(items, roots[:i], choice)
        sack.kind[:] = UNSHARED
        for v in range(len(roots)):
            sack.turn[v] = v
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
                promising = join(items, aim.target, choice, sack.queue, waiting)
                if not promising:
                    break
                drop_needy(items, choice, sack.bits)
                steps += 1
                if steps > last or halt[0]:
                    break
                load, value = weigh(items, aim.price, choice.state, choice.inner)
                if load < aim.target and value > best:
                    best = value
                    for v in range(len(choice.state)):
                        found.sets[i * kept + found.met[i] % kept, v] = choice.state[v] == IN
                    found.met[i] += 1
                share_costs(items, choice, sack)
                room = aim.target - load
                rate, most = fill(aim.price, choice.state, sack, room, value)
                for _ in range(SHARED_AGAIN):
                    if rate > 0.0 and most * (1 + MARGIN) > best:
                        share_again(items, aim.price, choice, sack, rate)
                        rate, most = fill(aim.price, choice.state, sack, room, value)
                safe = MARGIN * most
                slack = most + safe - best
                promising = slack > 0.0
                if not promising:
                    break
                waiting, forced = decide(items, aim.price, choice, sack, rate, slack + safe)
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
                shut_out(items, chosen[depth], state[depth + 1], outer[depth + 1])
            depth += 1
        found.ended[i] = depth < 0 and not halt[0]
    return steps


@part
def begin(items, before, choice):  # type: ignore[no-untyped-def]
    """All items are open, but for the roots `before`, which are out."""
    choice.state[:] = OPEN
    choice.inner[:] = 0
    for e in range(len(choice.outer)):
        choice.outer[e] = items.outside[e]
    for v in range(len(choice.state)):
        for w in range(choice.need.shape[1]):
            choice.need[v, w] = items.held[v, v, w]
    for v in before:
        shut_out(items, v, choice.state, choice.outer)


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
def shut_out(items, v, state, outer):  # type: ignore[no-untyped-def]
    """Item `v` is out."""
    state[v] = OUT
    for q in range(items.nets.item_ptr[v], items.nets.item_ptr[v + 1]):
        outer[items.nets.item_net[q]] += 1


@part
def join(items, target, choice, queue, waiting):  # type: ignore[no-untyped-def]
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
        for q in range(items.nets.item_ptr[a], items.nets.item_ptr[a + 1]):
            inner[items.nets.item_net[q]] += 1
        for v in range(n):
            if state[v] == OUT:
                continue
            if items.pairs[a, v] >= target:
                if state[v] == IN:
                    return False
                shut_out(items, v, state, outer)
                continue
            for w in range(words):
                need[v, w] |= items.held[a, v, w]
        for x in range(n):
            if state[x] != IN and need[a, x // WORD] >> (x % WORD) & 1:
                if state[x] == OUT:
                    return False
                state[x] = IN
                queue[waiting] = x
                waiting += 1
    return True


@part
def drop_needy(items, choice, gone):  # type: ignore[no-untyped-def]
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
                        shut_out(items, v, state, outer)
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
def weigh(items, price, state, inner):  # type: ignore[no-untyped-def]
    """(load, price) of what is in."""
    load = 0.0
    value = 0.0
    for v in range(len(state)):
        if state[v] == IN:
            load += items.work[v]
            value += price[v]
    for e in range(len(inner)):
        if 0 < inner[e] < items.size[e]:
            load += items.cost[e]
    return load, value


@part
def share_costs(items, choice, sack):  # type: ignore[no-untyped-def]
    """Share the costs of nets among open pins, in proportion to the shares in the last choice.

    Writes what open items add, and which are near what is in.
    """
    state, inner, outer, _ = choice
    ptr, pins = items.nets.net_ptr, items.nets.pins
    for v in range(len(state)):
        sack.adds[v] = items.work[v]
        sack.near[v] = False
    for e in range(len(inner)):
        kind, whole = net_kind(items.cost[e], inner[e], outer[e])
        even = whole / max(items.size[e] - inner[e] - outer[e], 1)
        total = 0.0
        for q in range(ptr[e], ptr[e + 1]):
            v = pins[q]
            if kind != sack.kind[e]:
                sack.share[q] = even  # of pins that are not open, too: they may open again
            if inner[e] > 0:
                sack.near[v] = True
            if state[v] == OPEN:
                total += sack.share[q]
        sack.kind[e] = kind
        for q in range(ptr[e], ptr[e + 1]):
            v = pins[q]
            if state[v] == OPEN:
                if whole != 0.0:
                    few = abs(total) < TINY * abs(whole)
                    sack.share[q] = even if few else sack.share[q] * (whole / total)
                sack.adds[v] += sack.share[q]


@part
def net_kind(cost, inner, outer):  # type: ignore[no-untyped-def]
    """Kind of a net by its decided pins (`OPEN`, `IN`, `OUT`, `PAID`), and sum of its shares."""
    if inner > 0:
        return (PAID, 0.0) if outer > 0 else (IN, -cost)
    return (OUT, cost) if outer > 0 else (OPEN, 0.0)


@part
def share_again(items, price, choice, sack, rate):  # type: ignore[no-untyped-def]
    """Share each cost anew: items that gain most add it, those that would lose most save it.

    The sum of the gains above 0 grows no larger, nor does the most that a set is worth.
    """
    state, inner, outer, _ = choice
    ptr, pins = items.nets.net_ptr, items.nets.pins
    for e in range(len(inner)):
        kind, count = sack.kind[e], items.size[e] - inner[e] - outer[e]
        if count == 0 or kind == PAID:
            continue
        above, below = 0.0, 0.0
        for q in range(ptr[e], ptr[e + 1]):
            v = pins[q]
            if state[v] == OPEN:
                gain = price[v] / rate - sack.adds[v] + sack.share[q]
                above += max(gain, 0.0)
                below += max(-gain, 0.0)
        cost = items.cost[e]
        added = cost if kind == OUT else 0.0 if kind == IN else min(cost, above, below)
        saved = cost if kind == IN else 0.0 if kind == OUT else added
        up, down = min(added, above), min(saved, below)
        rest = (added - up - saved + down) / count
        for q in range(ptr[e], ptr[e + 1]):
            v = pins[q]
            if state[v] == OPEN:
                gain = price[v] / rate - sack.adds[v] + sack.share[q]
                new = rest
                if gain > 0.0 and up > 0.0:
                    new += up * (gain / above)
                elif gain < 0.0 and down > 0.0:
                    new += down * (gain / below)
                sack.adds[v] += new - sack.share[q]
                sack.share[q] = new


@part
def fill(price, state, sack, room, value):  # type: ignore[no-untyped-def]
    """(ratio of the item that no longer fits, the most that a set is worth).

    `room` is how much load there may be besides what is in, which is worth `value`. -inf: there
    is no set.
    """
    ratio, turn = sack.ratio, sack.turn
    for v in range(len(state)):
        ratio[v] = -1.0
        if state[v] == OPEN and sack.adds[v] <= TINY:
            room -= min(sack.adds[v], 0.0)
            value += price[v]
        elif state[v] == OPEN and price[v] > 0.0:
            ratio[v] = price[v] / sack.adds[v]
    for i in range(1, len(turn)):  # little changes from one step to the next
        v, at = turn[i], i
        while at > 0 and ratio[turn[at - 1]] < ratio[v]:
            turn[at] = turn[at - 1]
            at -= 1
        turn[at] = v
    if room <= 0.0:
        return 0.0, -np.inf
    for v in turn:
        if ratio[v] < 0.0:
            break
        if sack.adds[v] > room:
            return ratio[v], value + ratio[v] * room
        value += price[v]
        room -= sack.adds[v]
    return 0.0, value


@part
def decide(items, price, choice, sack, rate, spare):  # type: ignore[no-untyped-def]
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
            shut_out(items, v, state, outer)
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


MOST_RATES = 12
"""Rates that are tried at a node of the tree."""

NEAR = 1.3
"""Ratio of the first two rates at a node."""

RATE_BITS, MOST_SHIFT = 40, 62
"""Bits of a rate, and the largest power of two that it is divided by."""

LIGHTEST, DEAREST = (1, 0), (0, 1)
"""Rates at which loads count alone, exactly, and prices alone."""

ERROR = 2.0**-43
"""Relative error of flows, far more than rounding makes."""


class Carrier(NamedTuple):
    """Items and nets as the devices of one class pay for them.

    Nodes of its network: the items, two for each net of more than two pins, source, sink.
    """

    work: Floats
    """f64[n], whole numbers; inf: unsupported."""
    nets: Hypergraph
    cost: Floats
    """f64[p], of each net."""
    arcs: Residual
    capacity: Floats
    """Without the arcs that depend on prices and rates."""
    gain: Ints
    """i64[n], arcs from the source."""
    loss: Ints
    """i64[n], arcs to the sink."""
    cut: Ints
    """Arcs that carry the cost of a net; one each way for two pins."""
    paid: Floats
    """Cost of each of these arcs."""

    def load(self, some: Bools) -> float:
        """Load of a set."""
        return float(self.work[some].sum() + self.cost[self.nets.paid(some)].sum())


def carrier_of(work: Floats, nets: Hypergraph, cost: Floats) -> Carrier:
    """Lay out the network of a class."""
    n, p, net = len(work), len(cost), nets.net_of_pin
    is_pair = (nets.sizes == 2) & ~nets.always
    pair, other = np.flatnonzero(is_pair), np.flatnonzero(~is_pair)
    left, right = nets.pins[nets.net_ptr[pair]], nets.pins[nets.net_ptr[pair] + 1]
    source = n + 2 * len(other)
    sink = source + 1
    first = np.zeros(p, dtype=np.int64)
    first[other] = n + 2 * np.arange(len(other))
    enters, leaves = ~is_pair[net], ~(is_pair | nets.always)[net]
    parts = (
        (np.full(n, source), np.arange(n), 0.0),
        (np.arange(n), np.full(n, sink), 0.0),
        (first[other], np.where(nets.always[other], sink, first[other] + 1), 0.0),
        (left, right, 0.0),
        (right, left, 0.0),
        (nets.pins[enters], first[net][enters], inf),
        (first[net][leaves] + 1, nets.pins[leaves], inf),
    )
    arcs, capacity, places = lay_out(parts, sink + 1)
    cut, paid = np.concatenate(places[2:5]), cost[np.concatenate([other, pair, pair])]
    return Carrier(work, nets, cost, arcs, capacity, *plain(places[0], places[1], cut, paid))


def rate_of(value: float) -> tuple[int, int]:
    """Round a rate to a fraction of whole numbers below 2^63, the second one a power of two."""
    mantissa, exponent = frexp(value)
    shift = min(max(RATE_BITS - exponent, 0), MOST_SHIFT)
    exponent = min(exponent, MOST_SHIFT)
    return int(mantissa * 2.0 ** (exponent + shift)), 1 << shift


@dataclass
class _Node:
    """A node of the tree."""

    item: int = -1
    """Item to branch on."""
    children: tuple[int, int] = (-1, -1)
    """Nodes in which the item is in, and out; -1: it ends here."""
    rate: tuple[int, int] = (0, 1)
    """Fraction that proves most."""
    most: float = inf
    """No set of this node is worth more."""


class PricedSets:
    """Sets with a load of at most `room` that are worth more than a price, and the tree.

    `price`: f64[n], whole numbers; `stop` is asked at each node.
    """

    def __init__(
        self, carrier: Carrier, price: Floats, room: float, least: int, stop: Callable[[], bool]
    ) -> None:
        self.of, self.price, self.room, self.stop = carrier, price, room, stop
        self.best = float(least)
        """The price above which sets are looked for."""
        self.total = float(price.sum())
        self.found: list[Bools] = []
        """Each worth more than the last."""
        self.nodes = [_Node()]

    def search(self, most: int, enough: int) -> bool:
        """True if all was seen: not where `enough` sets were found, or after `most` nodes."""
        state = np.where(self.of.work <= self.room, OPEN, OUT)
        self.nodes[0].rate = rate_of(float(self.price.sum()) / max(self.room, 1.0))
        waiting: list[tuple[float, int, Ints]] = []
        self._open(0, state, waiting)
        while waiting and -waiting[0][0] >= self.best + 1:
            if len(self.found) >= enough or len(self.nodes) > most or self.stop():
                return False
            _, number, state = heapq.heappop(waiting)
            node = self.nodes[number]
            node.children = len(self.nodes), len(self.nodes) + 1
            for child, value in zip(node.children, (IN, OUT), strict=True):
                self.nodes.append(_Node(rate=node.rate))
                fixed = state.copy()
                fixed[node.item] = value
                self._open(child, fixed, waiting)
        return True

    def rows(self, names: Ints) -> list[list[int]]:
        """The tree from its root on: [name of the item], then the trees of it in and out, or the
        two parts of a rate where that is enough."""
        found, waiting = [], [0]
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.children[0] < 0:
                found.append([*node.rate])
            else:
                found.append([int(names[node.item])])
                waiting += node.children[::-1]
        return found

    def _open(self, number: int, state: Ints, waiting: list[tuple[float, int, Ints]]) -> None:
        """Bound a node, and let it wait if it may hold something better."""
        node = self.nodes[number]
        light, heavy = self._dual(node, state)
        if node.most < self.best + 1:
            return
        choice = state == OPEN
        if light is not None and heavy is not None and (choice & (light != heavy)).any():
            choice &= light != heavy
        items = np.flatnonzero(choice)
        each = node.rate[0] / max(node.rate[1], 1)
        node.item = int(items[(each * self.of.work[items] + self.price[items]).argmax()])
        heapq.heappush(waiting, (-node.most, number, state))

    def _dual(self, node: _Node, state: Ints) -> tuple[Bools | None, Bools | None]:
        """Lower the bound of a node over rates; a set that fits, and one that does not."""
        light = heavy = None
        low = high = (0.0, 0.0)
        rate, tried = node.rate, None
        for number in range(MOST_RATES):
            if rate == tried:
                break
            (some, load, worth), tried = self._cut(rate, state), rate
            most = self._most(rate, load, worth)
            if most < node.most:
                node.most, node.rate = most, rate
            if load > self.room:
                heavy, high = some, (load, worth)
            else:
                if worth > self.best:
                    self.best = worth
                    self.found.append(some)
                light, low = some, (load, worth)
            if node.most < self.best + 1:
                break
            if light is not None and heavy is not None:
                rate = rate_of(max(high[1] - low[1], 0.0) / (high[0] - low[0]))
            elif number == 0:  # mostly that of the node above, and not far
                rate = rate_of(rate[0] / rate[1] * (NEAR if light is None else 1 / NEAR))
            else:
                rate = LIGHTEST if light is None else DEAREST
        return light, heavy

    def _most(self, rate: tuple[int, int], load: float, worth: float) -> float:
        """Bound of the price of a set that fits, from the set that is best at a rate."""
        if rate == LIGHTEST:  # in whole numbers alone
            return -inf if load > self.room else inf
        each = rate[0] / rate[1]
        error = ERROR * (self.total + each * max(load, self.room))
        return worth - each * (load - self.room) + error

    def _cut(self, rate: tuple[int, int], state: Ints) -> tuple[Bools, float, float]:
        """A set with the least load times `rate`, less its price; its load, and its price."""
        wanted, each = (0.0, 1.0) if rate == LIGHTEST else (1.0, rate[0] / rate[1])
        some, load, worth = cheapest(self.of, self.price, state, each, wanted)
        return some, float(load), float(worth)


@kernel
def cheapest(of, price, state, each, wanted):  # type: ignore[no-untyped-def]
    """The set with the least load times `each` less prices times `wanted`, its load and price."""
    arcs, capacity, n = of.arcs, of.capacity.copy(), len(of.work)
    for v in range(n):
        gain, loss = 0.0, np.inf
        if state[v] != OUT:
            gain = np.inf if state[v] == IN else wanted * price[v]
            loss = each * of.work[v]
        common = min(gain, loss)
        capacity[of.gain[v]] = gain - common
        capacity[of.loss[v]] = loss - common
    for i in range(len(of.cut)):
        capacity[of.cut[i]] = each * of.paid[i]
    source = len(arcs.ptr) - 3
    max_flow(arcs, capacity, np.full(1, source, np.int64), np.inf)
    some = reached(arcs, capacity, source)[:n]
    load = worth = 0.0
    for v in range(n):
        if some[v]:
            load += of.work[v]
            worth += price[v]
    ptr, pins, always = of.nets.net_ptr, of.nets.pins, of.nets.always
    for e in range(len(of.cost)):
        inside = 0
        for q in range(ptr[e], ptr[e + 1]):
            inside += some[pins[q]]
        if inside > 0 and (always[e] or inside < ptr[e + 1] - ptr[e]):
            load += of.cost[e]
    return some, load, worth
