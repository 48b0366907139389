"""Three-superblock programs (MTPP sections 4.2 and 4.3): one block, what is before, what is after.

Each cell, an item or a part of one, is in superblock 1, 2 or 3. y1 = 1: it is in 1; y2 = 1: it is
in 1 or 2; y1 and y2 fall along edges. Superblock 2 is some stage whose work, divided by its
replicas, is at least L (Lemma 4.2), and its load is minimised.

Where the loads of 1 and 3 count, y1 and y2 are the integers, as in the paper. Where they do not,
x = y2 - y1 is an integer column and y1 is continuous: solvers are several times faster. For x in
{0, 1} a continuous y1 forbids what an integer one forbids, since x[v] = 1 makes y1[v] = 0 and
y2[v] = 1, which is all that the second part of the lemma needs.

*Lemma.* A set S of items is convex if and only if there are y1 <= y2 that fall along all edges of
cells with y2 - y1 = 1 exactly in S. If S is convex, let y2 be 1 for S and for what reaches S, and
y1 for what reaches S and is not in it. If v has y2 = 1 then so has every u before it; if v has
y1 = 1 and u is before it, u reaches S as well, and is not in S: a path would leave S to v and
return. For the converse, a path from S leads to cells with y1 = 0, and a path to S comes from
cells with y2 = 1: what lies between two members of S is in S. So no order of all stages is
needed, nor is it where transfers within 1 and 3 are of no concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Ints
from dnnp.core.solver.program import SLACK
from dnnp.core.split.ip.contiguity import without_shortcuts
from dnnp.core.split.ip.draft import NEGLIGIBLE
from dnnp.core.split.ip.formulas import ONE, ZERO, Formulas, Sum, total
from dnnp.core.split.ip.loads import ProgramPart, add_loads
from dnnp.core.split.ip.task import Task, nets_of

MIDDLE = 2


class Kind(NamedTuple):
    """What superblock 2 stands for."""

    device: int
    """Position of its device's class."""
    replicas: int = 1
    before: int | None = None
    after: int | None = None
    """Stages that come before it and after it, at most, where their loads count (section 4.3)."""


class Parts(NamedTuple):
    """What a program of ordered splits is made of."""

    item: Ints
    """i64[cells], item of each cell."""
    tail: Ints
    head: Ints
    """Edges between cells; no cycles."""

    def first(self, items: int) -> Ints:
        """i64[items], a cell of each item."""
        cell = np.full(items, -1, dtype=np.int64)
        cell[self.item[::-1]] = np.arange(len(self.item))[::-1]
        return cell


def parts_of(task: Task, *, precedence: bool) -> Parts:
    """Cells of a task, and the edges among them if there is to be any precedence."""
    line = task.line
    every = np.arange(line.n, dtype=np.int64)
    if precedence and task.ordered:
        return Parts(every, *without_shortcuts(line.n, line.tail, line.head))
    if not precedence or task.cells is None:
        return Parts(every, every[:0], every[:0])
    alone = np.setdiff1d(every, task.cell_item)
    return Parts(np.concatenate([task.cell_item, alone]), task.cells.tail, task.cells.head)


def superblocks(
    task: Task,
    parts: Parts,
    kind: Kind,
    least_work: float,
    reference: float,
    lower: float,
    upper: float,
    *,
    transfers: bool = True,
    apart: Sequence[tuple[int, int]] = (),
) -> Formulas:
    """The program of one kind of stage.

    Parameters
    ----------
    task, parts
        Items, and the cells of which precedence is made.
    kind
        What superblock 2 stands for.
    least_work
        L of Lemma 4.2, seconds.
    reference
        The load that counts as 1, seconds.
    lower, upper
        Loads that matter, in units of the reference.
    transfers
        Whether they count.
    apart
        Pairs of items that no stage of interest holds both of.
    """
    formulas = Formulas(lower, upper)
    line, device = task.line, task.devices[kind.device]
    work = line.work[kind.device] / (kind.replicas * reference)
    never = ~(work <= formulas.upper)
    before, after = _columns(formulas, parts, kind, never)
    for u, v in zip(parts.tail.tolist(), parts.head.tolist(), strict=True):
        formulas.not_below(before[u], before[v])
        formulas.not_below(after[u], after[v])
    cell = parts.first(line.n)
    x = [after[c] - before[c] for c in cell.tolist()]
    for c, v in enumerate(parts.item.tolist()):
        if c != cell[v]:
            formulas.equal(after[c] - before[c], x[v])
    inside = np.flatnonzero(~never).tolist()
    mass = total((x[v], float(work[v])) for v in inside)
    formulas.not_below(mass, Sum({}, least_work / reference * (1 - SLACK)))
    for u, v in apart:
        formulas.not_below(ONE, total([(x[u], 1.0), (x[v], 1.0)]))
    near = min(device.inner_factor, 1.0) if device.cluster_size else 1.0
    scale = near / (kind.replicas * reference)
    nets = [] if device.is_cpu or not transfers else nets_of(task, kind.device)
    nets = [net._replace(cost=net.cost * scale) for net in nets]
    excess = _memory(formulas, task, kind, x, cell, scale=1 / (kind.replicas * reference))
    comm = task.options.comm
    add_loads(formulas, ProgramPart(MIDDLE, x, cell), work, nets, comm, excess)
    if kind.before is not None and kind.after is not None:
        some = [before[c] for c in cell.tolist()]
        rest = [ONE - after[c] for c in cell.tolist()]
        for number, members, stages in ((1, some, kind.before), (3, rest, kind.after)):
            if stages > 0:
                part = ProgramPart(number, members, cell, 1 / stages)
                add_loads(formulas, part, work, nets, comm)
    return formulas


