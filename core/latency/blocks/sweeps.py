"""Sweeps over ideals, forwards for `early` and `done`, backwards for `late` and `rest`: kernels.

See `dnnp.core.latency.blocks.ideals` for their values, and why these are bounds. Each sweep
computes its values anew from those of the other, and prunes by them. Blocks grow item by item, each
above the last in number, so that each block is enumerated once.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee, inlined, kernel, lean


@kernel
def live_tasks(parent, last, items):  # type: ignore[no-untyped-def]
    """Tasks of each ideal that a task outside of it reads (CSR): i64[I + 1], i64[l]."""
    count, label = len(parent), items.label
    inside = np.zeros(len(items.memory), np.bool_)
    ptr = np.zeros(count + 1, np.int64)
    idx = np.empty(1024, np.int64)
    size = 0
    for ideal in range(count):
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = True
            at = parent[at]
        at = ideal
        while last[at] >= 0:
            i = last[at]
            for q in range(items.member_ptr[i], items.member_ptr[i + 1]):
                t = items.member_idx[q]
                read = False
                for z in range(items.task_after_ptr[t], items.task_after_ptr[t + 1]):
                    read = read or not inside[label[items.task_after_idx[z]]]
                if read:
                    if size == len(idx):
                        longer = np.empty(2 * size, np.int64)
                        for y in range(size):
                            longer[y] = idx[y]
                        idx = longer
                    idx[size] = t
                    size += 1
            at = parent[at]
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = False
            at = parent[at]
        ptr[ideal + 1] = size
    return ptr, idx[:size]


@kernel
def late_by_readers(parent, last, items, net, left, used, late):  # type: ignore[no-untyped-def]
    """Raise `late` of each live task to the time `left` through any of its readers outside.

    left: f64[z, b] by the entries of `task_after_idx`; used: i64[w], the column b of each way.
    """
    inside = np.zeros(len(items.memory), np.bool_)
    for ideal in range(len(parent)):
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = True
            at = parent[at]
        for e in range(net.live_ptr[ideal], net.live_ptr[ideal + 1]):
            t = net.live_idx[e]
            for z in range(items.task_after_ptr[t], items.task_after_ptr[t + 1]):
                if not inside[items.label[items.task_after_idx[z]]]:
                    for way in range(len(used)):
                        late[e, way] = max(late[e, way], left[z, used[way]])
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = False
            at = parent[at]


@lean
def sweep(items, net, tables, s, target, at, forward, most):  # type: ignore[no-untyped-def]
    """Go on from ideal `at`, forwards or backwards, until `most` blocks were tried.

    Forwards the tables of all ideals but the first have to be inf before, backwards those of all
    but the last, and each way has one label. Returns the next ideal, and the blocks tried.
    """
    steps, step = 0, 1 if forward else -1
    while 0 <= at < len(net.child_ptr) - 1 and steps <= most:
        columns = _enter(net, tables, s, target, at, forward)
        if columns > 0:
            begin, end = net.live_ptr[at], net.live_ptr[at + 1]
            for e in range(begin, end):
                s.position[net.live_idx[e]] = e - begin
            for c in range(net.child_ptr[at], net.child_ptr[at + 1]):
                if items.pooled[net.child_item[c]]:
                    _pool_item(items, net, tables, s, target, at, c, columns, forward)
            steps += _blocks(items, net, tables, s, target, at, columns, forward)
            for e in range(begin, end):
                s.position[net.live_idx[e]] = -1
            if not forward:
                _copy_dominating_bounds(net, tables, at)
        at += step
    return at, steps


@callee
def _enter(net, tables, s, target, ideal, forward):  # type: ignore[no-untyped-def]
    """List the columns of an ideal from which the target may be met; returns their number.

    Forwards dominated ones are left out: with no more blocks, all is ready no later.
    """
    columns = 0
    begin, end = net.live_ptr[ideal], net.live_ptr[ideal + 1]
    for c in range(len(net.after) * net.slots):
        open_, way = tables.done[ideal, c] < target, c // net.slots
        if open_ and forward:
            open_ = tables.rest[ideal, way] < target
            for e in range(begin, end):
                open_ = open_ and tables.early[e, c] + tables.late[e, way] < target
            for j in range(columns):
                other = s.column[j]
                if open_ and net.under[other // net.slots, way]:
                    below = tables.done[ideal, other] <= tables.done[ideal, c]
                    for e in range(begin, end):
                        below = below and tables.early[e, other] <= tables.early[e, c]
                    if below:
                        open_ = False
                        tables.came[ideal, c] = -1 - other
            if not open_:
                tables.done[ideal, c] = np.inf
        if open_:
            s.column[columns] = c
            columns += 1
    return columns


@callee
def _copy_dominating_bounds(net, tables, ideal):  # type: ignore[no-untyped-def]
    """Copy bounds from a dominating column to the columns it dominates."""
    for c in range(len(net.after)):
        if tables.came[ideal, c] < 0:
            other = -1 - tables.came[ideal, c]
            tables.rest[ideal, c] = tables.rest[ideal, other]
            for e in range(net.live_ptr[ideal], net.live_ptr[ideal + 1]):
                tables.late[e, c] = tables.late[e, other]
    # Successors of dominated columns were never reached, but will be if the dominating one is
    # pruned: the least bound of those with no more blocks holds for them.
    for c in range(len(net.after)):
        if tables.came[ideal, c] >= 0 and tables.done[ideal, c] == np.inf:
            for other in range(len(net.after)):
                if other != c and net.under[other, c]:
                    tables.rest[ideal, c] = min(tables.rest[ideal, c], tables.rest[ideal, other])
                    for e in range(net.live_ptr[ideal], net.live_ptr[ideal + 1]):
                        tables.late[e, c] = min(tables.late[e, c], tables.late[e, other])


@callee
def _pool_item(  # type: ignore[no-untyped-def]
    items, net, tables, s, target, ideal, child, columns, forward
):
    """Transition: the item of a child in the pool."""
    i, after = net.child_item[child], net.child_ideal[child]
    begin, there, to = net.live_ptr[ideal], net.live_ptr[after], net.live_ptr[after + 1]
    for e in range(there, to):
        s.beyond[net.live_idx[e]] = e - there
    for j in range(columns):
        c = s.column[j]
        way = c // net.slots
        if not tables.rest[after, way] < target:
            continue
        done = _ends_of_tasks(items, tables, s, i, begin, c)
        open_ = max(done, tables.done[ideal, c]) < target
        for e in range(there, to):
            t = net.live_idx[e]
            p = s.position[t]
            ready = tables.early[begin + p, c] if p >= 0 else s.time[t]
            open_ = open_ and ready + tables.late[e, way] < target
            if forward:
                s.value[e - there] = ready
        if not open_:
            continue
        if forward:
            came = (ideal * len(net.after) * net.slots + c) * (len(net.device) + 1)
            offer_label(net, tables, s, after, way, max(done, tables.done[ideal, c]), came)
        else:
            longest = _tails_of_tasks(items, net, tables, s, i, ideal, after, way)
            _pull(net, tables, s, ideal, way, max(tables.rest[after, way], longest))
    for e in range(there, to):
        s.beyond[net.live_idx[e]] = -1


@inlined
def _ends_of_tasks(items, tables, s, i, begin, c):  # type: ignore[no-untyped-def]
    """Fill `s.time` with the ends of an item's tasks in the pool; returns the last."""
    last = 0.0
    for q in range(items.member_ptr[i], items.member_ptr[i + 1]):
        t = items.member_idx[q]
        start = 0.0
        for z in range(items.task_before_ptr[t], items.task_before_ptr[t + 1]):
            u = items.task_before_idx[z]
            p = s.position[u]
            start = max(start, tables.early[begin + p, c] if p >= 0 else s.time[u])
        s.time[t] = start + items.pool[t]
        last = max(last, s.time[t])
    return last


