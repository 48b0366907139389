"""Kernels for one cluster's segment: its blocks priced at its boundary, and the fewest devices.

In a cluster that holds the segment B - A less what CPUs hold there, N for short, a stage pays
more than its cheapest load (`dnnp.core.split.clusters.edges`) for the tensors that cross the
boundary of N: for those it makes, and for those from outside that it reads. What crosses the end B
is priced once for all segments that end there, what crosses the start A or touches CPUs for each. A
block runs on the fewest devices, `copies_of`, that keep it within the target. `cover` finds a
shortest path over these blocks, with the CPU blocks inside the segment chosen first.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import load_of, share_of
from dnnp.core.kernels.kernel import callee, kernel, part, scratch
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.clusters.edges import Arcs

NONE = 1 << 30
"""More devices than there can be."""

NOTHING = (0.0, 0.0, 0.0, 0.0)
"""No transfers."""

BUCKETS = 16
"""Numbers of devices by which blocks are told apart; the last one stands for all larger ones."""


class Scratch(NamedTuple):
    """Scratch arrays; `need` and `came` hold the last segment's path.

    Widths are numbers of CPUs, from 0 on.
    """

    ahead: Annotated[Ints, "i64[ideals, width]"]
    """Fewest devices from an ideal to the end of the segment, by CPUs used."""
    listed: Annotated[Ints, "i64[ideals]"]
    """The ideals that have one, descending."""
    edges: Annotated[Ints, "unset i64[edges]"]
    """The blocks between them, by falling head."""
    priced: Annotated[Floats, "unset f64[edges, 4]"]
    """In and out of each pass with the transfers over the end of the segment."""
    taken: Annotated[Ints, "unset i64[edges]"]
    """Devices that they take then."""
    copies: Annotated[Ints, "unset i64[edges]"]
    """By block: the fewest devices that keep its cheapest load within the target."""
    cpu_copies: Annotated[Ints, "unset i64[cpu_edges]"]
    """The same in CPUs."""
    sizes: Annotated[Ints, "i64[2]"]
    """Number of entries of `listed` and of `edges`."""
    need: Annotated[Ints, "i64[ideals]"]
    """Fewest devices from the start of the segment."""
    came: Annotated[Ints, "i64[ideals]"]
    """The last block of that path; -1 at its start, -2 - e after CPU block e."""
    spent: Annotated[Ints, "i64[ideals]"]
    """The devices of that block."""
    inner: Annotated[Ints, "i64[width]"]
    """CPU blocks inside the segment."""
    screened: Annotated[Ints, "unset i64[edges]"]
    """By place in `edges`: `taken` if CPUs took the inner link, and with the transfers over the
    start; NONE: above the target."""
    front: Annotated[Ints, "i64[ideals]"]
    """`need` of segments without CPUs if they did."""
    behind: Annotated[Ints, "i64[ideals, width]"]
    """`ahead` if they did, and with the transfers over the start too."""
    reach: Annotated[Ints, "i64[ideals, width]"]
    """Fewest devices from any start of a segment to an ideal, by CPUs so far."""
    order: Annotated[Ints, "unset i64[edges]"]
    """The blocks within the target by head, then by `reach` of their tails."""
    bucket: Annotated[Ints, "i64[ideals, buckets]"]
    """First of those into an ideal by that number of devices."""
    before: Annotated[Ints, "i64[ideals, width]"]
    """Fewest accelerators for the ideal itself; `fewest` from the other side."""
    tally: Annotated[Ints, "i64[2, ideals]"]
    """Time stamp and number of an ideal's pins of the nets over the end."""
    seen: Annotated[Ints, "i64[2, nets]"]
    """Time stamps of the last listing of a net for the start and for the end of a segment."""
    made: Annotated[Ints, "i64[nets]"]
    """Sources of the listed nets that the segment makes."""
    made_cost: Annotated[Floats, "f64[2, nets]"]
    """Their costs by pass."""
    read: Annotated[Ints, "i64[nets]"]
    """The listed nets that it reads."""
    read_cost: Annotated[Floats, "f64[2, nets]"]
    counts: Annotated[Ints, "i64[4]"]
    """Nets made, nets read, starts so far, ends so far."""


