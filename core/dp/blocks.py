r"""Kernels of the ideal search: decide a target by walking every block that fits it.

With the last class of devices, of which the fewest are wanted, and a state s that counts the used
devices of the others,

    least[{}, 0] = 0
    least[J, t] = min of least[I, s] + (r where c is the last class)

over the ideals I in J, classes c and numbers of replicas r such that the block J - I meets the
targets on r devices of c, and t is s with r more of c. What is covered at the targets is
everything if some least[everything, t] is at most the number of devices of the last class.

From an ideal I that some devices have covered, blocks J - I are walked by adding items in
ascending order, so each block is met once, its load kept up to date from the nets of the item
that is added. Of the diamond 0 -> 1, 2 -> 3,

    lattice     {} - 0 - 01 ----- 012 - 0123        blocks from {}     0
                       \        /                                      0 1
                        02 ----                                        0 1 2
                                                                       0 1 2 3
                                                                       0 2

of which 0 2 is followed by no 1, which is below 2: that block was met as 0 1 2. What can only grow
(compute, transfers of tensors that are cut already, memory) prunes the walk: where 0 1 is too much
in that sense, so are 0 1 2 and 0 1 2 3. A block that an item may join without harm to others is
walked through, but not entered: the one with the item does as well.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.combine import DUPLEX, MARGIN, ROUNDING, SUM
from dnnp.core.cost.kernel import kernel
from dnnp.core.cost.load_kernel import load_of, share_of
from dnnp.core.dp.peak import peak_of
from dnnp.core.dp.problem import NONE


@kernel
def _replicas(loads, weight, copies, target, sync, comm, vary):  # type: ignore[no-untyped-def]
    """(fewest replicas that meet the targets, or 0; the next larger load of pass `vary`).

    On r devices a load becomes load / r, and the last pass adds (1 - 1/r) * weight * sync, or
    overlaps it (Appendix C.2).
    """
    least = np.inf
    last = len(loads) - 1
    for r in range(1, copies + 1):
        good = True
        mine = 0.0
        for q in range(len(loads)):
            extra = (r - 1) * weight * sync / r if q == last and r > 1 else 0.0
            value = share_of(comm, loads[q], r, extra)
            if q == vary:
                mine = value
            elif value > target[q]:
                good = False
        if good:
            if mine <= target[vary]:
                return r, least
            least = min(least, mine)
    return 0, least


@kernel
def decide(p, lattice, goal, memo, first, budget):  # type: ignore[no-untyped-def]
    """Cover ideals at loads of at most `goal.target`, from ideal `first` on.

    Parameters
    ----------
    p
        The problem, `IdealArrays`.
    lattice
        A `Lattice` of its items.
    goal
        A `Goal`; what is above the target is noted there.
    memo
        A `Memo`, filled with NONE but for the empty ideal before the first call.
    budget
        Blocks to walk before pausing.

    Returns
    -------
    (ideal to continue with; the number of ideals: all done, or everything is covered, blocks)
    """
    parent, last_item = lattice.parent, lattice.last
    child_ptr, child_item, child_ideal = lattice.child_ptr, lattice.child_item, lattice.child_ideal
    target, vary, above = goal.target, goal.vary, goal.above
    least, came, how = memo.least, memo.came, memo.how
    n_classes, n_passes, n = p.work.shape
    n_rows = len(p.row_class)
    n_states = least.shape[1]
    n_nets = len(p.net_size)
    main = n_classes - 1
    everything = len(parent) - 1
    before = np.zeros(n_nets, np.int32)
    inside = np.zeros(n_nets, np.int32)
    given = np.zeros(n_nets, np.bool_)
    used = np.zeros(len(p.param_bytes), np.int32)
    depth_room = n + 2
    work = np.zeros((depth_room, n_classes, n_passes))
    arriving = np.zeros((depth_room, n_rows))
    leaving = np.zeros((depth_room, n_rows))
    sure_in = np.zeros((depth_room, n_rows))
    sure_out = np.zeros((depth_room, n_rows))
    held = np.zeros(depth_room)
    weight = np.zeros(depth_room)
    touched = np.zeros(depth_room)
    own = np.zeros(depth_room)
    where = np.zeros(depth_room, np.int64)
    child = np.zeros(depth_room, np.int64)
    added = np.zeros(depth_room, np.int64)
    need = np.zeros(n_classes, np.int64)
    loads = np.zeros(n_passes)
    grow_loads = np.zeros(n_passes)
    grown = np.zeros(len(parent), np.int64)
    fuller = np.zeros(n_classes, np.int64)
    dead = np.zeros(n_classes, np.int64)
    live = np.zeros(len(p.nodes) + 2)
    mark = np.zeros(len(p.nodes) + 1, np.int64)
    last_use = np.zeros(len(p.tensor_bytes) + 1, np.int64)
    digits = np.zeros(n_classes, np.int64)
    duplex = p.comm == DUPLEX
    blocks = 0

    for ideal in range(first, everything):
        if blocks >= budget:
            return ideal, blocks
        reached = False
        for s in range(n_states):
            if least[ideal, s] != NONE:
                reached = True
        if not reached:
            continue
        # Tensors that cross from here are still to be paid for, by devices that pay.
        if p.crossing[0, ideal] < 0.0:
            _mark(p, parent, last_item, ideal, before, given)
            for q in range(n_passes):
                p.crossing[q, ideal] = 0.0
                for e in range(n_nets):
                    if 0 < before[e] < p.net_size[e]:
                        p.crossing[q, ideal] += p.net_share[q, e]
        reached = False
        for s in range(n_states):
            if least[ideal, s] == NONE:
                continue
            room = p.weights[main] * (p.counts[main] - least[ideal, s])
            free = p.counts[main] - least[ideal, s] if _is_cpu(p, main) else 0
            for c in range(main):
                digit = (s // p.strides[c]) % (p.counts[c] + 1)
                room += p.weights[c] * (p.counts[c] - digit)
                if _is_cpu(p, c):
                    free += p.counts[c] - digit
            keep = True
            for q in range(n_passes):
                paid = 0.0 if free > 0 or p.comm != SUM else p.crossing[q, ideal]
                owed = p.rest[q, ideal] + paid
                if owed * (1 - MARGIN) > target[q] * room:
                    keep = False
                    if q == vary and room > 0.0:
                        above[0] = min(above[0], owed * (1 - MARGIN) / room)
            if keep:
                reached = True
            else:
                least[ideal, s] = NONE
        if reached:
            _mark(p, parent, last_item, ideal, before, given)
            depth = 0
            where[0] = ideal
            child[0] = child_ptr[ideal]
            added[0] = -1
            while depth >= 0:
                if child[depth] < child_ptr[where[depth] + 1]:
                    edge = child[depth]
                    child[depth] += 1
                    v = child_item[edge]
                    d = depth + 1
                    blocks += 1
                    for c in range(n_classes):
                        for q in range(n_passes):
                            work[d, c, q] = work[depth, c, q] + p.work[c, q, v]
                    for r in range(n_rows):
                        arriving[d, r] = arriving[depth, r]
                        leaving[d, r] = leaving[depth, r]
                        sure_in[d, r] = sure_in[depth, r]
                        sure_out[d, r] = sure_out[depth, r]
                    for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
                        e = p.item_net[i]
                        inside[e] += 1
                        if not duplex:
                            # In and out add up: what counts is that the net is cut.
                            if inside[e] == 1:
                                for r in range(n_rows):
                                    cost = p.net_cost[r, e]
                                    arriving[d, r] += cost
                                    if before[e] > 0 or p.net_always[e]:
                                        sure_in[d, r] += cost
                            if inside[e] == p.net_size[e] and not p.net_always[e]:
                                for r in range(n_rows):
                                    arriving[d, r] -= p.net_cost[r, e]
                            continue
                        source = p.net_source[e]
                        if source == v:
                            for r in range(n_rows):
                                cost = p.net_cost[r, e]
                                if inside[e] > 1:
                                    arriving[d, r] -= cost
                                leaving[d, r] += cost
                                if before[e] > 0 or p.net_always[e]:
                                    sure_out[d, r] += cost
                        elif inside[e] == 1:
                            for r in range(n_rows):
                                arriving[d, r] += p.net_cost[r, e]
                                if source < 0 or given[e]:
                                    sure_in[d, r] += p.net_cost[r, e]
                        if inside[e] == p.net_size[e] and not p.net_always[e]:
                            for r in range(n_rows):
                                leaving[d, r] -= p.net_cost[r, e]
                    held[d] = held[depth] + p.item_bytes[v]
                    weight[d] = weight[depth] + p.item_weight[v]
                    for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
                        t = p.param_idx[i]
                        used[t] += 1
                        if used[t] == 1:
                            held[d] += p.param_bytes[t]
                            weight[d] += p.param_weight[t]
                    touched[d] = touched[depth] + p.item_touch[v]
                    own[d] = max(own[depth], p.item_own[v])
                    added[d] = v
                    where[d] = child_ideal[edge]
                    # What no larger block can get rid of.
                    alive = False
                    for c in range(n_classes):
                        dead[c] = 0
                        excess = held[d] + own[d] - p.capacity[c]
                        extra = 0.0
                        if excess > 0.0:
                            if p.stream[c] == np.inf:
                                dead[c] = 1
                                continue
                            extra = excess * p.stream[c]
                        fits = 0
                        worst = 0.0
                        for q in range(n_passes):
                            low = work[d, c, q]
                            r = p.row_of[c, q]
                            if r >= 0:
                                sure = sure_in[d, r] + extra
                                low = load_of(p.comm, sure, low, 0.0, sure_out[d, r])
                            low = low / p.copies[c] * (1 - ROUNDING)
                            if low > target[q]:
                                dead[c] = 1
                                if q == vary:
                                    worst = low
                                    fits += 1
                                else:
                                    fits = -n_passes
                        if dead[c] == 0:
                            alive = True
                        elif fits > 0 and worst < np.inf:
                            above[0] = min(above[0], worst)
                    if not alive:
                        _drop(p, v, inside, used)
                        continue
                    # The block itself, if it could save devices on the way to its end.
                    j = where[d]
                    usable = False
                    matters = False
                    for s in range(n_states):
                        a = least[ideal, s]
                        if a == NONE:
                            continue
                        if a + 1 < least[j, s]:
                            matters = True
                            break
                        for c in range(main):
                            if (s // p.strides[c]) % (p.counts[c] + 1) < p.counts[c]:
                                matters |= a < least[j, s + p.strides[c]]
                    memory = held[d] + own[d]
                    known = p.peak == 0 or p.relaxed == 1
                    for c in range(n_classes):
                        need[c] = 0
                        if dead[c] or not matters:
                            continue
                        extra = 0.0
                        if not known and held[d] + touched[d] > p.capacity[c]:
                            path = added[1 : d + 1]
                            memory = held[d] + peak_of(p, path, d, live, mark, last_use)
                            known = True
                        if memory > p.capacity[c]:
                            if p.stream[c] == np.inf:
                                above[1] = 1.0
                                continue
                            extra = (memory - p.capacity[c]) * p.stream[c]
                            if p.peak == 1:
                                above[1] = 1.0
                        for q in range(n_passes):
                            load = work[d, c, q]
                            r = p.row_of[c, q]
                            if r >= 0:
                                moved = arriving[d, r] + extra
                                load = load_of(p.comm, moved, load, 0.0, leaving[d, r])
                            loads[q] = load
                        need[c], after = _replicas(
                            loads, weight[d], p.copies[c], target, p.sync[c], p.comm, vary
                        )
                        above[0] = min(above[0], after)
                        usable |= need[c] > 0
                    fuller[:] = -1
                    if usable:
                        for s in range(n_states):
                            a = least[ideal, s]
                            if a == NONE:
                                continue
                            for c in range(main):
                                digits[c] = (s // p.strides[c]) % (p.counts[c] + 1)
                            for c in range(n_classes):
                                if need[c] == 0:
                                    continue
                                t, b = s, a
                                if c == main:
                                    b = a + need[c]
                                else:
                                    if digits[c] + need[c] > p.counts[c]:
                                        continue
                                    t = s + need[c] * p.strides[c]
                                if b > p.counts[main] or b >= least[j, t]:
                                    continue
                                room = p.weights[main] * (p.counts[main] - b)
                                for k in range(main):
                                    spent = digits[k] + (need[c] if k == c else 0)
                                    room += p.weights[k] * (p.counts[k] - spent)
                                keep = True
                                for q in range(n_passes):
                                    owed = p.rest[q, j] * (1 - MARGIN)
                                    if owed > target[q] * room:
                                        keep = False
                                        if q == vary and room > 0.0:
                                            above[0] = min(above[0], owed / room)
                                if keep and fuller[c] < 0 and p.peak == 0:
                                    # What could grow by an item once often can by it again.
                                    start, end = child_ptr[j], child_ptr[j + 1]
                                    likely = max(start, grown[j])
                                    more = _can_grow(
                                        p,
                                        c,
                                        need[c],
                                        target,
                                        child_item,
                                        likely,
                                        end,
                                        before,
                                        inside,
                                        used,
                                        d,
                                        work,
                                        arriving,
                                        leaving,
                                        held,
                                        weight,
                                        grow_loads,
                                    )
                                    if more < 0 and likely > start:
                                        more = _can_grow(
                                            p,
                                            c,
                                            need[c],
                                            target,
                                            child_item,
                                            start,
                                            likely,
                                            before,
                                            inside,
                                            used,
                                            d,
                                            work,
                                            arriving,
                                            leaving,
                                            held,
                                            weight,
                                            grow_loads,
                                        )
                                    grown[j] = max(more, 0)
                                    fuller[c] = more >= 0
                                if keep and fuller[c] <= 0:
                                    least[j, t] = b
                                    came[j, t] = ideal
                                    how[j, t] = c + n_classes * (need[c] - 1)
                    depth = d
                    e = child_ptr[j + 1]
                    while e > child_ptr[j] and child_item[e - 1] > v:
                        e -= 1
                    child[d] = e
                else:
                    if depth > 0:
                        _drop(p, added[depth], inside, used)
                    depth -= 1
        for s in range(n_states):
            if least[everything, s] != NONE:
                return len(parent), blocks
    return len(parent), blocks


@kernel
def _can_grow(  # type: ignore[no-untyped-def]
    p,
    c,
    copies,
    target,
    child_item,
    first,
    end,
    before,
    inside,
    used,
    d,
    work,
    arriving,
    leaving,
    held,
    weight,
    loads,
):
    """Edge among first..end whose item may join a block on class c without harm to another; -1.

    Then the block need not be considered: the one with the item does as well. Let x be ready
    after the block D, and B the later block that holds it in some split. Without x, B pays for
    x's nets that have other pins in B and none in front (`opened`), and no longer for x's work
    and for nets of which x was the last pin (`closed`). If opened <= closed + work, B gets no
    dearer; then it only matters that D with x still fits.
    """
    n_passes = p.work.shape[1]
    for edge in range(first, end):
        x = child_item[edge]
        good = True
        for r in range(len(p.row_class)):
            gain = p.work[p.row_class[r], p.row_pass[r], x] if p.comm == SUM else 0.0
            for i in range(p.item_ptr[x], p.item_ptr[x + 1]):
                e = p.item_net[i]
                here = before[e] + inside[e]
                if here == 0:
                    if p.net_size[e] > 1:
                        gain -= p.net_cost[r, e]
                elif here == p.net_size[e] - 1 and p.comm != DUPLEX:
                    gain += p.net_cost[r, e]
            if gain < 0.0:
                good = False
                break
        if not good:
            continue
        bytes_ = held[d] + p.item_bytes[x]
        heavy = weight[d] + p.item_weight[x]
        for i in range(p.param_ptr[x], p.param_ptr[x + 1]):
            t = p.param_idx[i]
            if used[t] == 0:
                bytes_ += p.param_bytes[t]
                heavy += p.param_weight[t]
        extra = 0.0
        if bytes_ > p.capacity[c]:
            if p.stream[c] == np.inf:
                continue
            extra = (bytes_ - p.capacity[c]) * p.stream[c]
        for q in range(n_passes):
            load = work[d, c, q] + p.work[c, q, x]
            r = p.row_of[c, q]
            if r >= 0:
                moved, sent = arriving[d, r], leaving[d, r]
                for i in range(p.item_ptr[x], p.item_ptr[x + 1]):
                    e = p.item_net[i]
                    cost = p.net_cost[r, e]
                    whole = inside[e] + 1 == p.net_size[e] and not p.net_always[e]
                    if p.comm != DUPLEX:
                        if inside[e] == 0 and not whole:
                            moved += cost
                        elif inside[e] > 0 and whole:
                            moved -= cost
                    elif p.net_source[e] == x:
                        if inside[e] > 0:
                            moved -= cost
                        if not whole:
                            sent += cost
                    elif inside[e] == 0:
                        moved += cost
                    elif whole:
                        sent -= cost
                load = load_of(p.comm, moved + extra, load, 0.0, sent)
            loads[q] = load
        enough, _ = _replicas(loads, heavy, p.copies[c], target, p.sync[c], p.comm, 0)
        if 0 < enough <= copies:
            return edge
    return -1


@kernel
def _mark(p, parent, last_item, ideal, before, given):  # type: ignore[no-untyped-def]
    """Count the pins of each net in an ideal, and say whether its source is there."""
    for e in range(len(before)):
        before[e] = 0
        given[e] = False
    while last_item[ideal] >= 0:
        v = last_item[ideal]
        for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
            e = p.item_net[i]
            before[e] += 1
            given[e] |= p.net_source[e] == v
        ideal = parent[ideal]


@kernel
def _drop(p, v, inside, used):  # type: ignore[no-untyped-def]
    """Take item v out of the block's counts."""
    for i in range(p.item_ptr[v], p.item_ptr[v + 1]):
        inside[p.item_net[i]] -= 1
    for i in range(p.param_ptr[v], p.param_ptr[v + 1]):
        used[p.param_idx[i]] -= 1


@kernel
def _is_cpu(p, c):  # type: ignore[no-untyped-def]
    """Whether devices of the class pay for no transfers."""
    return p.row_of[c, 0] < 0