@inlined
def _tails_of_tasks(items, net, tables, s, i, ideal, after, way):  # type: ignore[no-untyped-def]
    """Fill `s.value` with the times from the ideal's live tasks on, an item in the pool next.

    Returns the longest from the start of a task of the item.
    """
    begin, there = net.live_ptr[ideal], net.live_ptr[after]
    for p in range(net.live_ptr[ideal + 1] - begin):
        r = s.beyond[net.live_idx[begin + p]]
        s.value[p] = tables.late[there + r, way] if r >= 0 else 0.0
    longest = 0.0
    for q in range(items.member_ptr[i + 1] - 1, items.member_ptr[i] - 1, -1):
        t = items.member_idx[q]
        r = s.beyond[t]
        tail = tables.late[there + r, way] if r >= 0 else 0.0
        for z in range(items.task_after_ptr[t], items.task_after_ptr[t + 1]):
            x = items.task_after_idx[z]
            if items.label[x] == i:
                tail = max(tail, s.time[x])
        s.time[t] = tail + items.pool[t]
        longest = max(longest, s.time[t])
        for z in range(items.task_before_ptr[t], items.task_before_ptr[t + 1]):
            p = s.position[items.task_before_idx[z]]
            if p >= 0:
                s.value[p] = max(s.value[p], s.time[t])
    return longest