def make_scratch(arcs: Arcs, cpus: int) -> Scratch:
    """Scratch arrays with nothing listed."""
    sizes = {
        "ideals": len(arcs.bits), "nets": len(arcs.pins), "edges": len(arcs.head),
        "cpu_edges": len(arcs.cpu_head), "width": cpus + 1, "buckets": BUCKETS + 1,
    }  # fmt: skip
    made = scratch(Scratch, sizes)
    for array in (made.ahead, made.need, made.front, made.behind):
        array[:] = NONE
    return made


@part
def has(bits, ideal, item):  # type: ignore[no-untyped-def]
    return ((bits[ideal, item >> 6] >> np.uint64(item & 63)) & np.uint64(1)) != 0


@part
def subset(a, x, y):  # type: ignore[no-untyped-def]
    """True if ideal x is inside ideal y."""
    for w in range(a.high_word[x] + 1):  # noqa: SIM110  (numba has no `all`)
        if a.bits[x, w] & ~a.bits[y, w]:
            return False
    return True


@part
def extra(a, s, x, y):  # type: ignore[no-untyped-def]
    """Sum up what a block pays for the listed nets: (in, out) of each pass."""
    bits, pins = a.bits, a.pins
    arriving, leaving, late_in, late_out = 0.0, 0.0, 0.0, 0.0
    for i in range(s.counts[0]):
        if has(bits, y, s.made[i]) and not has(bits, x, s.made[i]):
            leaving += s.made_cost[0, i]
            late_out += s.made_cost[1, i]
    for i in range(s.counts[1]):
        for w in range(a.low_word[x], a.high_word[y] + 1):
            if pins[s.read[i], w] & bits[y, w] & ~bits[x, w]:
                arriving += s.read_cost[0, i]
                late_in += s.read_cost[1, i]
                break
    return arriving, leaving, late_in, late_out


@part
def everything(s):  # type: ignore[no-untyped-def]
    """The costs of all listed nets: (in, out) of each pass."""
    arriving, leaving, late_in, late_out = 0.0, 0.0, 0.0, 0.0
    for i in range(s.counts[0]):
        leaving += s.made_cost[0, i]
        late_out += s.made_cost[1, i]
    for i in range(s.counts[1]):
        arriving += s.read_cost[0, i]
        late_in += s.read_cost[1, i]
    return arriving, leaving, late_in, late_out


@callee
def _list_net(p, a, s, net, makes):  # type: ignore[no-untyped-def]
    """Note a net that the segment makes or reads over its boundary."""
    if makes:
        if not p.nets.always[net]:
            s.made[s.counts[0]] = p.nets.source[net]
            for q in range(len(a.over)):
                s.made_cost[q, s.counts[0]] = a.over[q, net]
            s.counts[0] += 1
    else:
        s.read[s.counts[1]] = net
        for q in range(len(a.over)):
            s.read_cost[q, s.counts[1]] = a.over[q, net]
        s.counts[1] += 1


@callee
def list_end(p, a, end, s):  # type: ignore[no-untyped-def]
    """List the nets between what comes before an ideal's end and what comes after."""
    s.counts[0], s.counts[1] = 0, 0
    s.counts[3] += 1
    if a.over.shape[1] == 0:
        return
    for i in range(a.cut_ptr[end], a.cut_ptr[end + 1]):
        net = a.cut_net[i]
        s.seen[1, net] = s.counts[3]
        if p.nets.source[net] >= 0:
            _list_net(p, a, s, net, has(a.bits, end, p.nets.source[net]))


@callee
def list_start(p, a, start, end, cpus, s):  # type: ignore[no-untyped-def]
    """List the other nets on the boundary of a segment: over its start, and with its CPUs."""
    s.counts[0], s.counts[1] = 0, 0
    s.counts[2] += 1
    if a.over.shape[1] == 0:
        return
    for i in range(a.cut_ptr[start], a.cut_ptr[start + 1]):
        _list_other(p, a, start, end, cpus, s, a.cut_net[i])
    for k in range(cpus):
        x, y = a.cpu_tail[s.inner[k]], a.cpu_head[s.inner[k]]
        for item in range(64 * a.low_word[x], min(64 * a.high_word[y] + 64, p.work.shape[2])):
            if has(a.bits, y, item) and not has(a.bits, x, item):
                for i in range(p.nets.item_ptr[item], p.nets.item_ptr[item + 1]):
                    _list_other(p, a, start, end, cpus, s, p.nets.item_net[i])


