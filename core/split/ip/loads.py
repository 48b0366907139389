"""The load of one block of a numbered split as formulas (`dnnp.core.cost.load`).

A tensor crosses the border of block b if some of its pins, the items that make or read it, are in
b and some are not. With x[v] = 1 where item v is in b, that is

    max x[v] - min x[v] over the pins,

two columns a tensor, or one column for two pins; every other way to write it down linearly, such
as MTPP Eqs. 9 and 10, is weaker where x is fractional. With `duplex` the two directions count
apart: the tensor comes in at max(x[reader] - x[source], 0), and goes out at
max(x[source] - x[reader], 0), over its readers.

The same formulas of a set of blocks, divided by their number, bound their largest load from
below: a tensor that crosses the border of the set crosses, in the same direction, that of at
least one of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.core.split.ip.draft import NEGLIGIBLE
from dnnp.core.split.ip.formulas import ZERO, Formulas, Sum, total
from dnnp.core.split.ip.task import Net


class ProgramPart(NamedTuple):
    """A block, or a set of blocks, of a program."""

    number: int
    """What a starting solution calls it."""
    x: Sequence[Sum]
    """For every item, 1 where it is in here."""
    cell: Ints
    """i64[items], a cell that is where the item is."""
    share: float = 1.0
    """What the largest load is at least, of the load of the part."""


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
    """What comes in and what goes out; all of it comes in unless the directions are `split`."""
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
