"""Which tasks live across the ideals of a lattice, and what they wait for at least: kernels."""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import kernel


@kernel
def live_tasks(parent, last, fixed):  # type: ignore[no-untyped-def]
    """Tasks of each ideal that a task outside of it reads (CSR): i64[I + 1], i64[l]."""
    count, label = len(parent), fixed.label
    inside = np.zeros(len(fixed.memory), np.bool_)
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
            for q in range(fixed.member_ptr[i], fixed.member_ptr[i + 1]):
                t = fixed.member_idx[q]
                read = False
                for z in range(fixed.task_after_ptr[t], fixed.task_after_ptr[t + 1]):
                    read = read or not inside[label[fixed.task_after_idx[z]]]
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
def late_by_readers(parent, last, fixed, net, left, used, late):  # type: ignore[no-untyped-def]
    """Raise `late` of each live task to what is `left` through any of its readers outside.

    left: f64[z, b] by the entries of `task_after_idx`; used: i64[w], the column b of each way.
    """
    inside = np.zeros(len(fixed.memory), np.bool_)
    for ideal in range(len(parent)):
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = True
            at = parent[at]
        for e in range(net.live_ptr[ideal], net.live_ptr[ideal + 1]):
            t = net.live_idx[e]
            for z in range(fixed.task_after_ptr[t], fixed.task_after_ptr[t + 1]):
                if not inside[fixed.label[fixed.task_after_idx[z]]]:
                    for way in range(len(used)):
                        late[e, way] = max(late[e, way], left[z, used[way]])
        at = ideal
        while last[at] >= 0:
            inside[last[at]] = False
            at = parent[at]