@callee
def _list_other(p, a, start, end, cpus, s, net):  # type: ignore[no-untyped-def]
    source = p.nets.source[net]
    if source < 0 or s.seen[0, net] == s.counts[2] or not has(a.bits, end, source):
        return
    s.seen[0, net] = s.counts[2]
    makes = not has(a.bits, start, source)
    for k in range(cpus):
        x, y = a.cpu_tail[s.inner[k]], a.cpu_head[s.inner[k]]
        if has(a.bits, y, source) and not has(a.bits, x, source):
            makes = False
    # Those made inside that leave over the end are priced already.
    if not makes or s.seen[1, net] != s.counts[3]:
        _list_net(p, a, s, net, makes)


@part
def _tally(a, s, x):  # type: ignore[no-untyped-def]
    """Count the pins in an ideal by which blocks pay for the nets over the end; once."""
    if s.tally[0, x] < s.counts[3]:
        found = 0
        for i in range(s.counts[0]):
            found += has(a.bits, x, s.made[i])
        for i in range(s.counts[1]):
            for w in range(a.high_word[x] + 1):
                rest = a.pins[s.read[i], w] & a.bits[x, w]
                while rest:
                    rest &= rest - np.uint64(1)
                    found += 1
        s.tally[0, x], s.tally[1, x] = s.counts[3], found
    return s.tally[1, x]


@part
def _fewest_through(ahead, x, reach, y):  # type: ignore[no-untyped-def]
    """Fewest devices of a segment besides a block from ideal y to x."""
    width = ahead.shape[1]
    least = NONE
    for c in range(width):
        least = min(least, ahead[x, c] + reach[y, width - 1 - c])
    return least


@part
def moved_by(parts):  # type: ignore[no-untyped-def]
    """Transfers of a block by its parts (f64[2, 3]): (in, out) of each pass."""
    return parts[0, 1], parts[0, 2], parts[1, 1], parts[1, 2]


@callee
def copies_of(comm, goal, first, most, sync, parts, moved, more):  # type: ignore[no-untyped-def]
    """Fewest devices, `first` to `most`, that keep a block within the target; NONE: none do.

    Parameters
    ----------
    sync
        Time in which an endless number of replicas synchronise.
    parts
        f64[2, 3], of which the compute time of each pass is read.
    moved, more
        What the passes move, together: (in, out) of each.

    Notes the least load of the pass `goal.vary` above its target.
    """
    target, above = goal.target, goal.above
    passes = len(target)
    load = load_of(comm, moved[0] + more[0], parts[0, 0], 0.0, moved[1] + more[1])
    late = load_of(comm, moved[2] + more[2], parts[1, 0], 0.0, moved[3] + more[3])
    for r in range(first, most + 1):
        wait = sync * (r - 1) / r
        if passes == 1:
            value = share_of(comm, load, r, wait)
            if value <= target[0]:
                return r
            above[0] = min(above[0], value)
            continue
        value, other = share_of(comm, load, r, 0.0), share_of(comm, late, r, wait)
        if value <= target[0] and other <= target[1]:
            return r
        if goal.vary == 0 and other <= target[1]:
            above[0] = min(above[0], value)
        elif goal.vary == 1 and value <= target[0]:
            above[0] = min(above[0], other)
    return NONE


