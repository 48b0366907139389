"""Covering a graph with stages whose loads stay below a limit: on how few devices it can be done.

Stages are laid from the end of the pipeline on, since the memory of a stage depends on the
replicas of later stages. Where stages end so far is a set of items that holds all that follow
them; such sets come from a family, all of them or those along some orders. `least[set, s]` is the
least number of devices that hold the items of a set in stages with s replicas in all, each with a
load below the limit, and in the memory of its devices. A set and a larger one make a stage.

What is left of the work, over the limit, is how many devices are needed at least for the rest;
sets are sorted by their work, so that only those are looked at that leave as much as the other
devices can do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, kernel
from dnnp.core.model.graph import Floats, Ints

PLAIN, AGAIN, FASTEST = range(3)
"""First axis of sums: forward passes are run once; again; or each part as it is fastest."""

BRANCHES = 20_000
"""Branches after which the search for parts to run again gives up."""


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
    """Parts that may be run otherwise than is fastest, to save memory: `s` of them."""

    part: Ints
    item: Ints
    """i64[s], the part, and its item."""
    cost: Floats
    """f64[D, s], time that it takes more."""
    fixed: Floats
    held: Floats
    """f64[D, s], bytes that it saves, once and for each micro-batch under way."""
    order: np.ndarray
    """i32[D, Y, s], swaps by cost over what they save with y + 1 micro-batches under way, those
    that save nothing last; Y = 0 where there is no choice."""


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
    """How a stage is priced and judged; numbers as in `HybridProblem`."""

    devices: int
    most_replicas: int
    """Of all stages together."""
    partwise: bool
    """Whether some parts of a stage may run otherwise than is fastest: see `Swaps`."""
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


@callee
def gather(family, nets, small, large, sums):  # type: ignore[no-untyped-def]
    """Add up what enters and leaves a stage, for all degrees.

    `sums` (f64[4, D]): time in, time out; of the third row the first element, bytes that are kept
    of what enters; and bytes of weights that other items have.
    """
    sums[:, :] = 0.0
    words = family.words
    for turn in range(2):
        at = small if turn == 0 else large
        for e in range(family.cross_ptr[at], family.cross_ptr[at + 1]):
            net = family.cross[e]
            inside, before = False, False
            for w in range(words.shape[1]):
                if nets.bits[net, w] & words[large, w] & ~words[small, w]:
                    inside = True
                if nets.bits[net, w] & words[small, w]:
                    before = True
            if not inside or (turn == 1 and before):
                continue
            source = nets.source[net]
            word, bit = source >> 6, np.uint64(1) << np.uint64(source & 63)
            mine = (words[large, word] & ~words[small, word]) & bit
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
    """Compute time that a stage may take so that its load stays below the limit; -1: none."""
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
def feasible(need, budget, i, y, block, swaps, cost, save, took):  # type: ignore[no-untyped-def]
    """Whether some swaps save `need` bytes and take `budget` seconds at most; 1, 0, -1: unknown.

    `block` is the bit set of the stage's items; `cost`, `save` (f64[s]) and `took` (i64[2 s + 1])
    are work space. If it returns 1, the first element of `took` is the number of swaps, which
    follow.
    """
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
def most_in_flight(  # type: ignore[no-untyped-def]
    family, swaps, rules, limit, small, large, i, replicas, most, sums, block, cost, save, took
):
    """Micro-batches that may be under way on a device of a stage; 0: it is too slow or too large.

    `most`: more are not asked for. A negative answer -1 - y means y, and that of a larger number it
    is not known.
    """
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
                answer = feasible(y * held - room, top - time, i, y, block, swaps, cost, save, took)
                unknown = unknown or answer < 0
                if answer == 1:
                    low = y
                else:
                    high = y - 1
            return -1 - low if unknown else low
    return found


@callee
def holds(words, small, large):  # type: ignore[no-untyped-def]
    """Whether one set is part of another."""
    outside = np.uint64(0)
    for w in range(words.shape[1]):
        outside |= words[small, w] & ~words[large, w]
    return outside == 0


@kernel
def cover(family, nets, swaps, teams, rules, limit):  # type: ignore[no-untyped-def]
    """Least devices for every set and number of replicas, and whether all is known.

    Returns
    -------
    i32[I, S + 1], S replicas at most, rules.devices + 1 where there is no way; and whether the
    search for parts to run again never gave up.
    """
    sets, n = len(family.work), swaps.cost.shape[1]
    none = rules.devices + 1
    least = np.full((sets, rules.most_replicas + 1), none, np.int32)
    least[0, 0] = 0
    sums = np.zeros((4, family.weight.shape[1]))
    block = np.zeros(family.words.shape[1], np.uint64)
    cost, save, took = np.zeros(n), np.zeros(n), np.zeros(2 * n + 1, np.int64)
    known = _cover(family, nets, swaps, teams, rules, limit, least, sums, block, cost, save, took)
    return least, known


@callee
def _cover(  # type: ignore[no-untyped-def]
    family, nets, swaps, teams, rules, limit, least, sums, block, cost, save, took
):
    sets, known = len(family.work), True
    total, top = family.work[sets - 1], limit + rules.slack
    for small in range(sets - 1):
        fewest = rules.devices + 1
        for s in range(rules.most_replicas + 1):
            fewest = min(fewest, least[small, s])
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
                gather(family, nets, small, large, sums)
                if rules.partwise:
                    for w in range(len(block)):
                        block[w] = family.words[large, w] & ~family.words[small, w]
                needed = (total - family.work[large] - rules.slack) / top
                for c in range(teams.group[g], teams.group[g + 1]):
                    d = teams.replicas[c]
                    most = (rules.most_replicas + d - 1) // d
                    y = most_in_flight(
                        family, swaps, rules, limit, small, large, teams.degree[c], d, most,
                        sums, block, cost, save, took,
                    )  # fmt: skip
                    if y < 0:
                        y, known = -1 - y, False
                    for s in range(min(y * d, rules.most_replicas) - d + 1):
                        used = least[small, s] + devices
                        if used < least[large, s + d] and used + needed <= rules.devices:
                            least[large, s + d] = used
    return known


@kernel
def last_stage(  # type: ignore[no-untyped-def]
    family, nets, swaps, teams, rules, limit, least, large, replicas
):
    """How a set was covered: the set before its first stage, and the team of that; -1: not at all.

    `replicas` are those of all its stages.
    """
    n = swaps.cost.shape[1]
    sums = np.zeros((4, family.weight.shape[1]))
    block = np.zeros(family.words.shape[1], np.uint64)
    cost, save, took = np.zeros(n), np.zeros(n), np.zeros(2 * n + 1, np.int64)
    return _last_stage(
        family, nets, swaps, teams, rules, limit, least, large, replicas,
        sums, block, cost, save, took,
    )  # fmt: skip


@callee
def _last_stage(  # type: ignore[no-untyped-def]
    family, nets, swaps, teams, rules, limit, least, large, replicas, sums, block, cost, save, took
):
    for small in range(large):
        if not holds(family.words, small, large):
            continue
        gathered = False
        for c in range(len(teams.degree)):
            d = teams.replicas[c]
            if d > replicas:
                continue
            used = least[small, replicas - d] + teams.devices[c]
            if used != least[large, replicas]:
                continue
            if not gathered:
                gather(family, nets, small, large, sums)
                for w in range(len(block)):
                    block[w] = family.words[large, w] & ~family.words[small, w]
                gathered = True
            most = (rules.most_replicas + d - 1) // d
            y = most_in_flight(
                family, swaps, rules, limit, small, large, teams.degree[c], d, most,
                sums, block, cost, save, took,
            )  # fmt: skip
            if (y if y >= 0 else -1 - y) * d >= replicas:
                return small, c
    return -1, -1


@kernel
def fewest_swaps(block, swaps, i, y, need, budget):  # type: ignore[no-untyped-def]
    """Swaps in a stage so that `need` bytes are saved in `budget` seconds.

    Returns 1, 0 or -1 as `feasible`, and the swaps.
    """
    n = swaps.cost.shape[1]
    cost, save, took = np.zeros(n), np.zeros(n), np.zeros(2 * n + 1, np.int64)
    answer = feasible(need, budget, i, y, block, swaps, cost, save, took)
    return answer, took[1 : took[0] + 1] if answer == 1 else took[:0]
