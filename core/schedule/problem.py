"""The blocks of consecutive micro-batches as arrays: what every schedule search works on.

A problem of u micro-batches serves two purposes: a *repetend* repeats all of its blocks every
period (modulo scheduling; u is the unrolling), and a *finite* schedule runs each of them once.
Block i of micro-batch j is block j * k + i, where k is the number of blocks of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.graph import Floats, Ints, csr, offsets, totals
from dnnp.core.model.schedule import Placement, Repetend

TOLERANCE = 1e-9
"""Relative tolerance for equal times, and memory, of the sum of all."""

SAME_START = 2.0**-48
"""Relative tolerance for equal starts, of the time since the first one."""


class BlockArrays(NamedTuple):
    """The blocks of a problem as kernels read them."""

    time: Floats
    memory: Floats
    ptr: Ints
    unit: Ints
    """As in `ScheduleProblem`."""
    before_ptr: Ints
    before: Ints
    delay: Floats
    """Predecessors of each block (CSR), and the time from the end of each to the start of it."""


@dataclass(frozen=True)
class ScheduleProblem:
    """b = u * k blocks on D units, links among them."""

    unroll: int
    """u, micro-batches."""
    time: Floats
    """f64[b] of each block."""
    memory: Floats
    """f64[b], added to each of its units when a block starts."""
    ptr: Ints
    """i64[b + 1]; the units of block i are `unit[ptr[i]:ptr[i + 1]]`, ascending."""
    unit: Ints
    """i64[ptr[b]]."""
    tail: Ints
    """i64[e]; block `head[i]` starts at least `delay[i]` after block `tail[i]` has ended."""
    head: Ints
    delay: Floats
    capacity: Floats
    """f64[D], limit of the memory of blocks: without `fixed`; may be inf."""
    fixed: Floats
    """f64[D], memory that is always held."""
    is_link: NDArray[np.bool_]
    """bool[D], units that only carry transfers."""
    names: tuple[str, ...]
    """Of the units, for messages."""

    @property
    def b(self) -> int:
        """Number of blocks."""
        return len(self.time)

    @property
    def k(self) -> int:
        """Number of blocks of one micro-batch."""
        return self.b // self.unroll

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.capacity)

    @cached_property
    def arrays(self) -> BlockArrays:
        """The blocks for kernels."""
        before_ptr, by_head = csr(self.head, np.arange(len(self.head)), self.b)
        before, delay = self.tail[by_head], self.delay[by_head]
        return BlockArrays(self.time, self.memory, self.ptr, self.unit, before_ptr, before, delay)

    def load(self) -> Floats:
        """Time that each unit is busy for all blocks; f64[D]."""
        return totals(self.unit, self.time[self.owner()], self.units)

    def owner(self) -> Ints:
        """The block of each entry of `unit`."""
        return np.repeat(np.arange(self.b, dtype=np.int64), np.diff(self.ptr))

    def by_unit(self) -> list[Ints]:
        """Blocks of each unit, ascending."""
        ptr, block = csr(self.unit, self.owner(), self.units)
        return [block[begin:end] for begin, end in pairwise(ptr.tolist())]

    def left_behind(self) -> Floats:
        """Memory that each unit holds after all blocks; f64[D]. Not 0: it does not repeat."""
        return totals(self.unit, self.memory[self.owner()], self.units)

    def tracked(self) -> NDArray[np.bool_]:
        """Units where nothing is left behind but rounding, so that memory repeats; bool[D]."""
        return np.abs(self.left_behind()) <= TOLERANCE * float(np.abs(self.memory).sum())


def problem_of(placement: Placement, unroll: int) -> ScheduleProblem:
    """Blocks of micro-batches 0 to unroll - 1; their homes follow `PlacedBlock.homes`.

    `Wait.transfer_s` is ignored: `core.schedule.transfers` makes blocks of it.
    """
    k = len(placement.blocks)
    homes = [
        tuple(sorted(block.homes[j % len(block.homes)]))
        for j in range(unroll)
        for block in placement.blocks
    ]
    waits = [(w.block, i, w.delay_s) for i, b in enumerate(placement.blocks) for w in b.after]
    tail, head = (np.array([w[c] for w in waits], dtype=np.int64) for c in (0, 1))
    shift = k * np.arange(unroll, dtype=np.int64)[:, None]
    limits = np.array([unit.memory_bytes for unit in placement.units], dtype=np.float64)
    fixed = np.array([unit.fixed_bytes for unit in placement.units], dtype=np.float64)
    return ScheduleProblem(
        unroll=unroll,
        time=np.tile(np.array([b.time_s for b in placement.blocks], dtype=np.float64), unroll),
        memory=np.tile(
            np.array([b.memory_bytes for b in placement.blocks], dtype=np.float64), unroll
        ),
        ptr=offsets([len(h) for h in homes]),
        unit=np.array([d for h in homes for d in h], dtype=np.int64),
        tail=(tail[None, :] + shift).ravel(),
        head=(head[None, :] + shift).ravel(),
        delay=np.tile(np.array([w[2] for w in waits], dtype=np.float64), unroll),
        capacity=limits - fixed,
        fixed=fixed,
        is_link=np.array([unit.link for unit in placement.units], dtype=np.bool_),
        names=tuple(unit.name for unit in placement.units),
    )


def limited(problem: ScheduleProblem, most: float) -> ScheduleProblem:
    """The same problem where no unit may hold more than `most`, `fixed` included."""
    return replace(problem, capacity=np.minimum(problem.capacity, most - problem.fixed))


def span_of(problem: ScheduleProblem, start: Floats) -> float:
    """First start to last end."""
    return float((start + problem.time).max() - start.min()) if problem.b else 0.0


def steady_memory(problem: ScheduleProblem, start: Floats, period: float) -> Floats:
    """Peak memory of each unit while blocks repeat every `period`; f64[D], `fixed` included.

    The first instance of block i starts at start[i]. Memory counts from the start of a block on;
    blocks that start at the same time count together (Tessel, Eq. 1). Units where memory is left
    behind (`ScheduleProblem.left_behind`) have no peak: inf if it grows, that of the first period
    if it shrinks.
    """
    peak = problem.fixed.copy()
    left = problem.left_behind()
    slack = min(SAME_START * max(span_of(problem, start), period), TOLERANCE * period)
    for d, mine in enumerate(problem.by_unit()):
        mine = mine[problem.memory[mine] != 0]
        if not len(mine):
            continue
        scale = TOLERANCE * float(np.abs(problem.memory[mine]).sum())
        if left[d] > scale:
            peak[d] = np.inf
            continue
        # Of block i, floor((t - start[i]) / period) + 1 instances have started at time t.
        lag = np.floor((start[mine] + slack) / period)
        phase = np.maximum(start[mine] - lag * period, 0.0)
        held = -(problem.memory[mine] * lag).sum()
        order = np.argsort(phase, kind="stable")
        levels = held + np.cumsum(problem.memory[mine][order])
        last = np.append(np.diff(phase[order]) > slack, True)
        # What is held before the first start of a period is what is held after the last one.
        peak[d] += max(float(levels[last].max()), 0.0)
    return peak


def peak_memory(problem: ScheduleProblem, start: Floats) -> Floats:
    """Peak memory of each unit while every block runs once; f64[D], `fixed` included."""
    peak = problem.fixed.copy()
    since = start - start.min(initial=np.inf)
    for d, mine in enumerate(problem.by_unit()):
        if not len(mine):
            continue
        at = np.sort(since[mine])
        order = np.argsort(since[mine], kind="stable")
        levels = np.cumsum(problem.memory[mine][order])
        last = np.append(np.diff(at) > SAME_START * at[1:], True)
        peak[d] += max(float(levels[last].max()), 0.0)
    return peak


def violations(problem: ScheduleProblem, start: Floats, period: float | None = None) -> list[str]:
    """Violated constraints of start times, as messages.

    With a period the blocks repeat, else each runs once. Limits of memory count.
    """
    found = []
    whole = float(problem.time.sum() + problem.delay.sum())
    slack = TOLERANCE * max(whole, period or 0.0)
    late = start[problem.tail] + problem.time[problem.tail] + problem.delay - start[problem.head]
    for i in np.flatnonzero(late > slack).tolist():
        found.append(f"block {problem.head[i]} starts {late[i]:g} too early for {problem.tail[i]}")
    for d, mine in enumerate(problem.by_unit()):
        mine = mine[problem.time[mine] > slack]
        if not len(mine):
            continue
        if period is None:
            phase = start[mine]
        else:
            phase = start[mine] - np.floor((start[mine] + slack) / period) * period
        order = np.argsort(phase, kind="stable")
        following = np.roll(phase[order], -1)
        following[-1] = np.inf if period is None else following[-1] + period
        over = phase[order] + problem.time[mine][order] - following
        for i in np.flatnonzero(over > slack).tolist():
            found.append(f"unit {d}: block {mine[order[i]]} runs {over[i]:g} into the next one")
    held = peak_memory(problem, start) if period is None else steady_memory(problem, start, period)
    scale = TOLERANCE * float(np.abs(problem.memory).sum() + problem.fixed.sum())
    for d in np.flatnonzero(held > problem.capacity + problem.fixed + scale).tolist():
        found.append(f"unit {d} holds {held[d]:g}")
    return found


def with_limit(placement: Placement, memory_bytes: float) -> Placement:
    """The same placement where every device may hold so much."""
    units = tuple(u if u.link else replace(u, memory_bytes=memory_bytes) for u in placement.units)
    return replace(placement, units=units)


def within(placement: Placement, memory_bytes: Floats) -> Placement:
    """The same placement where no device may hold more than any does now, nor more than before.

    `memory_bytes` (f64[units]): their memory now; inf where it grows without end.
    """
    ends = np.isfinite(memory_bytes)
    most = float(memory_bytes[ends].max(initial=0.0))
    units = tuple(
        replace(unit, memory_bytes=min(unit.memory_bytes, most)) if end else unit
        for unit, end in zip(placement.units, ends.tolist(), strict=True)
    )
    return replace(placement, units=units)


@dataclass(frozen=True)
class Wanted:
    """Options of a schedule."""

    micro_batches: int
    method: str = "auto"
    """A name of `core.methods`."""
    unroll: int | None = None
    """Micro-batches in a period; None: 1, and more where that leaves a gap to the bound."""
    most_in_flight: int | None = None
    """`tessel`: micro-batches that a repetend may be made of (N_R)."""
    lazy: bool = True
    """`tessel`: complete the best repetend only, not every better one."""


class Batch(NamedTuple):
    """All micro-batches of a schedule."""

    placement: Placement
    problem: ScheduleProblem
    """Of all micro-batches."""
    bound: float
    """No schedule within the memory limits is shorter."""


class Answer(NamedTuple):
    """The schedule that a method found."""

    start: Floats
    """f64[micro-batches * blocks]."""
    method: str
    """Maker of `start`; of `optimal`, `known` stands for the schedule that it was given."""
    bound: float
    """No schedule of as many micro-batches within the memory limits is shorter."""
    status: str = "feasible"
    """`optimal`, `feasible` or `interrupted`."""
    repetend: Repetend | None = None
    """The best one, if the method looks for any."""
    rate_s: float | None = None
    """Time for each of many micro-batches; None: not known."""
    widest: int = 0
    """Of `optimal`: width of the last beam if a wider one exceeds memory; else 0."""

    def named(self, known: str) -> str:
        """Method of `start`; `known` is that of the given schedule."""
        return known if self.method == "known" else self.method