@kernel
def look_back(p, a, end, goal, most, s):  # type: ignore[no-untyped-def]
    """List the segments of up to `most` devices that end at an ideal; return steps.

    Fills `ahead`, `listed`, `edges`, `priced` and `taken` where `reach` leaves enough devices; what
    comes before is taken to be near.
    """
    list_end(p, a, end, s)
    parts, tail, order, bucket = a.parts, a.tail, s.order, s.bucket
    ahead, edges, priced, copies = s.ahead, s.edges, s.priced, s.copies
    reach, most_copies = s.reach, min(p.copies[0], most)
    width = ahead.shape[1]
    for i in range(s.sizes[0]):
        ahead[s.listed[i]] = NONE
    listed, size, steps = 0, 0, 0
    ahead[end] = 0
    lowest, x = end, end
    while x >= lowest:
        if ahead[x, width - 1] <= most:
            s.listed[listed] = x
            listed += 1
            room = min(most - ahead[x, width - 1], BUCKETS)
            pins_here = _tally(a, s, x)
            for i in range(bucket[x, 0], bucket[x, room]):
                steps += 1
                e = order[i]
                y = tail[e]
                taken, through = copies[e], _fewest_through(ahead, x, reach, y)
                if through + taken > most:
                    continue
                moved, more = moved_by(parts[e]), NOTHING
                if _tally(a, s, y) < pins_here:
                    more = extra(a, s, y, x)
                    steps += s.counts[0] + s.counts[1]
                    wait = a.sync[0] * a.weight[e]
                    taken = copies_of(p.comm, goal, taken, most_copies, wait, parts[e], moved, more)
                    if through + taken > most:
                        continue
                edges[size], s.taken[size] = e, taken
                for q in range(4):
                    priced[size, q] = moved[q] + more[q]
                size += 1
                lowest = min(lowest, y)
                for c in range(width):
                    if ahead[x, c] + taken <= most:
                        ahead[y, c] = min(ahead[y, c], ahead[x, c] + taken)
            for i in range(a.cpu_into_ptr[x], a.cpu_into_ptr[x + 1]):
                e = a.cpu_into[i]
                y = a.cpu_tail[e]
                if s.cpu_copies[e] == 1 and _fewest_through(ahead, x, reach, y) <= most:
                    lowest = min(lowest, y)
                    for c in range(width - 1):
                        ahead[y, c + 1] = min(ahead[y, c + 1], ahead[x, c])
        x -= 1
    s.sizes[0], s.sizes[1] = listed, size
    return steps


@part
def _first_edge(a, start, s):  # type: ignore[no-untyped-def]
    """Place in `edges` of the lowest head above `start`."""
    lo, hi = 0, s.sizes[1]
    while lo < hi:
        middle = (lo + hi) // 2
        if a.head[s.edges[middle]] > start:
            lo = middle + 1
        else:
            hi = middle
    return lo - 1