@callee
def _pull(net, tables, s, ideal, way, rest):  # type: ignore[no-untyped-def]
    """Lower `late` of an ideal to `s.value`, and `rest`, where they are above."""
    tables.rest[ideal, way] = min(tables.rest[ideal, way], rest)
    begin = net.live_ptr[ideal]
    for p in range(net.live_ptr[ideal + 1] - begin):
        tables.late[begin + p, way] = min(tables.late[begin + p, way], s.value[p])


@callee
def _blocks(items, net, tables, s, target, ideal, columns, forward):  # type: ignore[no-untyped-def]
    """Transitions by every next block; returns how many blocks were tried."""
    begin, kinds, depth, steps = net.live_ptr[ideal], len(net.device), 0, 0
    s.ideal[0], s.edge[0], s.item[0], s.held[0] = ideal, net.child_ptr[ideal], -1, 0.0
    for k in range(kinds):
        s.work[0, k], s.reads[0, k], s.writes[0, k] = 0.0, 0.0, 0.0
    for j in range(columns):
        s.start[0, j] = 0.0
    for p in range(net.live_ptr[ideal + 1] - begin):
        s.feeds[p] = 0
    while depth >= 0:
        e = s.edge[depth]
        if e == net.child_ptr[s.ideal[depth] + 1]:
            if depth > 0:
                remove_item(items, net, s, s.item[depth])
            depth -= 1
            continue
        s.edge[depth] += 1
        i = net.child_item[e]
        other_pass = depth > 0 and items.late[i] != items.late[s.item[depth]]
        if i < s.item[depth] or items.mixed[i] or other_pass:
            continue
        depth += 1
        steps += 1
        s.ideal[depth], s.item[depth] = net.child_ideal[e], i
        s.edge[depth] = net.child_ptr[s.ideal[depth]]
        add_item(items, net, tables, s, begin, columns, depth)
        least = np.inf
        for j in range(columns):
            least = min(least, s.start[depth, j])
        possible = False
        for k in range(kinds):
            if s.held[depth] <= net.capacity[k]:
                soon = least + s.reads[depth, k] + s.work[depth, k] < target
                possible = possible or soon
                if soon:
                    _block(net, tables, s, target, ideal, depth, k, columns, forward)
        if not possible:
            # Nor is any larger block possible.
            remove_item(items, net, s, i)
            depth -= 1
    return steps


