"""Which splits are allowed: devices, order, contiguity; and which of equal ones are looked at."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from dnnp.core.mip.split.contiguity import Cells, reaching, without_shortcuts
from dnnp.core.mip.split.draft import Draft
from dnnp.core.mip.split.task import alike
from dnnp.core.model.run import Run


def budget_devices(draft: Draft) -> None:
    """Where there are more places than devices: count the devices of the places in use."""
    devices = draft.task.devices
    wanted = [0] * len(devices)
    steps: dict[int, list[int]] = defaultdict(list)
    for i, p in enumerate(draft.places):
        wanted[p.device] += p.replicas
        if p.step >= 0:
            steps[p.step].append(i)
    scarce = any(w > d.count for w, d in zip(wanted, devices, strict=True))
    if not scarce and all(len(mine) == 1 for mine in steps.values()):
        return
    used = [
        draft.column(lambda at, i=i: float((at == i).any()), integer=True)  # type: ignore[misc]
        for i in range(len(draft.places))
    ]
    for i, q in enumerate(used):
        for row in draft.x:
            if row[i] >= 0:
                draft.row([(row[i], 1.0), (q, -1.0)], "<", 0.0)
        # A place that is used a little carries little.
        work = np.sum(draft.work(draft.places[i]), axis=0)
        carried = [(row[i], float(work[v])) for v, row in enumerate(draft.x)]
        draft.row([*carried, (q, -draft.upper)], "<", 0.0)
    for d, device in enumerate(devices):
        mine = [(used[i], float(p.replicas)) for i, p in enumerate(draft.places) if p.device == d]
        draft.row(mine, "<", float(device.count))
    for step, places in steps.items():
        draft.row([(used[i], 1.0) for i in places], "<", 1.0)
        if step > 0:  # empty steps come last
            before = [(used[i], 1.0) for i in steps[step - 1]]
            draft.row([*before, *((used[i], -1.0) for i in places)], ">", 0.0)


def keep_order(draft: Draft) -> None:
    """Precedence along the pipeline: y[v, s] says that item v is in step s or before."""
    line = draft.task.line
    steps: list[list[int]] = [[] for _ in range(max(p.step for p in draft.places) + 1)]
    for i, p in enumerate(draft.places):
        steps[p.step].append(i)
    step_of = np.array([p.step for p in draft.places])
    done: list[list[int]] = []
    for v in range(line.n):
        ys: list[int] = []
        for s, places in enumerate(steps[:-1]):
            y = draft.column(lambda at, v=v, s=s: float(step_of[at[v]] <= s), integer=True)  # type: ignore[misc]
            last = [(ys[-1], -1.0)] if ys else []
            draft.row([(y, 1.0), *last, *((draft.x[v][i], -1.0) for i in places)], "=", 0.0)
            ys.append(y)
        done.append(ys)
    tail, head = without_shortcuts(line.n, line.tail, line.head)
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        for first, second in zip(done[u], done[v], strict=True):
            draft.row([(second, 1.0), (first, -1.0)], "<", 0.0)


def number_places(draft: Draft) -> None:
    """Like places are numbered by their first item, heavy items first.

    The first item is then in the first of them, the second in the first or second, and so on.
    """
    order = by_work(draft)
    for mine in alike(draft.places):
        for i, v in enumerate(order[: len(mine)]):
            for p in mine[i + 1 :]:
                if draft.x[v][p] >= 0:
                    draft.program.upper[draft.x[v][p]] = 0.0


def by_work(draft: Draft) -> list[int]:
    """Items by falling work, at the class where each takes least."""
    works = np.min([np.sum(draft.work(p), axis=0) for p in draft.places], axis=0)
    order: list[int] = np.argsort(-works, kind="stable").tolist()
    return order


def keep_contiguous(draft: Draft, cells: Cells, run: Run) -> None:
    """Constraints (11) to (13) of Lemma 4.1: z is 1 while the block can still be reached.

    Wherever an edge leaves the block, z becomes 0 and stays so on every path.
    """
    item = draft.task.cell_item
    for i in range(len(draft.places)):
        if run.stop():
            break
        z = draft.columns(len(item), lambda at, i=i: reaching(cells, at[item] == i))  # type: ignore[misc]
        x = [draft.x[int(v)][i] for v in item]
        for c, column in enumerate(z):
            if x[c] >= 0:
                draft.row([(column, 1.0), (x[c], -1.0)], ">", 0.0)
        for u, v in zip(cells.tail.tolist(), cells.head.tolist(), strict=True):
            draft.row([(z[v], 1.0), (z[u], -1.0)], "<", 0.0)
            draft.row([(z[v], 1.0), (x[v], -1.0), (x[u], 1.0)], "<", 1.0)
