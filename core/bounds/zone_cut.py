"""A bound from the heaviest path and from minimum cuts: what stages pay where they end.

As for `chain` (`dnnp.core.bounds.chain`) every ideal lies in a zone of a path, and stages between
zones b < i are judged by the furthest that those before them may get. Here a stage also pays at
its ends for what depends on its ideals. For a span s a net is *near* zone i if none of its pins is
in an ideal of zone i - s, and all of them are in those of zone i + s. For a stage from an ideal J
in zone b to an ideal I in zone i, i - b >= s,

* a net that is near b and has pins on both sides of J is paid: those not in J are in I;
* a net that is near i and has pins on both sides of I is paid: none of its pins is in J, so that it
  is not among the former;
* of the others those are paid that any stage between b and i pays.

With x(I) the cost of the nets near i with pins on both sides of I, the stage has a load of at least

    work(I) + x(I) - (work(J) - x(J)) + others(b, i).

So two numbers say how far stages get in a zone: the most work(I), and the most work(I) - x(I).
Which of them go together is bounded by rates p <= q: the most p work(I) - q x(I) of all ideals of a
zone is a minimum cut. If it is at most v, and work(I) + x(I) <= r,

    work(I)        <= (v + q r) / (p + q)
    work(I) - x(I) <= (2 v + (q - p) r) / (p + q)
    work(I) - x(I) <= (v + (q - p) w) / q       for any w >= work(I).

A fork costs as much amid its branches, and nothing once all are in: no line between the two says
so. So the ideals of a zone are parted by dear nets near it that an item writes which is in all of
them: either all pins are in, or the net is paid. Rates and least work go by these cases.

Items that may follow another into its stage without any load growing do so before all this
(`dnnp.core.split.ideals.contract`). Loads are whole numbers.

The most that ideals of a zone are worth is p times the work that may be in them, less the least
p * work(rest) + q * x(I): a cut between a source, what is in, and a sink, what is out.

    source -> v (p * its work)    v -> u (unlimited) if u precedes v    for items that may be either
    w -> e (q times its cost)     e -> r (unlimited)    for a net e that w writes and r reads

Zones of like layers look the same, and are solved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnp.core.bounds.chain import heaviest_path, never_near, surely_paid, zones_of
from dnnp.core.bounds.lower_bound import (
    LIMIT,
    SOLVED,
    BoundTask,
    LowerBound,
    Whole,
    one_class,
    refused,
)
from dnnp.core.cost.items import Items, LinearizedItems, ordered_items
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import Floats, Ints, csr, csr_rows, distinct, offsets, totals
from dnnp.core.model.hypergraph import Hypergraph, hypergraph
from dnnp.core.model.plan import CostOptions, without_memory
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.cuts import lay_out, max_flow
from dnnp.core.split.ideals.contract import contract_near

MOST_ITEMS = 100_000

MOST_ZONES = 4_000
"""Items of the path that are looked at."""

MOST_PAIRS = 8_000_000
"""Pairs of zones between which a stage may be; 16 bytes each."""

RATES = ((0, 1), (1, 64), (1, 32), (1, 8), (1, 2), (1, 1))
"""Rates p / q that are tried."""

MOST_PARTING = 2
"""Nets by which the ideals of a zone are parted."""

HALFWAY = 4
"""Halvings of an interval after which half of the work on it is said to be done."""

SPANS = (1 / 2, 2 / 3)
"""Spans that are tried, of the zones that a stage has in the mean."""

PRECISION = 1e-5
"""Relative width of what is left between a target that is refuted and one that is not, where there
is no certificate."""


Parting = list[tuple[int, int]]
"""Zones, and the nets by which their ideals are parted."""


class ZoneTable(NamedTuple):
    """Judge of a target; m zones and one more, from 0."""

    least: Floats
    most: Floats
    """f64[m + 1], work of the ideals of each zone."""
    paid: Floats
    """f64[m + 1, width], least transfers of a stage between two zones b and i, by b and i - b."""
    others: Floats
    """The same for nets that are near neither of them."""
    rates: Floats
    """f64[R, 2]: p, q."""
    case: Ints
    """i64[m + 2], the first case of each zone."""
    held: Floats
    """f64[c], least work of the ideals of each case."""
    worth: Floats
    """f64[c, R], the most p * work - q * x of them."""

    def merged(self) -> ZoneTable:
        """The same with one case for each zone."""
        first = self.case[:-1]
        held, worth = np.minimum.reduceat(self.held, first), np.maximum.reduceat(self.worth, first)
        return self._replace(case=np.arange(len(self.case)), held=held, worth=worth)


def zone_cut_bound(
    problem: SplitProblem, *, above: float = 0.0, below: float = np.inf, run: SearchContext = PLAIN
) -> float:
    """Lower bound of the largest load of any ordered split; 0 where it is no use.

    Looks only for bounds `above` what is known, and not beyond `below`, the value of a split.
    """
    search = _search(problem, BoundTask("ordered", value=below, floor=above), PRECISION, run)
    return 0.0 if isinstance(search, LowerBound) else search.proven * search.whole.quantum


def zone_cut_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound with a certificate; 0 if it is not above the floor."""
    search = _search(problem, known, 0.0, run)
    if isinstance(search, LowerBound):
        return search
    if not search.proven:
        return LowerBound(0.0, LIMIT if run.stop() else SOLVED)
    whole, packed = search.whole, search.packed
    names = whole.names[whole.items.order]
    rates, parting = search.needed()
    proof: dict[str, object] = {
        "joined": [[int(names[x]), int(names[y])] for x, y in search.steps],
        "path": [int(names[packed.root[v]]) for v in search.path],
        "span": search.span,
        "rates": [list(RATES[t]) for t in rates],
    }
    if parting:
        proof["parted"] = [[zone, int(whole.tensors[packed.net[e]])] for zone, e in parting]
    return whole.claim("zone-cut", search.proven, proof, LIMIT if run.stop() else SOLVED)


