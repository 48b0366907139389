"""The exact program of ordered splits over devices of one class (MTPP Figure 3, Theorem 4.1).

y[v, b] = 1: item v is in block b or before. These are the integers of the program, branched on
before anything else; x[v, b] = y[v, b] - y[v, b - 1] (Eq. 11) is no column, and the columns of
transfers are continuous.

Splits of no interest are left out: y[v, b] is fixed outside of a window of blocks for each item,
and pairs of items can be kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.model.graph import Ints
from dnnp.core.split.ip.contiguity import without_shortcuts
from dnnp.core.split.ip.formulas import ONE, ZERO, Formulas, Sum, total, value_of
from dnnp.core.split.ip.loads import ProgramPart, add_loads
from dnnp.core.split.ip.task import Task, nets_of


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
        """For every item and block 0 to `stages`, whether the item is there or before."""
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
