"""Tasks that are alike, so that a linear program needs one column for all of them.

Colour refinement: classes of tasks of equal times and memory, split until the tasks of a class
have equally many predecessors and successors in every other class. Averages over the classes of a
solution of a linear program are again a solution, no worse (Grohe, Kersting, Mladenov and Selman
2014): heads of attention that stand side by side become one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.tasks import Tasks
from dnnp.core.model.graph import Ints, csr


def alike(tasks: Tasks) -> Ints:
    """Class of each task, i64[n]; tasks that share a device with others have one of their own.

    Sweeps along the graph, to and fro, until one splits nothing: O(n + e) dictionary steps each.
    """
    tail, head = tasks.edges
    before, after = _rows(head, tail, tasks.n), _rows(tail, head, tasks.n)
    order = tasks.order.tolist()
    kinds = np.column_stack([tasks.time.T, tasks.memory, tasks.backward])
    label = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    bound = np.bincount(tasks.together, minlength=tasks.n)[tasks.together] > 1
    label[bound] = tasks.n + np.flatnonzero(bound)
    current, count, found = label.tolist(), -1, 0
    while found != count:
        count = found
        current, found = _sweep(current, before, order)
        before, after, order = after, before, order[::-1]
    return np.array(current, dtype=np.int64)


def _sweep(
    label: list[int], near: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """Split classes by the classes of neighbours on one side; classes, and how many."""
    numbers: dict[tuple[int, ...], int] = {}
    new = [0] * len(label)
    for v in order:
        key = (label[v], *sorted(new[u] for u in near[v]))
        new[v] = numbers.setdefault(key, len(numbers))
    return new, len(numbers)


def _rows(of: Ints, idx: Ints, n: int) -> list[list[int]]:
    """CSR as lists."""
    ptr, found = csr(of, idx, n)
    flat = found.tolist()
    return [flat[a:b] for a, b in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)]