@callee
def _block(net, tables, s, target, ideal, depth, k, columns, forward):  # type: ignore[no-untyped-def]
    """Transition: the current block on an accelerator of kind k."""
    after = s.ideal[depth]
    begin, there, to = net.live_ptr[ideal], net.live_ptr[after], net.live_ptr[after + 1]
    cost = s.reads[depth, k] + s.work[depth, k] + s.writes[depth, k]
    for j in range(columns):
        c = s.column[j]
        way = net.after[c // net.slots, k]
        end = s.start[depth, j] + cost
        if way < 0 or not end < target or not tables.rest[after, way] < target:
            continue
        longest, open_ = 0.0, True
        for e in range(there, to):
            p, late = s.position[net.live_idx[e]], tables.late[e, way]
            if p < 0:
                longest = max(longest, late)
            elif not tables.early[begin + p, c] + late < target:
                open_ = False
                break
        if not open_ or not end + longest < target:
            continue
        if forward:
            for e in range(there, to):
                p = s.position[net.live_idx[e]]
                s.value[e - there] = tables.early[begin + p, c] if p >= 0 else end
            came = (ideal * len(net.after) * net.slots + c) * (len(net.device) + 1) + 1 + k
            offer_label(net, tables, s, after, way, max(tables.done[ideal, c], end), came)
            continue
        for p in range(net.live_ptr[ideal + 1] - begin):
            s.value[p] = cost + longest if s.feeds[p] > 0 else 0.0
        for e in range(there, to):
            p = s.position[net.live_idx[e]]
            if p >= 0:
                s.value[p] = max(s.value[p], tables.late[e, way])
        _pull(net, tables, s, ideal, c, max(tables.rest[after, way], cost + longest))


@callee
def offer_label(net, tables, s, ideal, way, done, came):  # type: ignore[no-untyped-def]
    """Insert the label `s.value`, `done` unless it is dominated.

    At the label limit it is merged with the nearest one: the elementwise minimum of both.
    """
    begin, width = net.live_ptr[ideal], net.live_ptr[ideal + 1] - net.live_ptr[ideal]
    first = way * net.slots
    free, near, least = -1, -1, np.inf
    for c in range(first, first + net.slots):
        if tables.done[ideal, c] == np.inf:
            if free < 0:
                free = c
            continue
        above, below, apart = tables.done[ideal, c] <= done, done <= tables.done[ideal, c], 0.0
        for p in range(width):
            more = s.value[p] - tables.early[begin + p, c]
            above, below, apart = above and more >= 0.0, below and more <= 0.0, apart + abs(more)
        if above:
            return
        if below:
            tables.done[ideal, c] = np.inf
            if free < 0:
                free = c
        elif apart < least:
            near, least = c, apart
    if free >= 0:
        tables.done[ideal, free] = done
        tables.came[ideal, free] = came
        for p in range(width):
            tables.early[begin + p, free] = s.value[p]
        return
    tables.merged[0] += 1
    if done < tables.done[ideal, near]:
        tables.done[ideal, near] = done
        tables.came[ideal, near] = came
    for p in range(width):
        tables.early[begin + p, near] = min(tables.early[begin + p, near], s.value[p])


@callee
def add_item(items, net, tables, s, begin, columns, depth):  # type: ignore[no-untyped-def]
    """Add item `s.item[depth]` to the block of the items before it.

    begin: of the ideal's live tasks; columns: number of its columns in use. All makers outside the
    block are in the ideal, so that reads, work and memory only grow; writes may fall.
    """
    i, before = s.item[depth], depth - 1
    kinds = len(net.device)
    s.member[i] = True
    s.held[depth] = s.held[before] + items.memory[i]
    for k in range(kinds):
        s.work[depth, k] = s.work[before, k] + items.time[net.device[k], i]
        s.reads[depth, k] = s.reads[before, k]
        s.writes[depth, k] = s.writes[before, k]
    for y in range(items.in_ptr[i], items.in_ptr[i + 1]):
        f = items.in_idx[y]
        s.readers[f] += 1
        m = items.maker[f]
        if m >= 0 and s.member[m]:
            if s.readers[f] == 1:
                s.held[depth] += net.tail_memory[m]
                for k in range(kinds):
                    s.work[depth, k] += net.tail_time[k, m]
            if s.readers[f] == items.use_ptr[f + 1] - items.use_ptr[f] and not items.leaves[f]:
                for k in range(kinds):
                    s.writes[depth, k] -= items.move[net.device[k], f]
        elif s.readers[f] == 1:
            for k in range(kinds):
                s.reads[depth, k] += items.move[net.device[k], f]
    for y in range(items.out_ptr[i], items.out_ptr[i + 1]):
        for k in range(kinds):
            s.writes[depth, k] += items.move[net.device[k], items.out_idx[y]]
    for j in range(columns):
        s.start[depth, j] = s.start[before, j]
    for q in range(items.member_ptr[i], items.member_ptr[i + 1]):
        t = items.member_idx[q]
        for z in range(items.task_before_ptr[t], items.task_before_ptr[t + 1]):
            p = s.position[items.task_before_idx[z]]
            if p >= 0 and not net.pool_only[items.task_before_idx[z]]:
                s.feeds[p] += 1
                for j in range(columns):
                    ready = tables.early[begin + p, s.column[j]]
                    s.start[depth, j] = max(s.start[depth, j], ready)


@callee
def remove_item(items, net, s, i):  # type: ignore[no-untyped-def]
    """Remove the last item of the block."""
    s.member[i] = False
    for y in range(items.in_ptr[i], items.in_ptr[i + 1]):
        s.readers[items.in_idx[y]] -= 1
    for q in range(items.member_ptr[i], items.member_ptr[i + 1]):
        t = items.member_idx[q]
        for z in range(items.task_before_ptr[t], items.task_before_ptr[t + 1]):
            p = s.position[items.task_before_idx[z]]
            if p >= 0 and not net.pool_only[items.task_before_idx[z]]:
                s.feeds[p] -= 1
