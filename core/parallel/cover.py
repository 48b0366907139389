"""DP table of the least devices for stages with loads below a limit.

Stages are added from the end of the pipeline on, since the memory of a stage depends on the
replicas of later stages. A partial pipeline is a set of items closed under successors; such sets
come from a family, all of them or those along some orders. `least[set, s]` is the least number of
devices that hold the items of a set in stages with s replicas in all, each with a load below the
limit, and in the memory of its devices. A set and a larger one make a stage.

The remaining work over the limit is a lower bound of the remaining devices; sets are sorted by
their work, so that only larger sets within that bound are visited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.kernels.kernel import callee, lean
from dnnp.core.model.graph import Bools, Floats, Ints, offsets
from dnnp.core.parallel.problem import HybridProblem, degrees_of, replicas_of, summed
from dnnp.core.split.ideals.lattice import make_lattice, packed

PLAIN, AGAIN, FASTEST = range(3)
"""First axis of sums: forward passes are run once; again; or each part as it is fastest."""

BRANCHES = 20_000
"""Limit of branches of the search for recomputed parts."""


class Family(NamedTuple):
    """`I` sets of items by size, 0 empty and I - 1 of all; each holds what follows its items."""

    words: np.ndarray
    """u64[I, W], bit sets of items."""
    work: Floats
    """f64[I], device-seconds that the items take at least."""
    by_work: Ints
    """i64[I], sets by work."""
    sorted_work: Floats
    """f64[I], their work."""
    time: Floats
    held: Floats
    fixed: Floats
    """f64[I, 3, D], sums over the items by `PLAIN`, `AGAIN` and `FASTEST`."""
    unfit: Ints
    """i64[I, 3, D], parts that cannot run so."""
    weight: Floats
    """f64[I, D]."""
    ahead: Ints
    """i64[I], items with something to run again."""
    labels: Ints
    """i64[I, 3, R], numbers of labels of a row besides 0, and sums of them and of their squares."""
    cross_ptr: Ints
    cross: Ints
    """Nets with some pins in the set and some outside (CSR)."""


class Nets(NamedTuple):
    """Nets of a problem, for kernels."""

    bits: np.ndarray
    """u64[p, W], bit sets of pins."""
    source: Ints
    in_s: Floats
    """f64[D, p]."""
    out_s: Floats
    kept: Floats
    """f64[p]."""
    read: Floats
    """f64[D, p]."""


class Swaps(NamedTuple):
    """`s` parts with a slower way to run that saves memory."""

    part: Ints
    item: Ints
    """i64[s], the part, and its item."""
    cost: Floats
    """f64[D, s], time that it takes more."""
    fixed: Floats
    held: Floats
    """f64[D, s], bytes that it saves, once and for each micro-batch under way."""
    order: np.ndarray
    """i32[D, Y, s], swaps by cost over bytes saved with y + 1 micro-batches in flight, useless ones
    last; Y = 0 where there is no choice."""


class Teams(NamedTuple):
    """Ways to use devices for a stage: `c` of them by number of devices."""

    degree: Ints
    """i64[c], position of the tensor-parallel degree."""
    replicas: Ints
    """i64[c]."""
    devices: Ints
    """i64[c], ascending."""
    group: Ints
    """i64[groups + 1], where another number of devices begins (CSR)."""


class Rules(NamedTuple):
    """Prices and limits of stages; numbers as in `HybridProblem`."""

    devices: int
    most_replicas: int
    """Of all stages together."""
    partwise: bool
    """True: some parts of a stage may run otherwise than is fastest: see `Swaps`."""
    first: int
    last: int
    """Kinds of sums to try: `PLAIN`, `AGAIN` or both; or `FASTEST`, and then swaps."""
    comm: int
    overlap_sync: bool
    sync_s: float
    room: float
    """Bytes of a device."""
    slack: float
    """Time up to which loads are the same but for rounding."""
    exactly: int
    pinned: Ints


class Scratch(NamedTuple):
    """Arrays that kernels work in."""

    sums: Floats
    """f64[4, D], transfers of the current stage (`gather`)."""
    block: np.ndarray
    """u64[W], bit set of its items."""
    cost: Floats
    save: Floats
    """f64[s]."""
    took: Ints
    """i64[2 s + 1], swaps that were taken (`feasible`)."""


class Covering(NamedTuple):
    """Arguments of `cover`."""

    family: Family
    nets: Nets
    swaps: Swaps
    teams: Teams
    rules: Rules
    scratch: Scratch


@callee
def gather(a, small, large):  # type: ignore[no-untyped-def]
    """Transfers of a stage, for all degrees, and the bit set of its items.

    Rows of `sums`: time in; time out; kept bytes of incoming tensors (first element only); bytes of
    weights of other items.
    """
    family, nets, sums, block = a.family, a.nets, a.scratch.sums, a.scratch.block
    sums[:, :] = 0.0
    words = family.words
    for w in range(len(block)):
        block[w] = words[large, w] & ~words[small, w]
    for turn in range(2):
        at = small if turn == 0 else large
        for e in range(family.cross_ptr[at], family.cross_ptr[at + 1]):
            net = family.cross[e]
            inside, before = False, False
            for w in range(words.shape[1]):
                if nets.bits[net, w] & block[w]:
                    inside = True
                if nets.bits[net, w] & words[small, w]:
                    before = True
            if not inside or (turn == 1 and before):
                continue
            source = nets.source[net]
            mine = block[source >> 6] & (np.uint64(1) << np.uint64(source & 63))
            for i in range(sums.shape[1]):
                if mine:
                    sums[1, i] += nets.out_s[i, net]
                else:
                    sums[0, i] += nets.in_s[i, net]
                    sums[3, i] += nets.read[i, net]
            if not mine:
                sums[2, 0] += nets.kept[net]


@callee
def allowed(rules, limit, in_s, out_s, sync, replicas):  # type: ignore[no-untyped-def]
    """Compute time at which the load (`load_of`, `share_of`) is at the limit; -1: none is."""
    top = limit + rules.slack
    if rules.overlap_sync:
        if sync > top:
            return -1.0
    else:
        top -= sync
    top *= replicas
    if rules.comm == 0:
        return top - in_s - out_s
    moved = in_s + out_s if rules.comm == 1 else max(in_s, out_s)
    return top if moved <= top else -1.0


@callee
def feasible(swaps, scratch, i, y, need, budget):  # type: ignore[no-untyped-def]
    """Search for swaps that save `need` bytes in `budget` seconds; 1: found, 0: none, -1: unknown.

    If found, the first element of `took` is the number of swaps, which follow.
    """
    block, cost, save, took = scratch.block, scratch.cost, scratch.save, scratch.took
    n, count = swaps.order.shape[2], 0
    for r in range(n):
        v = swaps.order[i, y - 1, r]
        item = swaps.item[v]
        if not (block[item >> 6] >> np.uint64(item & 63)) & np.uint64(1):
            continue
        saved = swaps.fixed[i, v] + y * swaps.held[i, v]
        if saved <= 0.0:
            break
        cost[count], save[count], took[n + 1 + count] = swaps.cost[i, v], saved, v
        count += 1
    # Depth first: take an item or leave it. took[1 + j]: whether the item at place j is taken; rest
    # and spent follow from the path.
    j, rest, spent, branches = 0, need, 0.0, 0
    while True:
        # The fractional relaxation of what is left.
        left, least, q = rest, spent, j
        while left > 0.0 and q < count and save[q] <= left:
            left -= save[q]
            least += cost[q]
            q += 1
        if left > 0.0 and q < count:
            least += cost[q] * left / save[q]
            left = 0.0
        deeper = left <= 0.0 and least <= budget
        if rest <= 0.0 and spent <= budget:
            size = 0
            for p in range(j):
                if took[1 + p] == 1:
                    took[1 + size] = took[n + 1 + p]
                    size += 1
            took[0] = size
            return 1
        branches += 1
        if branches > BRANCHES:
            return -1
        if deeper and j < count:
            took[1 + j] = 1
            rest -= save[j]
            spent += cost[j]
            j += 1
            continue
        # Go back to the last item that was taken, and leave it; and those that follow and cost no
        # less and save no more, for which it could always be exchanged.
        while j > 0 and took[j] == 0:
            j -= 1
        if j == 0:
            return 0
        j -= 1
        took[1 + j] = 0
        rest += save[j]
        spent -= cost[j]
        same = j
        j += 1
        while j < count and cost[j] >= cost[same] and save[j] <= save[same]:
            took[1 + j] = 0
            j += 1


@callee
def kind_in(family, small, large, kind):  # type: ignore[no-untyped-def]
    """The kind of sums of a stage: what has nothing to run again runs once."""
    return 0 if kind == 1 and family.ahead[large] == family.ahead[small] else kind


@callee
def _fewest(pinned, block):  # type: ignore[no-untyped-def]
    """Devices from the first to the last one that items of a stage are pinned to, at least 1."""
    first, last = -1, -1
    for j in range(len(pinned)):
        item = pinned[j, 1]
        if (block[item >> 6] >> np.uint64(item & 63)) & np.uint64(1):
            last = pinned[j, 0]
            first = last if first < 0 else first
    return last - first + 1


@callee
def most_in_flight(a, limit, small, large, team):  # type: ignore[no-untyped-def]
    """Most micro-batches in flight on a device of a stage; 0: it is too slow or too large.

    At most the number of replicas can be useful. A negative result -1 - y means y, and that larger
    numbers are unknown.
    """
    family, rules, sums = a.family, a.rules, a.scratch.sums
    i, replicas = a.teams.degree[team], a.teams.replicas[team]
    most = (rules.most_replicas + replicas - 1) // replicas
    if a.teams.devices[team] < _fewest(rules.pinned, a.scratch.block):
        return 0
    weight = family.weight[large, i] - family.weight[small, i] + sums[3, i]
    sync = rules.sync_s * weight * (replicas - 1) / replicas
    top = allowed(rules, limit, sums[0, i], sums[1, i], sync, replicas)
    found = 0
    for asked in range(rules.first, rules.last + 1):
        kind = kind_in(family, small, large, asked)
        if family.unfit[large, kind, i] > family.unfit[small, kind, i]:
            continue
        time = family.time[large, kind, i] - family.time[small, kind, i]
        if time > top:
            continue
        fixed = family.fixed[large, kind, i] - family.fixed[small, kind, i]
        held = family.held[large, kind, i] - family.held[small, kind, i]
        if kind == 1:
            held += sums[2, 0]
        room = rules.room - fixed
        if held * most <= room:
            return most
        if held > 0.0 and held <= room:
            found = max(found, int(room / held))
        if rules.partwise:
            low, high, unknown = found, most, False
            while low < high:
                y = (low + high + 1) // 2
                answer = feasible(a.swaps, a.scratch, i, y, y * held - room, top - time)
                unknown = unknown or answer < 0
                if answer == 1:
                    low = y
                else:
                    high = y - 1
            return -1 - low if unknown else low
    return found


@callee
def holds(words, small, large):  # type: ignore[no-untyped-def]
    """True if one set is a subset of another."""
    outside = np.uint64(0)
    for w in range(words.shape[1]):
        outside |= words[small, w] & ~words[large, w]
    return outside == 0


@callee
def keeps(labels, small, large):  # type: ignore[no-untyped-def]
    """True if the items of a stage have equal labels: Cauchy and Schwarz, with equality."""
    for r in range(labels.shape[2]):
        count, total = labels[large, 0, r] - labels[small, 0, r], labels[large, 1, r]
        total -= labels[small, 1, r]
        if count * (labels[large, 2, r] - labels[small, 2, r]) != total * total:
            return False
    return True


@lean
def cover(a, limit, least):  # type: ignore[no-untyped-def]
    """Find the least devices for every set and number of replicas.

    Parameters
    ----------
    a
        A `Covering`.
    limit
        Load that no stage exceeds.
    least
        i32[I, K + 1, S + 1], S replicas at most, in and out: 0 for no items, else devices + 1.
        Exactly K stages; 0: they are not counted.

    Returns
    -------
    bool
        True: the search for recomputed parts never met its limit.
    """
    family, teams, rules = a.family, a.teams, a.rules
    sets, known = len(family.work), True
    total, top, step = family.work[sets - 1], limit + rules.slack, min(rules.exactly, 1)
    for small in range(sets - 1):
        fewest = rules.devices + 1
        for m in range(rules.exactly + 1):
            for s in range(rules.most_replicas + 1):
                fewest = min(fewest, least[small, m, s])
        for g in range(len(teams.group) - 1):
            devices = teams.devices[teams.group[g]]
            rest = rules.devices - fewest - devices
            if rest < 0:
                break
            below = family.work[small] + devices * top
            q = np.searchsorted(family.sorted_work, total - rest * top - rules.slack)
            while q < sets and family.sorted_work[q] <= below:
                large = family.by_work[q]
                q += 1
                if large <= small or not holds(family.words, small, large):
                    continue
                if not keeps(family.labels, small, large):
                    continue
                gather(a, small, large)
                needed = (total - family.work[large] - rules.slack) / top
                for c in range(teams.group[g], teams.group[g + 1]):
                    d = teams.replicas[c]
                    y = most_in_flight(a, limit, small, large, c)
                    if y < 0:
                        y, known = -1 - y, False
                    for m in range(step, rules.exactly + 1):
                        for s in range(min(y * d, rules.most_replicas) - d + 1):
                            used = least[small, m - step, s] + devices
                            if used < least[large, m, s + d] and used + needed <= rules.devices:
                                least[large, m, s + d] = used
    return known


@lean
def last_stage(a, limit, least, large, stages, replicas):  # type: ignore[no-untyped-def]
    """Trace how a set was covered: the set before its first stage, and its team; -1: not at all.

    `replicas` are those of all its `stages` (0: not counted).
    """
    teams, step = a.teams, min(stages, 1)
    for small in range(large):
        if not (holds(a.family.words, small, large) and keeps(a.family.labels, small, large)):
            continue
        gathered = False
        for c in range(len(teams.degree)):
            d = teams.replicas[c]
            if d > replicas:
                continue
            used = least[small, stages - step, replicas - d] + teams.devices[c]
            if used != least[large, stages, replicas]:
                continue
            if not gathered:
                gather(a, small, large)
                gathered = True
            y = most_in_flight(a, limit, small, large, c)
            if (y if y >= 0 else -1 - y) * d >= replicas:
                return small, c
    return -1, -1


@lean
def fewest_swaps(swaps, scratch, i, y, need, budget):  # type: ignore[no-untyped-def]
    """Call `feasible` for the stage of the items `scratch.block`."""
    return feasible(swaps, scratch, i, y, need, budget)


AT_ONCE = 2_000_000
"""Sets times pins, or items, of one block of a matrix product."""


def least_work(problem: HybridProblem) -> Floats:
    """Device-seconds that each item takes at least; f64[n], inf: no device can run it."""
    first, last = kinds_of(problem)
    time = summed(_kinds(problem, problem.time)[first : last + 1], problem.part, problem.n)
    degrees = degrees_of(problem)
    share = problem.degrees[degrees, None] * time[:, degrees]
    least: Floats = share.min(axis=(0, 1), initial=np.inf)
    if problem.whole < 0:
        return least
    if problem.shared_only is not None:
        least = np.where(problem.shared_only, np.inf, least)
    shared = problem.degrees[problem.whole] * time[:, problem.whole]
    return np.minimum(least, shared.min(axis=0))


def kinds_of(problem: HybridProblem) -> tuple[int, int]:
    """The first and the last kind of sums that stages may have."""
    auto = (FASTEST, FASTEST) if problem.partwise else (PLAIN, AGAIN)
    choice = {"none": (PLAIN, PLAIN), "full": (AGAIN, AGAIN)}
    return choice.get(problem.options.recompute, auto)


def all_ends(problem: HybridProblem, most: int) -> Bools | None:
    """Every set of items that holds what follows them; bool[I, n]. None: more than `most`."""
    last = problem.n - 1
    lattice = make_lattice(problem.n, last - problem.head, last - problem.tail, most)
    return None if lattice is None else np.ascontiguousarray(lattice.sets(problem.n)[:, ::-1])


def ends_of_orders(orders: Sequence[Ints]) -> Bools:
    """The sets that hold the last items of an order of all items; bool[I, n]."""
    n = len(orders[0])
    found = []
    for order in orders:
        place = np.argsort(order)
        found.append(place[None, :] >= n - np.arange(n + 1)[:, None])
    member = np.unique(np.concatenate(found), axis=0) if len(found) > 1 else found[0]
    return np.asarray(member[np.argsort(member.sum(axis=1), kind="stable")])


def family_of(problem: HybridProblem, member: Bools) -> Family:
    """Sum up sets of items for a cover.

    `member`: bool[I, n], by size, each set once, the empty one and that of all items among them.
    """
    sets, n = member.shape
    values = [_kinds(problem, which) for which in (problem.time, problem.held, problem.fixed)]
    by_part = [*(np.where(np.isfinite(v), v, 0.0) for v in values), ~np.isfinite(values[0])]
    by_item = [summed(v, problem.part, n).reshape(-1, n) for v in by_part]
    squares = np.where(problem.labels < 0, 2, problem.labels**2)  # no stage may hold those
    labels = np.stack([problem.labels != 0, problem.labels, squares]).reshape(-1, n)
    flat = np.concatenate(
        [least_work(problem)[None], *by_item, problem.weight, problem.ahead[None], labels]
    ).T
    sums = np.empty((sets, flat.shape[1]))
    step = max(AT_ONCE // max(n, 1), 1)
    for at in range(0, sets, step):
        sums[at : at + step] = member[at : at + step].astype(float) @ flat
    count = len(problem.degrees)
    cuts = np.cumsum([1, *[3 * count] * 4, count, 1])
    work, time, held, fixed, unfit, weight, ahead, labels = np.split(sums, cuts, axis=1)
    by_work = np.argsort(work[:, 0], kind="stable")
    cross_ptr, cross = _crossing(problem, member)
    return Family(
        words=packed(member),
        work=np.ascontiguousarray(work[:, 0]),
        by_work=by_work,
        sorted_work=np.ascontiguousarray(work[by_work, 0]),
        time=np.ascontiguousarray(time.reshape(sets, 3, count)),
        held=np.ascontiguousarray(held.reshape(sets, 3, count)),
        fixed=np.ascontiguousarray(fixed.reshape(sets, 3, count)),
        unfit=np.ascontiguousarray(np.rint(unfit).astype(np.int64).reshape(sets, 3, count)),
        weight=np.ascontiguousarray(weight),
        ahead=np.rint(ahead[:, 0]).astype(np.int64),
        labels=np.rint(labels).astype(np.int64).reshape(sets, 3, len(problem.labels)),
        cross_ptr=cross_ptr,
        cross=cross,
    )


def new_scratch(family: Family, swaps: Swaps) -> Scratch:
    """Scratch arrays."""
    n = swaps.cost.shape[1]
    return Scratch(
        np.zeros((4, family.weight.shape[1])),
        np.zeros(family.words.shape[1], dtype=np.uint64),
        np.zeros(n),
        np.zeros(n),
        np.zeros(2 * n + 1, dtype=np.int64),
    )


def faster_again(problem: HybridProblem) -> Bools:
    """Parts that are as fast, or faster, if their forward pass is run again; bool[D, q].

    Of equally fast ways it is the one that holds less with one micro-batch under way.
    """
    memory = problem.held + problem.fixed
    same = problem.time[AGAIN] == problem.time[PLAIN]
    return np.asarray(
        (problem.time[AGAIN] < problem.time[PLAIN]) | (same & (memory[AGAIN] < memory[PLAIN]))
    )


def _kinds(problem: HybridProblem, values: Floats) -> Floats:
    """Values by `PLAIN`, `AGAIN` and `FASTEST`; f64[3, D, q]."""
    fastest = np.where(faster_again(problem), values[AGAIN], values[PLAIN])
    return np.stack([values[PLAIN], values[AGAIN], fastest])


def _crossing(problem: HybridProblem, member: Bools) -> tuple[Ints, Ints]:
    """Nets with some pins in each set and some outside it (CSR)."""
    p = len(problem.source)
    pins = np.diff(problem.pin_ptr)
    rows: list[Ints] = []
    counts: list[Ints] = []
    step = max(AT_ONCE // max(len(problem.pins), 1), 1)
    for at in range(0, len(member), step):
        inside = member[at : at + step][:, problem.pins].astype(np.int64)
        total = np.add.reduceat(inside, problem.pin_ptr[:-1], axis=1) if p else inside[:, :0]
        some = (total > 0) & (total < pins)
        counts.append(some.sum(axis=1))
        rows.append(np.nonzero(some)[1])
    return offsets(np.concatenate(counts)), np.concatenate(rows).astype(np.int64)


def nets_for(problem: HybridProblem) -> Nets:
    """The nets of a problem for a cover."""
    p = len(problem.source)
    pins = np.zeros((p, problem.n), dtype=np.bool_)
    pins[np.repeat(np.arange(p), np.diff(problem.pin_ptr)), problem.pins] = True
    return Nets(
        packed(pins),
        problem.source.astype(np.int64),
        np.ascontiguousarray(problem.in_s),
        np.ascontiguousarray(problem.out_s),
        problem.kept.astype(np.float64),
        np.ascontiguousarray(problem.read),
    )


def swaps_of(problem: HybridProblem, most: int) -> Swaps:
    """Parts that save memory if they do not run as is fastest, for 1 to `most` under way."""
    sign = np.where(faster_again(problem), -1.0, 1.0)
    if kinds_of(problem)[0] != FASTEST:
        none, empty = np.zeros(0, dtype=np.int64), np.zeros((len(problem.degrees), 0))
        return Swaps(none, none, empty, empty, empty, np.zeros((len(empty), 0, 0), np.int32))
    with np.errstate(invalid="ignore"):
        cost = sign * (problem.time[AGAIN] - problem.time[PLAIN])
        fixed = sign * (problem.fixed[PLAIN] - problem.fixed[AGAIN])
        held = sign * (problem.held[PLAIN] - problem.held[AGAIN])
    possible = np.isfinite(cost)
    part = np.flatnonzero((possible & ((fixed > 0) | (held > 0))).any(axis=0))
    kept = (np.where(possible, v, 0.0)[:, part] for v in (cost, fixed, held))
    # In one layout: a kernel is compiled for each.
    cost, fixed, held = map(np.ascontiguousarray, kept)
    saved = fixed[:, None] + np.arange(1, most + 1)[None, :, None] * held[:, None]
    key = np.where(saved > 0, cost[:, None] / np.where(saved > 0, saved, 1.0), np.inf)
    order = np.argsort(key, axis=2, kind="stable").astype(np.int32)
    return Swaps(part, problem.part[part], cost, fixed, held, order)


def teams_of(problem: HybridProblem) -> Teams:
    """The ways in which a stage may use devices."""
    allowed, copies = np.array(degrees_of(problem), dtype=np.int64), replicas_of(problem)
    degree, replicas = np.repeat(allowed, len(copies)), np.tile(copies, len(allowed))
    devices = problem.degrees[degree] * replicas
    order = np.argsort(devices, kind="stable")
    order = order[devices[order] <= min(problem.devices, problem.widest)]
    devices = devices[order]
    first = np.flatnonzero(np.diff(devices, prepend=0))
    return Teams(degree[order], replicas[order], devices, np.append(first, len(devices)))


def rules_of(problem: HybridProblem, scale: float) -> Rules:
    """Collect the rules; `scale`: a time that no sum of them exceeds."""
    options = problem.options
    first, last = kinds_of(problem)
    return Rules(
        devices=problem.devices,
        most_replicas=min(options.micro_batches, problem.devices + options.shared_stages),
        partwise=first == FASTEST,
        first=first,
        last=last,
        comm=problem.comm,
        overlap_sync=options.overlap_sync,
        sync_s=problem.sync_s,
        room=problem.memory * ROOM,
        slack=max(scale * MARGIN * 1e-3, np.finfo(float).tiny),  # also where nothing takes time
        exactly=problem.exactly,
        pinned=problem.pinned,
    )
