"""A block that grows item by item, with what it costs: kernels."""

from __future__ import annotations

from dnnp.core.cost.kernel import callee


@callee
def add_item(fixed, net, tables, s, begin, columns, depth):  # type: ignore[no-untyped-def]
    """Add item `s.item[depth]` to the block of the items before it.

    begin: of the ideal's live tasks; columns: how many columns of it are in use. What the block
    reads is made before it, so that reads, work and memory only grow; writes may fall.
    """
    i, before = s.item[depth], depth - 1
    kinds = len(net.device)
    s.member[i] = True
    s.held[depth] = s.held[before] + fixed.memory[i]
    for k in range(kinds):
        s.work[depth, k] = s.work[before, k] + fixed.time[net.device[k], i]
        s.reads[depth, k] = s.reads[before, k]
        s.writes[depth, k] = s.writes[before, k]
    for y in range(fixed.in_ptr[i], fixed.in_ptr[i + 1]):
        f = fixed.in_idx[y]
        s.readers[f] += 1
        m = fixed.maker[f]
        if m >= 0 and s.member[m]:
            if s.readers[f] == fixed.use_ptr[f + 1] - fixed.use_ptr[f] and not fixed.leaves[f]:
                for k in range(kinds):
                    s.writes[depth, k] -= fixed.move[net.device[k], f]
        elif s.readers[f] == 1:
            for k in range(kinds):
                s.reads[depth, k] += fixed.move[net.device[k], f]
    for y in range(fixed.out_ptr[i], fixed.out_ptr[i + 1]):
        for k in range(kinds):
            s.writes[depth, k] += fixed.move[net.device[k], fixed.out_idx[y]]
    for j in range(columns):
        s.start[depth, j] = s.start[before, j]
    for q in range(fixed.member_ptr[i], fixed.member_ptr[i + 1]):
        t = fixed.member_idx[q]
        for z in range(fixed.task_before_ptr[t], fixed.task_before_ptr[t + 1]):
            p = s.position[fixed.task_before_idx[z]]
            if p >= 0:
                s.feeds[p] += 1
                for j in range(columns):
                    ready = tables.early[begin + p, s.column[j]]
                    s.start[depth, j] = max(s.start[depth, j], ready)


@callee
def remove_item(fixed, s, i):  # type: ignore[no-untyped-def]
    """Take the item that came last out of the block."""
    s.member[i] = False
    for y in range(fixed.in_ptr[i], fixed.in_ptr[i + 1]):
        s.readers[fixed.in_idx[y]] -= 1
    for q in range(fixed.member_ptr[i], fixed.member_ptr[i + 1]):
        t = fixed.member_idx[q]
        for z in range(fixed.task_before_ptr[t], fixed.task_before_ptr[t + 1]):
            p = s.position[fixed.task_before_idx[z]]
            if p >= 0:
                s.feeds[p] -= 1
