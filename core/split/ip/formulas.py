"""Programs of splits in numbered blocks (MTPP section 4), written in sums of columns.

What the paper eliminates (MTPP Eq. 11) never becomes a column: x[v, b] is the difference of two
columns y, some of which may be fixed.

*Loads* (`dnnp.core.cost.load`). A tensor crosses the border of block b if some of its pins, the
items that make or read it, are in b and some are not. With x[v] = 1 where item v is in b, that is

    max x[v] - min x[v] over the pins,

two columns a tensor, or one column for two pins; every other way to write it down linearly, such
as MTPP Eqs. 9 and 10, is weaker where x is fractional. With `duplex` the two directions count
apart: the tensor comes in at max(x[reader] - x[source], 0), and goes out at
max(x[source] - x[reader], 0), over its readers.

The same formulas of a set of blocks, divided by their number, bound their largest load from
below: a tensor that crosses the border of the set crosses, in the same direction, that of at
least one of its blocks.

*The exact program* of ordered splits over devices of one class (Figure 3, Theorem 4.1), `Pipeline`.
y[v, b] = 1: item v is in block b or before. These are the integers of the program, branched on
before anything else; x[v, b] = y[v, b] - y[v, b - 1] (Eq. 11) is no column, and the columns of
transfers are continuous.

Splits of no interest are left out: y[v, b] is fixed outside of a window of blocks for each item,
and pairs of items can be kept apart.

*Three superblocks* (sections 4.2 and 4.3): one block, what is before, what is after.
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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.solver.program import SLACK, Program
from dnnp.core.split.ip.task import Net, Task, nets_of, reaching, without_shortcuts
from dnnp.core.split.ip.throughput import NEGLIGIBLE

CLOSE = 1e-9
"""Tolerance for rows of numbers about 1 in a starting solution."""

Rule = Callable[[Ints], float]
"""Value of a column, given the block of every cell."""

MIDDLE = 2


class Sum(NamedTuple):
    """A weighted sum of columns, and a constant."""

    terms: Mapping[int, float]
    constant: float = 0.0

    def __sub__(self, other: Sum) -> Sum:
        return total([(self, 1.0), (other, -1.0)])


ZERO, ONE = Sum({}), Sum({}, 1.0)


def total(parts: Iterable[tuple[Sum, float]]) -> Sum:
    """A weighted sum of sums."""
    terms: dict[int, float] = {}
    constant = 0.0
    for part, weight in parts:
        constant += weight * part.constant
        for column, share in part.terms.items():
            terms[column] = terms.get(column, 0.0) + weight * share
    return Sum({c: w for c, w in terms.items() if w}, constant)


class Formulas:
    """Minimise the largest load: the column `top`, between two limits; a load of 1 is about 1.

    Parameters
    ----------
    lower
        No load that is looked for is smaller.
    upper
        None that is of interest is greater.
    """

    def __init__(self, lower: float, upper: float) -> None:
        self.program = Program()
        self.upper = upper * (1 + SLACK)
        self.top = self.program.column(self.upper, lower=min(lower, self.upper), cost=1.0)
        self.hopeless = False
        """A constraint without columns cannot hold."""
        self._rules: list[Rule] = [lambda at: 0.0]
        self._loads: list[tuple[Sum, float]] = []

    def column(self, rule: Rule, *, upper: float = 1.0, integer: bool = False) -> Sum:
        """Add a column from 0 to `upper` that depends on where the cells are."""
        self._rules.append(rule)
        return Sum({self.program.column(upper, integer=integer): 1.0})

    def not_below(self, more: Sum, less: Sum = ZERO) -> None:
        """more >= less."""
        terms, constant = more - less
        if terms:
            self.program.row(list(terms), list(terms.values()), ">", -constant)
        elif constant < -CLOSE:
            self.hopeless = True

    def equal(self, one: Sum, other: Sum) -> None:
        """one = other."""
        terms, constant = one - other
        if terms:
            self.program.row(list(terms), list(terms.values()), "=", -constant)
        elif abs(constant) > CLOSE:
            self.hopeless = True

    def load(self, load: Sum, share: float = 1.0) -> None:
        """The largest load is at least `share` of this one."""
        self._loads.append((load, share))
        self.not_below(Sum({self.top: 1.0}), total([(load, share)]))

    def start(self, at: Ints) -> list[float] | None:
        """All columns for given blocks of the cells; None if the program rules them out."""
        values = [float(rule(at)) for rule in self._rules]
        loads = [share * value_of(load, values) for load, share in self._loads]
        values[self.top] = max([self.program.lower[self.top], *loads])
        return values if self.admits(values, CLOSE) else None

    def admits(self, values: Sequence[float], tolerance: float) -> bool:
        """True if values of the columns meet all constraints."""
        program = self.program
        if len(values) != len(program.upper):
            return False
        x = np.array(values)
        if (x > np.array(program.upper) + tolerance).any():
            return False
        for columns, weights, sense, bound in program.rows:
            left = sum(w * values[c] for c, w in zip(columns, weights, strict=True))
            low, high = left < bound - tolerance, left > bound + tolerance
            if (sense != "<" and low) or (sense != ">" and high):
                return False
        return True


def value_of(formula: Sum, values: Sequence[float]) -> float:
    """A sum where the columns have these values."""
    return formula.constant + sum(w * values[c] for c, w in formula.terms.items())


class ProgramPart(NamedTuple):
    """A block, or a set of blocks, of a program."""

    number: int
    """Its number in a starting solution."""
    x: Sequence[Sum]
    """1 for every item in the part."""
    cell: Ints
    """i64[items], a cell that is where the item is."""
    share: float = 1.0
    """The largest load is at least this share of the load of the part."""


def add_loads(
    formulas: Formulas,
    part: ProgramPart,
    work: Floats,
    nets: Sequence[Net],
    comm: str,
    overflow: Sum = ZERO,
) -> None:
    """Let the largest load be at least that of a part.

    `work` (f64[items]) and the cost of `nets` are in units of the reference load; items whose
    work is infinite are not in the part.
    """
    finite = np.flatnonzero(np.isfinite(work) & (work > NEGLIGIBLE)).tolist()
    compute = total((part.x[v], float(work[v])) for v in finite)
    arriving, leaving = _transfers(formulas, part, nets, split=comm == "duplex")
    arriving.append((overflow, 1.0))
    if comm == "sum":
        formulas.load(total([(compute, 1.0), *arriving, *leaving]), part.share)
        return
    formulas.load(compute, part.share)
    links = [arriving, leaving] if comm == "duplex" else [arriving + leaving]
    for terms in links:
        formulas.load(total(terms), part.share)


def _transfers(
    formulas: Formulas, part: ProgramPart, nets: Sequence[Net], *, split: bool
) -> tuple[list[tuple[Sum, float]], list[tuple[Sum, float]]]:
    """Terms of what comes in and goes out; all comes in unless the directions are `split`."""
    arriving: list[tuple[Sum, float]] = []
    leaving: list[tuple[Sum, float]] = []
    for net in nets:
        if net.cost <= NEGLIGIBLE:
            continue
        made = net.source >= 0
        pins = [net.source, *net.readers] if made else list(net.readers)
        if not split or not made:
            formula = _touched(formulas, part, pins) if net.always else _cut(formulas, part, pins)
            arriving.append((formula, net.cost))
            continue
        source, readers = net.source, list(net.readers)
        if readers:
            arriving.append((_one_way(formulas, part, readers, source, into=True), net.cost))
        if net.always:
            leaving.append((part.x[source], net.cost))
        elif readers:
            leaving.append((_one_way(formulas, part, readers, source, into=False), net.cost))
    return arriving, leaving


def _touched(formulas: Formulas, part: ProgramPart, pins: list[int]) -> Sum:
    """1 if some pin is in the part."""
    if len(pins) == 1:
        return part.x[pins[0]]
    cells, number = part.cell[pins], part.number
    column = formulas.column(lambda at: float((at[cells] == number).any()))
    for v in pins:
        formulas.not_below(column, part.x[v])
    return column


def _cut(formulas: Formulas, part: ProgramPart, pins: list[int]) -> Sum:
    """1 if some pin is in the part and some pin is not."""
    if len(pins) < 2:
        return ZERO
    cells, number = part.cell[pins], part.number
    if len(pins) == 2:
        a, b = part.x[pins[0]], part.x[pins[1]]
        column = formulas.column(lambda at: float((at[cells] == number).sum() == 1))
        formulas.not_below(column, a - b)
        formulas.not_below(column, b - a)
        return column
    least = formulas.column(lambda at: float((at[cells] == number).all()))
    for v in pins:
        formulas.not_below(part.x[v], least)
    return _touched(formulas, part, pins) - least


def _one_way(
    formulas: Formulas, part: ProgramPart, readers: list[int], source: int, *, into: bool
) -> Sum:
    """1 if a tensor crosses the border in one direction."""
    cells, maker, number = part.cell[readers], part.cell[source], part.number

    def rule(at: Ints) -> float:
        here = at[cells] == number
        if into:
            return float(at[maker] != number and here.any())
        return float(at[maker] == number and not here.all())

    column = formulas.column(rule)
    for v in readers:
        difference = part.x[v] - part.x[source]
        formulas.not_below(column, difference if into else ZERO - difference)
    return column


class Pipeline:
    """The program, and how to read its solutions.

    Parameters
    ----------
    task
        Items; devices of one class, accelerators or CPUs, whose memory does not bind.
    stages
        Number of blocks.
    earliest, latest
        i64[items], the blocks, from 1 to `stages`, that an item may be in.
    reference
        The load that counts as 1, seconds.
    lower, upper
        Loads that matter, in units of the reference.
    apart
        Pairs of items that no block of interest holds both of.
    """

    def __init__(
        self,
        task: Task,
        stages: int,
        earliest: Ints,
        latest: Ints,
        reference: float,
        lower: float,
        upper: float,
        apart: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.formulas = Formulas(lower, upper)
        line = task.line
        self.y = [self._columns(v, stages, int(earliest[v]), int(latest[v])) for v in range(line.n)]
        """1 for every item and block 0 to `stages` if the item is there or before."""
        tail, head = without_shortcuts(line.n, line.tail, line.head)
        for u, v in zip(tail.tolist(), head.tolist(), strict=True):
            for first, second in zip(self.y[u], self.y[v], strict=True):
                self.formulas.not_below(first, second)
        work = line.work[0] / reference
        nets = [] if task.devices[0].is_cpu else nets_of(task, 0)
        nets = [net._replace(cost=net.cost / reference) for net in nets]
        cell = np.arange(line.n, dtype=np.int64)
        for b in range(1, stages + 1):
            x = [row[b] - row[b - 1] for row in self.y]
            for u, v in apart:
                if x[u] != ZERO and x[v] != ZERO:
                    self.formulas.not_below(ONE, total([(x[u], 1.0), (x[v], 1.0)]))
            add_loads(self.formulas, ProgramPart(b, x, cell), work, nets, task.options.comm)

    def blocks(self, values: Sequence[float]) -> Ints:
        """Block of every item in a solution, i64[items]."""
        rows = [[value_of(y, values) > 0.5 for y in row] for row in self.y]
        return np.array([row.index(True) for row in rows], dtype=np.int64)

    def _columns(self, v: int, stages: int, first: int, last: int) -> list[Sum]:
        if first > last:
            self.formulas.hopeless = True
        row: list[Sum] = []
        for b in range(stages + 1):
            if b < first or b >= last:
                row.append(ZERO if b < first and b < last else ONE)
                continue
            y = self.formulas.column(lambda at, b=b: float(at[v] <= b), integer=True)  # type: ignore[misc]
            if row[-1].terms:
                self.formulas.not_below(y, row[-1])
            row.append(y)
        return row


class Kind(NamedTuple):
    """The stage that superblock 2 stands for."""

    device: int
    """Position of its device's class."""
    replicas: int = 1
    before: int | None = None
    after: int | None = None
    """Stages that come before it and after it, at most, where their loads count (section 4.3)."""


class Parts(NamedTuple):
    """Cells and edges of a program of ordered splits."""

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
    reach = reaching(parts.tail, parts.head, at == member)
    return np.where(at == member, 2, np.where(reach, 1, 3)).astype(np.int64)