@kernel
def _screen(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fill `screened`, `behind` and `front`, as if CPUs in the segment took the inner link.

    Returns (whether the segment is possible then, steps).
    """
    list_start(p, a, start, end, np.int64(0), s)
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced, screened = s.edges, s.priced, s.screened
    behind, front, most_copies = s.behind, s.front, min(p.copies[0], most)
    steps = s.sizes[0]
    for i in range(s.sizes[0]):
        behind[listed[i]] = NONE
        front[listed[i]] = NONE
    behind[end] = 0
    lowest = _first_edge(a, start, s)
    at = 0
    for k in range(s.sizes[0]):
        y = listed[k]
        if y <= start:
            break
        while at <= lowest and head[edges[at]] > y:
            at += 1
        while at <= lowest and head[edges[at]] == y:
            e = edges[at]
            x = tail[e]
            steps += 1
            screened[at] = NONE
            if x >= start and behind[y, cpus] + s.taken[at] <= most:
                more, wait = extra(a, s, x, y), a.sync[0] * a.weight[e]
                screened[at] = copies_of(
                    p.comm, goal, s.taken[at], most_copies, wait, parts[e], priced[at], more
                )
                if screened[at] < NONE:
                    for c in range(cpus + 1):
                        behind[x, c] = min(behind[x, c], behind[y, c] + screened[at])
            at += 1
        if behind[y, cpus] <= most:
            for i in range(a.cpu_into_ptr[y], a.cpu_into_ptr[y + 1]):
                x = a.cpu_tail[a.cpu_into[i]]
                if s.cpu_copies[a.cpu_into[i]] == 1 and x >= start:
                    for c in range(cpus):
                        behind[x, c + 1] = min(behind[x, c + 1], behind[y, c])
    if behind[start, cpus] > most:
        return False, steps
    front[start] = 0
    for i in range(lowest, -1, -1):
        if screened[i] < NONE:
            y, devices = head[edges[i]], front[tail[edges[i]]] + screened[i]
            front[y] = min(front[y], devices)
    return True, steps + lowest


@kernel
def _cover(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators for a segment with the CPU blocks inner[:cpus]; (devices, steps).

    Follows `look_back` at `end` and, if there are CPU blocks, `_screen`.
    """
    list_start(p, a, start, end, cpus, s)
    parts, tail, head, listed = a.parts, a.tail, a.head, s.listed
    edges, priced = s.edges, s.priced
    need, came, most_copies = s.need, s.came, min(p.copies[0], most)
    ahead = s.behind if cpus else s.ahead
    least = s.screened if cpus else s.taken
    dearest = everything(s)
    for i in range(s.sizes[0]):
        need[listed[i]] = NONE
    need[start] = 0
    came[start] = -1
    steps = s.sizes[0]
    i = _first_edge(a, start, s)
    for phase in range(cpus + 1):
        final = end if phase == cpus else a.cpu_tail[s.inner[phase]]
        left = cpus - phase
        while i >= 0 and head[edges[i]] <= final:
            at = i
            i -= 1
            steps += 1
            e = edges[at]
            x, y = tail[e], head[e]
            taken = least[at]
            devices = need[x] + taken
            if devices >= need[y] or devices + ahead[y, left] > most:
                continue
            if left > 0 and not subset(a, y, final):
                continue
            wait, above = a.sync[0] * a.weight[e], goal.above[0]
            found = copies_of(p.comm, goal, taken, taken, wait, parts[e], priced[at], dearest)
            if found == NONE:
                # It does not pay for everything.
                goal.above[0] = above
                more = extra(a, s, x, y)
                steps += s.counts[0] + s.counts[1]
                found = copies_of(
                    p.comm, goal, taken, most_copies, wait, parts[e], priced[at], more
                )
            devices = need[x] + found
            if devices >= need[y] or devices + ahead[y, left] > most:
                continue
            need[y], came[y], s.spent[y] = devices, e, found
        if left > 0:
            devices = need[final]
            if devices == NONE:
                break
            # Only paths through the CPU block go on.
            for k in range(s.sizes[0]):
                need[listed[k]] = NONE
            after = a.cpu_head[s.inner[phase]]
            need[after] = devices
            came[after] = -2 - s.inner[phase]
            while i >= 0 and head[edges[i]] <= after:
                i -= 1
    return need[end], steps


@kernel
def cover(p, a, start, end, goal, most, cpus, s):  # type: ignore[no-untyped-def]
    """Fewest accelerators, up to `most`, for a segment with `cpus` CPU blocks strictly inside.

    The first CPU blocks that fit are taken, in the order of their ideals. Follows `look_back` at
    `end`; returns (devices or NONE, steps).
    """
    steps, level = 0, 0
    if cpus > 0:
        possible, steps = _screen(p, a, start, end, goal, most, cpus, s)
        if not possible:
            return NONE, steps
        s.inner[0] = a.cpu_ptr[start + 1] - 1
    while level >= 0:
        if cpus == 0:
            devices, steps = _cover(p, a, start, end, goal, most, cpus, s)
            return (devices if devices <= most else NONE), steps
        s.inner[level] += 1
        e = s.inner[level]
        if e >= a.cpu_ptr[end]:
            level -= 1
            continue
        steps += 1
        x, y, left = a.cpu_tail[e], a.cpu_head[e], cpus - level - 1
        if s.cpu_copies[e] != 1 or y == end or s.ahead[y, left] > most:
            continue
        if s.behind[y, left] > most:
            continue
        if level == 0:
            if s.front[x] + s.behind[y, left] > most:
                continue
        elif not subset(a, a.cpu_head[s.inner[level - 1]], x):
            continue
        if left:
            level += 1
            s.inner[level] = max(a.cpu_ptr[y], e + 1) - 1
            continue
        devices, more = _cover(p, a, start, end, goal, most, cpus, s)
        steps += more
        if devices <= most:
            return devices, steps
    return NONE, steps
