"""Transfers right after their makers, which nothing but tests schedules so."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.tasks import Tasks
from dnnp.core.cost.timeline import TASK
from dnnp.core.model.graph import Ints


def eager_events(tasks: Tasks, device: Ints, order: Ints) -> Ints:
    """Events of tasks in `order`, every transfer right after its maker.

    Those of one maker come in the order of the first tasks that read them.
    """
    moves: dict[int, dict[tuple[int, int], None]] = {}
    for v in order.tolist():
        for f in tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist():
            if device[tasks.maker[f]] != device[v]:
                moves.setdefault(int(tasks.maker[f]), {})[f, int(device[v])] = None
    events = [move for v in order.tolist() for move in ((TASK, v), *moves.get(v, ()))]
    return np.array(events, dtype=np.int64).reshape(-1, 2)
