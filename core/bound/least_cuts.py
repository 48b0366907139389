"""The most that ideals of each zone are worth: minimum cuts, one for each zone and rate.

For rates p <= q the most p * work(I) - q * x(I) over the ideals I of a zone is p times the work
that may be in them, less the least p * work(rest) + q * x(I): a cut between a source, what is in,
and a sink, what is out.

    source -> v (p * its work)    v -> u (unlimited) if u precedes v    for items that may be either
    w -> e (q times its cost)     e -> r (unlimited)    for a net e that w writes and r reads

Zones of like layers look the same, and are solved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.bound.strip import Strip
from dnnp.core.cost.kernel import plain
from dnnp.core.dp.max_flow import max_flow
from dnnp.core.model.graph import Floats, Ints, csr, csr_rows, offsets, totals

MOST_ENTRIES = 5_000_000
"""Items, edges and nets of all zones together."""

IN, OUT = -1, -2
"""What is surely in the ideals of a zone, and surely not."""


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
    strip: Strip,
    after: Ints,
    until: Ints,
    first: Ints,
    last: Ints,
    m: int,
    rates: Sequence[tuple[int, int]],
) -> Floats | None:
    """f64[m + 1, R]: the most p * work(I) - q * x(I) over the ideals of each zone.

    Nets are near the zones first..last - 1, i64[p] each. None: the zones hold too much together.
    """
    begun = np.minimum.reduceat(after[strip.pins], strip.ptr[:-1]) if len(strip.cost) else first
    ended = np.maximum.reduceat(until[strip.pins], strip.ptr[:-1]) if len(strip.cost) else last
    tail, head = strip.items.tail, strip.items.head
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
    sure = np.cumsum(totals(until, strip.work, m + 2))[: m + 1]
    worth = np.empty((m + 1, len(rates)))
    solved: dict[tuple[bytes, ...], Floats] = {}
    for i in range(m + 1):
        items, edges, nets = (idx[ptr[i] : ptr[i + 1]] for ptr, idx in tables)
        ptr, pins = csr_rows(strip.ptr, strip.pins, nets)
        number = np.searchsorted(items, pins)
        pin = np.where(until[pins] <= i, IN, np.where(after[pins] > i, OUT, number))
        zone = _Zone(
            strip.work[items],
            np.searchsorted(items, tail[edges]),
            np.searchsorted(items, head[edges]),
            strip.cost[nets],
            np.repeat(np.arange(len(nets)), np.diff(ptr)),
            pin,
        )
        key = zone.key()
        if key not in solved:
            solved[key] = _solved(zone, rates)
        worth[i] = solved[key] + [p * sure[i] for p, _ in rates]
    return worth


def _by_zone(start: Ints, end: Ints, m: int) -> tuple[Ints, Ints] | None:
    """What stands in zones start..end - 1, by zone 0..m, ascending (CSR)."""
    sizes = np.maximum(end - start, 0)
    if sizes.sum() > MOST_ENTRIES:
        return None
    what = np.repeat(np.arange(len(sizes)), sizes)
    zone = start[what] + np.arange(len(what)) - np.repeat(offsets(sizes)[:-1], sizes)
    return csr(zone, what, m + 1)


def _solved(zone: _Zone, rates: Sequence[tuple[int, int]]) -> Floats:
    """f64[R]: the same without what is surely in."""
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
    tail = np.concatenate([part[0] for part in parts])
    head = np.concatenate([part[1] for part in parts])
    capacity = np.concatenate([np.broadcast_to(part[2], len(part[0])) for part in parts])
    arcs = len(tail)
    ptr, order = csr(np.concatenate([tail, head]), np.arange(2 * arcs), sink + 1)
    where = np.empty(2 * arcs, dtype=np.int64)
    where[order] = np.arange(2 * arcs)
    twin = where[np.where(order < arcs, order + arcs, order - arcs)]
    heads = np.concatenate([head, tail])[order]
    found = []
    for little, much in rates:
        factor = np.concatenate([np.full(n, little), np.full(arcs - n, much)]).astype(np.float64)
        # Unlimited ones stay so; nothing is worth nothing.
        scaled = np.where(np.isinf(capacity), np.inf, capacity * factor)
        residual = np.concatenate([scaled, np.zeros(arcs)])[order]
        starts, ends, twins, residual = plain(ptr, heads, twin, residual)
        flow = max_flow(starts, ends, twins, residual, np.array([source]), np.inf)
        found.append(little * float(zone.work.sum()) - float(flow))
    return np.array(found)
