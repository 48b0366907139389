"""The kernel of `dnnp.core.dp.blocks` for the commonest problem, several times as fast.

One class of accelerators, perhaps one of CPUs, `sum` transfers, no replicas, one target, and
memory that does not bind. What it decides is the same; see `decide` for the method.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import MARGIN, ROUNDING, SUM
from dnnp.core.cost.kernel import kernel
from dnnp.core.dp.problem import NONE, IdealArrays


def is_plain(p: IdealArrays) -> bool:
    """Whether this kernel may stand in for the general one."""
    classes, passes, _ = p.work.shape
    return bool(
        p.comm == SUM
        and passes == 1
        and classes <= 2
        and len(p.row_class) == 1
        and (p.copies == 1).all()
        and np.isinf(p.capacity).all()
    )


@kernel
def decide_plain(  # type: ignore[no-untyped-def]
    p,
    parent,
    last_item,
    child_ptr,
    child_item,
    child_ideal,
    targets,
    vary,
    least,
    came,
    how,
    first,
    budget,
    above,
):
    """Cover ideals at loads of at most targets[0]; arguments and result as of `decide`."""
    target = targets[0]
    n_classes, _, n = p.work.shape
    payer = p.row_class[0]
    other = 1 - payer if n_classes == 2 else payer
    main = n_classes - 1
    spare = p.counts[0] if n_classes == 2 else 0
    most = p.counts[main]
    work, cpu_work, cost = p.work[payer, 0], p.work[other, 0], p.net_cost[0]
    item_ptr, item_net, net_size, always = p.item_ptr, p.item_net, p.net_size, p.net_always
    rest, crossing, net_share = p.rest[0], p.crossing[0], p.net_share[0]
    n_nets = len(net_size)
    everything = len(parent) - 1
    before = np.zeros(n_nets, np.int64)
    inside = np.zeros(n_nets, np.int64)
    grown = np.zeros(len(parent), np.int64)
    load = np.zeros(n + 2)
    sure = np.zeros(n + 2)
    alone = np.zeros(n + 2)
    where = np.zeros(n + 2, np.int64)
    child = np.zeros(n + 2, np.int64)
    added = np.zeros(n + 2, np.int64)
    lowest = above[0]
    blocks = 0
    for ideal in range(first, everything):
        if blocks >= budget:
            above[0] = lowest
            return ideal, blocks
        marked = False
        reached = False
        for s in range(spare + 1):
            if least[ideal, s] == NONE:
                continue
            if not marked:
                marked = True
                for e in range(n_nets):
                    before[e] = 0
                at = ideal
                while last_item[at] >= 0:
                    v = last_item[at]
                    for i in range(item_ptr[v], item_ptr[v + 1]):
                        before[item_net[i]] += 1
                    at = parent[at]
                if crossing[ideal] < 0.0:
                    crossing[ideal] = 0.0
                    for e in range(n_nets):
                        if 0 < before[e] < net_size[e]:
                            crossing[ideal] += net_share[e]
            room = p.weights[main] * (most - least[ideal, s])
            idle = most - least[ideal, s] if main != payer else 0
            if n_classes == 2:
                room += p.weights[0] * (spare - s)
                if payer != 0:
                    idle += spare - s
            owed = (rest[ideal] + (0.0 if idle > 0 else crossing[ideal])) * (1 - MARGIN)
            if owed > target * room:
                least[ideal, s] = NONE
                if room > 0.0:
                    lowest = min(lowest, owed / room)
            else:
                reached = True
        if not reached:
            continue
        depth = 0
        where[0] = ideal
        child[0] = child_ptr[ideal]
        load[0], sure[0], alone[0] = 0.0, 0.0, 0.0
        while depth >= 0:
            here = where[depth]
            edge = child[depth]
            if edge == child_ptr[here + 1]:
                if depth > 0:
                    v = added[depth]
                    for i in range(item_ptr[v], item_ptr[v + 1]):
                        inside[item_net[i]] -= 1
                depth -= 1
                continue
            child[depth] = edge + 1
            v = child_item[edge]
            blocks += 1
            paid = load[depth] + work[v]
            certain = sure[depth] + work[v]
            for i in range(item_ptr[v], item_ptr[v + 1]):
                e = item_net[i]
                count = inside[e] + 1
                inside[e] = count
                if count == 1:
                    paid += cost[e]
                    if before[e] > 0 or always[e]:
                        certain += cost[e]
                if count == net_size[e] and not always[e]:
                    paid -= cost[e]
            by_cpu = np.inf
            if n_classes == 2:
                by_cpu = alone[depth] + cpu_work[v]
            low = certain * (1 - ROUNDING)
            low_cpu = by_cpu * (1 - ROUNDING)
            if low > target and low_cpu > target:
                lowest = min(lowest, low, low_cpu)
                for i in range(item_ptr[v], item_ptr[v + 1]):
                    inside[item_net[i]] -= 1
                continue
            j = child_ideal[edge]
            depth += 1
            added[depth] = v
            where[depth] = j
            load[depth], sure[depth], alone[depth] = paid, certain, by_cpu
            e = child_ptr[j + 1]
            while e > child_ptr[j] and child_item[e - 1] > v:
                e -= 1
            child[depth] = e
            grows, grows_cpu = -1, -1
            for s in range(spare + 1):
                a = least[ideal, s]
                if a == NONE:
                    continue
                for c in range(n_classes):
                    t, b = s, a + 1
                    if c != main:
                        t, b = s + 1, a
                        if t > spare:
                            continue
                    if b > most or b >= least[j, t]:
                        continue
                    amount = paid if c == payer else by_cpu
                    if amount > target:
                        lowest = min(lowest, amount)
                        continue
                    room = p.weights[main] * (most - b)
                    if n_classes == 2:
                        room += p.weights[0] * (spare - t)
                    owed = rest[j] * (1 - MARGIN)
                    if owed > target * room:
                        if room > 0.0:
                            lowest = min(lowest, owed / room)
                        continue
                    if c == payer:
                        if grows < 0:
                            start, end = child_ptr[j], child_ptr[j + 1]
                            likely = max(start, grown[j])
                            found = _grows(
                                likely,
                                end,
                                paid,
                                target,
                                child_item,
                                work,
                                item_ptr,
                                item_net,
                                net_size,
                                always,
                                cost,
                                before,
                                inside,
                            )
                            if found < 0 and likely > start:
                                found = _grows(
                                    start,
                                    likely,
                                    paid,
                                    target,
                                    child_item,
                                    work,
                                    item_ptr,
                                    item_net,
                                    net_size,
                                    always,
                                    cost,
                                    before,
                                    inside,
                                )
                            grown[j] = max(found, 0)
                            grows = 1 if found >= 0 else 0
                        if grows == 1:
                            continue
                    else:
                        if grows_cpu < 0:
                            grows_cpu = 0
                            for i in range(child_ptr[j], child_ptr[j + 1]):
                                x = child_item[i]
                                if (
                                    by_cpu + cpu_work[x] <= target
                                    and _gain(
                                        x, work, item_ptr, item_net, net_size, cost, before, inside
                                    )
                                    >= 0.0
                                ):
                                    grows_cpu = 1
                                    break
                        if grows_cpu == 1:
                            continue
                    least[j, t] = b
                    came[j, t] = ideal
                    how[j, t] = c
        for s in range(spare + 1):
            if least[everything, s] != NONE:
                above[0] = lowest
                return len(parent), blocks
    above[0] = lowest
    return len(parent), blocks


@kernel
def _gain(x, work, item_ptr, item_net, net_size, cost, before, inside):  # type: ignore[no-untyped-def]
    """What the block that holds x later saves, at least, when x moves to the front."""
    gain = work[x]
    for i in range(item_ptr[x], item_ptr[x + 1]):
        e = item_net[i]
        here = before[e] + inside[e]
        if here == 0:
            if net_size[e] > 1:
                gain -= cost[e]
        elif here == net_size[e] - 1:
            gain += cost[e]
    return gain


@kernel
def _grows(  # type: ignore[no-untyped-def]
    first,
    end,
    paid,
    target,
    child_item,
    work,
    item_ptr,
    item_net,
    net_size,
    always,
    cost,
    before,
    inside,
):
    """Edge among first..end whose item may join a block on an accelerator without harm; or -1."""
    for edge in range(first, end):
        x = child_item[edge]
        load = paid + work[x]
        for i in range(item_ptr[x], item_ptr[x + 1]):
            e = item_net[i]
            whole = inside[e] + 1 == net_size[e] and not always[e]
            if inside[e] == 0:
                if not whole:
                    load += cost[e]
            elif whole:
                load -= cost[e]
        if (
            load <= target
            and _gain(x, work, item_ptr, item_net, net_size, cost, before, inside) >= 0.0
        ):
            return edge
    return -1