def _columns(
    formulas: Formulas, parts: Parts, kind: Kind, never: Bools
) -> tuple[list[Sum], list[Sum]]:
    """y1 and y2 of every cell. Cells without edges are after the stage unless they are in it."""
    sides = kind.before is not None
    linked = np.zeros(len(parts.item), dtype=np.bool_)
    linked[parts.tail] = linked[parts.head] = True
    before: list[Sum] = []
    after: list[Sum] = []
    for c, v in enumerate(parts.item.tolist()):
        y1, y2 = ZERO, ONE
        if kind.before != 0 and (sides or linked[c]):
            y1 = formulas.column(lambda at, c=c: float(at[c] < MIDDLE), integer=sides)  # type: ignore[misc]
        if never[v]:
            # Before or after the stage, as far as there is anything.
            if kind.after == 0:
                formulas.equal(y1, ONE)
            y2 = y1
        elif not sides:
            x = formulas.column(lambda at, c=c: float(at[c] == MIDDLE), integer=True)  # type: ignore[misc]
            y2 = total([(y1, 1.0), (x, 1.0)])
            formulas.not_below(ONE, y2)
        elif kind.after != 0:
            y2 = formulas.column(lambda at, c=c: float(at[c] <= MIDDLE), integer=True)  # type: ignore[misc]
            formulas.not_below(y2, y1)
        before.append(y1)
        after.append(y2)
    return before, after


def _memory(
    formulas: Formulas, task: Task, kind: Kind, x: Sequence[Sum], cell: Ints, *, scale: float
) -> Sum:
    """Constrain the memory of superblock 2, or return what its overflow costs, at least.

    Where memory adds up over items; otherwise nothing is said, which leaves more splits.
    """
    device, storage = task.devices[kind.device], task.storage
    most = device.memory_bytes
    if device.is_cpu or not storage.exact or storage.fits(most):
        return ZERO
    held = storage.held.own
    if task.options.memory_mode == "hard":
        unit = max(most, float(held.max(initial=0.0)))
        load = total((x[v], float(held[v]) / unit) for v in np.flatnonzero(held).tolist())
        formulas.not_below(Sum({}, most / unit * (1 + SLACK)), load)
        return ZERO
    price = scale / device.bandwidth_bytes_per_s
    if price * storage.most <= NEGLIGIBLE:
        return ZERO
    load = total((x[v], float(held[v]) * price) for v in np.flatnonzero(held).tolist())
    limit = most * price

    def rule(at: Ints) -> float:
        return max(float(held[at[cell] == MIDDLE].sum()) * price - limit, 0.0)

    excess = formulas.column(rule, upper=storage.most * price)
    formulas.not_below(excess, load - Sum({}, limit))
    return excess


def start_of(parts: Parts, block: Ints, member: int, order: Ints | None) -> Ints:
    """Superblock of every cell, i64[cells], where superblock 2 is a block of a split.

    `block` (i64[items]) says where items are; `order` (i64[blocks]) is the place of every block
    in the pipeline. Without it superblock 1 is what reaches the block.
    """
    at = block[parts.item]
    if order is not None:
        return 2 + np.sign(order[at] - order[member]).astype(np.int64)
    reach = at == member
    pending = np.flatnonzero(reach).tolist()
    sources: list[list[int]] = [[] for _ in range(len(at))]
    for u, v in zip(parts.tail.tolist(), parts.head.tolist(), strict=True):
        sources[v].append(u)
    while pending:
        for u in sources[pending.pop()]:
            if not reach[u]:
                reach[u] = True
                pending.append(u)
    return np.where(at == member, 2, np.where(reach, 1, 3)).astype(np.int64)