def _search(
    problem: SplitProblem, known: BoundTask, precision: float, run: SearchContext
) -> _Search | LowerBound:
    """Raise the target above the floor; a claim where that is refused."""
    if known.validity != "ordered" or problem.graph.backward.any():
        return refused("only for ordered splits without a backward pass")
    whole = one_class(problem, known.validity, most_items=MOST_ITEMS)
    if isinstance(whole, LowerBound):
        return whole
    offered = (d for d in problem.devices if d.count > 0)
    line = problem.with_devices(*offered).with_options(without_memory(problem.options)).line()
    work = whole.work[0, whole.items.order]
    packed, steps = contracted_items(line, work, whole.cost[0], problem.options)
    search = _Search(whole, packed, steps)
    search.raise_to(known.floor / whole.quantum, known.value / whole.quantum, precision, run)
    return search


class _Search:
    """The largest target that is refuted, over spans."""

    def __init__(self, whole: Whole, packed: ContractedItems, steps: list[tuple[int, int]]) -> None:
        self.whole, self.packed, self.steps = whole, packed, steps
        self.proven, self.span = 0, 1
        self.table: ZoneTable | None = None
        self.parting: Parting = []
        """Nets that part zones for the best span."""
        path = heaviest_path(packed.items, packed.work)
        self.path = path[:: -(-len(path) // MOST_ZONES)]
        self.after, self.until = zones_of(packed.items, self.path)

    def raise_to(self, floor: float, value: float, precision: float, run: SearchContext) -> None:
        """Try all spans, up to a value; leaves what is proven above the floor, and by which."""
        total = float(self.packed.work.sum())
        known = int(floor)
        most = int(min(value, total + float(self.packed.cost.sum()) + 1))
        mean = len(self.path) / self.whole.stages
        found: set[int] = set()
        for number, part in enumerate(SPANS):
            run.report_progress(share=number / len(SPANS))
            span = max(1, round(part * mean))
            if span in found or run.stop() or known >= most * (1 - precision):
                continue
            found.add(span)
            table, parting = self._zone_table(span, float(most))
            if table is None:
                return
            if self._feasible(table, span, known):
                continue
            upper, turn = most, 0
            near = most - max(int(precision * most / 10), 1)  # it often is all there is to prove
            if near > known and not self._feasible(table, span, near):
                known = near
            enough = most * (1 - run.wide_gap)
            while upper - known > max(precision * upper, 1) and known < enough and not run.stop():
                middle, turn = (known + upper) // 2, turn + 1
                run.report_progress(share=(number + turn / (turn + HALFWAY)) / len(SPANS))
                if self._feasible(table, span, middle):
                    upper = middle
                else:
                    known = middle
            known, self.proven = known + 1, known + 1
            self.span, self.table, self.parting = span, table, parting

    def needed(self) -> tuple[list[int], Parting]:
        """Rates that suffice, and nets that part zones: each takes time to check."""
        kept, table, parting = list(range(len(RATES))), self.table, self.parting
        if table is None:
            return kept, parting
        if not self._feasible(merged := table.merged(), self.span, self.proven - 1):
            table, parting = merged, []
        for t in range(1, len(RATES)):
            fewer = [other for other in kept if other != t]
            rates, worth = plain(table.rates[fewer], table.worth[:, fewer])
            rest = table._replace(rates=rates, worth=worth)
            if not self._feasible(rest, self.span, self.proven - 1):
                kept = fewer
        return kept, parting

    def _feasible(self, table: ZoneTable, span: int, target: int) -> bool:
        return bool(gets_through(*table, float(target), self.whole.stages, span))

    def _zone_table(self, span: int, target: float) -> tuple[ZoneTable | None, Parting]:
        """Compute what zones hold, pay and are worth, and what parts them; None: it is too much."""
        packed, after, until, m = self.packed, self.after, self.until, len(self.path)
        first, last = near_zones(packed, after, until, span)
        nets, cost = packed.nets, packed.cost
        first, last, after, until = plain(first, last, after, until)
        works = [np.cumsum(totals(ends, packed.work, m + 2))[: m + 1] for ends in (until, after)]
        # No stage goes on to where the least work is out of reach.
        further = np.searchsorted(works[0], works[1] + target, side="right")
        width = int((further - np.arange(m + 1)).max()) + 1
        if (m + 1) * width > MOST_PAIRS:
            return None, []
        paid, others = np.zeros((m + 1, width)), np.zeros((m + 1, width))
        never, at_no = never_near(len(cost))
        surely_paid(nets, cost, after, until, never, at_no, paid)
        surely_paid(nets, cost, after, until, first, last, others)
        cases = most_of_zones(packed, after, until, first, last, m, RATES)
        if cases is None:
            return None, []
        rates = np.array(RATES, dtype=np.float64)
        *tables, parting = cases
        return ZoneTable(*plain(*works, paid, others, rates, *tables)), parting


@kernel
def gets_through(least, most, paid, others, rates, case, held, worth, target, stages, span):  # type: ignore[no-untyped-def]
    """True if so many stages of load `target` may get to the end; see the module.

    `work` and `left` are the most work(I) and work(I) - x(I) of each zone; only zones in which one
    of them grew in the last round are gone on from.
    """
    m = len(least) - 1
    work, left = np.full(m + 1, -np.inf), np.full(m + 1, -np.inf)
    work[0], left[0] = 0.0, 0.0
    grown = np.zeros(m + 1, np.bool_)
    grown[0] = True
    for _ in range(stages):
        new_work, new_left = work.copy(), left.copy()
        again = np.zeros(m + 1, np.bool_)
        for b in range(m + 1):
            if not grown[b]:
                continue
            far = work[b] + target
            for i in range(b, m + 1):
                if least[i] > far:
                    break
                within = min(most[i], far)
                if i > b:
                    within = min(within, far - paid[b, i - b])
                reach = np.inf
                if i - b >= span:
                    reach = left[b] + target - others[b, i - b]
                for c in range(case[i], case[i + 1]):
                    w = within
                    if i - b >= span:
                        for t in range(len(rates)):
                            p, q = rates[t, 0], rates[t, 1]
                            w = min(w, np.floor((worth[c, t] + q * reach) / (p + q)))
                    if w < held[c]:
                        continue
                    x = w
                    for t in range(len(rates)):
                        p, q = rates[t, 0], rates[t, 1]
                        x = min(x, np.floor((worth[c, t] + (q - p) * w) / q))
                        if i - b >= span:
                            x = min(x, np.floor((2.0 * worth[c, t] + (q - p) * reach) / (p + q)))
                    if w > new_work[i]:
                        new_work[i], again[i] = w, True
                    if x > new_left[i]:
                        new_left[i], again[i] = x, True
        work, left, grown = new_work, new_left, again
        if work[m] >= most[m]:
            return True
    return False


class ContractedItems(NamedTuple):
    """Items after contraction, n in a topological order, and the nets between them."""

    items: Items
    """Their precedence; `order` is 0..n - 1."""
    root: Ints
    """i64[n], the position in the line of what each item is named by."""
    work: Floats
    """f64[n], whole numbers, as costs are."""
    nets: Hypergraph
    """The first pin of a net writes it, if any does."""
    net: Ints
    """i64[p], number of each net in the linearised items."""
    cost: Floats


def contracted_items(
    line: LinearizedItems, work: Floats, cost: Floats, options: CostOptions
) -> tuple[ContractedItems, list[tuple[int, int]]]:
    """Contract what may be, and lay out what is left; and the steps, as positions of the line.

    `work` f64[n] and `cost` f64[p] stand in for those of the line.
    """
    exact = replace(line, work=work[None, :], cost=cost[None, :])
    into, steps = contract_near(exact, options)
    kept, vertex = np.unique(into, return_inverse=True)
    n = len(kept)
    items = ordered_items(np.arange(n), n, vertex[line.tail], vertex[line.head])
    order = items.order
    place = np.argsort(order)
    where = place[vertex]
    pins = distinct(line.nets.net_of_pin * n + where[line.nets.pins])
    size = np.bincount(pins // n, minlength=len(cost))
    nets = np.flatnonzero(((size > 1) | line.nets.always) & (cost > 0))
    source = line.nets.source[nets]
    packed = ContractedItems(
        Items(np.arange(n), n, place[items.tail], place[items.head]),
        kept[order],
        totals(where, work, n),
        hypergraph(
            n,
            offsets(size[nets]),
            pins[np.isin(pins // n, nets)] % n,
            np.where(source >= 0, where[source], -1),
            line.nets.always[nets],
        ),
        nets,
        cost[nets],
    )
    return packed, steps


def near_zones(packed: ContractedItems, after: Ints, until: Ints, span: int) -> tuple[Ints, Ints]:
    """Zones first..last - 1 that each net is near to; the same where it is near to none."""
    begun, ended = _zones_of_nets(packed, after, until)
    first, last = np.maximum(ended - span, 0), begun + span
    return first, np.where(packed.nets.source >= 0, np.maximum(last, first), first)


def _zones_of_nets(packed: ContractedItems, after: Ints, until: Ints) -> tuple[Ints, Ints]:
    """First zone with a pin of each net in some ideal; and the first with all pins in all."""
    starts, pins = packed.nets.net_ptr[:-1], packed.nets.pins
    begun = np.minimum.reduceat(after[pins], starts)
    return begun, np.maximum.reduceat(until[pins], starts)


MOST_ENTRIES = 5_000_000
"""Items, edges and nets of all zones together."""

IN, OUT = -1, -2
"""Pins surely in the ideals of a zone, and surely not."""


class _Zone(NamedTuple):
    """Items that may be in an ideal of a zone or not, and the nets near it that it may cut."""

    work: Floats
    tail: Ints
    head: Ints
    """Precedence among these items."""
    cost: Floats
    net: Ints
    pin: Ints
    """Net and item of each pin, or `IN`, `OUT`; the first one of each net writes it."""

    def key(self) -> tuple[bytes, ...]:
        """The same for zones that look the same."""
        return tuple(a.tobytes() for a in self)


def most_of_zones(
    packed: ContractedItems,
    after: Ints,
    until: Ints,
    first: Ints,
    last: Ints,
    m: int,
    rates: Sequence[tuple[int, int]],
) -> tuple[Ints, Floats, Floats, Parting] | None:
    """Part the ideals of each zone; `case`, `held` and `worth` of the table, and the nets.

    Nets are near the zones first..last - 1, i64[p] each. None: the zones hold too much together.
    """
    begun, ended = _zones_of_nets(packed, after, until)
    tail, head = packed.items.tail, packed.items.head
    tables = []
    for start, end in (
        (after, until),
        (after[head], until[tail]),
        (np.maximum(first, begun), np.minimum(last, ended)),
    ):
        table = _by_zone(start, np.minimum(end, m + 1), m)
        if table is None:
            return None
        tables.append(table)
    sure = np.cumsum(totals(until, packed.work, m + 2))[: m + 1]
    case, held, worth = [0], [], []
    parting: Parting = []
    solved: dict[tuple[bytes, ...], tuple[Ints, Sequence[tuple[float, Floats]]]] = {}
    for i in range(m + 1):
        items, edges, nets = (idx[ptr[i] : ptr[i + 1]] for ptr, idx in tables)
        ptr, pins = csr_rows(packed.nets.net_ptr, packed.nets.pins, nets)
        number = np.searchsorted(items, pins)
        pin = np.where(until[pins] <= i, IN, np.where(after[pins] > i, OUT, number))
        before, behind = np.searchsorted(items, tail[edges]), np.searchsorted(items, head[edges])
        # What no net has to do with is best in, and nets without unsure pins are surely cut:
        # zones often look the same without both.
        tied = np.zeros(len(items), dtype=np.bool_)
        tied[pin[pin >= 0]] = True
        while (more := tied[before] != tied[behind]).any():
            tied[before[more]] = tied[behind[more]] = True
        place = np.append(np.cumsum(tied) - 1, [OUT, IN])
        inner = tied[before]
        unsure = np.logical_or.reduceat(pin >= 0, ptr[:-1])
        surely, nets = packed.cost[nets[~unsure]].sum(), nets[unsure]
        size = np.diff(ptr)
        zone = _Zone(
            packed.work[items[tied]],
            place[before[inner]],
            place[behind[inner]],
            packed.cost[nets],
            np.repeat(np.arange(len(nets)), size[unsure]),
            place[pin[np.repeat(unsure, size)]],
        )
        key = zone.key()
        if key not in solved:
            solved[key] = _solved(zone, rates)
        parted, cases = solved[key]
        parting += [(i, int(nets[e])) for e in parted]
        best = sure[i] + packed.work[items[~tied]].sum()
        held += [sure[i] + inside for inside, _ in cases]
        worth += [most + [p * best - q * surely for p, q in rates] for _, most in cases]
        case.append(len(held))
    return np.array(case), np.array(held), np.array(worth), parting


def _by_zone(start: Ints, end: Ints, m: int) -> tuple[Ints, Ints] | None:
    """List what stands in zones start..end - 1, by zone 0..m, ascending (CSR)."""
    sizes = np.maximum(end - start, 0)
    if sizes.sum() > MOST_ENTRIES:
        return None
    what = np.repeat(np.arange(len(sizes)), sizes)
    zone = start[what] + np.arange(len(what)) - np.repeat(offsets(sizes)[:-1], sizes)
    return csr(zone, what, m + 1)


def _solved(
    zone: _Zone, rates: Sequence[tuple[int, int]]
) -> tuple[Ints, Sequence[tuple[float, Floats]]]:
    """Nets that part the ideals of a zone; of each case the least work, and f64[R]: the most
    p * work - q * x, both without what is surely in."""
    n, p = len(zone.work), len(zone.cost)
    source, sink = n + p, n + p + 1
    node = np.where(zone.pin == IN, source, np.where(zone.pin == OUT, sink, zone.pin))
    writes = np.ones(len(zone.net), dtype=np.bool_)
    writes[1:] = zone.net[1:] != zone.net[:-1]
    reads = ~writes & (node != source)
    parts = (
        (np.full(n, source), np.arange(n), zone.work),
        (node[writes], n + zone.net[writes], zone.cost),
        (n + zone.net[reads], node[reads], np.inf),
        (zone.head, zone.tail, np.inf),
    )
    arcs, capacity, places = lay_out(parts, sink + 1)
    unsure, net = zone.pin[zone.pin >= 0], zone.net[zone.pin >= 0]
    either = np.bincount(net, minlength=p)
    never = np.bincount(zone.net[zone.pin == OUT], minlength=p)
    parted = np.flatnonzero((zone.pin[writes] == IN) & (either > 0) & (never == 0))
    parted = parted[np.lexsort((-either[parted], -zone.cost[parted]))][:MOST_PARTING]
    parted.sort()
    priced = []
    for little, much in rates:
        factor = np.full(len(capacity), float(much))
        factor[places[0]] = little
        priced.append(capacity * factor)
    cases = []
    for bits in product((False, True), repeat=len(parted)):
        whole, left = np.zeros(p, dtype=np.bool_), np.zeros(p, dtype=np.bool_)
        inside, paid = np.zeros(n, dtype=np.bool_), parted[[not bit for bit in bits]]
        whole[parted] = bits
        inside[unsure[whole[net]]] = True
        while (more := zone.tail[inside[zone.head] & ~inside[zone.tail]]).size:
            inside[more] = True
        left[net[~inside[unsure]]] = True
        if not left[paid].all():
            continue  # no ideal is like that
        work, cost, found = float(zone.work.sum()), float(zone.cost[paid].sum()), []
        for (little, much), scaled in zip(rates, priced, strict=True):
            room = scaled.copy()
            room[places[0][inside]], room[places[1][paid]] = np.inf, 0.0
            flow = max_flow(arcs, room, np.array([source]), np.inf)
            found.append(little * work - much * cost - float(flow))
        cases.append((float(zone.work[inside].sum()), np.array(found)))
    return parted, cases
